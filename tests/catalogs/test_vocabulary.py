"""The vocabulary of device errors: one error in all the frames that print it, and files that are wrong."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.catalogs.patterns import Pattern
from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.config.settings_files import read_shipped
from ftslurm.model.values import fields
from ftslurm.model.verdict import Blame, ErrorClass, Retriable, Role
from tests.each import each

BOOK = load_pattern_book(()).of_ranks()
WORDS = BOOK.vocabulary.words
PLAIN_TEXT = {word.names[0]: word.texts[0] for word in WORDS if word.texts}


def id_of(line: str) -> str:
    found = BOOK.line(line)
    return found.id if found else ""


def test_the_families_are_whole() -> None:
    families = {word.family for word in WORDS}
    assert families == {"cuda", "hip", "acl", "hccl", "nccl", "ucx", "errno"}
    assert len(WORDS) > 330


def test_every_name_is_read_wherever_it_stands() -> None:
    each((word for word in WORDS if word.family != "errno"), its_names_are_read, lambda word: word.names[0])


def its_names_are_read(word: Any) -> None:
    for name in word.names:
        found = BOOK.look(f"[rank3]: something failed: {name}: and more")
        assert found is not None and found.pattern.id == word.means


@pytest.mark.parametrize(
    "frame",
    [
        "RuntimeError: CUDA error: {text}", "NCCL WARN Cuda failure '{text}'", "Cuda failure {number} '{text}'", "CUDA error {number}",
        "CUDA error: {number}", "Cuda failure {number}", "CUDA Runtime API error {number}: {text}", "CUDA driver error: {text}",
        "RuntimeError: Triton Error [CUDA]: {text}", "cudaGetDeviceCount() returned {number}", "CUDA runtime error in cudaMalloc: {text} (x.cpp:3)",
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error {number}: {text}",
    ],
)  # fmt: skip
def test_every_cuda_error_is_read_in_every_frame(frame: str) -> None:
    def is_read(word: Any) -> None:
        assert id_of(frame.format(text=word.texts[0], number=word.number)) == word.means

    each((word for word in WORDS if word.family == "cuda" and word.texts), is_read, lambda word: word.names[0])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (
            "INTERNAL: CUDA error: Could not synchronize CUDA stream: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access",
            "illegal-memory",
        ),
        ("cupy_backends.cuda.api.runtime.CUDARuntimeError: cudaErrorMemoryAllocation: out of memory", "cuda-oom"),
        ("failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", "cuda-no-device"),
        ("RuntimeError: HIP error: invalid device function", "user-no-kernel"),
        ("Hip failure 'out of memory'", "hip-oom"),
        ("hipErrorNoBinaryForGpu: Unable to find code object for all current devices!", "user-no-kernel"),
        ("NPU function error: c10_npu::acl::AclrtSynchronizeStreamWithTimeout(copy_stream), error code is 507035", "acl-507035"),
        ("aclrtSetDevice: open device 0 failed, runtime result = 507033", "acl-507033"),
        ("Aicore kernel execute failed, device_id=0, errorCode=507015", "acl-507015"),
        ("ret = 507018", "acl-507018"),
        ("RuntimeError: SUSPECT MEM ERROR, error code is 507057", "npu-suspect-mem"),  # the text beats the number beside it
        ("[n1:12] UCX  ERROR UCS_ERR_UNREACHABLE", "ucx-error"),
        ("OSError: [Errno 28] No space left on device", "enospc"),
        ("OSError: [Errno 107] mount", "endpoint-shutdown"),
        ("Error: ENOSPC: write", "enospc"),
        ("failed to bind (errno: 98)", "address-in-use"),
        ("thread panicked: Os { code: 28 } (os error 28)", "enospc"),
        ("iteration 507015 | loss 2.3", ""),
        ("step 719: CUDA graphs are on", ""),
        ("CUDA error 4242", ""),
        ("Operation not permitted by the licence of this data set", ""),
    ],
)
def test_lines_as_frameworks_print_them(line: str, name: str) -> None:
    assert id_of(line) == name


def test_what_a_word_means_is_told_once() -> None:
    ecc = BOOK.look("cudaErrorECCUncorrectable")
    assert ecc is not None and (ecc.pattern.blame, ecc.pattern.error_class) == (Blame.YES, ErrorClass.HARDWARE)
    assert str(ecc.word) == "cuda 214: cudaErrorECCUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE"
    call = BOOK.look("CUDA error: invalid argument")
    assert call is not None and (call.pattern.retriable, call.pattern.role) == (Retriable.NO, Role.ROOT)


def test_a_word_whose_meaning_a_site_removed_says_nothing() -> None:
    without = [pattern for pattern in BOOK.patterns if pattern.id != "illegal-memory"]
    assert BOOK._with(without).line("cudaErrorIllegalAddress") is None


@given(
    st.lists(
        st.sampled_from([*PLAIN_TEXT.values(), *PLAIN_TEXT, "CUDA error", ": ", "'", " ", "507", "015", "error code is "]),
        max_size=12,
    )
)
def test_what_is_read_was_hinted_at(pieces: list[str]) -> None:
    line = " ".join(pieces).encode()
    for part in (BOOK.vocabulary.part(False, False), BOOK.vocabulary.part(False, True), BOOK.vocabulary.part(True)):
        if part.read(line) is not None:
            assert re.search(part.hints.removeprefix("(?i)"), line.decode(), re.IGNORECASE)


def test_what_ships_is_written_as_its_reader_has_it() -> None:
    data = read_shipped("device-errors.yaml")
    assert data.keys() == {"sources", "meanings", "families", "numbers", "errors"}
    assert all(entry.keys() <= {each.name for each in fields(Pattern)} for entry in data["meanings"])
    rows = [row for family in data["errors"].values() for row in family]
    assert all(row.keys() <= {"number", "names", "texts", "means"} and row["names"] for row in rows)
    names = [name for row in rows for name in row["names"]]
    assert len(names) == len(set(names)) and len(data["meanings"]) == len(BOOK.meanings)
    assert all(BOOK.means(word) for word in WORDS)
