"""What a launcher or a logger puts before a line changes nothing in what the line says; a level that all lines bear tells nothing."""

from __future__ import annotations

import pytest

from ftslurm.policies.diagnose.errors import told_error
from ftslurm.policies.diagnose.lines import only_reports
from tests.policies.diagnose.test_classify import end, verdict

LABELS = (
    "[rank3]: ", "3: ", "n1: ", "n1.example.com: ", "[n1:123] ", "[worker-0] ", "[stderr] ", "worker-0  | ", "2024-05-01 12:00:00,123 ",
    "May  1 12:00:00 n1 train[9]: ", "2024-05-01T12:00:00.123456+00:00 n1 python[9]: ", "(VllmWorker TP1 pid=961) ", "(pid=7) ",
)  # fmt: skip
LEVELS = (
    "ERROR:root:", "2024-05-01 12:00:00.123 | ERROR    | __main__:main:12 - ", "[2024-05-01 12:00:00,123] [ERROR] [launch.py:12:main] ",
    "(EngineCore_0 pid=1) ERROR 05-01 12:00:00 [core.py:12] ",
)  # fmt: skip
STACK = "Fatal error in internal_Init: Other error, error stack:\ninternal_Init(45298)..: MPI_Init failed\nfinish(7)....: PMI_Put gave -1\n"
SOURCE = "the pump is broken\n    raise RuntimeError(f'error: {words}')\n  warnings.warn(f'cannot pump')\n"
REPORT = "could not open the mould\nsrun: error: n1: task 0: Exited with exit code 1\n"
TALK = "reading the recipe\nstep 1\nstep 2\nthe pump is broken\ncleaning up\n"


def labelled(label: str, text: str) -> str:
    return "".join(f"{label}{line}\n" for line in text.splitlines())


@pytest.mark.parametrize("label", ["", *LABELS])
@pytest.mark.parametrize(
    ("text", "told"), [(STACK, "PMI_Put gave -1"), (SOURCE, "the pump is broken"), (REPORT, "could not open the mould")]
)
def test_a_label_hides_no_stack_no_source_and_no_report(label: str, text: str, told: str) -> None:
    assert told in told_error(labelled(label, text))


def test_a_level_of_its_own_still_tells() -> None:
    assert told_error("step 1\nERROR: seven\nstep 2\n") == "ERROR: seven"
    assert told_error("ERROR: seven\n") == "ERROR: seven"
    python_s = "2026-01-01 10:00:00,000 - pump - ERROR - Lost the connection\n2026-01-01 10:00:00,100 - pump - INFO - Stopping\n"
    assert told_error(python_s).endswith("Lost the connection")


def test_advice_and_information_give_way_to_what_is_said() -> None:
    assert told_error("the pump is broken\nSolution: check the error messages\n") == "the pump is broken"
    assert told_error("WARNING: the pump is broken\nINFO: no failed pipes\n", mild=True) == "WARNING: the pump is broken"


@pytest.mark.parametrize(
    ("line", "so"),
    [
        ("RuntimeError: DataLoader worker (pid(s) 325) exited unexpectedly", True),
        ("RuntimeError: NPU function error, error code is 507033", True),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.", False),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", False),
        ("open: /data/x failed: Permission denied", False),
    ],
)
def test_what_only_reports_that_something_failed(line: str, so: bool) -> None:
    assert only_reports(line.encode()) is so


def test_a_known_line_that_only_reports_leaves_the_word_to_a_later_one() -> None:
    words = "terminate called without an active exception\nRuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    assert "ECC" in verdict(end(0, words, 1), end(1)).evidence[0]
