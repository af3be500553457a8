"""Stories of blame over time: what a wrong word may cost, and how it is taken back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from ftslurm.catalogs.patterns import PatternBook
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.collectives import Culprit, CulpritKind, Level
from ftslurm.model.devices import Fault, FaultClass
from ftslurm.model.folds.history import fold
from ftslurm.model.folds.node_memory import NodeLeft, NodeReinstated, remembered
from ftslurm.model.settings.tree import Settings
from ftslurm.model.verdict import Blame, ErrorClass, Piece, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose import Facts, diagnose
from ftslurm.policies.judge.hangs import held_against
from tests.stories.replay import HOUR_S, RUNNING, Job, fault, of_kind, requeueing
from tests.stories.test_verdicts import FAULT, told, verdict

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
ILLEGAL = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
LAUNCH = "RuntimeError: CUDA error: unspecified launch failure\n"
BOOM = "RuntimeError: boom\n"
UNHEARD = "strange words\n"  # nobody knows whether another try helps
CLUSTER = tuple(f"n{number}" for number in range(1, 9))
_BOOKS: list[PatternBook] = []


def book() -> PatternBook:
    if not _BOOKS:
        _BOOKS.append(load_pattern_book(()).of_ranks())
    return _BOOKS[0]


def judged(ends: tuple[RankEnd, ...], faults: tuple[Fault, ...], bad: Mapping[str, str]) -> Verdict:
    """By the catalogue that ships, as ftrun does."""
    return diagnose(ends, Facts(faults, bad), book())


class Campaign:
    """One job over many schedulings, on the first nodes of the cluster that nothing keeps it off."""

    def __init__(
        self, per_node: int = 1, width: int = 2, policy: Settings | None = None, remembered: Iterable[str] = (), **more: Any
    ) -> None:
        self.width = width
        known = dict.fromkeys(remembered, "excluded after a fault by jobs 3, 4, last: Slurm says DOWN")
        self.job = Job(policy, nodes=CLUSTER[:width], per_node=per_node, diagnose=judged, remembered=known, **more)
        self.tried = 1
        self._begin()

    def _begin(self) -> None:
        kept = set(fold(self.job.ledger).kept_out(self.job.now.unix, 0.0))
        self.job.slurm = replace(RUNNING, node_count=self.width, usable=frozenset(CLUSTER), excluded=frozenset(kept))
        self.job.begin()
        self.job.wait(1.0)

    def fails(self, rank: int, text: str, began: bool = True) -> str:
        """That rank prints it and fails; the rung that follows. began: had the ranks printed anything before?"""
        self.say(rank, text, began)
        return self.job.rungs[-1]

    def say(self, rank: int, text: str, began: bool) -> None:
        job = self.job
        others = [task.rank for task in job.tasks if task.rank != rank]
        began_at = job.now.unix - 0.9
        noise = (Piece(began_at, "out", "step\n"),) if began else ()
        job.silent.add(do.StopRanks)
        job.tell(replace(job.exit_of(rank, 1), output=(*noise, Piece(job.now.unix - 0.1, "err", text))))
        ended = [replace(job.exit_of(other, 0, 15), stopped=True, output=noise) for other in others]
        number = max(job.truth.attempts)
        job.silent.discard(do.StopRanks)
        job.tell(*ended, *(ev.RankStopped(task.rank, number) for task in job.tasks))

    @property
    def over(self) -> bool:
        return self.job.status is not None and not self.job.did(do.Requeue)

    def again(self, nodes: Sequence[str] = ()) -> None:
        free = [node for node in CLUSTER if node not in self.job.excluded]
        self.job = self.job.again(nodes=nodes or free[: self.width])
        self.tried += 1
        self._begin()

    def until_over(self, rank: int, text: str, most: int = 20) -> Campaign:
        for _ in range(most):
            self.fails(rank, text)
            if self.over:
                break
            self.again()
        return self

    @property
    def excluded(self) -> set[str]:
        """At the end."""
        return set(fold(self.job.ledger).exclusions.isolated)

    @property
    def ever_excluded(self) -> set[str]:
        return {node for decided in of_kind(self.job.ledger, rec.Decided) for node in decided.isolate}

    @property
    def told_others(self) -> set[str]:
        return {node for told in self.job.did(do.TellOthers) for node in told.nodes}


# --- the three harmful ways of issue 13


@pytest.mark.parametrize(("text", "tries"), [(ILLEGAL, 3), (ECC, 3), (LAUNCH, 4)])
def test_a_bug_of_one_rank_does_not_walk_through_the_cluster(text: str, tries: int) -> None:
    """In words of the program, of the hardware for sure, and of the hardware perhaps: at the end no node is out."""
    job = Campaign().until_over(1, text)
    assert job.over and job.tried <= tries and job.job.status == 1
    assert not job.excluded and len(job.ever_excluded) <= 1
    assert "running it again cannot help" in job.job.said


def test_the_node_that_was_left_is_reinstated_and_may_be_used_again() -> None:
    """In message, history, and at the next requeue; Slurm keeps the job off it no more."""
    job = Campaign()
    assert job.fails(1, ECC) == "isolated-requeue" and job.job.excluded == ("n2",)
    job.again()
    assert job.job.nodes == ("n1", "n3")
    assert job.fails(1, ECC) == "unconditional-requeue" and job.job.excluded == ()
    assert "on rank 1 on n2 and n3: it is the program; n2 is reinstated" in job.job.said
    (record,) = job.job.recorded(rec.Reinstated)
    assert record.nodes.keys() == {"n2"} and "it is the program" in record.nodes["n2"]
    assert fold(job.job.ledger).exclusions.ours == {"n2"}, "Slurm still excludes it until the requeue takes it off"
    assert job.job.did(do.TellOthers)[-1].reinstated == ("n2",)
    job.again(nodes=("n1", "n2"))
    assert job.fails(1, ECC) == "fail", "confirmed twice"


def test_what_nobody_knows_neither_costs_a_node_nor_is_remembered() -> None:
    job = Campaign(remembered=("n1", "n2")).until_over(0, UNHEARD)
    assert not job.told_others
    assert job.tried == 3 and all(decided.cause == "crash" for decided in of_kind(job.job.ledger, rec.Decided))


def test_a_memory_alone_makes_no_rung_dearer_for_a_fault_that_heals() -> None:
    job = Job(remembered={"n1": "excluded after a fault by jobs 3, 4"}, diagnose=judged).begin()
    job.shows(fault("n2"))
    assert job.rungs == ["in-place-restart"] and job.did(do.HealDevices)


# --- contrast


@pytest.mark.parametrize(("second", "rung"), [(3, "fail"), (2, "isolated-requeue")])
def test_words_of_the_program_against_a_node_want_another_rank_there(second: int, rung: str) -> None:
    """The same rank: its own error. Two ranks of the node, and none of another: the node's."""
    said = [
        verdict(retriable=Retriable.ONCE, suspects=(Suspect("n2", rank, Blame.SUSPECT, "there"),), shown={rank: "n2"})
        for rank in (3, second)
    ]
    job = Job(diagnose=told(*said)).begin()
    job.exits(3, 1)
    assert job.rungs == ["unconditional-requeue"]
    job = job.again().begin()
    job.exits(second, 1)
    assert job.rungs == [rung]


