"""Every file in sbatch-templates/ as it stands: submitted beside a program of the name it expects, it does its work."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.live.stories import Plan, Stage, Story

pytestmark = pytest.mark.live

# Those for containers need a runtime: test_containers.py.
RUNTIMES = ("apptainer", "pyxis")
FOLDER = Path(__file__).resolve().parents[2] / "sbatch-templates"
TEMPLATES = sorted(path for path in FOLDER.glob("*.sh") if path.stem not in RUNTIMES)

# Stands where a training stands: says what it has, fails once in the first scheduling, and ends well in the next.
TRAIN = """
import json, os, sys, time
from pathlib import Path
names = {"schedule": "MA_SCHEDULE_CNT", "starts": "MA_PROC_START_CNT", "attempt": "FTSLURM_ATTEMPT", "rung": "FTSLURM_RESTART_RUNG",
         "cause": "FTSLURM_RESTART_CAUSE", "excluded": "FTSLURM_EXCLUDED_NODES", "node": "SLURMD_NODENAME", "job": "SLURM_JOB_ID"}
line = {name: os.environ[variable] for name, variable in names.items()}
rank, attempt = int(os.environ["SLURM_PROCID"]), line["attempt"]
line.update(rank=rank, step=os.environ["SLURM_JOB_ID"] + "." + os.environ["SLURM_STEP_ID"], pid=os.getpid(), time=time.time())
story = Path(os.environ["STORY"])
with open(story / f"rank.{rank}", "a") as file:
    file.write(json.dumps(line) + "\\n")
if line["schedule"] == "1":
    deadline = time.monotonic() + 30
    while sum(f'"attempt": "{attempt}"' in path.read_text() for path in story.glob("rank.*")) < int(os.environ["SLURM_NTASKS"]):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if rank == 1:
        sys.exit("out of luck")
    time.sleep(60)
"""


def test_there_are_templates() -> None:
    assert [path.stem for path in TEMPLATES] >= ["plain", "requeue-ladder"]


@pytest.fixture(scope="module")
def submitted(stage: Stage) -> dict[str, Story]:
    """All of them at once, each in a folder of its own: template name to its job."""
    found = {}
    for template in TEMPLATES:
        told = stage.prepare(Plan(nodes=2, tasks=2, files={"train.py": TRAIN}), template.stem)
        told.id = told.cluster.submit(template, cwd=told.folder, env=told.env)
        found[template.stem] = told
    return found


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_submitted_as_it_stands_it_survives_a_crash(submitted: dict[str, Story], template: Path) -> None:
    told = submitted[template.stem]
    job = told.ended("COMPLETED")
    assert job["Restarts"] == "1"
    assert told.counters() == [(1, 1, 1), (2, 1, 2)]
    (output,) = told.folder.glob("*.out")
    assert "out of luck" in output.read_text(), "the requeue has overwritten what the first scheduling said"


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_every_variable_and_option_it_names_exists(stage: Stage, template: Path) -> None:
    """A name that ftrun does not know would be refused when the job runs, weeks after the template was copied."""
    text = template.read_text()
    names = re.findall(r"--ft-set[ =]([\w.-]+)=", text)
    known = {
        name for name in json.loads(stage.cluster.answer(["ftslurm", "explain", "--json"], env={"PATH": stage.path}))["settings"]
    }
    assert set(names) <= known
    options = stage.cluster.answer(["ftrun", "--ft-help"], env={"PATH": stage.path})
    assert [option for option in re.findall(r"--ft-[a-z-]+", text) if option not in options] == []
    assert subprocess.run(["bash", "-n", template], check=False).returncode == 0
