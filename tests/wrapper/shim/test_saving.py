"""A rank that is writing a checkpoint when it is told to stop: real shims, and programs that tell of it by the sdk."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.sdk import page as layout
from ftslurm.wrapper.shim import pages as saving
from tests.wrapper.shim_controller import REPOSITORY, Shim, is_gone

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import os, sys, time
from ftslurm.sdk import client as ft
ft.progress(1)
{before}
with ft.section("{section}"):
    print(os.getpid(), flush=True)
    {body}
open(sys.argv[1], "w").close()
time.sleep(1000)
"""
WRITES = 'time.sleep(1); open(sys.argv[2], "w").close()'


class Rank:
    """One that saves for a second, under a real shim."""

    def __init__(self, folder: Path, section: str = "checkpointing", body: str = WRITES, before: str = "") -> None:
        self.whole, self._left = folder / "checkpoint", folder / "left"
        program = PROGRAM.format(section=section, body=body, before=before)
        argv = [sys.executable, "-c", program, str(self._left), str(self.whole)]
        self.shim = Shim(argv, env={"PYTHONPATH": str(REPOSITORY)})
        self.shim.start()
        self.pid = self.shim.pid()

    def stop(self, saves: bool = True, grace_s: float = 30.0) -> str:
        """What the shim tells of the save."""
        self.shim.say(t="stop", attempt=1, grace_s=grace_s, kill_wait_s=30.0, saves=saves)
        self.shim.hear("exited")
        save = self.shim.hear("stopped").get("save", "")
        assert is_gone(self.pid)
        return str(save)

    def again(self) -> str:
        """Of another start that saves nothing."""
        self.shim.start(2, argv=["sleep", "1000"])
        self.shim.stop(2)
        self.shim.hear("exited")
        return str(self.shim.hear("stopped").get("save", ""))


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[list[Rank]]:
    made: list[Rank] = []
    yield made
    for rank in made:
        rank.shim.close()


def test_a_checkpoint_is_written_to_its_end_and_then_the_rank_is_stopped(ranks: list[Rank], tmp_path: Path) -> None:
    ranks.append(rank := Rank(tmp_path))
    assert rank.stop() == "whole"
    assert rank.whole.exists()
    assert rank.again() == ""


def test_what_takes_longer_than_the_grace_is_cut(ranks: list[Rank], tmp_path: Path) -> None:
    ranks.append(rank := Rank(tmp_path, body="time.sleep(1000)"))
    assert rank.stop(grace_s=0.5) == "cut"


def test_nobody_waits_for_a_save_where_that_is_not_asked_for(ranks: list[Rank], tmp_path: Path) -> None:
    ranks.append(rank := Rank(tmp_path, body="time.sleep(1000)"))
    assert rank.stop(saves=False) == "cut"


def test_a_program_that_ends_its_save_after_a_sigterm_has_it_whole(ranks: list[Rank], tmp_path: Path) -> None:
    ranks.append(rank := Rank(tmp_path, before="import signal; signal.signal(signal.SIGTERM, lambda *_: None)"))
    assert rank.stop(saves=False, grace_s=3.0) == "whole"


def test_a_save_that_an_error_ended_is_not_whole(ranks: list[Rank], tmp_path: Path) -> None:
    ranks.append(rank := Rank(tmp_path, body="time.sleep(1); raise ConnectionError('peer')"))
    assert rank.stop() == "cut"


@pytest.mark.parametrize("section", ["forward", "load_checkpoint"])
def test_no_other_section_holds_up_a_stop(ranks: list[Rank], tmp_path: Path, section: str) -> None:
    ranks.append(rank := Rank(tmp_path, section=section, body="time.sleep(1000)"))
    assert rank.stop() == ""


def test_a_process_below_the_task_may_save_as_well(ranks: list[Rank], tmp_path: Path) -> None:
    """As below torchrun, which has a page of its own."""
    fork = "if os.fork(): os.wait(); sys.exit()"
    ranks.append(rank := Rank(tmp_path, before=f"{fork}\nft.begin(even_in_a_child=True)"))
    assert rank.stop() == "whole"


def test_a_page_that_is_none_tells_nothing(tmp_path: Path) -> None:
    (path := tmp_path / "0.1").write_bytes(b"\xff" * layout.SIZE)
    assert saving.saves_of(str(path)) == saving.saves_of(str(tmp_path)) == saving.saves_of("/nowhere") == (0, 0)


@pytest.mark.parametrize("name", ["checkpointing", "Checkpoint", "save", "SAVING model", "save_model", "ckpt", "write-ckpt"])
def test_sections_in_which_programs_save(name: str) -> None:
    assert layout.is_saving(name)


@pytest.mark.parametrize(
    "name", ["", "step", "saver_warmup", "load_checkpoint", "restore checkpoint", "checkpoint loading", "safe"]
)
def test_other_sections(name: str) -> None:
    assert not layout.is_saving(name)


def test_the_reader_knows_the_page_as_the_sdk_lays_it() -> None:
    own = (saving.PAGE_BYTES, saving.PAGE_HEAD, saving.PAGE_SIBLINGS, saving.SAVING_WORD, saving.SAVED_WORD)
    head = (layout.MAGIC_NUMBER, layout.VERSION_NUMBER)
    assert own == (layout.SIZE, head, layout.PAGES_MAX, layout.SAVING, layout.SAVED)
