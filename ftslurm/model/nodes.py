"""Node lists, folded and expanded. A tuple keeps the order of slots, a frozenset is a set of names."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain, product, zip_longest

from ftslurm.errors import UsageError
from ftslurm.model.values import Value

# A range of more is an error to Slurm as well: MAX_RANGE in its src/common/hostlist.c.
MOST_NODES = 64 * 1024
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_HUGE = re.compile(r"[0-9]{19}")  # ClusterShell folds no number of a hundred digits, and no node bears one of nineteen
# ClusterShell knows more: groups (`@all`), whose name it hands to a shell, sums (`n[1-9]!n2`), and steps (`n[1-9/2]`).
_LIST = re.compile(r"[A-Za-z0-9_.,\[\]-]*")
_NUMBERED = r"(.*?)([0-9]{1,18})"
_ONE_NUMBER = re.compile(r"([^0-9]*)([0-9]{1,18})")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")


def fold_nodes(nodes: Iterable[str]) -> str:
    """`n1,n2,n3` as Slurm writes it: `n[1-3]`; the empty set gives an empty string. What is no name stays unfolded."""
    names = frozenset(nodes)
    return _fold(names) if len(names) > 1 else "".join(names)


# The records of a job name the same few sets again and again, and a list of a thousand nodes takes milliseconds.
@lru_cache(maxsize=8)
def _fold(names: frozenset[str]) -> str:
    plain = {name for name in names if _NAME.fullmatch(name) and not _HUGE.search(name)}
    folded = _fold_alike(plain)
    if folded is None:
        from ClusterShell.NodeSet import NodeSet

        folded = str(NodeSet.fromlist(list(plain)))
    return ",".join(filter(None, [folded, *sorted(names - plain)]))  # the rest comes from damaged ledgers only


def _fold_alike(names: Collection[str]) -> str | None:
    """As NodeSet does, whose module takes 5 ms of a step to load; None unless each name is one prefix and a number."""
    from ClusterShell.RangeSet import RangeSet

    found = [_ONE_NUMBER.fullmatch(name) for name in names]
    prefixes = {each[1] for each in found if each}
    if len(found) < 2 or len(prefixes) != 1 or None in found:
        return None
    numbers = RangeSet.fromlist([each[2] for each in found if each])
    return f"{prefixes.pop()}[{numbers}]"


def mark_down(nodes: Iterable[str]) -> str:
    """The command of an administrator after which Slurm waits for these dead nodes no longer."""
    return f"scontrol update nodename={fold_nodes(nodes)} state=down reason=dead"


def fold_in_order(nodes: Sequence[str]) -> str:
    """As Slurm writes it, but in this very order, which `scontrol show hostnames` keeps: `n1,n6,n[3-4]`."""
    groups: list[list[str]] = []
    for node in nodes:
        if groups and _follows(groups[-1][-1], node):
            groups[-1].append(node)
        else:
            groups.append([node])
    return ",".join(fold_nodes(group) if len(group) > 1 else group[0] for group in groups)


def _follows(node: str, other: str) -> bool:
    """n09 -> n10, but not n9 -> n10, whose widths differ."""
    mine, its = re.fullmatch(_NUMBERED, node), re.fullmatch(_NUMBERED, other)
    if mine is None or its is None or mine[1] != its[1] or len(mine[2]) != len(its[2]):
        return False
    return int(its[2]) == int(mine[2]) + 1


def expand(text: str) -> tuple[str, ...]:
    """The names in Slurm's own order. Raises: UsageError when `text` is no node list."""
    if "[" not in text and "," not in text:
        return (text,) if text else ()
    return _expand(text)


@lru_cache(maxsize=8)
def _expand(text: str) -> tuple[str, ...]:
    from ClusterShell.RangeSet import RangeSetException

    groups = _split_groups(text)
    try:
        if not _LIST.fullmatch(text):
            raise ValueError("it has characters that no node name has")
        if sum(map(_count, groups)) > MOST_NODES:
            raise ValueError(f"it names more than {MOST_NODES} nodes")
        return tuple(node for group in groups for node in _names(group))
    except (RangeSetException, ValueError, TypeError, OverflowError, AssertionError) as error:  # not all of them its own
        raise UsageError(f"`{text}` is not a node list: {error}", hint="write it as Slurm does: n[1-3,7]") from None


def _names(group: str) -> Iterable[str]:
    """In Slurm's order. Of brackets alone: digits beside them are no part of a range, as they are to a NodeSet, to which
    `1[9-10]` is 19 to 110."""
    from ClusterShell.RangeSet import RangeSet

    pieces = _BRACKETS.split(group)
    if any("[" in piece or "]" in piece for piece in pieces[::2]):
        raise ValueError("its brackets hold no ranges")
    ranges = [dict.fromkeys(number for part in inside.split(",") for number in RangeSet(part)) for inside in pieces[1::2]]
    between = [[piece] for piece in pieces[::2]]
    return map("".join, product(*chain.from_iterable(zip_longest(between, ranges, fillvalue=[""]))))


def named_nodes(text: str) -> tuple[str, ...]:
    """As `expand`; none for what is no node list, as a damaged ledger may have."""
    try:
        return expand(text)
    except UsageError:
        return ()


def count_nodes(text: str) -> int:
    """How many nodes a node list names, none of which is made: also of one that only wants to be expensive. 0 for no list."""
    if not _LIST.fullmatch(text):
        return 0
    try:
        return min(sum(map(_count, _split_groups(text))), MOST_NODES)
    except ValueError:
        return 0


def _count(group: str) -> int:
    """How many nodes a group such as `r[1-2]n[1-4,7]` names, before any of them is made."""
    return math.prod(sum(map(_width, inside.split(","))) for inside in _BRACKETS.findall(group))


def _width(numbers: str) -> int:
    low, _, high = numbers.partition("-")
    return max(1, int(high or low) - int(low) + 1)


def _split_groups(text: str) -> list[str]:
    groups, depth, start = [], 0, 0
    for index, char in enumerate(text):
        depth += (char == "[") - (char == "]")
        if char == "," and depth == 0:
            groups.append(text[start:index])
            start = index + 1
    return [group for group in [*groups, text[start:]] if group]


class Topology(Value):
    """Which nodes are near each other. groups: the nodes below each switch, or in each block. strict: these are blocks, and Slurm
    keeps a job, or each segment of one, within as few as can be.
    """

    groups: tuple[frozenset[str], ...] = ()
    strict: bool = False

    def around(self, node: str) -> tuple[frozenset[str], ...]:
        """The groups with the node, the smallest first."""
        return tuple(sorted((group for group in self.groups if node in group), key=len))

    def nearest(self, nodes: Iterable[str], out: str, others: Collection[str]) -> tuple[str, ...]:
        """The nodes, those near `out` first; of equal ones those near most of `others`, the rest of its step; else as given."""

        def apart(node: str) -> tuple[float, float]:
            # How many nodes the smallest group with both has.
            groups = self.around(node)
            from_ = {other: next((len(group) for group in groups if other in group), math.inf) for other in (out, *others)}
            return from_[out], sum(from_[other] for other in others)

        return tuple(sorted(nodes, key=apart)) if self.groups else tuple(nodes)


class Near(Value):
    """Where a node is best borrowed. groups: see Topology.around; beside: the nodes with which Slurm must be able to place it,
    none if it may be anywhere.
    """

    groups: tuple[frozenset[str], ...] = ()
    beside: frozenset[str] = frozenset()


ANYWHERE = Near()