def test_what_comes_back_though_the_node_was_left_was_not_the_node() -> None:
    job = Campaign(per_node=2)
    assert job.fails(2, ECC) == "isolated-requeue"
    job.again()
    assert job.fails(1, ECC) == "unconditional-requeue" and job.job.excluded == (), "another rank, another node"
    assert "on n1 as well, without n2" in job.job.said and "n2 is reinstated" in job.job.said


def test_but_not_after_the_job_has_got_further_meanwhile() -> None:
    job = Campaign(per_node=2)
    job.fails(2, ECC)
    job.again()
    job.job.tell(ev.Progressed("n1", 500))
    assert job.fails(1, ECC) == "unconditional-requeue" and job.job.excluded == ("n2",)
    assert not job.job.recorded(rec.Reinstated)


def test_what_comes_at_the_same_step_on_another_node_is_the_data_s() -> None:
    job = Campaign(per_node=2, policy=requeueing(blame__on_words=0))
    for rank in (2, 1):
        job.job.tell(ev.Progressed("n1", 500))
        assert job.fails(rank, LAUNCH) == "unconditional-requeue"
        job.again()
    (found,) = of_kind(job.job.ledger, rec.Reinstated)
    assert found.nodes.keys() == {"n2"} and "at step 500 on n2 and n1" in found.nodes["n2"]


