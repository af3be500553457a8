"""A neighbour who reads what srun sends, or sits on the port of an ftrun that was killed."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ftslurm.wrapper.shim.connection import handed_over, munge_word
from ftslurm.wrapper.shim.messages import LinkError, SignedConnection
from tests.attacks.users import NEIGHBOUR, OWNER, run_as, start_as
from tests.wrapper.munged import munged, needs_munge

SECRET = bytes(range(32))
DECODE = "import sys; from ftslurm.wrapper.shim.connection import handed_over; print(handed_over(sys.argv[1]).hex())"
ENCODE = "import os, sys; from ftslurm.wrapper.shim.connection import munge_word; print(munge_word(bytes(32), int(sys.argv[2]), sys.argv[1]))"
SHIM = "import sys; sys.argv[1:] = ['--', 'id', '-u']; from ftslurm.wrapper.shim._shim import main; main()"


@pytest.fixture(scope="module")
def munge() -> Iterator[str]:
    with munged() as path:
        yield str(path)


@needs_munge
def test_what_she_reads_is_decoded_for_the_owner_alone_however_often_and_late(munge: str) -> None:
    word = munge_word(SECRET, OWNER, munge)
    with pytest.raises(OSError, match="Unauthorized"):
        handed_over(word)  # not even for root
    for _ in range(2):
        assert "Unauthorized" in run_as(NEIGHBOUR, DECODE, word)
    theirs = run_as(OWNER, "import sys; from ftslurm.wrapper.shim.connection import Munge; print(*Munge(sys.argv[1]).decode(sys.argv[2].encode()))",
                    munge, f"MUNGE:{word.split('.', 2)[2]}:")  # fmt: skip
    assert theirs.split()[-1] == str(os.geteuid()), "it is root's here, who made it"


@needs_munge
def test_a_rank_takes_no_secret_of_hers(munge: str) -> None:
    """She made it for the owner, and sits on the port."""
    word = run_as(NEIGHBOUR, ENCODE, munge, str(OWNER)).strip()
    assert f"to user {NEIGHBOUR}, not to user {OWNER}" in run_as(OWNER, DECODE, word)


@needs_munge
def test_who_took_the_port_of_a_dead_ftrun_starts_nothing(munge: str) -> None:
    """She has all that was sent, and knows the protocol."""
    word = run_as(OWNER, ENCODE, munge, str(OWNER)).strip()
    with socket.create_server(("127.0.0.1", 0)) as hers:
        hers.settimeout(30)
        text = f"1:{hers.getsockname()[1]}/1:{word}:127.0.0.1"
        program = f"import os; os.environ.update(FTSLURM_CHANNEL={text!r}, SLURM_PROCID='0', SLURM_JOB_ID='1'); from ftslurm.wrapper.shim import _shim as shim; shim.CONNECT_TIMEOUT_S = 3.0\n{SHIM}"
        with start_as(OWNER, program) as shim:
            deadline = time.monotonic() + 30
            while shim.poll() is None and time.monotonic() < deadline:
                try:
                    sock, _ = hers.accept()
                except TimeoutError:
                    break
                with sock:
                    link = SignedConnection(bytes(31) + b"x", server=True)  # the secret that she does not have
                    sock.sendall(link.outbox)
                    sock.settimeout(5)
                    try:
                        link.feed(sock.recv(4096))
                    except LinkError:
                        sock.sendall(b"0" * 64 + b"\n")
                hers.settimeout(4)
            said = shim.communicate(timeout=120)[0]
    assert shim.returncode == 71 and "cannot reach ftrun" in said and str(OWNER) not in said.split()


# --- a step in a container, where there is no munge: all of srun's launch is hers to read

FILED = """
import os, sys
from pathlib import Path
from ftslurm.wrapper.wire import SecretFile, secret_word
state = Path(sys.argv[1])
print(secret_word(bytes(range(32)), "auto", "", True, file=SecretFile(state, "c.5")))
"""
READ = "import sys; from ftslurm.wrapper.shim import connection; connection.SECRET_SEEN_S = 0.0\n" + DECODE.removeprefix(
    "import sys; "
)


@pytest.fixture
def state() -> Iterator[Path]:
    """Of the owner's, below a folder through which she passes; all is laid open by a umask of 000 and a loose mode."""
    with tempfile.TemporaryDirectory(prefix="ftslurm-", dir="/var/tmp") as outer:
        os.chmod(outer, 0o755)
        folder = Path(outer, "state")
        folder.mkdir()
        folder.chmod(0o755)
        os.chown(folder, OWNER, OWNER)
        yield folder


def filed(state: Path) -> tuple[str, Path]:
    word = run_as(OWNER, f"import os; os.umask(0)\n{FILED}", str(state)).strip()
    return word, Path(os.fsdecode(bytes.fromhex(word.removeprefix("file."))))


def test_what_she_reads_of_a_step_in_a_container_is_no_secret(state: Path) -> None:
    word, path = filed(state)
    assert SECRET.hex() not in word and path.parent.stat().st_mode & 0o777 == 0o700
    assert "Permission denied" in run_as(NEIGHBOUR, READ, word)
    assert run_as(OWNER, READ, word).strip() == SECRET.hex()


PLANTED = {
    "a link": "os.symlink('/dev/zero', path)",
    "a FIFO": "os.mkfifo(path, 0o600)",
    "another size": "open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'wb').write(bytes(64))",
    "one that others read": "open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'wb').write(bytes(32)); os.chmod(path, 0o644)",
    "a second name": "open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'wb').write(bytes(32)); os.link(path, path + '2')",
    "an open folder": "open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), 'wb').write(bytes(32)); os.chmod(os.path.dirname(path), 0o711)",
}


@pytest.mark.parametrize("trick", PLANTED)
def test_what_is_no_file_of_the_owner_s_alone_is_not_taken(state: Path, trick: str) -> None:
    word, path = filed(state)
    run_as(OWNER, f"import os, sys; path = sys.argv[1]; os.unlink(path); {PLANTED[trick]}", str(path))
    began = time.monotonic()
    said = run_as(OWNER, READ, word)
    assert bytes(32).hex() not in said and ("Error" in said) and time.monotonic() - began < 30


def test_one_that_she_has_laid_there_is_not_taken(state: Path) -> None:
    word, path = filed(state)
    path.unlink()
    path.write_bytes(bytes(32))
    path.chmod(0o600)
    os.chown(path, NEIGHBOUR, NEIGHBOUR)
    assert "Permission denied" in run_as(OWNER, READ, word)
    path.chmod(0o666)
    assert "belongs to another user" in run_as(OWNER, READ, word)
