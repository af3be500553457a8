"""What Slurm's programs print, turned into values. Pure; tested on text recorded from real Slurm."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence

from ftslurm.errors import SlurmUnavailable, UnknownJob, UsageError
from ftslurm.model.events import Preempted
from ftslurm.model.folds.summary import COMPLETING, SlurmWord
from ftslurm.model.nodes import Topology, expand
from ftslurm.model.text import megabytes, whole
from ftslurm.model.values import replace
from ftslurm.slurm import states
from ftslurm.slurm.client import AS_OF, JobState, JobView, Needs, NodeState, NodeView, PartitionView, Resources

# --- what Slurm does to a job at the end of the grace of a preemption: read from its answers
# Source: slurm_job_preempt_mode() and slurm_job_check_grace() of 22.05. With preempt/partition_prio the job's partition has
# the mode, and with preempt/qos its QOS, or slurm.conf where that says nothing. A job that may not be requeued is cancelled.


def end_of_grace(job: JobView, partition: str) -> int:
    """Unix seconds; 0 where nobody tells. partition: the answer of `scontrol show partition --oneliner`."""
    grace = dict(_pairs(partition)).get("GraceTime", "")
    return job.preempt_time + int(grace) if re.fullmatch("[1-9][0-9]{0,8}", grace) else 0


def preempted(job: JobView, config: Mapping[str, str], partition: str, qos: str) -> Preempted | None:
    """None for a job that is not being preempted. config: Slurm's. qos: the answer of `scontrol show assoc_mgr flags=qos`."""
    if not job.preempt_time:
        return None
    if not job.requeue:
        return Preempted.ENDED
    by_qos = config.get("PreemptType", "") == "preempt/qos"
    mode = _of_qos(job.qos, qos) if by_qos else dict(_pairs(partition)).get("PreemptMode", "")
    words = {*(mode or config.get("PreemptMode", "")).upper().split(",")}
    if "REQUEUE" in words:
        return Preempted.REQUEUED
    return Preempted.ENDED if "CANCEL" in words else Preempted.UNKNOWN


def _of_qos(name: str, text: str) -> str:
    """Its PreemptMode, empty where it has none or nothing tells: `OFF` means that slurm.conf decides."""
    blocks = re.split(r"^QOS=", text, flags=re.MULTILINE)
    block = next((block for block in blocks if block.startswith(f"{name}(")), "")
    mode = re.search(r"^\s*PreemptMode=(\S*)", block, re.MULTILINE)
    return "" if mode is None or mode[1] == "OFF" else mode[1]


