"""Heartbeats, sections and the time out of them, judged as ft_launcher does: pages in, a verdict out, no clock."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ftslurm.model.settings.ft_config import BeatLimits
from ftslurm.policies.hang.beats import Watch, follow_page, merged_limits, overdue
from ftslurm.sdk import notes
from ftslurm.sdk.page import PageState, SectionState

BEGUN = PageState(
    pid=7, start_ticks=70, namespace=1, attempt=1, rank=0, init_ns=1000, beats=0,
    steps=0, step=None, first_step=None, warmup=None, stages=0, stage_s=None, out_since_ns=1000, sections=(),
)  # fmt: skip


def opened(*names: str, at_ns: int = 5000) -> tuple[SectionState, ...]:
    return tuple(SectionState(name, at_ns, 0) for name in names)


def closed(*names: str) -> tuple[SectionState, ...]:
    return tuple(SectionState(name, 0, 1) for name in names)


@dataclass
class Reader:
    """Reads pages at moments of its own clock, which has nothing to do with the page's."""

    limits: BeatLimits
    watch: Watch | None = None

    def sees(self, page: PageState | None, at: float) -> str | None:
        """What is overdue then."""
        self.watch = follow_page(self.watch, page, at)
        late = overdue(self.watch, self.limits, at)
        return (late.section or late.what) if late else None


# --- heartbeats


def test_the_first_heartbeat_has_a_limit_of_its_own() -> None:
    reader = Reader(BeatLimits(initial_s=60, beat_s=10))
    assert [reader.sees(BEGUN, at) for at in (100.0, 130.0, 160.0, 160.1)] == [None, None, None, "first beat"]
    assert reader.sees(BEGUN._replace(beats=1), 161.0) is None
    assert [reader.sees(BEGUN._replace(beats=1), at) for at in (171.0, 171.1)] == [None, "beat"]
    assert reader.sees(BEGUN._replace(beats=2), 171.2) is None


def test_without_a_limit_nothing_is_overdue() -> None:
    reader = Reader(BeatLimits(beat_s=10))
    assert [reader.sees(BEGUN, at) for at in (0.0, 1e6)] == [None, None]  # it never sent one


def test_who_does_not_report_is_not_watched() -> None:
    reader = Reader(BeatLimits(initial_s=1, beat_s=1, out_of_section_s=1))
    assert [reader.sees(page, 10.0 * at) for at, page in enumerate([None, None, BEGUN._replace(init_ns=0)])] == [None] * 3
    reader.sees(BEGUN._replace(beats=1), 100.0)
    assert reader.sees(BEGUN._replace(beats=1, init_ns=0), 200.0) is None and reader.watch is None


def test_a_page_that_cannot_be_read_is_no_news() -> None:
    reader = Reader(BeatLimits(beat_s=10))
    reader.sees(BEGUN._replace(beats=1), 0.0)
    assert [reader.sees(None, at) for at in (5.0, 10.5)] == [None, "beat"]


@pytest.mark.parametrize("anew", [{"init_ns": 2000}, {"pid": 8}, {"start_ticks": 71}])
def test_another_program_begins_anew(anew: dict[str, int]) -> None:
    reader = Reader(BeatLimits(initial_s=60, beat_s=10))
    reader.sees(BEGUN._replace(beats=1), 0.0)
    assert reader.sees(BEGUN._replace(**anew), 20.0) is None
    assert [reader.sees(BEGUN._replace(**anew), at) for at in (80.0, 80.5)] == [None, "first beat"]


def test_a_word_that_jumps_is_a_sign_of_life_whatever_it_says() -> None:
    reader = Reader(BeatLimits(beat_s=10))
    for at, count in enumerate((5, 3, (1 << 64) - 1, 0)):
        assert reader.sees(BEGUN._replace(beats=count), at * 9.0) is None


# --- sections


def test_every_open_section_counts_and_not_only_the_last() -> None:
    reader = Reader(BeatLimits(sections={"outer": 10, "inner": 100}))
    reader.sees(BEGUN._replace(sections=opened("outer"), out_since_ns=0), 0.0)
    page = BEGUN._replace(sections=opened("outer", "inner"), out_since_ns=0)
    assert [reader.sees(page, at) for at in (9.0, 10.5)] == [None, "outer"]
    assert reader.sees(page._replace(sections=closed("outer") + opened("inner")), 11.0) is None


def test_a_section_that_was_closed_and_opened_between_two_looks_is_a_new_one() -> None:
    reader = Reader(BeatLimits(sections={"step": 10}))
    for at in range(0, 60, 6):
        page = BEGUN._replace(sections=opened("step", at_ns=at + 1), out_since_ns=0)
        assert reader.sees(page, float(at)) is None
    assert reader.sees(page, 65.0) == "step"


def test_sections_without_a_limit_are_not_checked() -> None:
    reader = Reader(BeatLimits(sections={"save": None}))
    page = BEGUN._replace(sections=opened("save", "other"), out_since_ns=0)
    assert [reader.sees(page, at) for at in (0.0, 1e6)] == [None, None]


def test_the_one_that_was_to_end_first_is_named() -> None:
    reader = Reader(BeatLimits(beat_s=50, sections={"a": 30, "b": 20}, out_of_section_s=1))
    page = BEGUN._replace(beats=1, sections=opened("a", "b"), out_since_ns=0)
    assert [reader.sees(page, at) for at in (0.0, 100.0)] == [None, "b"]


