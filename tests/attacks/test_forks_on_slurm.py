"""The same attacks where processes are tracked by cgroups (proctrack/cgroup), on a cluster whose Epilog is ours: from within a
job, which Slurm itself ends then, and from outside of any (ssh, cron), which the Epilog has to end."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from tests.attacks.test_forks import AWAY, LINEAGE, REVIVES, TRACED
from tests.live.hooked import Hooked, hooked_cluster

pytestmark = [
    pytest.mark.live,
    pytest.mark.timeout(600),
    # Alone, as the attacks leave nothing of a small machine to other tests.
    pytest.mark.skipif(os.environ.get("FTSLURM_TEST_FORKS") != "1", reason="make test-long and make test-attacks run it alone"),
]
WAIT_S = 240.0
# Each on its own would last for ever.
ATTACKS = {
    "forks.py": AWAY + LINEAGE.format(count=60, life=0.002),
    "spins.py": AWAY + LINEAGE.format(count=1, life=0.0),
    "traced.py": AWAY + TRACED,
    "revives.py": AWAY + REVIVES,
}


@pytest.fixture(scope="module")
def site() -> Iterator[Hooked]:
    with hooked_cluster(1, ["HealthCheckInterval=3600", "SlurmUser=root"]) as hooked:
        assert hooked.cluster.answer(["scontrol", "show", "config"], user="root").count("proctrack/cgroup"), (
            "jobs are in no cgroups"
        )
        for name, program in ATTACKS.items():
            (hooked.folder / name).write_text(program)
        yield hooked


def hers(hooked: Hooked) -> list[str]:
    found = hooked.on("n1", "ps", "-u", "nobody", "-o", "stat=,args=").stdout.splitlines()
    return [line for line in found if not line.startswith("Z")]


def slurm_gave_up(hooked: Hooked, job: int) -> bool:
    """On a busy machine the job's processes may fork faster than Slurm ends them, until its own UnkillableStepTimeout (60 s) is
    over. It then drains the node, and the Epilog has to end them."""
    log = (hooked.cluster.folder / "log/n1.log").read_text(errors="replace")
    return any(f"[{job}." in line and "NOT ENDING WITH SIGNALS" in line for line in log.splitlines())


def ends_and_node_stays(hooked: Hooked, job: int, left: str) -> None:
    hooked.cluster.wait_for_state(job, "COMPLETED", timeout_s=WAIT_S)
    hooked.cluster.wait_for(lambda: f"job {job} on" in hooked.said("epilog", "n1"), WAIT_S, "the Epilog to have run")
    said = hooked.said("epilog", "n1")
    if slurm_gave_up(hooked, job):
        left = f"job {job} on"  # whatever it found, nothing of it is there any more
        assert hooked.cluster.node("n1")["Reason"].startswith("Kill task failed")
        hooked.cluster.answer(["scontrol", "update", "nodename=n1", "state=resume"], user="root")
    assert left in said and hers(hooked) == [], (said, hers(hooked))
    assert "DRAIN" not in hooked.cluster.node("n1")["State"]


@pytest.mark.parametrize("inside", [True, False], ids=["in the job", "outside of it"])
def test_what_forks_and_holds_ends_and_drains_nothing(site: Hooked, inside: bool) -> None:
    site.settings(kill_wait="2s")
    start = " ".join(f"{sys.executable} {site.folder}/{name} >/dev/null 2>&1 </dev/null & " for name in ATTACKS)
    begun, go = (site.cluster.home / f"{name}-{time.time_ns()}" for name in ("begun", "go"))  # a second try has marks of its own
    ready = f"touch {begun}; until [ -e {go} ]; do sleep 0.2; done"
    script = f"#!/bin/bash\n{start if inside else ''}\n{ready}\nsleep 1.5\n"
    job = site.cluster.submit(script, "--time=5", "--output=/dev/null", "--nodelist=n1")
    site.cluster.wait_for(begun.exists, WAIT_S, "the job to run")
    if not inside:
        started = site.as_user("n1", f"setsid sh -c '{start}' </dev/null >/dev/null 2>&1 &")
        assert started.returncode == 0, started.stderr
    site.cluster.wait_for(lambda: len(hers(site)) > 40, WAIT_S, "the attacks to run")
    go.touch()
    ends_and_node_stays(site, job, "nothing was left" if inside else "are gone")
