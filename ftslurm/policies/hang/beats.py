"""ft_launcher's judgement of a rank that reports: is its heartbeat, a section, or the time out of sections overdue?

A page is read again and again. `follow` notes with the reader's clock since when each of its words is as it is: the
times in the page are another clock's. `overdue` compares that with the limits.

Three things are not as there: all open sections count, not only the one opened last; the time out of sections counts in
programs with names of their own, too; a change of the staged interval sets every clock to zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.model.values import Value, replace

if TYPE_CHECKING:  # values that another floor reads; nothing of it is loaded here
    from ftslurm.sdk.notes import Limits
    from ftslurm.sdk.page import PageState

OFF = -1.0  # of a staged interval: nothing is a hang


class Since(Value):
    """A value in the page, and when the reader first saw this value (seconds of the reader's clock)."""

    word: float
    at: float


class Watch(Value):
    """One page over time."""

    writer: tuple[int, int, int]  # process and init; another one is another program
    begun: Since
    beats: Since
    stage: Since
    stage_s: float | None
    out: Since  # when the last section ended, as the page has it; 0: one is open
    sections: Mapping[str, Since]  # those that are open
    seen: frozenset[str]  # all that ever were
    stepped: Since
    steps: int | None  # done since the first one told, None if none was
    warmup: int | None  # steps that the program called slow


class Clock(Value):
    """What runs against a limit. what: first beat, beat, section, or out of section; section: its name, else empty.

    since: seconds of the reader's clock.
    """

    what: str
    section: str
    since: float
    limit_s: float

    def reason(self, now: float) -> str:
        """Why it is overdue."""
        return f"{_SENTENCES[self.what].format(self.section)} for {now - self.since:.1f} s; the limit is {self.limit_s:g} s"


_SENTENCES = {
    "first beat": "no first heartbeat",
    "beat": "no heartbeat",
    "section": "section `{}` has been open",
    "out of section": "no section has been open",
}


def follow_page(before: Watch | None, page: PageState | None, now: float) -> Watch | None:
    """What is known once `page` was read at `now`, in seconds of the reader's clock.

    None: there was never a page, or the program does not report. A page that cannot be read is no news.
    """
    if page is None:
        return before
    if not page.init_ns:
        return None
    writer = (page.pid, page.start_ticks, page.init_ns)
    old = before if before is not None and before.writer == writer else None
    opened = {section.name: section.opened_ns for section in page.sections if section.opened_ns}
    steps = None if page.step is None or page.first_step is None else max(0, page.step - page.first_step)
    return Watch(
        writer=writer,
        begun=_since(old.begun if old else None, page.init_ns, now),
        beats=_since(old.beats if old else None, page.beats, now),
        stage=_since(old.stage if old else None, page.stages, now),
        stage_s=page.stage_s,
        out=_since(old.out if old else None, page.out_since_ns if not opened else 0, now),
        sections={name: _since(old.sections.get(name) if old else None, word, now) for name, word in opened.items()},
        seen=frozenset(section.name for section in page.sections if section.opened_ns or section.times),
        stepped=_since(old.stepped if old else None, page.steps, now),
        steps=steps,
        warmup=page.warmup,
    )


def _since(old: Since | None, word: float, now: float) -> Since:
    return old if old is not None and old.word == word else Since(word, now)


def overdue(watch: Watch | None, limits: BeatLimits, now: float) -> Clock | None:
    """What is overdue at `now`: of several, the one that was due first. None if nothing is."""
    late = (clock for clock in _running(watch, limits) if now - clock.since > clock.limit_s)
    return min(late, key=lambda clock: clock.since + clock.limit_s, default=None)


def merged_limits(limits: BeatLimits, calculated: Limits) -> BeatLimits:
    """The limits in force: those that the program calculated (it has merged earlier results itself) override configured ones."""
    return replace(
        limits,
        initial_s=limits.initial_s if calculated.initial_s is None else calculated.initial_s,
        beat_s=limits.beat_s if calculated.beat_s is None else calculated.beat_s,
        out_of_section_s=limits.out_of_section_s if calculated.out_of_section_s is None else calculated.out_of_section_s,
        sections={**limits.sections, **dict(calculated.sections)},
    )


def _running(watch: Watch | None, limits: BeatLimits) -> Iterator[Clock]:
    """The clocks that run against a limit.

    A staged interval takes the place of the general limits, not of a section's own: that one is the more exact.
    """
    if watch is None or watch.stage_s == OFF:
        return
    stage, restarted = watch.stage_s, watch.stage.at
    beat_s = limits.beat_s if watch.beats.word else limits.initial_s
    if stage is not None and (watch.beats.word or beat_s is not None):
        beat_s = stage
    if beat_s is not None:
        yield Clock("beat" if watch.beats.word else "first beat", "", max(watch.beats.at, restarted), beat_s)
    for name, opened in watch.sections.items():
        section_s = limits.sections.get("warmup" if _warms_up(name, watch, limits) else name)
        if section_s is not None:
            yield Clock("section", name, max(opened.at, restarted), section_s)
    if limits.out_of_section_s is not None and watch.out.word and not _waits_for_step(watch, limits):
        outside_s = limits.out_of_section_s if stage is None else stage
        yield Clock("out of section", "", max(watch.out.at, restarted), outside_s)


def _warms_up(name: str, watch: Watch, limits: BeatLimits) -> bool:
    steps = limits.warmup_steps if watch.warmup is None else watch.warmup
    return name == "step" and "warmup" in limits.sections and watch.steps is not None and watch.steps < steps


def _waits_for_step(watch: Watch, limits: BeatLimits) -> bool:
    """Programs with a section `step` and no limit for `warmup` (Megatron-LM) run their slow first steps out of any section."""
    return "step" in limits.sections and "warmup" not in limits.sections and "step" not in watch.seen