# The lines of `scontrol show job` that we read: the key each begins with, and the keys wanted of it. On none of
# them does free text stand before a wanted key, so on each the first occurrence counts. The order and the lines
# are those of slurm_sprint_job_info() in 22.05 and of scontrol/info_job.c in 24.11 and 26.05.
_JOB_LINES: Mapping[str, tuple[str, ...]] = {
    "UserId": (),  # read whole: a user name may hold spaces
    "Priority": ("Priority", "QOS"),
    "JobState": ("JobState", "Reason"),
    "Requeue": ("Requeue", "Restarts", "BatchFlag"),
    "RunTime": ("RunTime",),
    "SubmitTime": ("SubmitTime", "EligibleTime"),
    "StartTime": ("StartTime", "EndTime"),
    "PreemptEligibleTime": ("PreemptTime",),
    "Partition": ("Partition",),
    "ReqNodeList": ("ReqNodeList", "ExcNodeList"),
    "NodeList": ("NodeList",),
    "NumNodes": ("NumNodes",),
    "TRES": ("TRES", "ReqTRES"),  # ReqTRES from 23.02 on
    "MinCPUsNode": ("MinCPUsNode", "MinMemoryNode", "MinMemoryCPU"),
    "Features": ("Features",),
    "Reservation": ("Reservation",),  # there only for a job that is in one
    "OverSubscribe": ("OverSubscribe", "Exclusive"),  # Exclusive on 26.05, where OverSubscribe=NO says nothing of it
    "Comment": (),  # read whole
    # There only for a job that has asked for it. A comment of several lines could imitate it: then a donor would ask for that.
    "TresPerNode": ("TresPerNode",),
}
# The last word of a line that begins with any of these; from 25.11 on (scontrol/info_job.c). A job's name or comment of
# several lines could imitate it: its own requeue would then wait for Slurm's delay, and nothing else would come of it.
_EXPEDITED = "ExpeditedRequeue=Yes"
_BEFORE_EXPEDITED = frozenset("""
    ExpeditedRequeue SpreadJob KillOnInvalidDependent GresOneTaskPerSharing GresEnforceBind GresAllowTaskSharing
""".split())  # fmt: skip
_NEEDED = ("Priority", "JobState", "StartTime", "NumNodes")
_INDENT = "   "  # scontrol's, before each line but a job's first
# What follows a job's name, and what follows its comment, which may both run over several lines.
_AFTER_NAME = frozenset({"SLUID", "HetJobIdSet", "UserId"})
_AFTER_COMMENT = frozenset("""
    AdminComment SystemComment StdErr StdIn StdOut TresBind TresFreq TresPerJob TresPerNode TresPerSocket TresPerTask
    MailUser Power
""".split())  # fmt: skip
_NOTHING = frozenset({"", "(null)", "N/A", "None", "NONE", "Unknown"})
_UNITS = {"K": 1024, "M": 1024**2}  # Slurm shortens 2048 nodes to 2K
_NODE_LIST_CHARS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-,[]")

_IMITATION_HINT = "its name, account or comment imitates scontrol's output"
_REPORT_HINT = "please report it, with the output of `scontrol show job`"
_NODES_HINT = "please report it, with the output of `scontrol show node`"


class _Imitation(ValueError):
    """A text chosen by a user looks like Slurm's own output."""


def parse_job(text: str, number: int) -> JobView:
    """The job `number` in the output of `scontrol show job NUMBER`, which for a job array shows its other tasks too.

    Name, account and comment are the user's, may hold any text, line breaks too, and Slurm prints them as they are.
    In the form of several lines each of Slurm's own keys begins a line, so that a job named `x JobState=COMPLETED`
    fakes nothing. One whose text also imitates the line breaks gives itself away: then a line that Slurm
    prints once is there twice. Which is the true one nobody can tell, so such an answer is refused. With -o,
    where all stands on one line, an honest comment and an imitation would look the same.

    Raises: UnknownJob when it is not there; SlurmUnavailable when the text cannot be read.
    """
    try:
        return _read_job(_record(text, number), number)
    except _Imitation as odd:
        raise SlurmUnavailable(f"Slurm's answer about job {number} cannot be trusted: {odd}", _IMITATION_HINT) from None
    except (KeyError, ValueError, UsageError) as error:
        raise SlurmUnavailable(f"Slurm's answer about job {number} cannot be read: {error}", _REPORT_HINT) from None


def _record(text: str, number: int) -> list[str]:
    """The lines of one job: a blank-separated list of jobs, each beginning with JobId= in the first column."""
    lines = text.split("\n")  # not splitlines(): that also breaks at characters which a job name may hold
    starts = [index for index, line in enumerate(lines) if line.startswith("JobId=")]
    ours = [index for index in starts if lines[index].startswith(f"JobId={number} ")]
    if not ours:
        raise UnknownJob(f"Slurm does not know job {number}", hint="it ended a while ago, or never was")
    if len(ours) > 1:
        raise _Imitation(f"job {number} is there {len(ours)} times")
    end = min((index for index in starts if index > ours[0]), default=len(lines))
    return lines[ours[0] : end]


