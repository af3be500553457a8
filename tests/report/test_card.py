"""The failure card: what people read of a failure, from records alone."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import replace
from signal import SIGABRT
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ftslurm.model import decisions as do
from ftslurm.model import events as ev
from ftslurm.model import record as rec
from ftslurm.model.devices import FaultClass
from ftslurm.model.folds.history import History
from ftslurm.model.folds.summary import Story, summarise
from ftslurm.model.text import file_of_rank
from ftslurm.model.verdict import Piece
from ftslurm.report import card as report_card
from ftslurm.report.card import MAX_LINES, Card, LastCard, card_lines, fault_of, last_card, max_lines, what_of
from ftslurm.report.explain.decisions import explanations
from tests.stories.replay import Job, fault, requeueing
from tests.stories.test_blame import ECC, Campaign

TRACE = """Traceback (most recent call last):
  File "/home/u/train.py", line 175, in step
    raise ValueError("bad config")
ValueError: bad config
"""


def cards(records: Sequence[rec.Record]) -> list[Card]:
    return [card for *_, card in report_card.cards(Story(records))]


def facts(card: Card | None) -> dict[str, str]:
    assert card is not None
    return dict(card.rows())


def test_a_program_s_own_error_who_what_where_why_done_and_what_to_type() -> None:
    job = Campaign()
    job.fails(1, TRACE)
    told = facts(last_card(job.job.ledger))
    assert told[""] == "job 7 is requeued: rank 1 on n2 exited with status 1"
    assert told["what"].startswith("ValueError: bad config (")
    assert told["where"] == "/home/u/train.py:175"
    assert told["why"] == "the program's fault, on 1 of 2 ranks"
    once_more = "unconditional-requeue (once more, to see whether it fails the same way)"
    assert told["done"] == f"{once_more}; max_restarts 7 of 8 left; it ran 3.0 s"
    assert told["next"] == "ftslurm status 7"


def test_of_two_that_failed_the_title_names_the_one_that_is_behind_it_with_its_own_end() -> None:
    job = Campaign(per_node=2).job
    job.silent.add(do.StopRanks)
    spoke = replace(job.exit_of(2, 7), output=(Piece(job.now.unix - 0.1, "err", TRACE),))
    job.tell(job.exit_of(3, 0, SIGABRT), spoke)
    job.silent.discard(do.StopRanks)
    number = max(job.truth.attempts)
    job.tell(*(ev.RankStopped(task.rank, number) for task in job.tasks))
    told = facts(last_card(job.ledger))
    assert told[""].endswith(": rank 2 on n2 exited with status 7; rank 3 on n2 was killed by SIGABRT")
    assert told["what"].startswith("ValueError: bad config (")


def test_however_its_end_is_worded_the_rank_that_failed_is_named_once() -> None:
    job = Campaign(per_node=2).job
    job.exits(2, 9)
    worded = [replace(each, what="it broke") if isinstance(each, rec.TroubleSeen) else each for each in job.ledger]
    assert facts(last_card(worded))[""].endswith(": it broke")
    unnamed = [replace(each, rank=-1) if isinstance(each, rec.TroubleSeen) else each for each in worded]
    assert "rank 2 on n2 " in facts(last_card(unnamed))[""]


def test_a_job_that_fails_again_and_again_needs_no_more_memory_for_its_last_card() -> None:
    job, card = Campaign(), LastCard()
    job.fails(1, TRACE)
    ledger = list(job.job.ledger)
    decided = next(record for record in ledger if isinstance(record, rec.Decided))
    for number in range(12):
        ledger.append(replace(decided, id=f"{decided.id}{number}"))
        assert card.after(ledger[-1:] if number else ledger) == last_card(ledger)
    gc.collect()
    before = sum(isinstance(each, History) for each in gc.get_objects())
    del card
    gc.collect()
    assert before - sum(isinstance(each, History) for each in gc.get_objects()) <= 3


def test_a_checkpoint_that_was_being_written_and_what_became_of_it() -> None:
    job = Job(requeueing()).begin()
    job.silent.add(do.StopRanks)
    job.tell(job.exit_of(3, 1))
    ends = [ev.RankStopped(rank, 1, save=save) for rank, save in enumerate((ev.Save.CUT, *2 * (ev.Save.WHOLE,), ev.Save.NONE))]
    job.tell(*ends)
    done = facts(last_card(job.ledger))["done"]
    assert "rank 0 was saving when it was to stop: the checkpoint was cut off; " in done
    assert "ranks 1-2 were saving when it was to stop: the checkpoint was written whole" in done
    (told,) = explanations(job.ledger, summarise(job.ledger)).decisions  # type: ignore[arg-type]
    assert [each.what for each in told.evidence if "saving" in each.what] == [
        each for each in done.split("; ") if "saving" in each
    ]


def test_an_error_that_follows_its_rank_gives_back_the_node_and_says_so() -> None:
    job = Campaign().until_over(1, ECC)
    first, second, *_, last = (facts(card) for card in cards(job.job.ledger))
    assert first[""].startswith("job 7 was requeued without n2: ")
    assert "its own words" not in first["why"] and "on rank 1 on n2 and n3: it is the program; n2 is reinstated" in second["why"]
    assert last[""].startswith("job 7 failed: rank 1 on ") and "running it again cannot help" in last["done"]
    assert "reinstated" not in last["why"], "that has been said"
    assert last["next"] == "ftslurm history 7"


def test_only_what_was_left_is_called_reinstated() -> None:
    """A node that was accused, and that the job has stayed on, is none that comes back."""
    begun = [rec.RunBegan(1.0, "r", "7", "c", 0, "", "x", "n[1-2]"), rec.AttemptBegan(2.0, "r", 1, 0, "", 1, "n[1-2]", 2)]
    seen = [rec.TroubleSeen(3.0, 1, "crash", "rank 1 on n2 exited with status 1"),
            rec.Diagnosed(3.0, 1, "x", "user-code", "no", "strong", "words"),
            rec.Reinstated(3.0, 1, "x", {"n1": "it is the program"})]  # fmt: skip
    decided = rec.Decided(4.0, "r-1", 1, "unconditional-requeue", "crash", "")
    assert "reinstated" not in facts(last_card([*begun, *seen, decided]))["why"]


def test_a_device_fault_is_known_by_its_code_and_its_device() -> None:
    job = Campaign().job
    job.shows(fault())
    told = facts(last_card(job.ledger))
    assert told[""] == "job 7 was restarted in place: device 0.0 of n2" and told["where"] == "device 0.0 of n2"
    assert told["what"] == "80E01801 (name of 80E01801)" and told["why"].startswith("the hardware's fault")
    assert told["done"].startswith("in-place-restart (the fault is one that heals); costs nothing; it ran 3.0 s")
    assert "back after" in told["done"] and told["next"] == "ftslurm explain 80E01801"


def test_healing_that_failed_is_said_with_what_came_of_it() -> None:
    job = Job().begin()
    job.heals = False
    job.shows(fault())
    first, second = cards(job.ledger)
    assert "that failed: n2: device 0.0" in first.done and second.rung == "isolated-requeue"
    assert "without n2" in second.title


def test_a_ledger_of_before_is_told_from_the_sentence_that_it_has() -> None:
    job = Job(requeueing(unconditional_requeue__enabled=False)).begin()
    job.exits(2, 9)
    old = [replace(r, reason="") if isinstance(r, rec.Decided) else r for r in job.ledger]
    old.insert(-3, rec.Diagnosed(1.0, 1, "exit 9", "unknown", "unknown", "none", "rank 2 on n2 exited with status 9"))
    told = facts(last_card(old))
    assert told[""] == "job 7 failed: rank 2 on n2 exited with status 9" and "nothing above applies" in told["done"]
    assert "unconditional-requeue is switched off" in facts(last_card(job.ledger))["done"]


def test_a_requeue_that_failed_is_told_by_the_card_that_is_made_later() -> None:
    job = Job().begin()
    job.silent = {do.Requeue}
    job.exits(0, 4)
    shown = last_card(job.ledger)
    job.tell(ev.RequeueEnded(False, "nobody listens"))
    later = last_card(job.ledger)
    assert shown is not None and later == replace(shown, done=f"{shown.done}; that failed: nobody listens")


@pytest.mark.parametrize(("cause", "rungs"), [("hang", ["hang-restart"]), ("crash", ["", "hang-restart"])])
def test_a_hang_that_is_announced_is_a_card_until_it_is_answered(cause: str, rungs: list[str]) -> None:
    begun = [rec.RunBegan(1.0, "r", "7", "c", 0, "", "x", "n[1-2]"), rec.AttemptBegan(2.0, "r", 1, 0, "", 1, "n[1-2]", 2)]
    seen = rec.HangSeen(
        60.0, 1, "stall", "no rank gets on for 3 min", ("rank 2: asleep",), "RankNonCommHang: rank 2 on n2: asleep"
    )
    told = facts(last_card([*begun, seen]))
    assert told[""] == "job 7 seems to hang: no rank gets on for 3 min" and "rank 2 on n2" in told["what"]
    assert "keep running" in told["done"] and "hang-restart" in told["hint"]
    on = rec.Paused(90.0, 1, 88.0, True)
    assert facts(last_card([*begun, seen, on]))["done"].endswith("went on by itself after 1 min 28 s")
    ended = [rec.TroubleSeen(99.0, 1, cause, "x"), rec.Decided(99.5, "r-1", 1, "hang-restart", cause, "", reason="a hang")]
    assert [card.rung for card in cards([*begun, seen, *ended])] == rungs


def test_a_hint_stands_in_the_card_and_goes_first_where_a_terminal_is_too_small_for_all() -> None:
    long = Card(1.0, "fail", "job 7 failed", "x" * 200, "meaning", "a.py:1", "why " * 40, "done " * 40, "do this", "/log", "ls")
    assert [line.split()[0] for line in card_lines(long)] == ["job", "what", "where", "why", "done", "hint", "log", "next"]
    assert not any(line.strip().startswith("hint") for line in card_lines(long, 80))
    short = Card(1.0, "", "job 7 seems to hang", "who", done="nothing", hint="do this")
    assert card_lines(short, 80)[-1] == "  hint   do this"


def test_the_meaning_is_seen_however_long_the_message() -> None:
    card = Card(1.0, "fail", "t", "word " * 400, "out of memory")
    assert card_lines(card)[1].endswith("... (out of memory)") and card_lines(card, 80)[-1].endswith("... (out of memory)")


def test_a_meaning_that_does_not_fit_gives_way_to_the_whole_error() -> None:
    card = Card(
        1.0, "fail", "t", "IndexError: list index out of range in the loader of shard 17", "looked up something that is not there"
    )
    assert "shard 17" in " ".join(card_lines(card, 80)) and "what   IndexError" in card_lines(card, 80)[1]
    assert dict(card.rows(70))["what"] == card.what


def test_the_same_error_on_most_ranks_is_headed_by_their_number() -> None:
    job = Campaign(per_node=2).job
    job.silent.add(do.StopRanks)
    output = (Piece(job.now.unix - 0.1, "err", "ModuleNotFoundError: No module named 'flash_attn'\n"),)
    job.tell(*(replace(job.exit_of(rank, 1), output=output) for rank in (0, 2, 3)))
    job.silent.discard(do.StopRanks)
    number = max(job.truth.attempts)
    job.tell(*(ev.RankStopped(task.rank, number) for task in job.tasks))
    assert f": 3 of {len(job.tasks)} ranks failed; rank 0 on n1 exited with status 1" in facts(last_card(job.ledger))[""]


def test_a_node_that_is_silent_is_not_said_to_have_broken_hardware() -> None:
    v = rec.Diagnosed(
        1.0, 1, "node", "hardware", "yes", "fact", "n2: does not answer", rank=-1, node="n2", said="does not answer"
    )
    assert fault_of(v) == "the node's fault"


def test_an_error_on_every_rank_is_headed_by_all_though_the_others_were_stopped_and_told_once() -> None:
    job = Campaign(per_node=2).job

    def said(rank: int) -> tuple[Piece, ...]:
        return (Piece(job.now.unix - 0.1, "err", f"[rank{rank}]: ModuleNotFoundError: No module named 'flash_attn'\n"),)

    job.silent.add(do.StopRanks)
    job.tell(replace(job.exit_of(1, 1), output=said(1)))
    job.silent.discard(do.StopRanks)
    number = max(job.truth.attempts)
    job.tell(*(replace(job.exit_of(task.rank, 0, 15), output=said(task.rank)) for task in job.tasks if task.rank != 1))
    job.tell(*(ev.RankStopped(task.rank, number) for task in job.tasks))
    found = facts(last_card(job.ledger))
    assert f": all {len(job.tasks)} ranks failed; rank 1 on n1 exited with status 1" in found[""]
    assert found["why"] == "the program's fault, on every rank"


def test_a_narrow_terminal_has_twice_the_lines_so_that_facts_are_wrapped_and_not_cut() -> None:
    card = Card(
        1.0, "fail", "rank 3 on node gpu0013 failed; the job is requeued (attempt 2 of 20)", "ValueError: no such file", "",
        "/home/someone/projects/llm/training/src/models/attention.py:231", "an error of the program; 3 of 64 ranks show it",
        "requeued without node gpu0013; costs one restart (2 of 20)", "lower the batch size, or shard the optimizer", "/log",
    )  # fmt: skip
    told = card_lines(card, 60)
    assert len(told) > MAX_LINES and max(map(len, told)) <= 60 and not any("..." in line for line in told)
    assert any(line.split() == ["hint", *card.hint.split()[: len(line.split()) - 1]] for line in told)
    assert all(len(card_lines(card, width)) <= MAX_LINES for width in (73, 80, 120))


ANY = st.text(max_size=400)


@settings(max_examples=60, deadline=None)
@given(st.builds(Card, st.just(1.0), *[ANY] * 10), st.integers(1, 200))
def test_no_text_of_a_user_reaches_the_terminal_as_anything_but_text(card: Card, width: int) -> None:
    piped, wrapped = card_lines(card), card_lines(card, width)
    assert len(piped) <= MAX_LINES and all(len(line) <= 320 for line in piped)
    assert len(wrapped) <= max_lines(width) and all(len(line) <= max(40, width) for line in wrapped)
    assert all(line.isprintable() for line in (*piped, *wrapped))


def test_words_that_a_program_prints_to_fool_a_terminal_are_made_plain_at_the_door() -> None:
    job = Campaign()
    job.fails(1, "RuntimeError: \x1b]0;owned\x07 \x1b[31mred\x9b5n \u202egnp.exe\n")
    for record in job.job.ledger:
        if isinstance(record, rec.Diagnosed):
            assert all(text.isprintable() for text in (record.what, record.said, record.place, *record.evidence))
    assert "red" in facts(last_card(job.job.ledger))["what"]


@pytest.mark.parametrize(("pattern", "rank", "node", "path"), [
    ("/l/slurm-7.out", 3, "n1", "/l/slurm-7.out"),
    ("/l/%t.err", 3, "n1", "/l/3.err"),
    ("/l/%04t-%N.%n", 3, "n1", "/l/0003-n1.*"),
    ("/l/100%%-%t", -1, "", "/l/100%-*"),
])  # fmt: skip
def test_the_log_of_the_rank_is_named(pattern: str, rank: int, node: str, path: str) -> None:
    assert file_of_rank(pattern, rank, node) == path


def test_where_ranks_share_a_file_their_label_tells_them_apart() -> None:
    job = Campaign()
    job.fails(1, TRACE)
    ledger = [replace(r, log="/l/7.out", labels=True) if isinstance(r, rec.RunBegan) else r for r in job.job.ledger]
    assert facts(last_card(ledger))["log"] == "/l/7.out, lines labelled `1:`"


def test_an_isolated_fault_names_the_node_once() -> None:
    job = Job().begin()
    job.shows(fault(code="80E18402", graded=FaultClass.ISOLATE))
    told = facts(last_card(job.ledger))
    assert told[""].startswith("job 7 is requeued without n2: ") and "isolated-requeue" in told["done"]


def test_nothing_is_said_twice() -> None:
    """The status, what a node is left for and what the verdict goes by are often the same words."""
    job = Campaign()
    job.fails(1, "")
    told = facts(last_card(job.job.ledger))
    assert told["what"] == "exit 1; its last line: step"
    assert "exited with status" not in told["why"]
    down = Job().begin()
    down.slurm = replace(down.slurm, bad_nodes=(("n2", "DOWN*"),))
    down.exits(2, 1)
    told = facts(last_card(down.ledger))
    assert told[""].startswith("job 7 is requeued without n2: ") and "Slurm says DOWN*" in told["why"] + told.get("what", "")
    assert " ".join(told.values()).count("Slurm says DOWN*") == 1


def test_what_the_title_says_in_the_same_words_is_not_said_again() -> None:
    card = Card(1.0, "isolated-requeue", "job 7 is requeued without n2: its slurmd does not answer", "its slurmd does not answer")
    assert dict(card.rows()).keys() == {""} and "what" in dict(replace(card, meaning="it is off").rows())


@pytest.mark.parametrize(("change", "then"), [
    ({"dead": ("n2",)}, "scontrol update nodename=n2 state=down reason=dead  (an administrator, to start at once)"),
    ({"isolate": {"n2": "Slurm says DRAIN"}}, "ftslurm nodes  (what mends the node)"),
    ({"isolate": {"n2": "it fails here"}, "without": "n2"}, "ftslurm status 7"),
    ({"rung": "fail", "reason": "all 8 requeues are spent", "limit": "max_restarts"}, "ftrun --ft-set max_restarts=N  (allows more)"),
    ({"rung": "fail", "reason": "running it again cannot help"}, "ftslurm history 7"),
])  # fmt: skip
def test_next_is_what_helps_now(change: dict[str, Any], then: str) -> None:
    begun = [rec.RunBegan(1.0, "r", "7", "c", 0, "", "x", "n[1-2]"), rec.AttemptBegan(2.0, "r", 1, 0, "", 1, "n[1-2]", 2)]
    decided = replace(rec.Decided(4.0, "r-1", 1, "isolated-requeue", "node", "n2 is down"), **change)
    assert facts(last_card([*begun, decided]))["next"] == then


def test_a_command_that_is_not_there_has_no_verdict_worth_a_line() -> None:
    begun = [rec.RunBegan(1.0, "r", "7", "c", 0, "", "x", "n[1-2]"), rec.AttemptBegan(2.0, "r", 1, 0, "", 1, "n[1-2]", 2)]
    seen = [rec.TroubleSeen(2.5, 1, "crash", "rank 0 on n1 could not be started: x: No such file or directory"),
            rec.Diagnosed(2.5, 1, "unknown", "unknown", "unknown", "none", "no rank failed by itself"),
            rec.Decided(2.5, "r-1", 1, "fail", "unstartable", "", reason="the command cannot be executed on any node")]  # fmt: skip
    assert list(facts(last_card([*begun, *seen]))) == ["", "done", "next"]


def test_a_step_that_does_not_come_up_after_a_requeue_has_another_reason_than_the_requeue() -> None:
    """Seen on a real cluster: the card told the words of the failure before, and how long that had run."""
    run = rec.RunBegan(1.0, "r", "7", "c", 0, "", "x", "n[1-2]")
    records = [
        run, rec.AttemptBegan(2.0, "r", 1, 0, "", 1, "n[1-2]", 2),
        rec.TroubleSeen(9.0, 1, "crash", "rank 1 on n2 exited with status 1"),
        rec.Diagnosed(9.0, 1, "nan-loss", "data", "yes", "strong", "RuntimeError: loss is nan", said="RuntimeError: loss is nan"),
        rec.Decided(9.0, "r-1", 1, "unconditional-requeue", "crash", "because"),
        replace(run, at=20.0, run="s", schedule=1),
        rec.TroubleSeen(22.0, 0, "launch", "the step did not come up: its launcher exited with status 1"),
        rec.Decided(22.0, "s-1", 0, "fail", "launch", "because", reason="the step never came up"),
    ]  # fmt: skip
    first, second = (facts(card) for card in cards(records))
    assert "loss is nan" in first["what"] and "it ran 7.0 s" in first["done"]
    assert "what" not in second and "loss is nan" not in str(second) and "it ran" not in second["done"]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("[rank1]: RuntimeError: boom", "[rank1]: RuntimeError: boom"),
        ("[rank1]: RuntimeError: something went wrong", "RuntimeError: something went wrong"),
        ("[rank1]:[E Process.cpp:607] [Rank 1] Watchdog caught a timeout", "Watchdog caught a timeout"),
    ],
)
def test_what_a_logger_writes_first_is_left_out_as_a_whole_or_not_at_all(said: str, shown: str) -> None:
    assert what_of(rec.Diagnosed(1.0, 1, "", "", "", "", "", said=said)) == shown
