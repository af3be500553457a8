"""The batch node dies, or only ftrun on it: who goes on, and that nothing runs twice or is left, on a real cluster."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.live.conftest import booted, new_stage
from tests.live.overlap import BEAT, MAKE_PIPE, RANK, beats, overlaps
from tests.live.stories import Plan, Story, admin, kill

pytestmark = pytest.mark.live

BEATS = MAKE_PIPE + RANK
LEASE_S, SILENCE_S = 16.0, 4.0
QUICK_LEASE = (
    f"--ft-set lease.time={LEASE_S:g}s --ft-set nodes.silence={SILENCE_S:g}s --ft-set lease.margin=3s --ft-set nodes.probe_timeout=2s"
)
# What a job may hold a node for after its batch node has died: the leases, the turn of the first, and a busy machine.
TAKEN_OVER_S = LEASE_S + 2 * SILENCE_S + 3.0 + 60.0


def records(told: Story, kind: str) -> list[dict]:
    import json

    lines = [line for path in (told.folder / "state/jobs").glob("*.jsonl") for line in path.read_text().splitlines()]
    found = [json.loads(line) for line in lines]
    return [record for record in found if record["kind"] == kind]


def batch_node(told: Story) -> str:
    return told.job()["BatchHost"]


def beating(told: Story, attempt: int) -> bool:
    return {beat.rank for beat in beats(told.folder) if beat.attempt == attempt} == set(range(told.plan.nodes))


@pytest.mark.timeout(500)
def test_with_no_kill_the_first_of_the_others_requeues_without_the_dead_batch_node(job_path: tuple[Path, ...]) -> None:
    plan = Plan(nodes=3, rank=BEATS, files={"beat.sh": BEAT}, ft=QUICK_LEASE, sbatch=("--no-kill",))
    with booted(nodes=4) as own, new_stage(own, job_path) as stage:
        told = stage.tell(plan, "no-kill")
        told.wait_started()
        told.wait_for(lambda: beating(told, 1), "all ranks to write")
        dead = batch_node(told)
        told.wait_for(lambda: len([c for c in told.processes().values() if "wrapper.agent" in c and "srun" not in c]) >= 3, "agents")
        time.sleep(3)
        own.tool("node-crash", dead)
        died_at = time.time()
        told.wait_for(lambda: records(told, "Decided"), "one to take over", TAKEN_OVER_S)
        took_s = time.time() - died_at
        print("took", took_s, records(told, "Decided"))
        own.answer(["scontrol", "update", f"NodeName={dead}", "State=DOWN", "Reason=dead"], user=admin())
        told.wait_for(lambda: (own.run(["scontrol", "update", f"JobId={told.id}", "StartTime=now"]), len(told.of_attempt(2)) == 3)[1], "again", 90.0)
        told.wait_for(lambda: beating(told, 2), "attempt 2 to write")
        told.allow("enough")
        told.ended("COMPLETED")
        print(told.ftslurm("history", str(told.id)))
        print(told.output())
        assert overlaps(beats(told.folder)) == []
        told.wait_nothing_left()
