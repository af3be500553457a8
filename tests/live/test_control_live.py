"""`ftslurm control`, as the owner of a job runs it beside the job, as root does, and as a neighbour tries to."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.live.stories import Story, admin, nodes_in, story

pytestmark = [pytest.mark.live, pytest.mark.timeout(240)]

# Until it is stopped, on the first start; later ones end well.
ONCE = '[ "$FTSLURM_ATTEMPT" = 1 ] || exit 0; exec sleep 300'


def control(told: Story, *words: str, user: str | None = None) -> subprocess.CompletedProcess[str]:
    return told.cluster.run(["ftslurm", "control", str(told.id), *words], user=user, env=told.env, cwd=told.folder, timeout=60.0)


def requests(told: Story) -> list[dict[str, object]]:
    return told.json("control", str(told.id), "list")  # type: ignore[no-any-return]


@story(nodes=2, rank=ONCE)
def test_a_node_is_left_at_the_owners_word_and_what_is_asked_meanwhile_the_next_attempt_takes(told: Story) -> None:
    node = told.wait_started()[1].node
    done = control(told, "exclude", node)
    assert done.returncode == 0 and "is taken by attempt 1" in done.stdout, done
    assert f"the job continues without {node}: isolated-requeue" in done.stdout
    told.cluster.wait_for_state(told.id, "PENDING")
    done = control(told, "hold", "in-place-restart")
    assert done.returncode == 3 and "its next attempt answers it" in done.stderr, done
    job = told.ended("COMPLETED")
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", node)
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    first, second = requests(told)
    assert (first["state"], second["state"], second["attempt"]) == ("done", "done", 2)
    (decided,) = told.json("history", str(told.id))["attempts"][0]["remedies"]
    assert [decided["decided"][each] for each in ("rung", "cause", "cost")] == ["isolated-requeue", "request", ""]


@story(nodes=2, rank='[ "$FTSLURM_ATTEMPT" = 1 ] && exec sleep 300; await go; exit 7')
def test_requeue_now_and_then_no_more_restarts(told: Story) -> None:
    told.wait_started()
    done = control(told, "requeue")
    assert done.returncode == 0 and "the job is requeued" in done.stdout, done
    nodes = {start.node for start in told.wait_started(2).values()}
    # It is the owner's alone. A neighbour cannot even read the ledger; root may, as with scancel.
    if os.geteuid() == 0:
        done = control(told, "no-restarts", user="daemon")
        assert done.returncode == 73 and "cannot be read: Permission denied" in done.stderr, done
    done = control(told, "no-restarts", user=admin())
    assert done.returncode == 0 and "the next failure ends the job" in done.stdout, done
    told.allow("go")
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("1", "7:0")
    assert nodes_in(told.cluster, job["ExcNodeList"]) == set() and len(nodes) == 2
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    status = told.ftslurm("status", str(told.id))
    who = "root" if os.geteuid() == 0 else "you"
    assert f"{who} asked for no more restarts" in status


TRAIN = """
import os, time
from ftslurm.sdk import client
while not os.path.exists(os.environ["STORY"] + "/save"):
    time.sleep(0.1)
while True:  # a checkpoint now and then
    client.checkpoint(7)
    time.sleep(20)
"""


@story(rank='exec "$(head -n1 "$(command -v ftslurm)" | cut -c3-)" "$STORY/train.py"', files={"train.py": TRAIN})
def test_stop_after_the_next_checkpoint_that_the_program_tells_of(told: Story) -> None:
    told.wait_started()
    done = control(told, "stop", "--after-checkpoint")
    assert done.returncode == 1 and "ftrun cannot tell when a checkpoint is complete" in done.stderr, done
    done = control(told, "stop", "--after-checkpoint", "--by", "1h")
    assert done.returncode == 0 and "it waits for the next checkpoint" in done.stdout, done
    assert "stop the job after the next checkpoint" in told.ftslurm("status", str(told.id))
    told.allow("save")
    job = told.ended("FAILED")
    assert (job["Restarts"], job["ExitCode"]) == ("0", "143:0")
    assert told.ftslurm("status", str(told.id)).count("stopped on request 2") == 1
    assert "stopped" in told.ftslurm("status", "--all")


@story(rank="await save; touch $STORY/step_1.pt; exec sleep 300")
def test_stop_after_the_next_checkpoint_that_a_file_shows(told: Story) -> None:
    told.wait_started()
    done = control(told, "stop", "--after-checkpoint", "--files", "step_*.pt")
    assert done.returncode == 0 and f"a new or changed {told.folder}/step_*.pt" in done.stdout, done
    told.allow("save")
    assert told.ended("FAILED")["ExitCode"] == "143:0"
    (request,) = requests(told)
    assert request["state"] == "done" and request["seen"] == 1
