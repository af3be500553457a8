"""Folders that nobody else may write, whatever the umask that we were started with."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.system.files import make_folder, private_folder


@pytest.fixture(params=[0o000, 0o022, 0o077, 0o777])
def any_umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def modes(top: Path, *parts: str) -> list[int]:
    return [top.joinpath(*parts[: number + 1]).stat().st_mode & 0o7777 for number in range(len(parts))]


def test_a_state_folder_and_what_was_missing_above_it(tmp_path: Path, any_umask: None) -> None:
    private_folder(tmp_path / "a" / "b" / "state")
    assert modes(tmp_path, "a", "b", "state") == [0o755, 0o755, 0o700]


def test_a_folder_for_scripts_that_everybody_runs(tmp_path: Path, any_umask: None) -> None:
    make_folder(tmp_path / "lib" / "ftslurm", 0o755)
    assert modes(tmp_path, "lib", "ftslurm") == [0o755, 0o755]


def test_what_is_there_keeps_its_mode(tmp_path: Path, any_umask: None) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o2775)
    make_folder(tmp_path / "shared" / "new", 0o755)
    make_folder(tmp_path / "shared", 0o700)
    assert modes(tmp_path, "shared", "new") == [0o2775, 0o755 | (tmp_path / "shared" / "new").stat().st_mode & 0o2000]


def test_a_file_in_its_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for place in ("file", "file/below"):
        with pytest.raises(StateError):
            private_folder(tmp_path / place)
