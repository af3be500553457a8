"""Node lists, folded and expanded. A tuple keeps the order of slots, a frozenset is a set of names."""

from __future__ import annotations

from collections.abc import Iterable

from ftslurm.errors import UsageError


def fold(nodes: Iterable[str]) -> str:
    """`n1,n2,n3` as Slurm writes it: `n[1-3]`; the empty set gives an empty string."""
    from ClusterShell.NodeSet import NodeSet  # 20 ms to load, and most runs never print a node list

    return str(NodeSet.fromlist(list(nodes)))


def expand(text: str) -> tuple[str, ...]:
    """The names in Slurm's own order. Raises: UsageError when `text` is no node list."""
    if "[" not in text and "," not in text:
        return (text,) if text else ()
    from ClusterShell.NodeSet import NodeSet, NodeSetParseError

    try:
        # Slurm keeps the order of the comma separated groups; a NodeSet would sort them.
        return tuple(node for group in _split_groups(text) for node in NodeSet(group))
    except (NodeSetParseError, ValueError, TypeError, OverflowError) as error:  # the last three it lets through
        raise UsageError(f"`{text}` is not a node list: {error}", hint="write it as Slurm does: n[1-3,7]") from None


def _split_groups(text: str) -> list[str]:
    groups, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            groups.append(text[start:index])
            start = index + 1
    return [group for group in [*groups, text[start:]] if group]
