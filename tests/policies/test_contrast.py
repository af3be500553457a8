"""What follows the rank, the step or no node at all is the program's."""

from __future__ import annotations

import pytest

from ftslurm.model import record as rec
from ftslurm.model.exits import ExitStatus
from ftslurm.model.folds.history import History, fold
from ftslurm.model.verdict import Blame, Confidence, ErrorClass, RankEnd, Retriable, Suspect, Verdict
from ftslurm.policies.diagnose.classify import without_control
from ftslurm.policies.weigh import contrast


def seen(at: float, rank: int, node: str, step: int = 0, signature: str = "x") -> list[rec.Record]:
    return [
        rec.AttemptEnded(at, 1, {}, step),
        rec.Diagnosed(at, 1, signature, "hardware", "yes", "strong", "", suspects={node: "said so"}, shown={str(rank): node}),
    ]


def left(at: float, node: str, signature: str = "x") -> rec.Decided:
    return rec.Decided(at, f"r-{at:g}", 1, "isolated-requeue", "hardware", "", isolate={node: "why"}, words={node: signature})


NODE_1 = fold([*seen(10.0, 3, "n1"), left(11.0, "n1")])


@pytest.mark.parametrize(("past", "shown", "step", "follows"), [
    (NODE_1, {3: "n2"}, 0, "rank 3"),
    (NODE_1, {2: "n1"}, 0, ""),
    (NODE_1, {3: "n1"}, 0, ""),
    (NODE_1, {5: "n2"}, 0, "no node"),
    (fold([*seen(10.0, 3, "n1"), left(11.0, "n1"), rec.AttemptEnded(20.0, 2, {}, 7)]), {5: "n2"}, 0, ""),
    (fold(seen(10.0, 3, "n1", 40)), {5: "n2"}, 40, "step 40"),
    (fold(seen(10.0, 3, "n1", 40)), {5: "n2"}, 41, ""),
    (fold(seen(10.0, 3, "n1", signature="y")), {3: "n2"}, 0, ""),
    (fold(seen(1.0, 3, "n1")), {3: "n2"}, 0, ""),
    (History(), {3: "n2"}, 0, ""),
])  # fmt: skip
def test_what_an_error_follows(past: History, shown: dict[int, str], step: int, follows: str) -> None:
    """Sightings before second 5 do not count."""
    found = contrast("x", shown, past, 5.0, step)
    assert (found.follows if found else "") == follows
    if found:
        assert found.cleared == ("n1",) and "it is the program" in found.why


def test_what_was_left_is_reinstated() -> None:
    found = contrast("x", {3: "n2"}, NODE_1, 5.0)
    assert found is not None
    again = NODE_1.add(rec.Reinstated(12.0, 2, "x", {"n1": found.why}))
    assert not again.exclusions.isolated and again.exclusions.ours == {"n1"} and again.exclusions.left_on_words == {"n1": "x"}
    assert not again.verdicts.suspected("n1", 0.0) and NODE_1.verdicts.suspected("n1", 0.0) == 1


@pytest.mark.parametrize(("error_class", "blame", "nodes", "accused"), [
    (ErrorClass.HARDWARE, Blame.YES, ("n1", "n1"), True),
    (ErrorClass.HARDWARE, Blame.SUSPECT, ("n1", "n1"), False),
    (ErrorClass.STORAGE, Blame.YES, ("n1", "n1"), False),
    (ErrorClass.NETWORK, Blame.SUSPECT, ("n1",), False),
    (ErrorClass.NETWORK, Blame.SUSPECT, ("n1", "n2"), True),
])  # fmt: skip
def test_where_all_run_on_one_node_only_the_hardware_s_own_word_accuses_it(
    error_class: ErrorClass, blame: Blame, nodes: tuple[str, ...], accused: bool
) -> None:
    said = Verdict(error_class, Retriable.YES, Confidence.STRONG, "x", "x", (Suspect("n1", 0, blame, "x"),))
    ends = tuple(RankEnd(rank, node) for rank, node in enumerate(nodes))
    assert bool(without_control(said, ends).suspects) is accused


@pytest.mark.parametrize(("error_class", "words"), [
    (ErrorClass.USER_CODE, "n1 and n2: it is the program"),
    (ErrorClass.HARDWARE, "n1 and n2: it is the program"),
    (ErrorClass.NETWORK, "n1 and n2: it is not the node, but the program or what it connects to"),
    (ErrorClass.STORAGE, "n1 and n2: it is not the node, but the storage or the program"),
])  # fmt: skip
def test_what_it_is_instead_is_not_said_more_surely_than_it_is_known(error_class: ErrorClass, words: str) -> None:
    found = contrast("x", {3: "n2"}, NODE_1, 5.0, error_class=error_class)
    assert found is not None and found.why.endswith(words)


def test_that_a_program_of_one_node_sees_no_gpu_may_be_its_own_doing() -> None:
    """A mask, or no --gres; in a job of several nodes the others are the control group."""
    end = RankEnd(0, "n1", ExitStatus(1))
    suspect = Suspect("n1", 0, Blame.YES, "No CUDA GPUs are available")
    seen_none = Verdict(ErrorClass.HARDWARE, Retriable.YES, Confidence.STRONG, "cuda-no-device", "", (suspect,), hidden_by=("A",))
    assert not without_control(seen_none, [end]).suspects
    assert without_control(seen_none, [end, RankEnd(1, "n2", ExitStatus(0))]).suspects == (suspect,)
