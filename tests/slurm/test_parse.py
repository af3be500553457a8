"""Parsers on the output of real Slurm, recorded; and on everything else."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import FtslurmError, SlurmUnavailable, UnknownJob, UsageError
from ftslurm.model.nodes import Topology
from ftslurm.slurm.client import JobState, JobView, NodeState
from ftslurm.slurm.parse import node_names, parse_config, parse_job, parse_nodes, parse_topology, unix_time

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "slurm"
VERSIONS = sorted(folder.name for folder in RECORDED.iterdir() if folder.is_dir())
LYING_NAME = "x JobState=COMPLETED Requeue=0 NodeList=n9"
COMMENT = "a b JobState=FAILED Comment=zzz\nsecond line: StartTime=1"


def recorded(version: str, name: str) -> str:
    return (RECORDED / version / f"{name}.txt").read_text()


def read(version: str, name: str) -> JobView:
    """The job that was asked for: the first number of the text, but for the array, which lists other tasks first."""
    text = recorded(version, name)
    array = text.partition("ArrayJobId=")[2].split(" ")[0]
    return parse_job(text, int(array or text.partition("JobId=")[2].split(" ")[0]))


every_version = pytest.mark.parametrize("version", VERSIONS)


@every_version
def test_reads_a_running_job_past_its_lying_name(version: str) -> None:
    view = read(version, "job-running")
    assert (view.state, view.completing, view.held, view.reason) == (JobState.RUNNING, False, False, "")
    assert (view.batch, view.requeue, view.restarts) == (True, True, 0)
    assert (view.nodes, view.node_count, view.excluded) == (("n1", "n2"), 2, frozenset())
    assert (view.name, view.comment, view.user_id, view.partition) == (LYING_NAME, COMMENT, 1000, "main")
    assert view.start_time >= view.submit_time > 1_795_000_000
    # Without a time limit Slurm knows no end; where its backfill scheduler started the job, it says a year.
    assert view.end_time in (0, view.start_time + 365 * 86400)
    assert (view.array_job, view.array_task) == (None, None)


@every_version
@pytest.mark.parametrize("name", ["job-requeued-held", "job-requeued-held-time-limit"])
def test_sees_that_a_completing_job_waits(version: str, name: str) -> None:
    view = read(version, name)
    assert (view.state, view.completing, view.held, view.restarts) == (JobState.PENDING, True, True, 1)
    assert view.reason == "job_requeued_in_held_state"
    assert (view.nodes, view.node_count, view.end_time) == ((), 2, 0)


@every_version
def test_sees_exclusion_and_start_of_a_job_that_still_completes(version: str) -> None:
    view = read(version, "job-requeued-released")
    assert (view.state, view.completing, view.held) == (JobState.PENDING, True, False)
    assert view.excluded == {"n1", "n2"}
    waiting = read(version, "job-begin-time")
    assert (waiting.state, waiting.completing, waiting.reason) == (JobState.PENDING, False, "BeginTime")
    assert view.start_time == waiting.start_time > view.submit_time
    again = read(version, "job-restarted")
    assert (again.state, again.restarts, again.nodes) == (JobState.RUNNING, 1, ("n3", "n4"))
    assert again.start_time >= view.start_time


@every_version
@pytest.mark.parametrize(
    ("name", "state", "completing"),
    [
        ("job-held", JobState.PENDING, False),
        ("job-failed", JobState.FAILED, False),
        ("job-cancelled", JobState.CANCELLED, False),
        ("job-cancelled-completing", JobState.UNKNOWN, True),
        ("job-salloc", JobState.RUNNING, False),
        ("job-special-exit", JobState.PENDING, False),
    ],
)
def test_reads_states(version: str, name: str, state: JobState, completing: bool) -> None:
    view = read(version, name)
    assert (view.state, view.completing) == (state, completing)
    assert view.held == (name in ("job-held", "job-special-exit"))
    assert view.batch == (name != "job-salloc")


def test_tells_an_expedited_job() -> None:
    """By Slurm's own line alone: this comment says the same on the comment's."""
    text = recorded("26.05", "job-expedited")
    number = int(text.partition("JobId=")[2].split(" ")[0])
    other_flag = text.replace("   Expedited", "   SpreadJob=Yes Expedited")
    assert [parse_job(each, number).expedited for each in (text, other_flag)] == [True, True]
    said = text.replace("Comment=two words", "Comment=two ExpeditedRequeue=Yes").replace("   Expedited", "   SpreadJob=Yes #")
    assert said != text and not parse_job(said, number).expedited
    assert not any(read(version, "job-running").expedited for version in VERSIONS)


@every_version
def test_finds_the_task_among_all_of_its_array(version: str) -> None:
    text = recorded(version, "job-array")
    view = read(version, "job-array")
    assert (view.number, view.array_job, view.array_task) == (view.array_job, view.number, 2)
    others = [int(part.split(" ")[0]) for part in text.split("JobId=")[1:] if "ArrayJobId=" not in part.split(" ")[0]]
    tasks = {parse_job(text, number).array_task for number in set(others) if number > view.number}
    assert tasks == {0, 1}


@every_version
def test_reads_an_array_in_waiting(version: str) -> None:
    view = read(version, "job-array-undivided")
    assert (view.array_job, view.array_task, view.name) == (view.number, None, "sleeper.sh")


@every_version
def test_refuses_to_guess_which_line_is_slurms(version: str) -> None:
    """The name of this job holds line breaks and a whole line with another user's id."""
    with pytest.raises(SlurmUnavailable, match="UserId= is there twice"):
        read(version, "job-imitation")


