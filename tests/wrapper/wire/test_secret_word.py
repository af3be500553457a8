"""The secret of a run does not stand in what srun sends: a credential of munge's does, for our user alone."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from ftslurm.errors import LaunchFailed
from ftslurm.wrapper.shim import connection as munge_module
from ftslurm.wrapper.shim import connection as secret_file
from ftslurm.wrapper.shim.connection import Channel, handed_over, munge_word
from ftslurm.wrapper.wire import SecretFile, munge_socket, secret_word
from tests.wrapper.munged import munged, needs_munge
from tests.wrapper.shim_controller import REPOSITORY

SECRET = bytes(range(32))
NOWHERE = "/nonexistent/munge.socket"


@pytest.fixture(scope="module")
def socket() -> Iterator[str]:
    with munged() as path:
        yield str(path)


@needs_munge
def test_what_travels_does_not_hold_it_and_every_rank_of_the_node_gets_it(socket: str) -> None:
    word = secret_word(SECRET, "auto", socket, contained=False)
    text = f"1:4711/3:{word}:n1,fd00::1"
    assert SECRET.hex() not in text and word.startswith("munge.")
    for _ in range(8):  # munge calls all but the first of them replayed
        channel = Channel(text)
        assert (channel.secret, channel.port, channel.launch, channel.addresses) == (SECRET, 4711, 3, ["n1", "fd00::1"])
    assert Channel(f"2:8/0-3:4711/1:{word}:=n1").secret == SECRET


@needs_munge
def test_a_step_that_had_to_wait_for_its_nodes_gets_it_too(socket: str) -> None:
    """munge's credentials last five minutes, one second at the least."""
    munge = munge_module.Munge(socket)
    munge._set(4, ctypes.c_int(1))
    text = munge.encode(SECRET, os.geteuid())
    time.sleep(2.1)  # by munge's clock of whole seconds
    assert munge.decode(text) == (SECRET, os.geteuid())


@needs_munge
def test_a_credential_for_somebody_else_is_none_for_us(socket: str) -> None:
    with pytest.raises(OSError, match="Unauthorized"):
        handed_over(munge_word(SECRET, os.geteuid() + 1, socket))


@needs_munge
def test_a_credential_that_somebody_else_has_made_is_not_taken(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    word = munge_word(SECRET, os.geteuid(), socket)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(ValueError, match="not to user 4711"):
        handed_over(word)


@needs_munge
def test_damage_is_said(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge_module, "MUNGED_S", 0.0)
    word = munge_word(SECRET, os.geteuid(), socket)
    for bad in (word[:-8], word[:-20] + "A" * 20, "munge..", "munge.zz.x", "munge"):
        with pytest.raises((OSError, ValueError)):
            handed_over(bad)


@needs_munge
def test_where_munge_does_not_answer_the_rank_says_so(socket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(munge_module, "MUNGED_S", 0.0)
    _, _, text = munge_word(SECRET, os.geteuid(), socket).split(".")
    word = f"munge.{NOWHERE.encode().hex()}.{text}"
    with pytest.raises(OSError, match="Socket communication error"):
        handed_over(word)
    monkeypatch.setattr(munge_module, "MUNGE_LIBRARY", "libnowhere.so.2")
    with pytest.raises(OSError):
        handed_over(word)


def test_a_shim_without_munge_ends_with_a_sentence(tmp_path: Path) -> None:
    """In a container that has none, say."""
    argv = [sys.executable, "-I", "-S", "-c",
            f"import sys; sys.path.append({str(REPOSITORY / 'ftslurm/wrapper/shim')!r}); import _shim; _shim.MUNGE_LIBRARY = 'libnowhere.so.2'; _shim.main()", "--", "true"]  # fmt: skip
    env = {"FTSLURM_CHANNEL": f"1:1:munge.{NOWHERE.encode().hex()}.x:n1", "SLURM_PROCID": "3", "PATH": os.environ["PATH"]}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 71 and "rank 3 on" in done.stderr and "libnowhere" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize(("config", "socket_"), [
    ({}, ""), ({"AuthType": "auth/munge"}, ""), ({"AuthType": "auth/munge", "AuthInfo": "(null)"}, ""),
    ({"AuthType": "auth/munge", "AuthInfo": "cred_expire=60,socket=/run/m,ttl=9"}, "/run/m"), ({"AuthType": "auth/slurm"}, None),
])  # fmt: skip
def test_whose_munge_it_is_slurm_says(config: Mapping[str, str], socket_: str | None) -> None:
    assert munge_socket(config) == socket_


@pytest.mark.parametrize(
    ("wanted", "socket_", "contained"), [("environment", "", False), ("auto", None, False), ("auto", "", True)]
)
def test_where_there_is_no_munge_for_it_the_environment_has_it(wanted: str, socket_: str | None, contained: bool) -> None:
    assert handed_over(secret_word(SECRET, wanted, socket_, contained)) == SECRET


# --- in containers


@pytest.mark.parametrize(("wanted", "contained", "by_file"), [
    ("auto", True, True), ("file", False, True), ("file", True, True), ("auto", False, False), ("environment", True, False),
])  # fmt: skip
def test_a_step_in_a_container_finds_it_in_a_file_and_a_run_leaves_none(
    tmp_path: Path, wanted: str, contained: bool, by_file: bool
) -> None:
    file = SecretFile(tmp_path, "c.5")
    (
        SecretFile(tmp_path, "c.5").word(SECRET),
        SecretFile(tmp_path, "c.55").word(SECRET),
    )  # another job's, and one of a run that was killed
    word = secret_word(SECRET, wanted, None, contained, file=file)
    assert handed_over(word) == SECRET == handed_over(secret_word(SECRET, wanted, None, contained, file=file))
    assert word.startswith("file.") is by_file is (SECRET.hex() not in word)
    assert Channel(f"1:1:{word}:n1").secret == SECRET
    file.remove()
    assert [path.name.rpartition(".")[0] for path in (tmp_path / "secrets").iterdir()] == ["c.55"]
    if by_file:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError, match="is its folder mounted here"):
            patch.setattr(secret_file, "SECRET_SEEN_S", 0.0)
            handed_over(word)


def test_where_munge_gives_none_that_is_said_or_an_error() -> None:
    said: list[str] = []
    assert secret_word(SECRET, "auto", NOWHERE, False, said.append) == SECRET.hex() and "in the environment" in said[0]
    with pytest.raises(LaunchFailed, match="munge cannot pass on"):
        secret_word(SECRET, "munge", NOWHERE, False)
