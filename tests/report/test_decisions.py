"""Why decisions were taken, as `ftslurm explain JOB` tells it: from the ledger alone, and `not recorded` where it does not say."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from ftslurm.model import record as rec
from ftslurm.model.folds.summary import summarise
from ftslurm.report.explain import decisions, terms
from ftslurm.report.explain.decisions import Evidence, Explanations, explanations, wanted_ones
from tests.report.ledgers import SCRIPT, big_job

T = 1_795_000_000.0
READ = (
    ("in-place-restart", "rungs.in-place-restart.enabled", "false"), ("isolated-requeue", "max_restarts", "3"),
    ("isolated-requeue", "rungs.isolated-requeue.enabled", "true"), ("isolated-requeue", "isolation.expires", "0s"),
)  # fmt: skip


def run(schedule: int = 0) -> rec.RunBegan:
    return rec.RunBegan(
        T, f"r{schedule}", "7", "alps", schedule, "k", "train", "n[1-2]", budgets={"max_restarts": 3},
        settings={"max_restarts": "3", "rungs.in-place-restart.enabled": "false"},
    )  # fmt: skip


PLACES = rec.SettingsFrom(T, "r0", {"max_restarts": "p.yaml, line 2", "rungs.in-place-restart.enabled": "--ft-set"})


def begun(number: int, at: float) -> rec.AttemptBegan:
    return rec.AttemptBegan(T + at, "r0", number, 0, "k", number, "n[1-2]", 2)


def failed(at: float = 10, **more: Any) -> list[rec.Record]:
    return [
        rec.FaultSeen(T + at, "n2", "3", "80E01801", "HBM", "self-healing"),
        rec.TroubleSeen(T + at, 1, "device", "80E01801 on n2", T + at - 1),
        rec.Decided(
            T + at + 2, "d1", 1, "isolated-requeue", "device", "80E01801 on n2; without n2",
            (("in-place-restart", "switched off"),), {"n2": "80E01801"}, ("n2",), "max_restarts",
            **{"reason": "without n2", "settings": READ, **more},
        ),
    ]  # fmt: skip


def explained(records: list[rec.Record]) -> Explanations:
    known = summarise(records)
    assert known is not None
    return explanations(records, known)


def told(records: list[rec.Record], number: int = 0, width: int = 0) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width or 200, force_terminal=bool(width), soft_wrap=not width, color_system=None)
    found = explained(records)
    if number:
        one = wanted_ones(found.decisions, number)
        assert one is not None
        decisions.print_decision(console, found.summary, one)
    else:
        decisions.print_decisions(console, found)
    return out.getvalue()


def test_a_decision_is_told_with_evidence_settings_cost_and_outcome() -> None:
    records = [run(), PLACES, begun(1, 0), *failed(), rec.CarriedOut(T + 13, "d1", True, "requeued"), run(1), begun(2, 40)]
    (one,) = explained(records).decisions
    assert one.evidence == (
        Evidence(T + 10, "devices", "80E01801 (HBM) on device 3 of n2: self-healing"), Evidence(T + 10, "ftrun", "80E01801 on n2"),
    )  # fmt: skip
    assert (one.what, one.why, one.cost, one.done[-1].ok) == ("80E01801 on n2", "without n2", {"max_restarts": (1, 3)}, True)
    assert one.decided.passed == (("in-place-restart", "switched off"),)
    assert [(read.name, read.place) for read in one.of("isolated-requeue")] == [
        ("max_restarts", "p.yaml, line 2"), ("rungs.isolated-requeue.enabled", "default"), ("isolation.expires", "default"),
    ]  # fmt: skip
    assert (one.back_s, one.attempt_after) == (31.0, 2)
    text = told(records)
    for words in (
        "isolated-requeue, after attempt 1 (device)", "devices: 80E01801 (HBM) on device 3 of n2: self-healing",
        "in-place-restart: switched off", "max_restarts = 3  [p.yaml, line 2]", "and 1 default", "max_restarts 2 of 3 left",
        "n2: 80E01801", "requeued; attempt 2 began 31 s after the trouble",
    ):  # fmt: skip
        assert words in text, text
    assert "rungs.in-place-restart.enabled = false  [--ft-set]" in told(records, 1) and "--ft-set" not in text


def test_an_older_ledger_says_that_it_does_not_record_it() -> None:
    records = [run(), PLACES, begun(1, 0), *failed()[:2]]
    old = rec.Decided(T + 12, "d1", 1, "isolated-requeue", "device", "80E01801 on n2; without n2")
    (one,) = explained([*records, old]).decisions
    assert one.settings is None and one.why == old.why
    assert told([*records, old]).count("not recorded") == 1 and told([*records, old], 1).count("not recorded") == 1


def test_what_a_person_asked_for_has_no_settings_and_no_older_ftslurm() -> None:
    asked = rec.Decided(
        T + 12, "d1", 1, "in-place-restart", "request", "nobody asked; as request 1 asks", reason="as request 1 asks"
    )
    assert "settings" not in told([run(), PLACES, begun(1, 0), asked])


def test_of_a_failure_the_settings_are_those_of_the_rung_that_had_the_reason() -> None:
    gave_up = rec.Decided(
        T + 12, "d1", 1, "fail", "crash", "rank 0; all spent", (("in-place-restart", "no"), ("isolated-requeue", "all spent")),
        status=3, reason="all spent", settings=READ,
    )  # fmt: skip
    records = [run(), PLACES, begun(1, 0), gave_up, rec.Finished(T + 13, "r0", 3, "rank 0")]
    text = told(records)
    assert "max_restarts = 3" in text and "the job ended with status 3" in text and "cost" not in text


def test_nothing_decided_and_what_came_since() -> None:
    assert "no decision so far" in told([run(), PLACES, begun(1, 0)])
    hang = rec.HangSeen(T + 50, 1, "io", "no IO for 30 min", ("rank 0 waits",))
    text = told([run(), PLACES, begun(1, 0), hang])
    assert "since then" in text and "hang detection: no IO for 30 min" in text and "now: hanging: no IO for 30 min" in text


def test_a_requeue_that_ftrun_has_not_decided_is_said_to_be_slurms() -> None:
    since = explained([run(), PLACES, begun(1, 0), run(1)]).since
    assert [each.source for each in since] == ["Slurm"]
    assert not explained([run(), PLACES, begun(1, 0), *failed(), run(1)]).since


def test_a_remedy_that_fails_is_known_to_the_next_decision() -> None:
    healed = rec.Decided(T + 11, "d0", 1, "in-place-restart", "device", "x; y", reason="y", settings=READ)
    records = [run(), PLACES, begun(1, 0), healed, rec.CarriedOut(T + 12, "d0", False, "no word from the agent"), *failed(13)]
    first, second = explained(records).decisions
    assert first.done[-1].ok is False and Evidence(T + 12, "decision 1", "failed: no word from the agent") in second.evidence


@pytest.mark.parametrize(("wanted", "number"), [(1, 1), (2, 2), (-1, 2), (-2, 1), (3, None), (0, None), (-3, None)])
def test_decisions_are_counted_from_either_end(wanted: int, number: int | None) -> None:
    found = explained([run(), PLACES, begun(1, 0), *failed(), *failed(20)]).decisions
    one = wanted_ones(found, wanted)
    assert (one.number if one else None) == number


@pytest.mark.parametrize("width", [0, 40, 80])
def test_a_long_story_fits_any_width_and_no_text_is_markup(width: int) -> None:
    text = told(big_job(), width=width)
    assert "isolated-requeue" in text and (not width or max(map(len, text.splitlines())) <= width)
    evil = [run(), PLACES, begun(1, 0), rec.TroubleSeen(T, 1, "crash", f"[bold]{SCRIPT}\x1b[2J"), *failed()]
    assert "\x1b" not in told(evil, width=width) and "[bold]" in told(evil)


def test_the_ladder_of_a_job_is_that_of_its_ledger() -> None:
    known = terms.terms_of_job([run(), PLACES])
    assert known is not None and known[1] == ()
    assert known[0].settings.in_place_restart.enabled is False and known[0].places["max_restarts"] == "p.yaml, line 2"
    told = {"max_restarts": "4", "mode": "async", "no.such": "1"}
    old = terms.terms_of_job([rec.RunBegan(T, "r", "7", "c", 0, "k", "x", "n1", settings=told)])
    assert old is not None and old[1] == ("no.such",)
    assert (old[0].settings.max_restarts, old[0].places["mode"]) == (4, "the job; where is not recorded")
    assert terms.terms_of_job([rec.RunBegan(T, "r", "7", "c", 0, "k", "x", "n1")]) is None
