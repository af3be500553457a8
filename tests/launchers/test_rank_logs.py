"""Files of their own for ranks, as torchrun and ft_launcher make them."""

from __future__ import annotations

import pytest

from ftslurm.launchers.rank_logs import RankLogs, StreamTo, cycle_file, from_text
from ftslurm.model.settings.features import STDERR, STDOUT, local_ranks, streams, streams_of

LABEL = "[default1]:"


def of_rank_1(logs: RankLogs) -> dict[int, StreamTo]:
    """On the second of two nodes, of the second attempt."""
    return logs.streams(3, (1, 1), 12, 1, "default")


@pytest.mark.parametrize(("logs", "expected"), [
    (RankLogs("/a"), {}),
    (RankLogs("/a", "1"), {STDOUT: StreamTo("/a/attempt_1/1/stdout.log", "", False, LABEL)}),
    (RankLogs("/a", "0:3"), {}),
    (RankLogs("/a.%n", "1", "1:2"), {STDOUT: StreamTo("/a.1/attempt_1/1/stdout.log", "", False, LABEL),
                                     STDERR: StreamTo("/a.1/attempt_1/1/stderr.log", "", True, LABEL)}),
    (RankLogs("/a", "0", "3", (0,)), {STDOUT: StreamTo("/a/attempt_1/1/stdout.log", "", False, LABEL),
                                      STDERR: StreamTo("/a/attempt_1/1/stderr.log", "", False, LABEL)}),
    (RankLogs(console_ranks=(0,)), dict.fromkeys((STDOUT, STDERR), StreamTo("/dev/null", "", False, ""))),
    (RankLogs("/a", "3", cycle_files="/b/x"), dict.fromkeys((STDOUT, STDERR), StreamTo("/b/x_cycle1.log", " 3: ", False, ""))),
])  # fmt: skip
def test_where_streams_go(logs: RankLogs, expected: dict[int, StreamTo]) -> None:
    logs = RankLogs(logs.folder, logs.redirects, logs.tee, logs.console_ranks, logs.cycle_files, "[${role_name}${local_rank}]:")
    assert of_rank_1(logs) == expected
    assert from_text(logs.as_text()).files(1, 1, 1) == logs.files(1, 1, 1)


@pytest.mark.parametrize("text", ["", "x", "[]", '{"redirects": 9}', '{"folder": null}', "[" * 9999])
def test_a_ledger_may_say_anything(text: str) -> None:
    assert from_text(text).files(0, 0, 0) == ()


def test_a_suffix_stays_behind_the_cycle() -> None:
    assert [cycle_file(path, 3) for path in ("/a.b/c", "/a.b/c.txt")] == ["/a.b/c_cycle3.log", "/a.b/c_cycle3.txt"]


def test_words_of_torchrun() -> None:
    assert [streams_of(streams(text), 1) for text in ("2", "0:3,1:2", "0:3", " 1:3 ", "")] == [2, 2, 0, 3, 0]
    assert local_ranks("2,0, 2") == (0, 2) and local_ranks("") == ()
    for wrong in ("4", "a", "0:4", "0:", ":1", "0:1,", "-1:1"):
        with pytest.raises(ValueError, match="neither"):
            streams(wrong)
    with pytest.raises(ValueError, match="local ranks"):
        local_ranks("0,x")