def _read_job(lines: Sequence[str], number: int) -> JobView:
    # The keys that only Slurm writes stand before JobName=, so the name cannot add to them.
    head = dict(_pairs(lines[0].partition("JobName=")[0]))
    fields = _fields(lines)
    word, reason = fields["JobState"], fields.get("Reason", "")
    start, end = unix_time(fields["StartTime"]), unix_time(fields.get("EndTime", ""))
    waits = states.waits_still(bool(fields.get("RunTime", "").strip("0:-")), start, end)
    view = JobView(
        number=number,
        state=states.job_state(word, reason, waits),
        reason=_text(reason),
        completing=word in states.COMPLETING_WORDS,
        configuring=word in states.CONFIGURING_WORDS,
        batch=fields.get("BatchFlag", "0") != "0",
        requeue=fields.get("Requeue", "0") != "0",
        restarts=_count(fields.get("Restarts", "0")),
        start_time=start,
        end_time=end,
        submit_time=unix_time(fields.get("SubmitTime", "")),
        nodes=node_names(fields.get("NodeList", "")),
        excluded=frozenset(node_names(fields.get("ExcNodeList", ""))),
        required=frozenset(node_names(fields.get("ReqNodeList", ""))),
        node_count=_node_count(fields, completing=word in states.COMPLETING_WORDS),
        partition=_text(fields.get("Partition", "")),
        name=_block(lines, 0, _AFTER_NAME).partition("JobName=")[2],
        user_id=_user_id(fields.get("UserId", "")),
        comment=_text(fields.get("Comment", "")),
        needs=_needs(fields),
        expedited=any(_key(line) in _BEFORE_EXPEDITED and line.split()[-1] == _EXPEDITED for line in lines),
        array_job=_count(head["ArrayJobId"]) if "ArrayJobId" in head else None,
        array_task=_number(head["ArrayTaskId"]) if head.get("ArrayTaskId", "").isdecimal() else None,
        qos=_text(fields.get("QOS", "")),
        preempt_time=unix_time(fields.get("PreemptTime", "")),
        exclusive=fields["Exclusive"] != "NO" if "Exclusive" in fields else fields.get("OverSubscribe") not in ("OK", "YES"),
    )
    priority = _count(fields["Priority"])
    held, later = states.is_held(word, view.state, priority), states.is_to_be_held(view.state, priority)
    return while_waiting(replace(view, held=held, to_be_held=later), unix_time(fields.get("EligibleTime", "")))


def _needs(fields: Mapping[str, str]) -> Needs:
    cpus = whole(fields.get("MinCPUsNode", "")) or 0
    memory_mb = megabytes(fields.get("MinMemoryNode", "")) or cpus * megabytes(fields.get("MinMemoryCPU", ""))
    features, reservation = _text(fields.get("Features", "")), _text(fields.get("Reservation", ""))
    return Needs(features, _gres(fields.get("TresPerNode", "")), cpus, memory_mb, reservation)


def while_waiting(view: JobView, eligible: int) -> JobView:
    """The view as JobView defines it for a pending job. eligible: Unix seconds, 0 for Unknown.

    Slurm shows such a job the nodes that still clean up after its last run, a start that moves along with the
    clock, and an end guessed from that start.
    """
    if view.state is not JobState.PENDING:
        return view
    return replace(view, nodes=(), cleaning=view.nodes, start_time=eligible, end_time=0)


def _fields(lines: Sequence[str]) -> dict[str, str]:
    fields: dict[str, str] = {}
    seen: set[str] = set()
    for index, line in enumerate(lines):
        key = _key(line)
        if key not in _JOB_LINES:
            continue
        if key in seen:
            raise _Imitation(f"the line with {key}= is there twice")
        seen.add(key)
        if not (wanted := _JOB_LINES[key]):
            fields[key] = _block(lines, index, _AFTER_COMMENT).partition("=")[2] if key == "Comment" else line
        for name, value in _pairs(line):
            if name in wanted:
                fields.setdefault(name, value)
    if missing := [key for key in _NEEDED if key not in seen]:
        raise ValueError(f"{missing[0]}= is missing")
    return fields


def _key(line: str) -> str:
    """`JobState` of `   JobState=RUNNING Reason=None`, empty for a line that is not Slurm's."""
    key = line[len(_INDENT) :].partition("=")[0] if line.startswith(_INDENT) else ""
    return "TRES" if key == "ReqTRES" else key


