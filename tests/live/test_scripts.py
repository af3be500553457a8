"""Scripts that other people wrote, once with srun and once with ftrun (tests/scripts). A handful in `make test`, all with -m long.

FTSLURM_SCRIPTS_OUT=FILE writes the table of differences for docs/migrating.md there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.live.conftest import Stage
from tests.scripts.compare import FAULT, QUIET, Difference, Runs, differences, table
from tests.scripts.shapes import Shape, all_shapes

SHAPES = all_shapes()
HANDFUL = ("two-nodes-torchrun", "ray-probe-until", "sweep-members-or-echo", "status-guard", "same-file-again")
# What is known to differ, by kind: name -> kinds. The table in docs/migrating.md is made of what was found there.
KNOWN: dict[str, list[str]] = yaml.safe_load((Path(__file__).parents[1] / "scripts/known.yaml").read_text()) or {}

FOUND: dict[str, list[Difference]] = {}


def marked(name: str) -> object:
    return pytest.param(name, id=name, marks=() if name in HANDFUL else pytest.mark.long)


@pytest.fixture(scope="module")
def runs(request: pytest.FixtureRequest, stage: Stage) -> Iterator[Runs]:
    wanted = {item.callspec.params["name"] for item in request.session.items if item.path == request.path}
    yield Runs(stage, [SHAPES[name] for name in SHAPES if name in wanted])
    if place := os.environ.get("FTSLURM_SCRIPTS_OUT"):
        Path(place).write_text(table(FOUND, {name: shape.source for name, shape in SHAPES.items()}) + "\n")


@pytest.mark.parametrize("name", [marked(name) for name in SHAPES])
def test_the_word_is_the_whole_migration(runs: Runs, name: str) -> None:
    shape = SHAPES[name]
    srun, ftrun = (runs.left(shape, QUIET, launcher) for launcher in ("srun", "ftrun"))
    if found := differences(srun, ftrun):
        FOUND[name] = found
    assert ftrun.restarts == 0
    assert sorted({each.kind for each in found}) == sorted(KNOWN.get(name, [])), found
    if runs.has(shape, FAULT):
        with_fault(runs, shape)


def with_fault(runs: Runs, shape: Shape) -> None:
    """An answer comes back as srun's does; a failure has a remedy, and the job ends as if nothing had failed."""
    if shape.answer:
        srun, ftrun = (runs.left(shape, FAULT, launcher) for launcher in ("srun", "ftrun"))
        assert not differences(srun, ftrun), differences(srun, ftrun)
        return
    well, ftrun = runs.left(shape, QUIET, "srun"), runs.left(shape, FAULT, "ftrun")
    assert (ftrun.state, ftrun.status) == (well.state, well.status)
    worked = [line for line in ftrun.files["out"] if "has worked" in line]
    assert len(worked) >= len([line for line in well.files["out"] if "has worked" in line])
