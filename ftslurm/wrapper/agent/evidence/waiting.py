"""How long a rank waited lately, and when it entered its collectives: for the rules on slow ranks (policies/hang/slow.py)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ftslurm.model.collectives import CallDurations, EntryTimes, WaitTimes
from ftslurm.policies.hang.slow import steady_means
from ftslurm.sdk import probe as layout
from ftslurm.wrapper.agent.evidence.probe_words import group_key
from ftslurm.wrapper.agent.evidence.rank import WatchedRank
from ftslurm.wrapper.agent.evidence.recorder import Recorded

ENTERS_MAX = 400


def wait_times(each: WatchedRank, node: str) -> WaitTimes:
    """Of the waits since the last time."""
    new = each.hear_waits()
    if not new or each.probe is None:
        return WaitTimes(each.rank, node, 0, 0.0, 0.0)
    issued = {group.slot: group for group in each.probe.groups}
    stays: dict[int, dict[int, int]] = {}
    for wait in new:
        if wait.slot in issued and wait.slot is not None:
            latest = issued[wait.slot].issued
            stays.setdefault(wait.slot, {})[latest - (latest - wait.number) % layout.NUMBERS] = wait.stay_us
    return WaitTimes(
        each.rank, node, len(new), *steady_means([(wait.outside_us / 1e6, wait.stay_us / 1e6) for wait in new]),
        tuple(_in_a_row(group_key(issued[slot], each.names), found) for slot, found in stays.items()),
    )  # fmt: skip


def entry_times(each: WatchedRank, node: str, dump: Mapping[str, Recorded]) -> Iterator[EntryTimes]:
    """By torch's recorder."""
    keys = {name.name: name.key for name in each.names.values()}
    for name, told in dump.items():
        row = _in_a_row(keys.get(name, name), told.times_ns)
        if row.stays_us:
            skip = max(0, len(row.stays_us) - ENTERS_MAX)
            yield EntryTimes(each.rank, node, row.key, row.first + skip, row.stays_us[skip:])


def _in_a_row(key: str, found: Mapping[int, int]) -> CallDurations:
    """The last calls without a gap between their numbers."""
    row: list[int] = []
    number = max(found, default=0)
    last = number
    while number in found:
        row.append(found[number])
        number -= 1
    return CallDurations(key, last - len(row) + 1, tuple(reversed(row)))
