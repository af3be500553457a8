"""`ftslurm doctor` on a real cluster, by the job's own user: as it is typed on a login node, and in the script of a job."""

from __future__ import annotations

import json

import pytest

from tests.live.stories import Story, story

pytestmark = pytest.mark.live

UNREAD = ("does not show", "cannot read", "cannot be read", "is not a number")


@story(script='ftslurm doctor --json >"$STORY/inside.json"\nftslurm doctor >"$STORY/inside.txt"; :')
def test_slurm_tells_what_the_rules_ask_for(told: Story) -> None:
    told.ended("COMPLETED")
    inside = {each["check"]: each for each in json.loads((told.folder / "inside.json").read_text())["findings"]}
    outside = {each["check"]: each for each in told.json("doctor")["findings"]}
    assert {*inside} - {*outside} <= {"this job", "hook scripts"}
    assert inside["this job"]["level"] == "ok" and f"job {told.id} " in inside["this job"]["reason"]
    for found in inside, outside:
        assert found["Slurm"]["level"] == "ok" and "6 nodes" in found["nodes"]["reason"]
        assert found["slurmdbd"]["level"] == "costs"
        assert {each["level"] for each in found.values()} <= {"ok", "costs", "unknown"}
        # What this release does not show is unknown; what it shows is read.
        unread = [name for name, each in found.items() if any(words in each["reason"] for words in UNREAD)]
        assert unread == []
    lines = (told.folder / "inside.txt").read_text().splitlines()
    assert lines[-1].startswith("0 blocks, ") and lines[-1].endswith(" ok")