@every_version
def test_a_comment_cannot_add_a_job(version: str) -> None:
    view = read(version, "job-imitation-other")
    assert (view.user_id, view.state) == (1000, JobState.PENDING)
    text = recorded(version, "job-imitation-other").replace("JobId=1 ", f"JobId={view.number} ")
    with pytest.raises(SlurmUnavailable, match=r"is there \d times"):
        parse_job(text, view.number)


@every_version
def test_tells_a_job_that_is_not_there(version: str) -> None:
    with pytest.raises(UnknownJob):
        parse_job(recorded(version, "job-running"), 999_999)
    with pytest.raises(UnknownJob):
        parse_job("", 1)


@every_version
def test_a_job_that_somebody_has_held_while_it_runs_will_wait_for_a_release(version: str) -> None:
    text = recorded(version, "job-running")
    number = read(version, "job-running").number
    held = parse_job(re.sub(r"Priority=\d+", "Priority=0", text), number)
    assert not read(version, "job-running").to_be_held and held.to_be_held and not held.held


def test_a_job_without_its_lines_cannot_be_read() -> None:
    with pytest.raises(SlurmUnavailable, match="JobState= is missing"):
        parse_job("JobId=7 JobName=x\n   UserId=u(1) GroupId=u(1)\n   Priority=1 Nice=0\n", 7)


@every_version
def test_reads_nodes(version: str) -> None:
    nodes = {view.name: view for view in parse_nodes(recorded(version, "nodes"))}
    assert list(nodes) == ["n1", "n2", "n3", "n4"]
    assert [view.state for view in nodes.values()] == [
        NodeState.GOOD,
        NodeState.DRAINING,
        NodeState.GOOD,
        NodeState.DRAINING,
    ]
    assert nodes["n2"].words == "ALLOCATED+DRAIN"
    assert nodes["n2"].reason == "ftslurm: x  [y] z"
    assert nodes["n4"].reason == "bad chip State=IDLE"
    assert nodes["n1"].partitions == {"main"}


def test_a_node_that_turns_up_twice_is_unknown() -> None:
    nodes = parse_nodes("NodeName=n1 State=IDLE Reason=x\nNodeName=n1 State=DOWN\n")
    assert [(view.name, view.state) for view in nodes] == [("n1", NodeState.UNKNOWN)]


def test_a_comment_is_no_reason() -> None:
    [view] = parse_nodes("NodeName=n1 State=IDLE Partitions=a,b  Comment=hello Reason=none")
    assert (view.reason, view.partitions) == ("", {"a", "b"})


@every_version
def test_reads_the_configuration(version: str) -> None:
    config = parse_config(recorded(version, "config"))
    assert config["SLURM_VERSION"].startswith(version)
    assert config["KillWait"] == "5 sec"
    assert config["RequeueExit"] == ""
    assert config["AuthInfo"].startswith("socket=")
    assert len(config) > 150


def test_takes_more_than_a_thousand_nodes() -> None:
    text = recorded("22.05", "job-running").replace("NumNodes=2 ", "NumNodes=2K-4K ")
    number = int(text.partition("JobId=")[2].split(" ")[0])
    assert parse_job(text, number).node_count == 2048


@pytest.mark.parametrize(("text", "seconds"), [("1795256261", 1_795_256_261), ("Unknown", 0), ("N/A", 0), ("None", 0), ("", 0)])
def test_reads_times(text: str, seconds: int) -> None:
    assert unix_time(text) == seconds


def test_reads_local_times() -> None:
    assert unix_time("2026-11-21T09:41:26") == int(time.mktime((2026, 11, 21, 9, 41, 26, 0, 0, -1)))


@pytest.mark.parametrize("text", ["n1 n2", "@all", "n1!n2", "n1&n2", "n[1-", "n[x]"])
def test_what_is_no_node_list_is_not_expanded(text: str) -> None:
    with pytest.raises(UsageError):
        node_names(text)


noise = st.text(alphabet=st.sampled_from("aN=1 \n[](),-@:T\x0b\u2028\x00"), max_size=40)


