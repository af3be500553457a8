"""What is known of hangs: signs outside the ranks, stalls, slow ranks, and exits that do not come."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from ftslurm.model.decisions import SetIntervals
from ftslurm.model.settings.tree import Settings
from ftslurm.policies.hang.job_activity import HangWatch
from ftslurm.policies.hang.slow import SlowWatch
from ftslurm.policies.hang.stall_watch import StallWatch, stall_watch
from ftslurm.policies.ladder.situation import Trouble


def intervals(settings: Settings, stages: Collection[float]) -> SetIntervals:
    """The limits for silence and for no I/O, as the programs have set them for their present work. stages: seconds, by rank that
    has set one; below 0: the program has switched detection off.
    """

    def limit(usual_s: float, wanted: bool) -> float:
        off = not wanted or any(stage < 0 for stage in stages)
        return 0.0 if off else max(stages, default=usual_s)

    return SetIntervals(
        limit(settings.hang.interval_s, settings.hang.log_silence), limit(settings.hang.detect_time_s, settings.hang.detection)
    )


class HangSigns:
    """hung: a hang that waits for the evidence. calculated: keys of ft_launcher's configuration that the program calculated."""

    def __init__(self, settings: Settings) -> None:
        self.watch = HangWatch()
        self.still: StallWatch = stall_watch(settings)
        self.slow = SlowWatch()
        self.hung: Trouble | None = None
        self.calculated: dict[str, Any] = {}
        self.first_end: float | None = None  # monotonic seconds, when the first rank ended
        self._exit_s: float | None = settings.hang.exit_interval_s  # from then to the end of the last rank; None: no limit
        self._heard: dict[tuple[int, int], int] = {}  # (rank, start) -> number of the last note of its program that was handled

    def begin_attempt(self, settings: Settings, number: int) -> None:
        self.watch, self.hung = HangWatch(), None
        self.still = stall_watch(settings, number)
        self.slow = SlowWatch()
        self._exit_s, self.first_end = settings.hang.exit_interval_s, None

    def watch_anew(self) -> HangWatch:
        """Start all watches anew. Gives what was seen."""
        before, self.watch = self.watch, HangWatch()
        return before

    def hangs(self, trouble: Trouble) -> Trouble:
        self.hung = trouble
        return trouble

    def rank_ended(self, now: float) -> bool:
        """Is it the first rank to end?"""
        first, self.first_end = self.first_end is None, now if self.first_end is None else self.first_end
        return first

    def put_off(self, seconds: float) -> None:
        """ftrun was suspended with its ranks: their time without progress does not count on."""
        self.still.put_off(seconds)
        self.first_end = None if self.first_end is None else self.first_end + seconds

    def wait_for_last(self, seconds: float | None) -> None:
        self._exit_s = seconds

    @property
    def last_end_due(self) -> float | None:
        """When the last rank should have ended; None: nobody waits for it."""
        return None if self._exit_s is None or self.first_end is None else self.first_end + self._exit_s

    def hears(self, rank: int, start: int, place: int) -> bool:
        """Is the note new? place: its number, 0 if it has none."""
        if place and place <= self._heard.get((rank, start), 0):
            return False
        if place:
            self._heard[rank, start] = place
        return True

    def keep_limits(self, words: Sequence[str]) -> None:
        """Keep limits as ft_launcher's monitors do, over all restarts: what was calculated once holds from the next start on."""
        from ftslurm.model.settings.ft_config import calculated, with_calculated  # most programs calculate nothing

        self.calculated = with_calculated(self.calculated, calculated(words))
