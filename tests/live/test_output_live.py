"""What ranks print arrives under ftrun as under srun, byte for byte, although the shims keep the last of it.

Each case is run by srun and by ftrun in one batch job, each in a folder of its own, and what is left is compared.
"""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.live.stories import Plan, Stage, kill, processes_with

pytestmark = pytest.mark.live


@dataclass(frozen=True)
class Case:
    """args: after the launcher's name, as a shell reads them. to: where the launcher's own output goes.

    streams: what lines begin with that come by ways of their own, between which srun keeps no order either.
    """

    args: str
    to: str = ">stdout 2>stderr"
    streams: tuple[bytes, ...] = (b"",)


PRINT = r"printf 'out\r\n\000\377 no newline'; printf 'err\tx\n' >&2"
TERMINAL = "test -t 1 && echo tty; test -t 2 && echo tty2; stty -a <&1 2>/dev/null"
BOTH = "for i in $(seq 300); do echo out $i; echo err $i >&2; done"
BIG = "head -c 20000000 /dev/zero | tr '\\0' x; echo end >&2"

CASES: dict[str, Case] = {
    "plain": Case(f'-n1 sh -c "{PRINT}"'),
    "one-file": Case(f"-n1 sh -c '{BOTH}'", to=">stdout 2>&1", streams=(b"out", b"err")),
    "two-into-one-by-the-command": Case(f"-n1 sh -c 'exec 2>&1; {BOTH}'"),
    "output-file": Case(f"-n1 -o out sh -c '{BOTH}'", streams=(b"out", b"err")),
    "output-file-a-rank": Case("-n2 -o 'out.%t' sh -c 'seq 5000; echo $SLURM_PROCID >&2'"),
    "both-to-one-file": Case(f"-n1 -o out -e out sh -c '{BOTH}'", streams=(b"out", b"err")),
    "label": Case("-l -n2 sh -c 'echo $SLURM_PROCID; sleep 0.2; echo $SLURM_PROCID >&2; printf end'", streams=(b"0: ", b"1: ")),
    "big": Case(f'-n1 sh -c "{BIG}"'),
    "unbuffered": Case(f'-u -n1 sh -c "{PRINT}"'),
    "unbuffered-terminal": Case(f"-u -n1 sh -c '{TERMINAL}'"),
    "unbuffered-stdin": Case("-u -n1 cat <in"),
    "unbuffered-big": Case("-u -n1 seq 200000"),
    "unbuffered-label": Case("-u -l -n1 sh -c 'printf a; sleep 0.3; echo b'"),
    "unbuffered-file": Case("-u -n1 -o out sh -c 'printf a; sleep 0.1; echo b; printf end'"),
    "outlived": Case("-n1 sh -c '(sleep 0.3; echo late) & echo early; sleep 1'"),
    "nothing": Case("-n1 true"),
}


def script() -> str:
    lines = []
    for name, case in CASES.items():
        for launcher in ("srun", "ftrun"):
            lines += [
                f'mkdir -p "$STORY/{name}/{launcher}"; cd "$STORY/{name}/{launcher}"; printf "one\\ntwo" >in',
                f"timeout 30 {launcher} -N1 {case.args} {case.to} {'' if '<in' in case.args else '</dev/null'}; echo $? >status",
            ]
    return "\n".join(lines) + "\nexit 0\n"


@pytest.fixture(scope="module")
def compared(stage: Stage) -> dict[str, Path]:
    """Name of a case to the folder with what srun and ftrun left of it."""
    told = stage.tell(Plan(nodes=1, tasks=2, script=script(), env={"FTRUN_UNCONDITIONAL_REQUEUE_ENABLED": "false"}), "output")
    told.ended("COMPLETED", timeout_s=110.0)
    return {name: told.folder / name for name in CASES}


@pytest.mark.parametrize("name", CASES)
def test_every_byte_arrives_as_under_srun(compared: dict[str, Path], name: str) -> None:
    streams = CASES[name].streams
    srun, ftrun = (
        {path.name: in_order(path.read_bytes(), streams) for path in (compared[name] / launcher).iterdir()}
        for launcher in ("srun", "ftrun")
    )
    assert (compared[name] / "srun/status").read_text() == "0\n"
    assert ftrun == srun
    assert name == "nothing" or any(any(lines) for file, lines in srun.items() if file not in ("status", "in"))


def in_order(text: bytes, streams: tuple[bytes, ...]) -> list[list[bytes]]:
    """The lines of each stream."""
    return [[line for line in text.splitlines(keepends=True) if line.startswith(stream)] for stream in streams]


def test_what_every_attempt_printed_arrives_once_and_in_order(stage: Stage) -> None:
    rank = """
        for i in $(seq 3000); do echo $FTSLURM_ATTEMPT $i; done
        [ $FTSLURM_ATTEMPT = 3 ] || exit 4
    """
    told = stage.tell(Plan(rank=rank, ft="--ft-set rungs.in-place-restart.crash_restarts=2"), "attempts")
    told.ended("COMPLETED")
    printed = [line for line in told.output().splitlines() if line[:2] in ("1 ", "2 ", "3 ")]
    assert printed == [f"{attempt} {number}" for attempt in (1, 2, 3) for number in range(1, 3001)]


def test_an_srun_that_does_not_read_holds_up_no_restart(stage: Stage) -> None:
    """Somebody has suspended it; the ranks' pipes are full, and yet one that crashes is started again."""
    rank = """
        [ $MA_PROC_START_CNT = 1 ] || { echo again >>"$STORY/again"; exit 0; }
        [ $SLURM_PROCID = 0 ] && { await full; exit 4; }
        exec yes
    """
    plan = Plan(rank=rank, tasks=2, ft="--ft-set rungs.in-place-restart.crash_restarts=1", sbatch=("--output=/dev/null",))
    told = stage.tell(plan, "suspended")
    told.wait_started()
    sruns = [
        pid for pid, line in processes_with(f"STORY={told.folder}").items() if line.split()[0].endswith("srun") and "shim" in line
    ]
    try:
        for pid in sruns:
            kill(pid, signal.SIGSTOP)
        told.allow("full")
        told.wait_for((told.folder / "again").exists, "the ranks to run again")
    finally:
        for pid in sruns:
            kill(pid, signal.SIGCONT)
    assert sruns and os.getpid() not in sruns
    told.ended("COMPLETED")