@given(st.data())
def test_no_answer_makes_a_parser_stumble(data: st.DataObject) -> None:
    """Recorded answers with a piece cut out or put in anywhere."""
    name = data.draw(st.sampled_from(["job-running", "job-array", "job-requeued-held", "nodes", "config"]))
    text = recorded("22.05", name)
    start = data.draw(st.integers(0, len(text)))
    end = data.draw(st.integers(start, min(start + 30, len(text))))
    text = text[:start] + data.draw(noise) + text[end:]
    number = int(recorded("22.05", "job-running").partition("JobId=")[2].split(" ")[0])
    for parse in (lambda: parse_job(text, number), lambda: parse_nodes(text), lambda: parse_config(text)):
        try:
            parse()
        except FtslurmError:
            continue


@given(st.text())
def test_no_text_makes_a_parser_stumble(text: str) -> None:
    nodes = f"NodeName={text}"
    for parse in (lambda: parse_job(f"JobId=1 {text}", 1), lambda: parse_nodes(nodes), lambda: parse_config(text)):
        try:
            parse()
        except FtslurmError:
            continue


@given(st.text(st.characters(exclude_characters="\r"), max_size=60))
def test_no_name_fakes_a_field(name: str) -> None:
    """Either the whole name comes back and all else as it is, or the answer is refused."""
    text = recorded("22.05", "job-held").replace("JobName=sleeper.sh", f"JobName={name}")
    number = int(text.partition("JobId=")[2].split(" ")[0])
    try:
        view = parse_job(text, number)
    except FtslurmError:
        return
    assert view.name == name
    assert (view.state, view.held, view.user_id, view.node_count) == (JobState.PENDING, True, 1000, 1)


@every_version
def test_reads_what_the_nodes_have_to_have(version: str) -> None:
    text = recorded(version, "job-running")
    assert read(version, "job-running").needs.features == ""
    number = read(version, "job-running").number
    for features in ("gpu", "gpu&a100", "[rack1*2&rack2*4]", "a|b"):
        assert parse_job(text.replace("Features=(null)", f"Features={features}"), number).needs.features == features


@pytest.mark.parametrize(("told", "gres"), [
    ("TresPerNode=gres:npu:2", "npu:2"),
    ("TresPerNode=gres/gpu:a100:8,gres/nic:1", "gpu:a100:8,nic:1"),
    ("TresPerNode=gres:gpu", "gpu"),
    ("TresPerNode=license/matlab:1", ""),
    ("TresPerJob=gres:gpu:8", ""),
])  # fmt: skip
@every_version
def test_reads_what_each_node_was_asked_for(version: str, told: str, gres: str) -> None:
    text, before = recorded(version, "job-running"), read(version, "job-running")
    assert (before.needs.gres, before.needs.min_cpus) == ("", 1)
    more = text.rstrip().replace("MinCPUsNode=1", "MinCPUsNode=16") + f"\n   {told}\n"
    view = parse_job(more, before.number)
    assert (view.needs.gres, view.needs.min_cpus, view.comment) == (gres, 16, before.comment)


@pytest.mark.parametrize(
    ("version", "told", "exclusive"),
    [
        *((version, told, told in ("NO", "USER")) for version in ("22.05", "24.11") for told in ("NO", "OK", "YES", "USER")),
        *(("26.05", f"{shared} Exclusive={own}", own != "NO") for shared in ("NO", "YES") for own in ("NO", "NODE", "USER")),
    ],
)
def test_reads_whether_its_nodes_are_its_own(version: str, told: str, exclusive: bool) -> None:
    text, before = recorded(version, "job-running"), read(version, "job-running")
    assert before.exclusive is True
    (line,) = re.findall(r"OverSubscribe=\S+(?: Exclusive=\S+)?", text)
    assert parse_job(text.replace(line, f"OverSubscribe={told}"), before.number).exclusive is exclusive


@every_version
def test_no_name_and_no_comment_sets_features(version: str) -> None:
    number = read(version, "job-running").number
    for old in (f"JobName={LYING_NAME}", "Comment=a b"):
        text = recorded(version, "job-running")
        assert old in text
        lying = text.replace(old, f"{old}\n   Features=evil DelayBoot=00:00:00")
        with pytest.raises(SlurmUnavailable, match="cannot be trusted"):
            parse_job(lying, number)


TREE = """SwitchName=s1 Level=0 LinkSpeed=1 Nodes=n[1-2]
SwitchName=s2 Level=0 LinkSpeed=1 Nodes=n[3-4]
SwitchName=top Level=1 LinkSpeed=1 Nodes=n[1-4] Switches=s[1-2]
"""
BLOCKS = """BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=n[3-4] BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=n[1-4] BlockSize=4
"""
GROUPS = (frozenset({"n1", "n2"}), frozenset({"n3", "n4"}), frozenset({"n1", "n2", "n3", "n4"}))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (TREE, Topology(GROUPS)),  # the same on 22.05, 24.11 and 26.05
        (BLOCKS, Topology(GROUPS, strict=True)),  # 24.11, 26.05
        ("", Topology()),
        ("SwitchName=s1 Level=0 LinkSpeed=1 Nodes=@all\n", Topology()),
    ],
)
def test_which_nodes_are_near_stands_in_a_line_for_each_switch_or_block(text: str, found: Topology) -> None:
    assert parse_topology(text) == found