def test_a_fact_is_never_taken_back() -> None:
    broken = fault("n2", "80E18402", graded=FaultClass.ISOLATE)
    job = Job(diagnose=judged, nodes=("n1", "n2"), per_node=1).begin()
    job.slurm = replace(RUNNING, node_count=2, usable=frozenset(CLUSTER))
    job.shows(broken)
    assert job.rungs == ["isolated-requeue"] and job.did(do.TellOthers)[0].nodes.keys() == {"n2"}
    assert not job.recorded(rec.Decided)[0].words
    history = fold([*job.ledger, rec.Reinstated(job.now.unix, 1, "80E18402", {"n2": "it is the program"})])
    assert history.exclusions.isolated.keys() == {"n2"}


@pytest.mark.parametrize(("text", "rung"), [(LAUNCH, "unconditional-requeue"), (ECC, "isolated-requeue")])
def test_a_job_of_one_node_has_nothing_to_compare_with_but_the_hardware_s_own_word(text: str, rung: str) -> None:
    job = Campaign(width=1, per_node=4)
    for rank in (1, 2):
        assert job.fails(rank, text) == rung
        if text == ECC:
            break
        job.again(nodes=("n1",))
    assert job.excluded == ({"n1"} if text == ECC else set())


def test_what_the_user_s_own_word_calls_retriable_stays_so_wherever_it_comes() -> None:
    said = [
        verdict(ErrorClass.NETWORK, Retriable.YES, suspects=(Suspect(node, 1, Blame.SUSPECT, "x"),), shown={1: node}, called=True)
        for node in CLUSTER[1:5]
    ]
    job = Job(requeueing(retry__policy="ExitCodeAndErrorMsg"), diagnose=told(*said)).begin()
    for _ in range(3):
        job.exits(1, 1)
        assert job.rungs == ["unconditional-requeue"]
        job = job.again().begin()


# --- the budget


def test_words_cost_a_job_one_node_and_all_further_tries_stay_inside() -> None:
    job = Campaign(per_node=2, width=4)
    assert job.fails(2, ECC) == "isolated-requeue"
    job.again()
    job.job.tell(ev.Progressed("n1", 10))
    ends = job.fails(5, LAUNCH)
    assert ends == "unconditional-requeue"
    for rank in (4, 5):
        job.again()
        job.job.tell(ev.Progressed("n1", 1000 * job.tried))
        job.fails(rank, LAUNCH)
    assert job.ever_excluded == {"n2"} and job.job.rungs[-1] == "unconditional-requeue"
    passed = dict(job.job.recorded(rec.Decided)[-1].passed)
    assert "blame.on_words lets a job exclude 1 node without a proven fault; it has excluded n2" in passed["isolated-requeue"]


@pytest.mark.parametrize(("most", "left"), [(0, 0), (1, 1), (2, 2)])
def test_the_budget_is_a_setting(most: int, left: int) -> None:
    convicts = verdict(
        ErrorClass.HARDWARE, Retriable.YES, signature="cuda-x",
        suspects=tuple(replace(s, blame=Blame.YES) for s in judged_suspects("n1", "n2", "n3")),
    )  # fmt: skip
    job = Job(requeueing(blame__on_words=most), nodes=CLUSTER[:4], diagnose=told(convicts)).begin()
    job.exits(0, 1)
    assert len(job.recorded(rec.Decided)[0].isolate) == left


def judged_suspects(*nodes: str) -> tuple[Suspect, ...]:
    return tuple(Suspect(node, rank, Blame.SUSPECT, f"{node}: broken") for rank, node in enumerate(nodes))


def test_facts_are_not_bound_by_it() -> None:
    job = Campaign(per_node=2, width=4)
    job.fails(2, ECC)
    job.again()
    job.job.shows(fault("n3", "80E18402", graded=FaultClass.ISOLATE))
    assert job.job.rungs == ["isolated-requeue"] and set(job.job.excluded) == {"n2", "n3"}


def test_a_fact_found_later_gives_the_words_their_node_back() -> None:
    """The health check turns away the node that words had cost: they were right, and may be right again."""
    job = Campaign(per_node=2)
    job.fails(2, ECC)
    history = fold([*job.job.ledger, rec.NodeRefused(job.job.now.unix, "n2", "device 0 is gone")])
    assert history.exclusions.isolated.keys() == {"n2"} and not history.exclusions.left_on_words


# --- in a row


def test_our_own_remedy_does_not_break_the_row() -> None:
    """Unknown, unknown, words that cost a node, unknown, and then it is enough."""
    texts, rungs = [BOOM, BOOM, ECC, BOOM, BOOM], []
    job = Campaign(per_node=2)
    for text in texts:
        rungs.append(job.fails(0 if text == BOOM else 2, text))
        if job.over:
            break
        job.again()
    assert rungs == ["unconditional-requeue"] * 2 + ["isolated-requeue", "unconditional-requeue", "fail"]


