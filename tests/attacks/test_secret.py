"""A neighbour who reads what srun sends, or sits on the port of an ftrun that was killed."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator

import pytest

from ftslurm.wrapper.shim.link import Link, LinkError
from ftslurm.wrapper.shim.munge import handed_over, munge_word
from tests.attacks.users import NEIGHBOUR, OWNER, run_as, start_as
from tests.wrapper.munged import munged, needs_munge

pytestmark = needs_munge
SECRET = bytes(range(32))
DECODE = "import sys; from ftslurm.wrapper.shim.munge import handed_over; print(handed_over(sys.argv[1]).hex())"
ENCODE = "import os, sys; from ftslurm.wrapper.shim.munge import munge_word; print(munge_word(bytes(32), int(sys.argv[2]), sys.argv[1]))"
SHIM = "import sys; sys.argv[1:] = ['--', 'id', '-u']; from ftslurm.wrapper.shim._shim import main; main()"


@pytest.fixture(scope="module")
def munge() -> Iterator[str]:
    with munged() as path:
        yield str(path)


def test_what_she_reads_is_decoded_for_the_owner_alone_however_often_and_late(munge: str) -> None:
    word = munge_word(SECRET, OWNER, munge)
    with pytest.raises(OSError, match="Unauthorized"):
        handed_over(word)  # not even for root
    for _ in range(2):
        assert "Unauthorized" in run_as(NEIGHBOUR, DECODE, word)
    theirs = run_as(OWNER, "import sys; from ftslurm.wrapper.shim.munge import Munge; print(*Munge(sys.argv[1]).decode(sys.argv[2].encode()))",
                    munge, f"MUNGE:{word.split('.', 2)[2]}:")  # fmt: skip
    assert theirs.split()[-1] == str(os.geteuid()), "it is root's here, who made it"


def test_a_rank_takes_no_secret_of_hers(munge: str) -> None:
    """She made it for the owner, and sits on the port."""
    word = run_as(NEIGHBOUR, ENCODE, munge, str(OWNER)).strip()
    assert f"of user {NEIGHBOUR}, and not of {OWNER}" in run_as(OWNER, DECODE, word)


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
                    link = Link(bytes(31) + b"x", server=True)  # the secret that she does not have
                    sock.sendall(link.outbox)
                    sock.settimeout(5)
                    try:
                        link.feed(sock.recv(4096))
                    except LinkError:
                        sock.sendall(b"0" * 64 + b"\n")
                hers.settimeout(4)
            said = shim.communicate(timeout=30)[0]
    assert shim.returncode == 71 and "cannot reach ftrun" in said and str(OWNER) not in said.split()