def _block(lines: Sequence[str], first: int, ends: frozenset[str]) -> str:
    """A value of possibly several lines: from line `first` to the line before one of the keys in `ends`."""
    last = next((index for index in range(first + 1, len(lines)) if _key(lines[index]) in ends), len(lines))
    return "\n".join(lines[first:last])


def _pairs(line: str) -> Iterator[tuple[str, str]]:
    """The words `KEY=VALUE` of a line."""
    for word in line.split():
        key, found, value = word.partition("=")
        if found:
            yield key, value


def _user_id(line: str) -> int:
    """5 of `UserId=games(5) GroupId=games(60) ...`."""
    return _number(line.partition(" GroupId=")[0].rpartition("(")[2].rstrip(")"))


def _node_count(fields: Mapping[str, str], completing: bool) -> int:
    """What the job asks for. While it completes NumNodes counts the nodes that are not clean yet; TRES stays true."""
    resources = dict(_pairs((fields.get("ReqTRES") or fields.get("TRES") or "").replace(",", " ")))
    if completing and "node" in resources:
        return _count(resources["node"])
    return _count(fields["NumNodes"].partition("-")[0])  # MIN-MAX while pending


def _gres(text: str) -> str:
    """`gpu:a100:8,nic` of `gres/gpu:a100:8,gres/nic`; before 24.11 there stands `gres:` for each."""
    words = _text(text).split(",")
    return ",".join(word[len("gres/") :] for word in words if word.startswith(("gres/", "gres:")))


def gres_counts(text: str) -> dict[str, int]:
    """`gpu` and `gpu:a100` -> 8, of `gpu:a100:8(S:0-1),nic`: what a node has, or what a job asks for on each."""
    found: dict[str, int] = {}
    for word in re.sub(r"\([^()]*\)", "", _text(text)).split(","):
        names = [part for part in word.split(":") if part and not part[0].isdigit()]
        number = next((int(part) for part in word.split(":")[1:] if re.fullmatch("[0-9]{1,6}", part)), 1)
        for name in {names[0], ":".join(names[:2])} if names else ():
            found[name] = found.get(name, 0) + number
    return found


def _count(text: str) -> int:
    unit = _UNITS.get(text[-1:], 1)
    return _number(text[:-1] if unit > 1 else text) * unit


