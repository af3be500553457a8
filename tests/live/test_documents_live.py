"""What the documents say of Slurm, on a real cluster: the first-job page is followed to the letter, sbatch looks at every script,
and Slurm takes its own commands as they stand there."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from tests.docs.blocks import ROOT, Command, all_blocks, blocks, commands
from tests.live.stories import BY_DEFAULT, Plan, Stage

pytestmark = pytest.mark.live

PAGE = ROOT / "docs/first-job.md"
# The cluster is smaller than those that the scripts are for, and has no GPUs for all.
SMALL = ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=0", "--time=1")
SLURMS = ("scontrol", "sinfo", "squeue")


def test_the_first_job_goes_as_its_page_says(stage: Stage) -> None:
    # A person needs the minute that the program takes there.
    files = {block.name: block.text.replace("step < 240", "step < 40") for block in blocks(PAGE) if block.name}
    told = stage.prepare(Plan(files=files, env=BY_DEFAULT), "first-job")
    typed = [command for block in blocks(PAGE) if block.language == "sh" for command in commands(block)]
    submit, drill, status, history, cat = (one(typed, word) for word in ("sbatch", "drill", "status", "history", "cat"))

    def enter(command: Command) -> str:
        return told.cluster.answer([word.replace("JOB", str(told.id)) for word in command.words], cwd=told.folder, env=told.env)

    (number,) = re.findall(r"Submitted batch job (\d+)", enter(submit))
    told.id = int(number)
    log = told.folder / f"first-{number}.out"
    told.cluster.wait_for(lambda: log.exists() and log.read_text().count("attempt 1, from step 0") == 4, 45, "the ranks to run")
    assert "rank-crash on rank 1" in enter(drill)
    assert f"job {number} (first.sh) on" in enter(status)
    assert told.ended("COMPLETED")["Restarts"] == "0"
    assert "in-place-restart" in enter(history)
    said = enter(cat)
    assert len(re.findall(r"^rank \d on n\d: attempt 1, from step 0$", said, re.M)) == 4 and said.count(": done") == 4
    assert re.search(r"^ftrun: attempt 2 on n\[\d-\d\], after in-place-restart: rank 1 on n\d exited with status 1", said, re.M)
    assert re.search(r"^rank 1 on n\d: attempt 2, from step \d+", said, re.M)


def one(typed: Sequence[Command], word: str) -> Command:
    return next(command for command in typed if word in command.words)


def test_sbatch_takes_every_script(stage: Stage) -> None:
    scripts = [block for block in all_blocks("bash") if "#SBATCH" in block.text]
    templates = [(path.name, path.read_text()) for path in sorted((ROOT / "sbatch-templates").glob("*.sh"))]
    assert len(scripts) >= 6
    for name, text in (*((block.place, block.text) for block in scripts), *templates):
        done = stage.cluster.run(["sbatch", "--test-only", *SMALL], stdin=text)
        assert done.returncode == 0 and "to start at" in done.stderr, f"{name}: {done.stderr}"


def test_slurm_takes_its_own_commands(stage: Stage) -> None:
    typed = [command for block in all_blocks("sh") for command in commands(block) if command.words[0] in SLURMS]
    told = [command for command in typed if not any("$" in word for word in command.words)]
    assert {command.words[0] for command in told} >= {"scontrol", "sinfo"}
    stage.cluster.answer(["scontrol", "update", "NodeName=n3", "State=DRAIN", "Reason=ftslurm: a test"], user="root")
    for command in told:
        stage.cluster.answer(list(command.words), user="root")
