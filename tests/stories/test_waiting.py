"""What is waited for is told, once a phase: on stderr, in the ledger, in the job's comment."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.folds.summary import last_wait, summarise
from ftslurm.policies.judge.causes import TELL_S
from ftslurm.policies.judge.ending import TELL_STEP_S
from ftslurm.policies.judge.phases import OutputPlace
from tests.settings import settings_with
from tests.stories.replay import RUNNING, SILENT, Job, fault, requeueing

CAN = ("ask", "requeue", "probe", "replace", "release")
ST = requeueing()


def waits(job: Job) -> list[str]:
    return [wait.what for wait in job.recorded(rec.Waiting)]


def told(job: Job, what: str, for_s: float) -> None:
    """Once on each of the three ways, and until the same moment."""
    (record,) = (wait for wait in job.recorded(rec.Waiting) if wait.what == what)
    (shown,) = (show for show in job.did(do.ShowPhase) if show.what == f"waiting for {what}")
    assert record.until - record.at == for_s and (shown.until, shown.attempt) == (record.until, record.attempt)
    assert job.said.count(what.partition(",")[0].partition(" (")[0]) <= 1
    assert f"{for_s:.0f} s" in job.said


def test_devices_that_heal_and_the_end_of_the_wait() -> None:
    job = Job().begin()
    job.silent = {do.HealDevices}
    job.shows(fault())
    told(job, "device 0.0 of n2 to heal or to be reset", ST.in_place_restart.self_heal_wait_s + ST.in_place_restart.reset_wait_s)
    summary = summarise(job.ledger)
    assert summary is not None and summary.state == "waiting" and summary.until > job.now.unix
    job.tell(ev.HealingDone("n2", ()))
    assert last_wait(job.ledger) is None


def test_after_the_wait_the_comment_says_that_the_attempt_runs() -> None:
    job = Job().begin()
    job.shows(fault())
    assert [(show.attempt, show.what) for show in job.did(do.ShowPhase)][1:] == [(2, "")]
    assert last_wait(job.ledger) is None
    job.all_exit(0)
    assert job.did(do.ShowPhase)[-1].attempt == 0, "it claims nothing of a job that has ended"
    quick = Job().begin()
    quick.all_exit(0)
    assert not quick.did(do.ShowPhase), "a job that runs well has nothing to show"


def test_the_next_ftrun_sets_the_comment_first() -> None:
    job = Job().begin()
    job.exits(0, 1)
    again = job.again().begin()
    assert [(show.attempt, show.what) for show in again.did(do.ShowPhase)] == [(2, "starting"), (2, "")]
    hangs = Job().begin()
    hangs.tell(*(ev.QuietSeen(node, 1800.0, "no IO for 1800 s") for node in hangs.nodes))
    seen = hangs.recorded(rec.HangSeen)[0].what
    assert hangs.did(do.ShowPhase)[-1].what == f"seems to hang: {seen}"


def test_a_silent_node_is_told_of_once_and_so_is_that_it_is_back() -> None:
    job = Job(can=CAN, nodes=("n1", "n2", "n3")).begin()
    job.reachable = None
    for node in ("n2", "n3"):
        job.wait(15.0)
        job.tell(ev.NodeSilent(node, 15.0))
    assert waits(job) == ["a message from n2, or the end of its lease"] and "no message from n2 for 15 s" in job.said
    job.tell(ev.NodeHeard("n2"))
    assert last_wait(job.ledger) is not None
    job.tell(ev.NodeHeard("n3"))
    assert last_wait(job.ledger) is None and "n3 answers again" in job.said and job.did(do.ShowPhase)[-1].what == ""
    summary = summarise(job.ledger)
    assert summary is not None and summary.state == "running"


def test_leases() -> None:
    job = Job(can=CAN).begin()
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    job.wait(5.0)
    assert waits(job)[-1] == "the leases of the ranks on n2" and "for the leases of the ranks on n2 to expire" in job.said


def test_a_donor_s_number_is_told_at_once() -> None:
    job = Job(requeueing(node_replacement__enabled=True, node_replacement__budget=4), can=CAN).begin()
    job.slurm, job.silent = replace(RUNNING, bad_nodes=(("n2", "DOWN*"),)), {do.BorrowNode}
    job.exits(2, 1)
    job.tell(ev.DonorSubmitted(1, 4712))
    told(job, "a node of donor job 4712", ST.nodes.replacement_wait_s)
    assert "for donor job 4712 to borrow a replacement for n2" in job.said
    job.reachable = False
    assert waits(job)[-1] == "a node of donor job 4712"
    job.tell(ev.DonorSubmitted(1, 4712, "n5"))
    told(job, "n5 of donor job 4712 to boot", ST.nodes.replacement_wait_s)
    assert "(nodes.replacement_wait) for n5 of donor job 4712 to boot, which replaces n2" in job.said
    job.tell(ev.DonorSubmitted(5, 4713))  # not for a slot that is open
    assert "4713" not in job.said


def test_a_donor_that_is_waited_for_longer_than_the_leases_is_told_of_again() -> None:
    job = Job(requeueing(node_replacement__enabled=True, node_replacement__budget=4), can=CAN).begin()
    job.silent, job.reachable = {do.BorrowNode}, False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    job.tell(ev.DonorSubmitted(1, 4712))
    job.wait(5.0)
    assert waits(job)[-1] == "the leases of the ranks on n2"
    job.wait(ST.lease.time_s + ST.lease.margin_s)
    assert waits(job)[-1] == "a node of donor job 4712"
    job.tell(ev.NodeBorrowed(1, "n5", 4712))
    kinds = [type(decision) for decision in job.decisions]
    assert kinds.index(do.ReleaseNodes) > max(n for n, kind in enumerate(kinds) if kind is do.ShowPhase), (
        "then Slurm takes no more"
    )


def test_ranks_that_take_their_time_to_end() -> None:
    job = Job().begin()
    job.silent = {do.StopRanks}
    job.exits(0, 1)
    job.wait(TELL_S - 0.5)
    assert not waits(job)
    job.wait(1.0)
    assert len(waits(job)) == 1 and waits(job)[0].startswith("the ranks to end (stop.grace")


def test_slurm_that_takes_its_time_to_answer_and_to_end_a_step() -> None:
    job = Job().begin()
    job.silent = {do.AskSlurm, do.EndStep, do.KillStep}
    job.exits(0, 1)
    job.wait(TELL_S + 1.0)
    assert waits(job) == ["Slurm's answer about the job and its nodes"]
    job.tell(RUNNING)
    job.wait(TELL_STEP_S + 1.0)
    assert waits(job)[1:] == ["Slurm to end the step"]


def test_slurmctld_that_is_away() -> None:
    job = Job().begin()
    job.slurm = replace(SILENT, away=True)
    job.exits(0, 1)
    assert waits(job) == ["slurmctld, to decide what to do"]


@pytest.mark.parametrize(("why", "lines"), [("", 1), ("it was submitted with --no-requeue", 2)])
def test_once_in_a_job_that_is_under_way_people_are_told_where_to_look(why: str, lines: int) -> None:
    job = Job(tips=True, no_requeue=why).begin()
    job.wait(70.0)
    said = job.said.splitlines()
    assert (
        len(job.did(do.Say)) == lines and "`ftslurm status 7`, `ftslurm watch 7`, `ftslurm logs -f 7`" in job.did(do.Say)[0].text
    )
    assert why in said[-1]
    again = Job(tips=True, past=job.ledger, schedule=1).begin()
    again.wait(70.0)
    assert not any("watch 7" in said.text for said in again.did(do.Say))


def test_people_are_told_once_which_rungs_the_job_cannot_use() -> None:
    settings = settings_with(requeueing(), node_replacement__enabled=True, shrink__enabled=True, nodes__min=1, nodes__spares=0)
    job = Job(settings, tips=True, no_swap="a heterogeneous step (`:`)").begin()
    job.wait(70.0)
    assert [said.text for said in job.did(do.Say)][1:] == [
        "job 7 cannot use node-replacement: a heterogeneous step (`:`)", "job 7 cannot use shrink: a heterogeneous step (`:`)",
    ]  # fmt: skip


def test_a_requeue_says_what_the_job_will_wait_for() -> None:
    job = Job(can=CAN).begin()
    job.slurm = replace(RUNNING, slurmd_timeout_s=300.0)
    job.reachable = False
    job.wait(15.0)
    job.tell(ev.NodeSilent("n2", 15.0))
    job.wait(100.0)
    assert job.did(do.ShowPhase)[-1].what == (
        "waiting for its nodes to be clean, which they are at the latest when Slurm marks n2 down (SlurmdTimeout 300 s, up to twice that), "
        "requeued"
    )
    assert (
        "as soon as its nodes are clean, at the latest when Slurm marks n2 down (SlurmdTimeout 300 s" in job.said.splitlines()[-1]
    )
    assert job.said.endswith("at once by an administrator: scontrol update nodename=n2 state=down reason=dead")
    plain = Job().begin()
    plain.exits(0, 1)
    assert plain.did(do.ShowPhase)[-1].what == "waiting for its nodes to be clean, requeued"
    assert plain.said.splitlines()[-1].endswith("starts again as soon as its nodes are clean")


def test_a_job_on_one_node_that_knows_no_clean_up_says_why_it_waits_so_long() -> None:
    job = Job(nodes=("n1",)).begin()
    job.slurm = replace(RUNNING, epilog=True)
    job.exits(0, 1)
    assert job.said.splitlines()[-1].endswith("in about 45 s, as nobody knows yet how long a clean-up takes here")


# --- output


def test_every_attempt_but_the_first_is_announced() -> None:
    job = Job().begin()
    assert "attempt" not in job.said
    job.shows(fault())
    assert "attempt 2 on n[1-2], after in-place-restart: " in job.said
    job.exits(0, 1)
    job = job.again().begin()
    assert "attempt 3 on n[1-2], after unconditional-requeue: rank 0 on n1" in job.said
    second = Job(past=Job().begin().ledger, step_key="evaluate").begin()
    assert "attempt" not in second.said, "another command of the script has had no attempt before"


def test_a_start_again_says_how_many_this_command_had_where_others_count_as_well() -> None:
    job = Job(past=Job().begin().ledger, step_key="evaluate").begin()
    assert (job.env()["FTSLURM_ATTEMPT"], job.env()["FTSLURM_STEP_ATTEMPT"]) == ("2", "1")
    job.shows(fault())
    assert "attempt 3 on n[1-2] (2 of this command), after in-place-restart: " in job.said
    assert (job.env()["FTSLURM_ATTEMPT"], job.env()["FTSLURM_STEP_ATTEMPT"]) == ("3", "2")


def test_numbers_are_taken_under_the_lock_where_another_ftrun_may_take_some() -> None:
    alone = Job(requeueing(mode="async")).begin()
    beside = Job(requeueing(mode="async"), past=alone.ledger, step_key="evaluate").begin()
    running = Job(past=alone.ledger, step_key="evaluate").begin()
    assert [each.judge.shares_numbers for each in (alone, beside, running)] == [False, True, False], "no rank starts alone there"


def test_a_rank_that_starts_alone_is_announced_too() -> None:
    job = Job(requeueing(mode="async")).begin()
    job.exits(1, 7)
    assert "attempt 2 on n1, rank 1 alone" in job.said


def test_where_the_output_goes_is_written_down() -> None:
    job = Job()
    job.judge.run.facts = replace(job.facts, output=OutputPlace(rec.OutputTo(0.0, "", ("/log",))))
    job.begin()
    (told,) = job.recorded(rec.OutputTo)
    assert (told.at, told.run, told.files) == (job.recorded(rec.RunBegan)[0].at, job.facts.run, ("/log",))


def test_output_is_kept_where_somebody_else_requeues_the_job() -> None:
    for state, kept in (("PENDING", 1), ("PREEMPTED", 1), ("CANCELLED", 0)):
        job = Job().begin()
        job.slurm = replace(RUNNING, state=state)
        job.exits(0, 143)
        assert len(job.did(do.KeepOutput)) == kept and job.status is not None