def _number(text: str) -> int:
    """Raises: ValueError for what Slurm does not print: signs, digits of other scripts, more than 64 bits hold."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise ValueError(f"`{text[:40]}` is not a number")
    return int(text)


def _text(value: str) -> str:
    value = value.strip()
    return "" if value in _NOTHING else value


def node_names(text: str) -> tuple[str, ...]:
    """A node list that Slurm printed, expanded; empty for (null).

    Raises: UsageError for anything else; ClusterShell alone would look up groups (`@all`) and do sums (`n[1-9]!n2`).
    """
    text = _text(text)
    if not _NODE_LIST_CHARS.issuperset(text):
        raise UsageError(f"`{text}` is not a node list", hint="write it as Slurm does: n[1-3,7]")
    return expand(text)


def unix_time(text: str) -> int:
    """Unix seconds of a time stamp, 0 for Unknown, N/A and the like.

    Text in ISO form, Slurm's default, is taken as local time. Raises: ValueError for anything else.
    """
    if text in _NOTHING:
        return 0
    if text.isdecimal():
        return _number(text)
    try:
        return int(time.mktime(time.strptime(text, "%Y-%m-%dT%H:%M:%S")))
    except OverflowError:
        raise ValueError(f"`{text}` is not a time") from None


def parse_nodes(text: str) -> tuple[NodeView, ...]:
    """The output of `scontrol show node --oneliner`, in its order.

    Reason and Comment are an administrator's, stand last, and a line break in the reason is printed as spaces. A name
    that turns up twice all the same comes out UNKNOWN.

    Raises: SlurmUnavailable when a line cannot be read.
    """
    views: dict[str, NodeView] = {}
    for line in text.split("\n"):
        if line.startswith("NodeName="):
            view = _read_node(line)
            views[view.name] = replace(view, state=NodeState.UNKNOWN) if view.name in views else view
    return tuple(views.values())


def parse_steps(text: str) -> dict[str, str]:
    """Number of the step in its job -> its name, of `squeue --steps --format='%i %j'`; steps of tasks only.

    A task of an array is named by its place there, `14_3.0`, and what is not started by srun has a word for a number.
    """
    found = {}
    for line in text.splitlines():
        step, _, name = line.strip().partition(" ")
        number = step.rpartition(".")[2]
        if number.isascii() and number.isdecimal():
            found[number] = name
    return found


def parse_jobs(text: str, now: float) -> dict[int, SlurmWord]:
    """Number -> Slurm's word, of `squeue --format=%A|%T|%S|%Q|%e|%r`; lines that cannot be read are passed over.

    A completing job whose start lies ahead was requeued, and waits.
    """
    found: dict[int, SlurmWord] = {}
    for line in text.splitlines():
        try:
            number, word, start, priority, end, reason = line.strip().split("|", 5)
            start_s = unix_time(start)
            state = states.job_state(word, reason, waits=start_s > now)
            held = states.is_held(word, state, _number(priority))
            hidden = word in states.COMPLETING_WORDS and state is JobState.UNKNOWN
            found[_number(number)] = SlurmWord(
                COMPLETING if hidden else state.value, _text(reason), start_s, held, unix_time(end)
            )
        except ValueError:
            continue
    return found


def parse_ended(text: str) -> dict[int, SlurmWord]:
    """Number -> how the job ended, of `sacct --parsable2 --format=JobIDRaw,State,End` (`7|TIMEOUT|1795918650`). slurmdbd
    may never have heard of the end; a job that slurmctld has forgotten does not run, and how it ended is then unknown.
    """
    found: dict[int, SlurmWord] = {}
    for line in text.splitlines():
        number, word, end = [*line.strip().split("|"), "", ""][:3]
        state = states.job_state(word.partition(" ")[0])
        if number.isdecimal() and state not in (JobState.PENDING, JobState.RUNNING, JobState.SUSPENDED, JobState.UNKNOWN):
            found[int(number)] = SlurmWord(state.value, end_time=_end_time(end))
    return found


def _end_time(text: str) -> int:
    try:
        return unix_time(text)
    except ValueError:
        return 0


def parse_jobs_on(text: str) -> tuple[tuple[int, int, str], ...]:
    """(number, user id, state) of each line of `squeue --format=%A|%U|%T`. Raises: SlurmUnavailable."""
    found = []
    for line in text.split():
        try:
            number, user_id, state = line.split("|")
            found.append((_number(number), _number(user_id), state))
        except ValueError:
            raise SlurmUnavailable(f"squeue's answer `{line[:60]}` cannot be read", _NODES_HINT) from None
    return tuple(found)


def _read_node(line: str) -> NodeView:
    head, _, tail = line.partition(" Reason=")
    if " Comment=" in head or " Extra=" in head:
        tail = ""  # both stand behind the reason, so there was none
    fields: dict[str, str] = {}
    for key, value in _pairs(head):
        fields.setdefault(key, value)
    if not fields["NodeName"]:
        raise SlurmUnavailable("Slurm's answer about its nodes cannot be read: one has no name", _NODES_HINT)
    words = fields.get("State", "")
    partitions = _text(fields.get("Partitions", ""))
    stamp = re.search(_STAMP, tail)
    return NodeView(
        name=fields["NodeName"],
        state=states.node_state(words),
        words=words,
        reason=_text(_without_stamp(tail)),
        partitions=frozenset(partitions.split(",")) if partitions else frozenset(),
        address=_text(fields.get("NodeAddr", "")),
        port=int(port) if (port := fields.get("Port", "")).isascii() and port.isdigit() and len(port) < 6 else 0,
        reason_by=stamp[1] if stamp else "",
        reason_at=int(stamp[2]) if stamp else 0,
        has=_resources(fields),
    )


def _resources(fields: Mapping[str, str]) -> Resources:
    features = frozenset(_text(fields["AvailableFeatures"]).split(",")) - {""} if "AvailableFeatures" in fields else None
    gres = gres_counts(fields["Gres"]) if "Gres" in fields else None
    return Resources(features, whole(fields.get("CPUTot", "")) or 0, megabytes(fields.get("RealMemory", "")), gres)


# `[root@1795254664]` behind a reason: who gave it, and when; the time is a number, as ANSWER_ENV asks for it.
_STAMP = r" \[([^\[\]\s@]+)@(\d{1,12})\]"


def _without_stamp(reason: str) -> str:
    """`dead` of `dead [root@1795254664] Comment=...`; the first line of a reason of several."""
    return re.split(r" \[[^\[\]\s]+@[^\[\]\s]+\]", reason, maxsplit=1)[0]


def conf_seconds(text: str) -> float:
    """Of a time in Slurm's configuration, `300 sec`; 0 where it is no such time."""
    number, _, unit = text.partition(" ")
    return float(number) if number.isascii() and number.isdecimal() and len(number) < 10 and unit in ("", "sec") else 0.0