@pytest.mark.parametrize(("lived_s", "last"), [(2.0, "fail"), (25.0, "fail"), (HOUR_S, "unconditional-requeue")])
def test_a_start_that_lives_far_longer_than_those_before_breaks_it(lived_s: float, last: str) -> None:
    job = Campaign()
    for _ in range(3):
        assert job.fails(0, UNHEARD) == "unconditional-requeue"
        job.again()
    job.job.wait(lived_s)
    assert job.fails(0, UNHEARD) == last


def test_a_hang_restart_in_a_row_is_not_forgotten_over_a_crash() -> None:
    policy = requeueing(hang_restart__enabled=True, hang__log_silence=True)
    job = Job(policy, diagnose=told(FAULT)).begin()
    for number in range(3):
        job.tell(*(ev.RankSilent(rank, 1800.0) for rank in range(4)))
        assert job.rungs[-1] == "hang-restart"
        if number == 1:
            job.exits(0, 1)
            job = job.again().begin()
    job.tell(*(ev.RankSilent(rank, 1800.0) for rank in range(4)))
    assert job.rungs[-1] == "fail"


def test_the_same_failure_is_another_one_after_progress() -> None:
    job = Campaign(per_node=2)
    for step in (100, 200, 300):
        job.job.tell(ev.Progressed("n1", step))
        assert job.fails(3, "KeyError: 'labels'\n") == "unconditional-requeue"
        job.again(nodes=("n1", "n2"))
    assert job.fails(3, "KeyError: 'labels'\n") == "fail", "twice at the same place"


def test_a_device_error_that_a_restart_heals_by_words_alone_does_not_restart_for_ever() -> None:
    heals = verdict(
        ErrorClass.HARDWARE, Retriable.YES, signature="npu-x", heals=True, suspects=judged_suspects("n1")[:1], shown={0: "n1"}
    )
    job = Job(requeueing(blame__on_words=0), diagnose=told(heals)).begin()
    for _ in range(3):
        job.exits(0, 1)
    assert job.rungs == ["in-place-restart", "in-place-restart", "unconditional-requeue"]


# --- the memory over jobs


def test_the_present_failure_has_to_name_a_remembered_node() -> None:
    names = Campaign(per_node=2, remembered=("n2",))
    assert names.fails(2, LAUNCH) == "isolated-requeue" and names.job.excluded == ("n2",)
    assert not names.told_others, "what is remembered is no new fact"
    assert not names.job.recorded(rec.Decided)[-1].words, "earlier jobs had facts against it"
    elsewhere = Campaign(per_node=2, remembered=("n2",))
    assert elsewhere.fails(0, LAUNCH) == "unconditional-requeue"
    assert elsewhere.job.excluded == ("n2",), "a requeue happens anyway, and another node is free"


def test_a_job_takes_back_what_it_has_told_of_a_node() -> None:
    left = [NodeLeft(1.0, "c", "n2", job, "it is broken") for job in ("3", "4")]
    assert [node.suspect for node in remembered(left, 2.0, 100.0)] == [True]
    again = [*left, NodeReinstated(1.5, "c", "n2", "4", "it is the program")]
    assert [(node.jobs, node.suspect) for node in remembered(again, 2.0, 100.0)] == [(("3",), False)]


# --- hangs


def hang(rank: int, node: str) -> Culprit:
    return Culprit(CulpritKind.COMM_HANG, (rank,), (node,), "all_reduce", "its connections are stuck", Level.ERROR, (), (node,))


def test_a_hang_that_comes_with_its_rank_to_another_node_is_the_program_s() -> None:
    job = Job(per_node=1, nodes=("n1", "n2")).begin()
    job.slurm = replace(RUNNING, node_count=2, usable=frozenset(CLUSTER))
    judge = job.judge
    past = rec.CulpritSeen(job.now.unix, 1, "RankCommHang", "Error", (1,), ("n3",), "all_reduce", "stuck")
    judge.run.take_in(past)
    held, cleared = held_against(judge.run, hang(1, "n2"), job.now)
    assert not held and cleared is not None and cleared.cleared == ("n3",)
    held, cleared = held_against(judge.run, hang(0, "n1"), job.now)
    assert held.keys() == {"n1"} and cleared is None


# --- spread and place


