"""What the words of an error that nothing knows say: about which thing it complains, and whether another try may help."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.settings_files import read_shipped
from ftslurm.model.verdict import ErrorClass, Retriable

KINDS = load_pattern_book(()).kinds
YES, NO = Retriable.YES, Retriable.NO


@pytest.mark.parametrize(
    ("words", "error_class", "retriable"),
    [
        ("ERROR: lost communication with the solver on n3", ErrorClass.NETWORK, YES),
        ("commlib: got read error (closing n3)", ErrorClass.NETWORK, YES),
        ("XlaRuntimeError: UNAVAILABLE: task 3 did not answer", ErrorClass.NETWORK, YES),
        ("XlaRuntimeError: INVALID_ARGUMENT: shapes differ", ErrorClass.USER_CODE, NO),
        ("the registry returned error code: 400 Bad Request", ErrorClass.USER_CODE, NO),
        ("the registry returned error code: 503 Service Unavailable", ErrorClass.NETWORK, YES),
        ("backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)", ErrorClass.HARDWARE, YES),
        ("not enough memory on the host for 12 buffers", ErrorClass.OOM, NO),
        ("std::bad_alloc", ErrorClass.OOM, NO),
        ("Failed to write checkpoint part 3", ErrorClass.STORAGE, YES),
        ("user quota reached on /work", ErrorClass.STORAGE, NO),
        ("record 7 of shard-3.tar is corrupt", ErrorClass.DATA, NO),
        ("mmap length is greater than file size", ErrorClass.DATA, NO),
        ("Unable to check out a license for the solver", ErrorClass.UNKNOWN, YES),
        ("Request denied: license not valid for version 10", ErrorClass.UNKNOWN, NO),
        ("OFI fi_open domain failed (Invalid argument)", ErrorClass.NETWORK, NO),
        ("n1.88PSM2 can't open hfi unit: -1 (err=23)", ErrorClass.NETWORK, NO),
        ("Call to ibv_create_qp failed", ErrorClass.NETWORK, NO),
        ("*** STEP 8.0 ON n1 CANCELLED AT 2024-01-02T03:04:05 DUE TO TIME LIMIT ***", ErrorClass.USER_CODE, NO),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self signed certificate", ErrorClass.NETWORK, NO),
        ("An error occurred (403) when calling the HeadObject operation: Forbidden", ErrorClass.USER_CODE, NO),
        ("An error occurred (NoSuchKey) when calling the GetObject operation", ErrorClass.USER_CODE, NO),
        ("An error occurred (SlowDown) when calling the PutObject operation", ErrorClass.NETWORK, YES),
        ("gsutil: ServiceException: 503 Backend Error", ErrorClass.NETWORK, YES),
        ("fatal error: Read timeout on endpoint URL", ErrorClass.NETWORK, YES),
        ("mlx5: n2: got completion with error:", ErrorClass.NETWORK, YES),
        ("Batch job submission failed: Zero Bytes were transmitted or received", ErrorClass.NETWORK, YES),
        ("Error reading SSH protocol banner", ErrorClass.NETWORK, YES),
        ("Consistency check failed: file should be of size 9 but has size 5", ErrorClass.STORAGE, YES),
        ("OFI poll failed (Input/output error)", ErrorClass.STORAGE, YES),
        ("The worker died unexpectedly. There are some potential root causes. (1) out of memory", ErrorClass.UNKNOWN, YES),
        ("Failed to reallocate 1650272 bytes for array buf_send", ErrorClass.OOM, NO),
        ("connect() to 10.1.2.3:1026 failed", ErrorClass.NETWORK, YES),
        ("RuntimeError: connect() timed out. Original timeout was 60000 ms.", ErrorClass.NETWORK, YES),
        ("Transport retry count exceeded on mlx5_0:1/IB", ErrorClass.NETWORK, YES),
        ("this node has been marked as dead by the head", ErrorClass.NETWORK, YES),
        ("the service is overloaded", ErrorClass.UNKNOWN, YES),
        ("the solver's start has timed out", ErrorClass.UNKNOWN, YES),
        ("Request name solver_2 does not exist in the licensing pool.", ErrorClass.UNKNOWN, NO),
        ("cannot list bucket training-data", ErrorClass.STORAGE, YES),
        ("found Inf in local grad norm for bucket #6", ErrorClass.DATA, NO),
        ("Process 77 got signal: 15", ErrorClass.UNKNOWN, YES),
        ("srun: error: Unable to create step for job 7: More processors requested than permitted", ErrorClass.USER_CODE, NO),
    ],
)
def test_the_thing_that_is_named_places_the_error(words: str, error_class: ErrorClass, retriable: Retriable) -> None:
    kind = KINDS.of_words(words)
    assert kind is not None and (kind.error_class, kind.retriable) == (error_class, retriable)


@pytest.mark.parametrize(
    "words",
    [
        "",
        "heads must divide the width",
        "unknown option --lr-decay",
        "Reused local directory; clean the stale segments",
        "expected 3 values, got 4",
    ],
)
def test_words_about_the_program_place_nothing(words: str) -> None:
    assert KINDS.of_words(words) is None


def test_an_error_of_the_program_stays_the_programs_whatever_it_mentions() -> None:
    assert KINDS.of_error("AttributeError", "'Pool' object has no attribute 'connection_lost'") is None
    assert KINDS.of_error("KeyError", "'memory limit exceeded'") is None
    assert KINDS.of_error("ValueError", "heartbeat timeout must be positive") is None
    assert KINDS.of_error("ValueError", "no available memory for the cache blocks") is not None


@given(st.text(max_size=300))
def test_any_words_are_read(words: str) -> None:
    kind = KINDS.of_words(words)
    assert kind is None or isinstance(kind.error_class, ErrorClass)


def test_a_long_message_costs_no_more_than_its_beginning() -> None:
    begun = time.monotonic()
    for filler in ("no " * 400_000, "A" * 1_000_000, "failed to " * 100_000):
        KINDS.of_words(filler)
    assert time.monotonic() - begun < 2.0


def test_what_ships_is_written_as_its_reader_has_it() -> None:
    data = read_shipped("words.yaml")
    assert data.keys() == {"kinds"}
    assert all(row.keys() <= {"error_class", "retriable", "words", "id", "note"} and row["words"] for row in data["kinds"])
