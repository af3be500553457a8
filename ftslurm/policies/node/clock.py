"""The clock of another node: how far it is behind ours, by what it shows when a message is sent."""

from __future__ import annotations

# Between nodes with synchronised clocks.
CLOCKS_DIFFER_S = 1.0


class NodeClock:
    """A message is sent before it comes, and after what it answers: each one shows two limits. Unix seconds."""

    def __init__(self) -> None:
        self._least, self._most = float("-inf"), float("inf")
        self._answered, self._answered_at = 0, float("-inf")  # the latest beat

    def record(self, theirs: float, after: float, before: float) -> None:
        """A message was sent when that clock showed `theirs` and ours something from `after` to `before`."""
        least, most = max(self._least, after - theirs), min(self._most, before - theirs)
        # Limits that exclude each other: one of the clocks was set.
        self._least, self._most = (least, most) if least <= most else (after - theirs, before - theirs)

    def record_beat(self, number: int, has: int, theirs: float, now: float) -> None:
        """Beat `number` has come, and is about to be answered. has: the latest beat whose answer its sender had."""
        self.record(theirs, self._answered_at if has == self._answered else float("-inf"), now)
        self._answered, self._answered_at = number, now

    @property
    def behind_s(self) -> float:
        """What to add to a time of that node's; 0 unless the two are known to differ by more than synchronised ones."""
        return self._most if self._least > CLOCKS_DIFFER_S or self._most < -CLOCKS_DIFFER_S else 0.0
