"""A neighbour who lays something where ranks will write their logs (--log-dir, --redirects, --ft-per-cycle-applog-prefix)."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.cli.ft_launcher import command as ft_launcher
from ftslurm.cli.ft_launcher.options import read_options
from tests.attacks.users import NEIGHBOUR, OWNER, run_as

# As a shim does for its rank.
WRITES = """
import sys
from ftslurm.wrapper.shim import _shim as shim
try:
    target = shim.open_file(sys.argv[1], "")
    target.take(b"words of the rank\\n")
    target.end()
    print("written")
except OSError as error:
    print("refused:", error.filename, error.strerror)
"""
LOG = "torchelastic_x/none_x/attempt_0/0/stdout.log"
BESIDE = "import os, sys; os.umask(0); path, mine = sys.argv[1], sys.argv[2]; folder = os.path.dirname(path)\n"
TRICKS = {
    "a link below folders of hers": "os.makedirs(folder); os.symlink(mine, path)",
    "a FIFO below folders of hers": "os.makedirs(folder); os.mkfifo(path, 0o666)",
    "a link for the folder": "os.makedirs(os.path.dirname(folder)); os.symlink(os.path.dirname(mine), folder)",
    "a link for the first folder": "os.symlink(os.path.dirname(mine), folder.rpartition('/none_x')[0])",
    "open folders of hers": "os.makedirs(folder)",
}


@pytest.fixture
def tmp() -> Iterator[Path]:
    """As /tmp is."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-", dir="/var/tmp") as folder:
        os.chmod(folder, 0o755)
        place = Path(folder, "tmp")
        place.mkdir()
        place.chmod(0o1777)
        yield place


@pytest.fixture
def precious(tmp: Path) -> Path:
    home = tmp.parent / "home"
    home.mkdir()
    (home / "precious").write_text("hers to keep\n")
    for path in (home, home / "precious"):
        os.chown(path, OWNER, OWNER)
    return home / "precious"


@pytest.mark.parametrize("trick", TRICKS)
def test_what_a_neighbour_has_laid_there_is_not_written_to(tmp: Path, precious: Path, trick: str) -> None:
    run_as(NEIGHBOUR, BESIDE + TRICKS[trick], str(tmp / LOG), str(precious))
    assert run_as(OWNER, WRITES, str(tmp / LOG)).startswith(f"refused: {tmp}/torchelastic_x ")
    assert precious.read_text() == "hers to keep\n" and os.listdir(precious.parent) == ["precious"]


IN_THE_OPEN = {
    "a link": "os.symlink(mine, path)",
    "a second name of the owner's file": "os.link(mine, path)",
    "a FIFO": "os.mkfifo(path, 0o666)",
    "a file of hers": "open(path, 'w').close(); os.chmod(path, 0o666)",
}


@pytest.mark.parametrize("trick", IN_THE_OPEN)
def test_nor_what_lies_in_an_open_folder_itself(tmp: Path, precious: Path, trick: str) -> None:
    """--ft-per-cycle-applog-prefix=/tmp/train."""
    path = tmp / "train_cycle0.log"
    run_as(NEIGHBOUR, BESIDE + IN_THE_OPEN[trick], str(path), str(precious))
    if not os.path.lexists(path):
        pytest.skip("this kernel lets nobody give another user's file a second name (fs.protected_hardlinks)")
    assert "refused: " in run_as(OWNER, WRITES, str(path))
    assert precious.read_text() == "hers to keep\n" and (path.is_fifo() or "words" not in path.read_text())


def test_what_is_the_owner_s_is_written_to_also_with_a_umask_of_000(tmp: Path, precious: Path) -> None:
    for _ in range(2):
        assert run_as(OWNER, "import os; os.umask(0)\n" + WRITES, str(tmp / LOG)) == "written\n"
    assert (tmp / LOG).read_text() == "words of the rank\n" * 2
    # Into what the umask has left open she lays a link.
    run_as(NEIGHBOUR, BESIDE + "os.rename(path, path + '.was'); os.symlink(mine, path)", str(tmp / LOG), str(precious))
    assert "refused: " in run_as(OWNER, WRITES, str(tmp / LOG)) and precious.read_text() == "hers to keep\n"


def test_a_folder_that_nobody_named_cannot_be_known_before() -> None:
    folders = set()
    for _ in range(2):
        launch = read_options(["--redirects=3", "train.py"], {})
        folders.add(ft_launcher._logs(launch)["logs.folder"][0])
    assert len(folders) == 2
