"""What a job takes from the memory of nodes, and what it adds to it."""

from __future__ import annotations

from dataclasses import replace

from ftslurm.model.decisions import TellOthers
from ftslurm.model.folds.node_memory import (
    NodeCleared,
    NodeFailed,
    NodeLeft,
    NodeReinstated,
    remembered,
    suspect_nodes,
    to_remember,
)
from tests.settings import settings_with

LEFT = NodeLeft(100.0, "c", "n1", "7", "Xid 79")
TWO = settings_with(isolation__memory_s=1000.0)


def test_a_node_that_enough_other_jobs_have_left_is_suspect_until_that_is_forgotten() -> None:
    known = [LEFT, replace(LEFT, job="8", at=200.0, why="Xid 48")]
    assert suspect_nodes(known, "c", "9", 300.0, TWO) == {"n1": "excluded after a fault by jobs 7, 8, last: Xid 48"}
    assert suspect_nodes(known, "c", "8", 300.0, TWO) == {}, "its own fault is in its own ledger"
    assert suspect_nodes(known, "another", "9", 300.0, TWO) == {}
    assert suspect_nodes(known, "c", "9", 1150.0, TWO) == {}, "the first is forgotten by then"
    assert suspect_nodes([*known, NodeCleared(250.0, "c", "n1")], "c", "9", 300.0, TWO) == {}


def test_a_job_tells_which_nodes_it_leaves_and_why() -> None:
    told = TellOthers({"n1": "Xid 79", "n2": "Slurm says DOWN"})
    assert to_remember(told, (), "c", "7", 100.0) == (LEFT, NodeLeft(100.0, "c", "n2", "7", "Slurm says DOWN"))


def test_a_node_that_failed_only_is_shown_and_suspect_to_nobody() -> None:
    known = to_remember(TellOthers({}, failed={"n1": "failed there twice"}), (), "c", "7", 100.0)
    assert known == (NodeFailed(100.0, "c", "n1", "7", "failed there twice"),)
    (node,) = remembered([*known, replace(LEFT, job="8")], 300.0, 1000.0)
    assert (node.jobs, node.for_facts, node.suspect) == (("7", "8"), ("8",), False)
    assert suspect_nodes([*known, replace(LEFT, job="8")], "c", "9", 300.0, TWO) == {}


def test_only_what_this_job_has_told_is_taken_back() -> None:
    others = [replace(LEFT, node="n2", job="8"), replace(LEFT, node="n3", cluster="another")]
    told = TellOthers({}, ("n1", "n2", "n3", "n4"))
    assert to_remember(told, [LEFT, *others], "c", "7", 200.0) == (NodeReinstated(200.0, "c", "n1", "7", "it is the program"),)
    assert to_remember(TellOthers({}, ("n1",)), (), "c", "7", 200.0) == ()
