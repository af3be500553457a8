"""How fast notices go, what a summary says, which records tell what, and which file is refused."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.errors import PolicyError
from ftslurm.model import record as rec
from ftslurm.model.plain import to_plain
from ftslurm.model.rungs import RUNG_NAMES
from ftslurm.model.settings.tree import Settings, parse_leaf
from ftslurm.notify.deliver import Destination, read_destinations, scrubbed
from ftslurm.notify.outbox import (
    KINDS,
    TAKEN_S,
    TOO_OLD_S,
    Due,
    Notice,
    Outbox,
    Pace,
    due,
    notice_from_json,
    shown,
    summary,
)
from ftslurm.report.card import last_card
from ftslurm.wrapper.controller.people import place_of
from ftslurm.wrapper.controller.teller import Held, digests, of_card, of_record, routes
from tests.settings import settings_with

PACE = Pace(burst=3, window_s=600)


@pytest.mark.parametrize(("sent", "waiting", "ending", "expected"), [
    ([], 0, True, Due()),
    ([], 2, False, Due(each=2)),
    ([], 3, False, Due(each=3)),
    ([], 50, False, Due(each=2, rest=True)),
    ([900.0, 950.0], 5, False, Due(rest=True)),
    ([700.0, 900.0, 950.0], 5, False, Due(until=1300.0)),
    ([700.0, 900.0, 950.0], 5, True, Due(rest=True)),
    ([900.0] * 6, 5, True, Due(until=1500.0)),
    ([100.0, 200.0, 300.0], 1, False, Due(each=1)),
])  # fmt: skip
def test_a_burst_becomes_one_summary(sent: list[float], waiting: int, ending: bool, expected: Due) -> None:
    assert due(1000.0, sent, waiting, PACE, ending) == expected


NOW = time.time()


def notice(number: int = 1, kind: str = "requeue", job: str = "7") -> Notice:
    return Notice(f"id{number}", NOW + number / 1000, job, kind, f"job {job}: event {number}", f"all of {number}")


def test_a_summary_counts_lists_and_holds_the_last_failure_in_full() -> None:
    assert summary([notice()]) == notice()
    told = summary([notice(1), notice(2, "failure"), notice(3, job="8"), notice(4)])
    assert told.title == "2 jobs: 4 events (3 requeue, 1 failure)" and told.kind == "failure"
    assert [line for line in told.text.splitlines() if "event" in line] == [
        "job 7: event 1", "job 7: event 2", "job 8: event 3", "job 7: event 4",
    ]  # fmt: skip
    assert told.text.endswith("all of 2")
    many = summary([notice(number) for number in range(50)])
    assert many.title == "job 7: 50 events (50 requeue)" and many.text.startswith("... and 30 before these\n")


def test_what_leaves_is_bounded_and_harmless() -> None:
    title, text = shown(Notice("i", 0.0, "7", "message", "a\x1b[31mb\nc" * 100, "x\ny\x07" * 10000))
    assert len(title) <= 200 and "\x1b" not in title and "\n" not in title
    assert len(text) <= 8000 and "\x07" not in text and "x\ny" in text


@pytest.mark.parametrize("data", [b"", b"[]", b'{"at": 1}', b'{"at": "x", "kind": "end"}', b'{"at": 1, "kind": "x"}', b"\xff"])
def test_what_is_no_notice_is_none(data: bytes) -> None:
    assert notice_from_json(data) is None
    assert notice_from_json(json.dumps(to_plain(notice())).encode()) is not None


# --- which records


RUN = rec.RunBegan(1.0, "r", "7", "c", 0, "k", "train.py", "n[1-2]", budgets={"max_restarts": 8})
BEGAN = rec.AttemptBegan(2.0, "r", 1, 0, "k", 1, "n[1-2]", 2)


def decided(rung: str) -> rec.Decided:
    return rec.Decided(9.0, "r-1", 1, rung, "crash", "rank 1 on n2 exited with status 1; no node is to blame")


def kind_of(record: rec.Record, *before: rec.Record) -> str:
    told = of_record(record, (RUN, BEGAN, *before, record), "7", "(about)")
    return f"{told.kind}: {told.title}" if told else ""


def of_decision(rung: str) -> Notice:
    card = last_card((RUN, BEGAN, decided(rung)))
    assert card is not None
    return of_card(card, "7", "(about)")


def test_each_rung_has_its_kind_and_the_card_is_the_text() -> None:
    kinds = {rung: of_decision(rung).kind for rung in (*RUNG_NAMES, "requeue-on-warning", "requeue-by-slurm")}
    assert kinds == {
        "rank-restart": "restart", "in-place-restart": "restart", "hang-restart": "restart",
        "node-replacement": "replacement", "shrink": "replacement", "isolated-requeue": "requeue",
        "unconditional-requeue": "requeue", "fail": "failure", "requeue-on-warning": "requeue", "requeue-by-slurm": "requeue",
    }  # fmt: skip
    told = of_decision("fail")
    assert "next   ftslurm history 7" in told.text and told.text.endswith("(about)")


@pytest.mark.parametrize(("end", "before", "told"), [
    (rec.Finished(9.0, "r", 0, "the command has ended"), (), "end: job 7 has completed"),
    (rec.Finished(9.0, "r", 75, "requeued"), (decided("isolated-requeue"),), ""),
    (rec.Finished(9.0, "r", 1, "rank 1 failed"), (decided("fail"),), ""),
    (rec.Finished(9.0, "r", 9, "no ledger"), (), "failure: job 7 has ended with status 9: no ledger"),
    (rec.Finished(9.0, "r", 143, "the job was cancelled"), (), "end: job 7 has ended with status 143: the job was cancelled"),
    (rec.Finished(9.0, "r", 143, "the job was preempted"), (), "requeue: job 7: the job was preempted"),
])  # fmt: skip
def test_the_end_is_told_once(end: rec.Finished, before: tuple[rec.Record, ...], told: str) -> None:
    assert kind_of(end, *before) == told


def test_a_message_of_the_program_and_nothing_else_it_says() -> None:
    assert kind_of(rec.ProgramSaid(5.0, 1, 3, "message", "loss is NaN")) == "message: job 7: rank 3 says: loss is NaN"
    assert kind_of(rec.ProgramSaid(5.0, 1, 3, "limits", "60")) == "" and kind_of(BEGAN) == ""


def test_a_scheduling_of_which_nobody_saw_the_end_is_told() -> None:
    again = replace(RUN, at=50.0, schedule=1, run="s")
    assert kind_of(again) == "requeue: job 7: Slurm has started it again, scheduling 2"
    assert kind_of(again, decided("in-place-restart")).startswith("requeue: ")
    assert kind_of(again, decided("isolated-requeue")) == "" and kind_of(again, rec.Finished(9.0, "r", 75, "requeued")) == ""
    assert kind_of(again, rec.Finished(9.0, "r", 1, "the job was preempted")) == "" and kind_of(replace(RUN, at=50.0)) == ""


def test_who_is_told_of_what() -> None:
    heard: list[str] = []
    told_of = settings_with(notify__failure=("team", "tem"), notify__message=("none",))
    told = routes(told_of, ["team", "me"], heard.append)
    assert told["failure"] == ("team",) and told["message"] == () and told["requeue"] == ("team", "me") and told["end"] == ()
    assert told.keys() == KINDS.keys()
    assert heard == ["notify.failure: there is no address `tem` in the notify file; did you mean `team`?"]


def test_where_the_file_is(tmp_path: Path) -> None:
    assert place_of(Settings(), tmp_path) is None and place_of(settings_with(notify__file="none"), tmp_path) is None
    assert place_of(settings_with(notify__file="/x/y"), tmp_path) == Path("/x/y")
    (tmp_path / "notify.yaml").write_text("")
    assert place_of(Settings(), tmp_path) == tmp_path / "notify.yaml"
    with pytest.raises(PolicyError, match="the path of a file is wanted"):
        parse_leaf("notify.file", "slack://T/B/secret", "--ft-set")


# --- the file of addresses


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_addresses_and_programs(tmp_path: Path) -> None:
    found = read_destinations(written(tmp_path / "n.yaml", "team: slack://A/B/C\npager: [/bin/page, -n, 3]\n"))
    assert found == {"team": Destination("team", "slack://A/B/C"), "pager": Destination("pager", argv=("/bin/page", "-n", "3"))}
    assert "A/B/C" not in repr(found) and found["team"].what == "slack://..."


@pytest.mark.parametrize(("text", "mode", "said"), [
    ("a: json://secret", 0o640, "open to others (mode 0640)"), ("a: json://secret", 0o604, "open to others"),
    ("a: secret", 0o600, "neither an address nor a program"), ("all: json://secret", 0o600, "is not valid"),
    ("a: [secret]", 0o600, "a program needs its absolute path"), ("a: [json://secret", 0o600, "not YAML"), ("", 0o600, "no destination"),
    ("a b: json://secret", 0o600, "is not valid"), ("a: !!int secret", 0o600, "not YAML"), ("#" * 70000, 0o600, "64 KiB"),
])  # fmt: skip
def test_what_is_wrong_is_named_without_the_secret(tmp_path: Path, text: str, mode: int, said: str) -> None:
    with pytest.raises(PolicyError) as caught:
        read_destinations(written(tmp_path / "n.yaml", text, mode))
    assert said in str(caught.value) and "secret" not in str(caught.value).replace("addresses are secret", "")


@settings(max_examples=60, deadline=None)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200).map(str.encode), st.recursive(
    st.none() | st.text(max_size=9) | st.integers() | st.dates(), lambda each: st.lists(each) | st.dictionaries(st.text(max_size=9), each),
).map(lambda tree: yaml.safe_dump(tree).encode())))  # fmt: skip
def test_whatever_stands_there_it_is_understood_or_refused(data: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:  # mode 0600
        file.write(data)
        file.flush()
        try:
            assert all(each.url or each.argv for each in read_destinations(Path(file.name)).values())
        except PolicyError as error:
            assert len(str(error)) < 300


def test_a_fifo_holds_nobody_up(tmp_path: Path) -> None:
    import os

    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(PolicyError, match="not a plain file"):
        read_destinations(tmp_path / "fifo")


def test_nothing_of_an_address_is_said() -> None:
    to = Destination("t", "slack://TokenA12/B%20cd34/secret-token/#channel?key=verysecret")
    said = scrubbed("POST https://hooks/TokenA12/B cd34/secret-token failed, key=verysecret", to)
    assert not any(word in said for word in ("TokenA12", "B cd34", "secret-token", "verysecret")) and "failed" in said


# --- the outbox


def test_who_takes_a_notice_has_it_alone(tmp_path: Path) -> None:
    file = tmp_path / "n.yaml"
    one, other = Outbox(tmp_path, file), Outbox(tmp_path, file)
    assert one.put(notice(2), "me") and one.put(notice(1), "me") and one.put(notice(1), "team")
    assert one.put(notice(1), "me"), "the same once more is the same file"
    paths = other.waiting("me")
    assert [item.notice.id for item in one.take(paths)] == ["id1", "id2"]
    assert other.take(paths) == [] and other.waiting("me") == [] and len(other.waiting("team")) == 1
    assert not Outbox(tmp_path, tmp_path / "another.yaml").anything()


def test_what_a_dead_sender_had_taken_is_there_again_and_old_news_is_not(tmp_path: Path) -> None:
    now = [time.time()]
    box = Outbox(tmp_path, tmp_path / "n.yaml", lambda: now[0])
    box.put(notice(1), "me")
    assert len(box.take(box.waiting("me"))) == 1 and box.waiting("me") == []
    now[0] += TAKEN_S + 60
    assert [item.notice.id for item in box.take(box.waiting("me"))] == ["id1"]
    now[0] += TOO_OLD_S
    assert not box.anything() and [path.name for path in (tmp_path / "notices").iterdir()] == []


def test_what_failed_is_given_back_and_what_went_is_counted(tmp_path: Path) -> None:
    box = Outbox(tmp_path, tmp_path / "n.yaml")
    box.put(notice(1), "me")
    box.give_back(box.take(box.waiting("me")))
    items = box.take(box.waiting("me"))
    box.done(items)
    box.note_sent("me", 60)
    assert len(items) == 1 and not box.anything() and len(box.sent("me")) == 1 and box.sent("team") == []
    assert (tmp_path / "notices").stat().st_mode & 0o777 == 0o700


# --- what goes later


def test_a_wait_is_told_when_it_has_lasted_or_at_once_where_somebody_can_end_it() -> None:
    away = rec.Waiting(100.0, 1, "slurmctld, to decide what to do", 3700.0, "systemctl start slurmctld")
    dead = rec.Waiting(100.0, 1, "its nodes to be clean", helps="scontrol update nodename=n2 state=down reason=dead")
    assert kind_of(rec.Waiting(100.0, 1, "")) == ""
    late, now = (of_record(record, (RUN, BEGAN, record), "7", "(about)") for record in (away, dead))
    assert late is not None and (late.kind, late.at) == ("wait", 400.0) and "until" in late.title
    assert now is not None and now.at == 100.0 and "  next   scontrol update nodename=n2 state=down" in now.text


def test_a_wait_that_passes_is_not_told_and_one_that_changes_counts_from_its_beginning() -> None:
    held, first = Held(), Notice("a", 400.0, "7", "wait", "first")
    assert held.take(first, 100.0) == [] and held.next_at() == 400.0
    assert held.take(replace(first, at=500.0, title="second"), 200.0) == [] and held.due(399.0) == []
    assert [told.title for told in held.due(400.0)] == ["second"] and held.next_at() is None
    held.take(first, 100.0)
    held.wait_is_over()
    assert held.due(1e9) == [] and held.take(first, 401.0) == [first]


def test_a_digest_is_one_summary_in_an_hour_and_at_the_end() -> None:
    held = Held({"restart"})
    restarts = [Notice(str(number), 100.0 + number, "7", "restart", f"restart {number}") for number in range(3)]
    assert [held.take(each, each.at) for each in restarts] == [[], [], []] and held.next_at() == 3700.0
    assert held.due(3699.0) == [] and [told.title for told in held.due(3700.0)] == ["job 7: 3 events (3 restart)"]
    held.take(restarts[0], 100.0)
    assert held.take(notice(), NOW + 9) == [notice()] and held.due(101.0, ending=True) == restarts[:1]
    assert digests(Settings()) == {"restart"} and routes(Settings(), ["team"], print)["restart"] == ("team",)
    assert routes(settings_with(notify__restart=("me", "digest")), ["team", "me"], print)["restart"] == ("me",)