def test_time_out_of_sections_runs_while_none_is_open() -> None:
    reader = Reader(BeatLimits(sections={"train": 100}, out_of_section_s=10))
    assert [reader.sees(BEGUN, at) for at in (0.0, 9.0)] == [None, None]
    assert reader.sees(BEGUN._replace(sections=opened("train"), out_since_ns=0), 30.0) is None
    out = BEGUN._replace(sections=closed("train"), out_since_ns=9000)
    assert [reader.sees(out, at) for at in (31.0, 41.0, 41.5)] == [None, None, "out of section"]


def test_a_page_that_contradicts_itself_is_taken_to_be_in_a_section() -> None:
    reader = Reader(BeatLimits(out_of_section_s=10))
    page = BEGUN._replace(sections=opened("x"), out_since_ns=9000)  # read between two stores
    assert [reader.sees(page, at) for at in (0.0, 100.0)] == [None, None]


def test_out_of_section_needs_no_sections_at_all() -> None:
    reader = Reader(BeatLimits(out_of_section_s=10))
    assert [reader.sees(BEGUN, at) for at in (0.0, 10.5)] == [None, "out of section"]


def test_megatrons_first_steps_run_out_of_any_section() -> None:
    reader = Reader(BeatLimits(sections={"setup": 600, "step": 60}, out_of_section_s=10))
    after_setup = BEGUN._replace(sections=closed("setup"), out_since_ns=6000)
    assert [reader.sees(after_setup, at) for at in (0.0, 500.0)] == [None, None]
    after_step = BEGUN._replace(sections=closed("setup", "step"), out_since_ns=7000)
    assert [reader.sees(after_step, at) for at in (501.0, 511.5)] == [None, "out of section"]


@pytest.mark.parametrize(("told", "step", "late"), [
    (None, 104, None),  # the 5th of 5
    (None, 105, "step"),
    (2, 101, None),  # the program said 2
    (2, 102, "step"),
    (None, None, "step"),  # nobody knows
])  # fmt: skip
def test_the_first_steps_have_the_limit_of_warmup(told: int | None, step: int | None, late: str | None) -> None:
    reader = Reader(BeatLimits(sections={"step": 10, "warmup": 60}, warmup_steps=5))
    first = None if step is None else 100
    page = BEGUN._replace(sections=opened("step"), out_since_ns=0, step=step, first_step=first, warmup=told)
    assert [reader.sees(page, at) for at in (0.0, 20.0)] == [None, late]
    assert reader.sees(page, 61.0) == "step"


# --- staged intervals


def test_a_stage_that_is_switched_off_is_never_a_hang_and_leaves_no_debt() -> None:
    reader = Reader(BeatLimits(beat_s=10, sections={"epoch": 100}, out_of_section_s=10))
    page = BEGUN._replace(beats=1, sections=opened("epoch"), out_since_ns=0)
    reader.sees(page, 0.0)
    assert [reader.sees(page._replace(stages=1, stage_s=-1.0), at) for at in (5.0, 5000.0)] == [None, None]
    back = page._replace(stages=2)
    assert [reader.sees(back, at) for at in (5001.0, 5011.0, 5011.5)] == [None, None, "beat"]
    assert reader.sees(back._replace(beats=2), 5012.0) is None
    assert reader.sees(back._replace(beats=3), 5102.0) == "epoch"


def test_a_staged_interval_takes_the_place_of_the_general_limits() -> None:
    reader = Reader(BeatLimits(beat_s=10, out_of_section_s=10, sections={"save": 20}))
    page = BEGUN._replace(beats=1, stages=1, stage_s=180.0)
    assert [reader.sees(page, at) for at in (0.0, 179.0, 180.5)] == [None, None, "beat"]
    saving = page._replace(beats=2, sections=opened("save"), out_since_ns=0)
    assert [reader.sees(saving, at) for at in (181.0, 201.5)] == [None, "save"]  # its own limit is the more exact


def test_a_staged_interval_judges_heartbeats_that_had_no_limit_and_nothing_of_who_sends_none() -> None:
    for count, late in ((1, "beat"), (0, None)):
        reader = Reader(BeatLimits())
        page = BEGUN._replace(beats=count, stages=1, stage_s=60.0)
        assert [reader.sees(page, at) for at in (0.0, 61.0)] == [None, late]


# --- in words


def test_the_reason_is_a_sentence_with_both_numbers() -> None:
    limits = BeatLimits(beat_s=10, sections={"step": 2.5})
    watch = follow_page(None, BEGUN._replace(beats=1, sections=opened("step"), out_since_ns=0), 100.0)
    late = overdue(watch, limits, 103.25)
    assert late is not None and (late.what, late.section, late.limit_s) == ("section", "step", 2.5)
    assert late.reason(103.25) == "section `step` has been open for 3.2 s; the limit is 2.5 s"
    late = overdue(watch, replace(limits, sections={}), 115.0)
    assert late is not None and late.reason(115.0) == "no heartbeat for 15.0 s; the limit is 10 s"


def test_calculated_limits_hold_over_configured_ones() -> None:
    limits = BeatLimits(60, 30, 90, {"setup": 600, "step": 60}, 7)
    told = notes.Limits(initial_s=None, beat_s=12.5, out_of_section_s=None, sections=(("step", 4.0),))
    assert merged_limits(limits, told) == BeatLimits(60, 12.5, 90, {"setup": 600, "step": 4.0}, 7)