IMPORT = "ModuleNotFoundError: No module named 'flash_attn'\n"


def test_before_anybody_printed_anything_one_node_s_error_is_its_set_up_and_others_are_worth_a_try() -> None:
    job = Campaign()
    assert job.fails(1, IMPORT, began=False) == "unconditional-requeue"
    job.again(nodes=("n1", "n2"))
    assert job.fails(1, IMPORT, began=False) == "isolated-requeue" and job.job.excluded == ("n2",)
    job.again()
    assert job.fails(1, IMPORT, began=False) == "fail", "it came along"
    assert "n2 is reinstated" in job.job.said and not job.excluded


def test_the_same_root_on_most_ranks_before_any_progress_gets_one_more_try() -> None:
    text = "OSError: [Errno 113] No route to host\n"
    job = Campaign(per_node=2)
    for rung in ("unconditional-requeue", "fail"):
        number = max(job.job.truth.attempts)
        output = (Piece(job.job.now.unix - 0.1, "err", text),)
        job.job.silent.add(do.StopRanks)
        job.job.tell(*(replace(job.job.exit_of(rank, 1), output=output) for rank in (1, 2, 3)))
        job.job.silent.discard(do.StopRanks)
        job.job.tell(*(ev.RankStopped(rank, number) for rank in range(4)))
        assert job.job.rungs[-1] == rung
        if rung != "fail":
            job.again()


# --- what only the program does not see

NO_GPU = "RuntimeError: No CUDA GPUs are available\n"


def test_a_node_whose_devices_are_well_is_not_left_over_a_program_that_sees_none() -> None:
    job = Campaign(per_node=1)
    job.job.there = {"n1": {"nvidia": 8}, "n2": {"nvidia": 8}}
    assert job.fails(1, NO_GPU) == "unconditional-requeue" and job.excluded == set()
    assert "a check since then found the devices of n2 healthy" in job.job.said


def test_one_that_did_not_answer_is_as_good_as_before() -> None:
    job = Campaign(per_node=1)
    assert job.fails(1, NO_GPU) == "isolated-requeue" and job.excluded == {"n2"}


def test_nor_where_the_environment_hides_them() -> None:
    job = Campaign(per_node=1, none=frozenset({"CUDA_VISIBLE_DEVICES"}))
    job.fails(1, NO_GPU)
    assert job.excluded == set() and "CUDA_VISIBLE_DEVICES shows the program no device" in job.job.said
    job.until_over(1, NO_GPU)
    assert job.ever_excluded == set() and job.tried <= 3


def test_a_file_system_that_a_rank_calls_read_only_costs_no_node_at_once() -> None:
    job = Campaign(per_node=2)
    assert job.fails(2, "OSError: [Errno 30] Read-only file system: '/opt/app/cache'\n") != "isolated-requeue"
    assert job.excluded == set()


# --- on most ranks, before anybody got anywhere

REFUSED = "ConnectionRefusedError: [Errno 111] Connection refused\n"


def all_fail(job: Campaign, text: str, ranks: Sequence[int] = ()) -> str:
    """Those ranks, or all of them, print it and fail at once."""
    mine = [task.rank for task in job.job.tasks if not ranks or task.rank in ranks]
    number, said = max(job.job.truth.attempts), (Piece(job.job.now.unix - 0.1, "err", text),)
    job.job.silent.add(do.StopRanks)
    others = [replace(job.job.exit_of(task.rank, 0, 15), stopped=True) for task in job.job.tasks if task.rank not in mine]
    job.job.tell(*(replace(job.job.exit_of(rank, 1), output=said) for rank in mine), *others)
    job.job.silent.discard(do.StopRanks)
    job.job.tell(*(ev.RankStopped(task.rank, number) for task in job.job.tasks))
    return job.job.rungs[-1]


@pytest.mark.parametrize("text", [REFUSED, ECC])
def test_what_all_ranks_meet_at_once_gets_one_more_try(text: str) -> None:
    job = Campaign(per_node=2)
    assert all_fail(job, text) == "unconditional-requeue"
    job.again()
    assert all_fail(job, text) == "fail" and job.ever_excluded == set()


def test_what_was_on_most_ranks_before_is_the_same_on_the_few_that_came_to_it_this_time() -> None:
    job = Campaign(per_node=2)
    assert all_fail(job, ECC) == "unconditional-requeue"
    job.again()
    assert all_fail(job, ECC, (2,)) == "fail" and job.ever_excluded == set()
