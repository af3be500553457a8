"""What ftrun's remedies saved against a plain requeue of the whole job. Pure.

Without ftrun a batch script can do one thing about a failure: give the job back (`scontrol requeue`). slurmctld sets the begin
time of such a job to 121 s after the end of its clean-up (seen on 22.05, 24.11 and 26.05), and then the script and the step
start anew. What both have in common is left out: noticing, stopping, the program's own start, work done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from ftslurm.model import record as rec
from ftslurm.model.values import dataclass
from ftslurm.report.account.parts import Part, Spent

# cred_expire (120 s) + 1: slurmctld's batch_requeue_fini(); docs/slurm-facts.md, "The 121 seconds".
REQUEUE_S = 121.0
ASSUMPTION = (
    "a plain requeue is taken to cost 121 s (the begin time that slurmctld gives a job that was requeued with scontrol) and this "
    "job's own median start of script and step; the queue is taken to be empty, and a hang, which Slurm never notices, to be "
    "noticed as soon as ftrun did: so the true saving is higher. Compared is the time from the last process of an attempt to the "
    "first of the next; drills and what people or Slurm wanted are left out"
)


@dataclass(frozen=True, slots=True)
class Saved:
    """By `outages` remedies after which ranks ran again. seconds: may be below 0. gpu_s: of those whose GPUs are known."""

    outages: int = 0
    seconds: float = 0.0
    gpu_s: float = 0.0
    plain_s: float = 0.0


def start_s(records: Sequence[rec.Record]) -> float:
    """From the start of a scheduling, or of ftrun where Slurm did not tell, to the first attempt in it: the median."""
    found: list[float] = []
    run: rec.RunBegan | None = None
    for record in records:
        if isinstance(record, rec.RunBegan):
            run = record
        elif isinstance(record, rec.AttemptBegan) and run is not None:
            granted = float(run.start_time) if 0 < run.at - run.start_time < 3600 else run.at
            found.append(max(0.0, record.at - granted))
            run = None
    return median(found) if found else 0.0


def saved(spent: Spent, usual_start_s: float) -> Saved:
    plain_s = REQUEUE_S + usual_start_s
    outages, seconds, gpu_s = 0, 0.0, 0.0
    for outage, owed in zip(spent.outages, spent.by_outage(), strict=True):
        if not outage.back or outage.drill or outage.by_others or not outage.decided:
            continue
        down = [
            stretch for stretch in owed
            if stretch.end <= outage.back and stretch.part in (Part.DECIDING, Part.WAITING, Part.STARTING)
        ]  # fmt: skip
        gain = plain_s - sum(stretch.seconds for stretch in down)
        outages, seconds = outages + 1, seconds + gain
        gpu_s += gain * max(0, outage.gpus)
    return Saved(outages, seconds, gpu_s, plain_s)
