"""Faults of slurmctld, and what people do to a job."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.chaos.job import Job, Missed

# slurmctld saves changes within 5 s, and there is always something that changes.
SAVED_WITHIN_S = 12.0


def ctld_restarted(job: Job) -> str:
    return without_slurmctld(job, lambda: job.world.tool("ctld-stop"), job.rng.uniform(0.0, 8.0))


def ctld_killed(job: Job) -> str:
    """Directly after it has saved its state: what it has not saved is lost, up to jobs whose number is given out again."""

    def kill() -> None:
        saved, deadline = state_saved(job), time.monotonic() + SAVED_WITHIN_S
        while state_saved(job) == saved:
            if time.monotonic() > deadline:
                raise Missed("slurmctld has nothing to save")
            time.sleep(0.01)
        kill_slurmctld(job)

    return without_slurmctld(job, kill, job.rng.uniform(0.0, 5.0))


def ctld_killed_unsaved(job: Job) -> str:
    """It has forgotten some seconds when it is back. Jobs that it began in these are ended, and may begin once more."""
    return without_slurmctld(job, lambda: kill_slurmctld(job), job.rng.uniform(0.0, 5.0))


def kill_slurmctld(job: Job) -> None:
    job.kill(int((job.world.cluster.folder / "run/slurmctld.pid").read_text()))


def state_saved(job: Job) -> int:
    return (job.world.cluster.folder / "state/job_state").stat().st_mtime_ns


def without_slurmctld(job: Job, stop: Callable[[], None], seconds: float) -> str:
    """All others wait: nothing of the cluster can be asked or changed meanwhile."""
    with job.world.alone():
        stop()
        try:
            time.sleep(seconds)
        finally:
            job.world.tool("ctld-start")
    return f"slurmctld for {seconds:.1f} s"


def reconfigured(job: Job) -> str:
    with job.world.alone():
        job.world.operator("scontrol", "reconfigure")
    return "slurmctld and every slurmd"


def requeued_by_operator(job: Job) -> str:
    job.wait_running()
    job.world.operator("scontrol", "requeue", str(job.told.id))
    return "scontrol requeue"


def suspended(job: Job) -> str:
    seconds = job.rng.uniform(0.5, 4.0)
    job.wait_running()
    job.world.operator("scontrol", "suspend", str(job.told.id))
    job.undo_in(seconds, lambda: resume(job))
    return f"for {seconds:.1f} s"


def resume(job: Job) -> None:
    """Slurm may be away for a moment, or still be suspending."""
    deadline = time.monotonic() + 20.0
    while True:
        job.ask()
        if job.fields.get("JobState") != "SUSPENDED":
            return
        job.world.operator("scontrol", "resume", str(job.told.id))
        assert time.monotonic() < deadline, "it cannot be resumed"
        time.sleep(0.2)


def warned(job: Job) -> str:
    """As --signal=TERM@… does: the steps, not the script."""
    job.wait_running()
    job.world.operator("scancel", "--signal=TERM", str(job.told.id))
    return "SIGTERM to all steps"
