"""The commands find their own packages, whatever PYTHONPATH offers for the user's program."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ftslurm.cli.doors import behind_the_others

OURS = ["/bin", "/lib/python3", "/venv/site-packages"]


@pytest.mark.parametrize(
    ("path", "python_path", "expected"),
    [
        (OURS, "", OURS),
        (["/bin", "/module", *OURS[1:]], "/module", [*OURS, "/module"]),
        (["/bin", "/b", "/a", *OURS[1:]], "/b/:/a:/missing", [*OURS, "/b", "/a"]),
        (["/bin", str(Path.cwd()), *OURS[1:]], ":", [*OURS, str(Path.cwd())]),
    ],
)
def test_what_pythonpath_names_comes_last(path: list[str], python_path: str, expected: list[str]) -> None:
    assert behind_the_others(path, python_path) == expected


@pytest.mark.parametrize("door", ["ftrun --ft-help", "ftslurm --help", "ft_launcher --help"])
def test_packages_of_another_python_are_not_taken_for_ours(tmp_path: Path, door: str) -> None:
    for name in ("click", "yaml", "pydantic"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('compiled for another Python')")
    command, *argv = door.split()
    done = subprocess.run(
        [sys.executable, "-c", f"from ftslurm.cli.doors import {command}; {command}()", *argv],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("door", "status"), [("ftrun", -2), ("ft_launcher", -2), ("ftslurm", "interrupted")])
def test_an_interrupt_ends_ftrun_and_is_for_ftslurm_to_answer(door: str, status: int | str) -> None:
    code = f"""
import os
from ftslurm.cli import doors
doors.end_with = lambda main: os.kill(os.getpid(), 2)
try:
    doors.{door}()
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip() or done.returncode, done.stderr) == (status, "")


def test_a_command_loads_no_other(tmp_path: Path) -> None:
    env = os.environ | {"FTSLURM_STATE_DIR": str(tmp_path / "none")}
    argv = [sys.executable, "-v", "-c", "from ftslurm.cli.doors import ftslurm; ftslurm()", "status"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=True)
    loaded = {line.split("'")[1] for line in done.stderr.splitlines() if line.startswith("import '")}
    assert {name for name in loaded if name.startswith("ftslurm.cli.jobs.")} == {"ftslurm.cli.jobs.status"}
    assert not {"ftslurm.cli.simulate", "ftslurm.cli.site"} & loaded


def ended(main: str, stdout: int | None = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    code = f"from ftslurm.cli.doors import end_with\n{textwrap.dedent(main)}\nend_with(main)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run([sys.executable, "-c", code], env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)


def test_a_command_ends_at_once_when_all_is_done() -> None:
    """Its threads have ended, its handlers were called, its output is written; and its objects are not freed."""
    done = ended("""
        import atexit, sys, threading, time
        class Freed:
            def __del__(self): print("freed", flush=True)
        kept = Freed()
        def late():
            time.sleep(0.1)
            print("thread")
        def main():
            atexit.register(print, "handler")
            threading.Thread(target=late).start()
            print("main")
            sys.exit(300)
    """)
    assert (done.stdout, done.stderr, done.returncode) == ("main\nthread\nhandler\n", "", 300 & 255)


@pytest.mark.parametrize(
    ("main", "status", "said"),
    [
        ("def main(): pass", 0, ""),
        ("def main(): raise SystemExit('no')", 1, "no\n"),
        ("def main(): 1 / 0", 1, "ZeroDivisionError"),
        ("import sys\ndef main(): sys.stdout = sys.stderr = None; sys.exit(3)", 3, ""),
    ],
)
def test_any_other_end_is_pythons(main: str, status: int, said: str) -> None:
    done = ended(main)
    assert done.returncode == status
    assert said in done.stderr


def test_output_that_cannot_be_written_is_told() -> None:
    with Path("/dev/full").open("w") as full:
        done = ended("import sys\ndef main(): print('x'); sys.exit(0)", full.fileno())
    assert done.returncode == 120
    assert "No space left" in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_what_ranks_printed_rules_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ftslurm logs`; to a file or a pipe it goes as it is."""
    from ftslurm.cli.jobs import logs

    shown = Terminal()
    monkeypatch.setattr(sys, "stdout", shown)
    ranks = [b"loss \xc3", b"\xa4 1\r 50%\r\n", b"\x1b]52;c;cm0gLXJm\x07\xc2\x9b31mred\xff\n"]
    logs._print(ranks, raw=False)
    assert shown.getvalue() == "loss ä 1\n 50%\n?]52;c;cm0gLXJm??31mred\ufffd\n"