def parse_partitions(text: str) -> tuple[PartitionView, ...]:
    """The output of `scontrol show partition --oneliner`, in its order. Raises: SlurmUnavailable when a line cannot be read."""
    views = []
    for line in text.split("\n"):
        if line.startswith("PartitionName="):
            fields = dict(_pairs(line))
            try:
                nodes = _count(fields["TotalNodes"])
            except (KeyError, ValueError) as error:
                raise SlurmUnavailable(f"Slurm's answer about partitions cannot be read: {error}") from None
            views.append(PartitionView(fields["PartitionName"], fields.get("OverSubscribe", "") == "EXCLUSIVE", nodes))
    return tuple(views)


def parse_reservation(text: str) -> frozenset[str] | None:
    """Nodes of the one reservation in the output of `scontrol show reservation NAME --oneliner`, None if it names none."""
    found = re.match(r"ReservationName=\S+ .*?\bNodes=(\S+) ", text)
    names = frozenset(node_names(found[1])) if found else frozenset()
    return names or None


def parse_config(text: str) -> dict[str, str]:
    """`scontrol show config` as key -> value, `(null)` as an empty value; units stay (`KillWait` is `30 sec`).

    AS_OF comes from the heading, `Configuration data as of 1795385302` (slurmctld's time of the answer, 22.05 to 26.05).
    """
    config: dict[str, str] = {}
    if heading := re.match(r"\s*Configuration data as of (\d+)$", text.partition("\n")[0]):
        config[AS_OF] = heading[1]
    for line in text.split("\n"):
        key, found, value = line.partition("=")
        key = key.strip()
        if found and key and " " not in key:  # the rest are headings and the state of the controllers
            config.setdefault(key, "" if value.strip() == "(null)" else value.strip())
    return config


def slurm_user_id(config: Mapping[str, str]) -> int | None:
    """Of SlurmUser, as `slurm(64030)`; None where nobody tells."""
    found = re.search(r"\((\d{1,10})\)$", config.get("SlurmUser", ""))
    return int(found[1]) if found else None


def parse_topology(text: str) -> Topology:
    """`scontrol show topology` of the plugins tree and block; empty where there is none, or it cannot be read. Source:
    docs/slurm-facts.md, "Which nodes are near".
    """
    rows = [dict(_pairs(line)) for line in text.splitlines()]
    try:
        groups = [frozenset(node_names(row.get("Nodes", ""))) for row in rows if "SwitchName" in row or "BlockSize" in row]
    except UsageError:
        return Topology()
    return Topology(tuple(group for group in groups if group), any("BlockName" in row for row in rows))
