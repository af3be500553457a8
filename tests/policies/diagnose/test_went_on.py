"""What a program went on from is no cause; a parent's word on its child, and what has to be renewed, are read as such."""

from __future__ import annotations

import pytest

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import ErrorClass, Piece, RankEnd, Retriable, Verdict
from ftslurm.policies.diagnose import Facts, diagnose

BOOK = load_pattern_book(()).of_ranks()
STRONG = "Setup of device 0 failed with CUDART error: no CUDA-capable device is detected\n"
LATER = "my server: cannot open model shard 7: giving up\n"


def verdict(text: str) -> Verdict:
    """Of a rank that printed all of it within a moment, as a file without times has it."""
    mine = RankEnd(0, "n1", ExitStatus(1), 6.0, output=(Piece(5.0, "err", text),))
    return diagnose([mine, RankEnd(1, "n2", ExitStatus(0, 15), 7.0, stopped=True)], Facts(), BOOK)


@pytest.mark.parametrize("work", [
    "".join(f"step {number} loss 0.5\n" for number in range(3)),
    "".join(f'10.0.0.{number}:51 - "POST /v1/completions HTTP/1.1" 200 OK\n' for number in range(3)),
    "".join(f"INFO: loaded part {number}\n" for number in range(3)),
])  # fmt: skip
@pytest.mark.parametrize("later", [
    LATER, "Traceback (most recent call last):\n  File \"a.py\", line 1, in f\nKeyError: 'x'\n",
    "OSError: [Errno 28] No space left on device\n",
])  # fmt: skip
def test_a_strong_line_that_the_program_went_on_from_hides_no_later_error(work: str, later: str) -> None:
    found = verdict(STRONG + work + later)
    assert found.signature != "cuda-no-device" and not found.suspects and later.splitlines()[-1] in found.evidence[0]


def test_it_stays_the_cause_where_nothing_went_on() -> None:
    assert verdict(STRONG + LATER).signature == "cuda-no-device"


@pytest.mark.parametrize("line", [
    "RefreshError: token has been expired or revoked", "HTTPError: access token expired", "certificate has expired",
    "SSLError: Max retries exceeded with url: /v1 (Caused by SSLError(SSLCertVerificationError(1, 'certificate has expired')))",
    "RuntimeError: connection failed: credentials have expired", "RuntimeError: your licence expired on 2026-01-01",
])  # fmt: skip
def test_what_somebody_has_to_renew_is_not_worth_a_try(line: str) -> None:
    assert verdict(f"{line}\n").retriable is Retriable.NO


def test_a_fabric_that_is_not_set_up_says_more_than_the_number_beside_it() -> None:
    found = verdict("NCCL WARN Cuda failure 800 'operation not permitted' (IMEX channel not available)\n")
    assert found.because == ("cuda-system-not-ready", "values of cuda-call") and found.error_class is ErrorClass.HARDWARE


def test_the_message_below_a_bare_header_is_the_cause() -> None:
    assert "mesh file has 3 zones" in verdict("*** ERROR ***\n\nmesh file has 3 zones, 4 expected\n").evidence[0]
