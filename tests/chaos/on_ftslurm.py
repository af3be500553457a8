"""Faults of ftslurm's own processes and connections, of its ledger's disk, and those that it injects itself when asked."""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress

from tests.chaos.job import Job, Missed
from tests.chaos.on_devices import SELF_HEALING
from tests.chaos.on_ranks import signalled
from tests.chaos.plan import LEASE_S
from tests.chaos.victims import AGENT, FTRUN, any_rank, not_an_heir, room_to_isolate
from tests.live.stories import on_network_of, own_number

# As AGENT and FTRUN.
SHIM = ("from _shim import main", "python", "-I -S")
SRUN, AGENTS_SRUN = "srun --kill-on-bad-exit", "--job-name=ftslurm-agent"


def shim_killed(job: Job) -> str:
    pid = job.one("shim", *SHIM)
    job.kill(pid)
    return f"shim {pid}"


def agent_killed(job: Job) -> str:
    not_an_heir(job)
    pid = job.one("agent", *AGENT)
    job.kill(pid)
    return f"agent {pid}"


def srun_killed(job: Job) -> str:
    pid = job.one("srun of the step", SRUN)
    job.kill(pid)
    return f"srun {pid}"


def agents_srun_killed(job: Job) -> str:
    pid = job.one("srun of the agents", AGENTS_SRUN)
    job.kill(pid)
    return f"srun {pid}"


def shim_cut(job: Job) -> str:
    return cut(job, job.one("shim", *SHIM), "shim")


def agent_cut(job: Job) -> str:
    return cut(job, job.one("agent", *AGENT), "agent")


def cut(job: Job, pid: int, what: str) -> str:
    """A reset for both ends of its connections to ftrun."""

    def ss(at: int, *argv: str) -> list[str]:
        return subprocess.run(on_network_of(at, "ss", *argv), capture_output=True, text=True, check=True).stdout.splitlines()

    ends = [line.split()[2:4] for line in ss(pid, "-Htnp", "state", "established") if f"pid={pid}," in line]
    ports = [end.rpartition(":")[2] for end, _ in ends]
    for port in ports:
        ss(pid, "-HKtn", "state", "established", "sport", "=", f":{port}")
        for other in job.processes(FTRUN):
            ss(other, "-HKtn", "state", "established", "dport", "=", f":{port}")
    if not ports:
        raise Missed(f"the {what} has no connection")
    return f"{what} {pid}"


def ftrun_stopped(job: Job) -> str:
    return stop_ftrun(job, job.rng.uniform(0.5, 4.0))


def ftrun_stopped_beyond_the_leases(job: Job) -> str:
    return stop_ftrun(job, LEASE_S + job.rng.uniform(3.0, 8.0))


def stop_ftrun(job: Job, seconds: float) -> str:
    pid = ftrun(job)
    job.kill(pid, signal.SIGSTOP)
    job.undo_in(seconds, lambda: kill_quietly(job, pid, signal.SIGCONT))
    return f"ftrun {pid} for {seconds:.1f} s"


def kill_quietly(job: Job, pid: int, number: signal.Signals) -> None:
    if pid in job.told.processes():
        with suppress(Missed):
            job.kill(pid, number)


def ftrun_killed(job: Job) -> str:
    pid = ftrun(job)
    _, number = own_number(pid)  # by which the ledger knows it
    job.kill(pid)
    return f"ftrun {number}"


def ftrun(job: Job) -> int:
    job.wait_running()
    return job.one("ftrun", FTRUN)


def drill_crash(job: Job) -> str:
    status = job.rng.choice([1, 7, 0])
    return drill(
        job, "rank-crash", "--rank", str(any_rank(job)), *(["--status", str(status)] if status else ["--signal", "SEGV"])
    )


def drill_hang(job: Job) -> str:
    return drill(job, "hang", "--rank", str(any_rank(job)))


def drill_device(job: Job) -> str:
    job.wait_running()
    return drill(job, "device-fault", "--node", job.rng.choice(job.nodes()), "--device", "1.0", "--code", SELF_HEALING[1])


def drill_lost_node(job: Job) -> str:
    room_to_isolate(job)
    job.wait_running()
    return drill(job, "lost-node", "--node", job.rng.choice(job.nodes()))


def drill(job: Job, *argv: str) -> str:
    done = job.world.cluster.run(["ftslurm", "drill", argv[0], str(job.told.id), *argv[1:]], env=job.told.env)
    if done.returncode:
        raise Missed(f"refused: {done.stderr.strip()[:200]}")
    return " ".join(argv)


def disk_full(job: Job) -> str:
    """Of the ledger, for a moment: the job has a small one for it."""
    state = job.told.folder / "state"
    ballast, seconds = state / "ballast", job.rng.uniform(1.0, 5.0)
    if not state.is_mount() or ballast.exists():
        raise Missed("it cannot be filled")
    with suppress(OSError), open(ballast, "wb", buffering=0) as file:
        while True:
            file.write(b"\xff" * 4096)
    job.undo_in(seconds, lambda: ballast.unlink(missing_ok=True))
    also = ""
    if job.rng.random() < 0.5:  # what is decided now has to be written into the reserve
        with suppress(Missed):
            also = f", {signalled(job, signal.SIGKILL)}"
    return f"for {seconds:.1f} s{also}"
