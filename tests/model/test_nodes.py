"""Node lists as Slurm writes them."""

from __future__ import annotations

import pytest
from ClusterShell.NodeSet import NodeSet
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.errors import UsageError
from ftslurm.model.nodes import Topology, count_nodes, expand, fold_in_order, fold_nodes


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n1", "n2", "n3"), "n[1-3]"),
        (("n3", "n1", "n2", "n2"), "n[1-3]"),
        (("n1", "n2", "n7"), "n[1-2,7]"),
        (("gpu-a", "gpu-b"), "gpu-a,gpu-b"),
        (("n09", "n10"), "n[09-10]"),
        (("9" * 101, "n1", "n2"), "n[1-2]," + "9" * 101),  # no node, but what may stand in a damaged ledger
    ],
)
def test_nodes_fold(nodes: tuple[str, ...], text: str) -> None:
    assert fold_nodes(nodes) == text


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[1-2,7]", ("n1", "n2", "n7")),
        ("n[09-11]", ("n09", "n10", "n11")),
        ("n3,n1", ("n3", "n1")),  # the order is that of the slots
        ("m2,n[1-2],a7", ("m2", "n1", "n2", "a7")),
        ("r[1-2]c[1-2]", ("r1c1", "r1c2", "r2c1", "r2c2")),
    ],
)
def test_nodes_expand_in_slurm_s_order(text: str, nodes: tuple[str, ...]) -> None:
    assert expand(text) == nodes


@pytest.mark.parametrize("text", ["n[3-1]", "n[1-", "n[", "n[a-b]", "n[1-2]]", "[", ",n[", "n[1--2]"])
def test_what_is_no_node_list_is_named(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        expand(text)
    assert text in str(caught.value) and "n[1-3,7]" in str(caught.value)


NAMES = st.from_regex(r"[a-z]{1,3}-?[0-9]{0,3}", fullmatch=True).filter(lambda name: not name.endswith("-"))


@given(st.lists(NAMES, unique=True, max_size=12))
def test_what_was_folded_comes_back(names: list[str]) -> None:
    assert sorted(expand(fold_nodes(names))) == sorted(names)


@given(st.sets(st.from_regex(r"(n|m-|)[0-9]{1,4}", fullmatch=True), min_size=1, max_size=12), st.sampled_from(["", "n1 x"]))
def test_nodes_fold_as_the_library_folds_them(names: set[str], damaged: str) -> None:
    assert fold_nodes({*names, damaged} - {""}) == ",".join([str(NodeSet.fromlist(list(names))), *filter(None, [damaged])])


@given(st.text("n1290[],-", max_size=12))
def test_hostile_text_is_a_list_or_a_usage_error(text: str) -> None:
    try:
        assert all(isinstance(node, str) and node for node in expand(text))
    except UsageError:
        pass


@pytest.mark.parametrize(
    ("nodes", "text"),
    [
        ((), ""),
        (("n1",), "n1"),
        (("n1", "n2", "n3"), "n[1-3]"),
        (("n1", "n6", "n3", "n4"), "n1,n6,n[3-4]"),
        (("n3", "n2", "n1"), "n3,n2,n1"),
        (("n9", "n10"), "n9,n10"),  # n[9-10] is the same to Slurm, n[09-10] is not
        (("n09", "n10"), "n[09-10]"),
        (("r1c1", "r1c2", "r2c1"), "r1c[1-2],r2c1"),
        (("n1", "n1"), "n1,n1"),
        (("login", "n1", "gpu-a"), "login,n1,gpu-a"),
    ],
)
def test_nodes_fold_in_their_order(nodes: tuple[str, ...], text: str) -> None:
    assert fold_in_order(nodes) == text


NAMES = st.builds(
    "{}{:0{}d}".format, st.sampled_from(["n", "gpu-", "r1c", "node.a", ""]), st.integers(0, 120), st.integers(1, 3)
) | st.sampled_from(["login", "a-b"])


@given(st.lists(NAMES, max_size=30))
def test_what_was_folded_in_order_expands_to_the_same(nodes: list[str]) -> None:
    """As `scontrol show hostnames` does, which torchrun scripts read the first of."""
    assert expand(fold_in_order(nodes)) == tuple(nodes)


@pytest.mark.parametrize(
    ("text", "many"),
    [
        ("", 0), ("n1", 1), ("n[1-4,7]", 5), ("r[1-2]n[1-4],x", 9), ("n[1-999999999]", 65536), ("n[", 1), ("$(x)", 0),
        ("n[a-b]", 0), ("n[4-1]", 1),
    ],
)  # fmt: skip
def test_nodes_are_counted_and_none_is_made(text: str, many: int) -> None:
    assert count_nodes(text) == many


S1, S2, S3 = frozenset({"n1", "n2", "n5"}), frozenset({"n3", "n4"}), frozenset({"n6", "n7"})
TREE = Topology((S1, S2, S3, S1 | S2, S1 | S2 | S3))


@pytest.mark.parametrize(
    ("candidates", "out", "others", "sorted_"),
    [
        (("n3", "n5"), "n1", {"n2"}, ("n5", "n3")),  # the same switch
        (("n6", "n3"), "n1", {"n2"}, ("n3", "n6")),  # the next one up
        (("n3", "n6"), "n9", {"n7"}, ("n6", "n3")),  # nobody knows where the old node is: near the most of the step
        (("n1", "n3", "n6"), "n5", {"n4"}, ("n1", "n3", "n6")),
        (("n6", "n3", "n9"), "n8", {"n9"}, ("n6", "n3", "n9")),  # nothing known of any: as given
    ],
)
def test_the_nearest_node_comes_first(candidates: tuple[str, ...], out: str, others: set[str], sorted_: tuple[str, ...]) -> None:
    assert TREE.nearest(candidates, out, others) == sorted_
    assert Topology().nearest(candidates, out, others) == candidates


def test_a_group_stands_before_those_that_hold_it() -> None:
    assert TREE.around("n3") == (S2, S1 | S2, S1 | S2 | S3) and TREE.around("n9") == ()
