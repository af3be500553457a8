"""What users of other systems see, on the local launcher. Sources: AIMaster, fault tolerance monitoring; ModelArts, hang detection and fault
recovery of training jobs."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

from tests.cli.test_ftrun import REPOSITORY, TIMEOUT_S, clean_environ, ftrun, ftslurm

ANNOTATIONS = {"fault-tolerance/job-retry-num": "8", "fault-tolerance/job-unconditional-retry": "true"}
EXIT_HANG = "--enable-job-restart={} --enable-job-exit-hang-detection=True --job-exit-hang-interval=1 --max-num-of-job-restart=1"
# As Python puts it, which takes longer to start.
NO_MODULE = """printf 'Traceback (most recent call last):\\n  File "t.py", line 1, in <module>\\n' >&2
echo "ModuleNotFoundError: No module named 'gone'" >&2; exit 1"""
HALF_ENDS = "[ $SLURM_PROCID = 0 ] && exit 0; [ -e {go} ] && exit 0; sleep 60"
TRAIN = """
import os, time
from aimaster import job_monitor as jm
def wait(*names):
    while not all(map(os.path.exists, names)): time.sleep(0.05)
monitor = jm.Monitor(config=jm.PyTorchConfig(job_hang_interval=600))
open("ready" + os.environ["SLURM_PROCID"], "w").close()
wait("ready0", "ready1")
monitor.reset_config(job_hang_interval=2)
print("epoch 3", flush=True)
if os.environ["SLURM_PROCID"] == "1":
    print("ValueError: bad sample 7", flush=True)
wait("hangs")
print("epoch 3", flush=True)
wait("goes on")
"""


def rungs(home: Path) -> list[str]:
    attempts = json.loads(ftslurm("history", "1", "--json", home=home).stdout)["attempts"]
    return [remedy["decided"]["rung"] for attempt in attempts for remedy in attempt["remedies"]]


def followed(*argv: str, home: Path, marks: dict[str, str]) -> tuple[int, str]:
    """Status and stderr of ftrun, run in `home`. marks: words -> a file there, which is made once ftrun has said them."""
    said = ""
    with subprocess.Popen(
        [sys.executable, "-m", "ftslurm", *argv], env={**clean_environ(), "HOME": str(home), "PYTHONPATH": str(REPOSITORY)}, cwd=home,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr
        limit = threading.Timer(TIMEOUT_S, process.terminate)
        limit.start()
        for line in process.stderr:
            said += line
            for words, name in marks.items():
                if words in line:
                    (home / name).touch()
        limit.cancel()
    return process.returncode, said


def test_an_unconditional_retry_rebuilds_the_job_whatever_failed_and_the_fourth_time_it_fails(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text(json.dumps({"metadata": {"annotations": ANNOTATIONS}}))
    done = ftrun("--ft-annotations", f"{tmp_path}/job.json", "-n2", "sh", "-c", NO_MODULE, home=tmp_path)
    assert done.returncode == 1 and "3 unconditional requeues in a row" in done.stderr
    assert "No module named" in done.stderr, "the verdict knows that it is hopeless"
    assert rungs(tmp_path) == ["unconditional-requeue"] * 3 + ["fail"]


def test_a_maximum_of_one_restart_is_one_also_for_a_hang_at_the_exit(tmp_path: Path) -> None:
    flags = EXIT_HANG.format("True")
    done = ftrun("--ft-aimaster", flags, "-n2", "sh", "-c", HALF_ENDS.format(go="/nonexistent"), home=tmp_path)
    assert rungs(tmp_path) == ["hang-restart", "fail"] and "max_job_restarts" in done.stderr, done.stderr


def test_without_job_restart_a_hang_at_the_exit_is_reported_and_left_alone(tmp_path: Path) -> None:
    flags = EXIT_HANG.format("False") + " --fault-tolerant-policy=OnFailure"
    script, reported = (
        "[ $SLURM_PROCID = 0 ] && exit 0; until [ -e go ]; do sleep 0.1; done; exit 5",
        "seems to hang: 1 rank has exited",
    )
    status, said = followed("--ft-aimaster", flags, "-n2", "sh", "-c", script, home=tmp_path, marks={reported: "go"})
    assert reported in said and status == 5 and rungs(tmp_path) == ["fail"]


def test_a_hang_that_is_left_alone_comes_with_a_hint_names_the_program_s_limit_and_is_over_when_it_is(tmp_path: Path) -> None:
    marks = {"no rank has printed anything for 2 s": "hangs", "the job makes progress again": "goes on"}
    argv = ("--ft-aimaster", "--enable-job-hang-detection=True", "-n2", "python3", "-c", TRAIN)
    status, said = followed(*argv, home=tmp_path, marks=marks)
    assert status == 0 and all(words in said for words in marks), said
    assert "hint   some ranks printed an error but still run" in said
    shown = json.loads(ftslurm("status", "1", "--json", home=tmp_path).stdout)
    assert shown["hang"] is None and "went on by itself" in shown["card"]["done"]
