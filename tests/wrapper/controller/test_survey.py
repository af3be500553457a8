"""What a start asks of slurmctld: with the two calls of srun's own it stays within three. And whose job it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ftslurm.config.settings_files import SettingsAsked
from ftslurm.launchers.srun_options import Component
from ftslurm.model.settings.tree import resolve
from ftslurm.slurm.parse import parse_job
from ftslurm.wrapper.controller.survey import JobSite, Order, Place, attaches, survey

RECORDED = Path(__file__).resolve().parents[2] / "recorded/slurm/22.05"
SCONTROL = """#!/bin/sh
echo "$* local=$SCONTROL_LOCAL" >>"$FOLDER/asked"
case "$*" in *config*) cat "$RECORDED/config.txt" ;; *) cat "$RECORDED/job-running.txt" ;; esac
"""


def test_the_job_is_asked_for_and_no_federation(tmp_path: Path) -> None:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    conf = tmp_path / "slurm.conf"
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin", "FOLDER": str(tmp_path), "RECORDED": str(RECORDED), "SLURM_JOB_ID": "30",
        "SLURM_CLUSTER_NAME": "alps", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_CONF": str(conf), "HOME": str(tmp_path),
    }  # fmt: skip
    order = Order((Component((), ("train",)),), SettingsAsked(), env)
    conf.write_text("ClusterName=alps\nProctrackType=proctrack/cgroup\n")
    site = survey(order)
    assert site.config is not None and site.config()["ProctrackType"] == "proctrack/cgroup"
    assert (tmp_path / "asked").read_text() == "--all show job 30 local=1\n"
    conf.unlink()
    site = survey(order)
    assert site.config is not None and site.config()["SLURM_VERSION"]
    assert "--all show config local=\n" in (tmp_path / "asked").read_text()


@pytest.mark.parametrize(("number", "own", "batch", "leaves"), [
    ("30", "", True, True),  # it runs a script of its own, which decides
    ("30", "", False, False),  # salloc's: nobody else would
    ("30", "7", False, True),  # from within another job
    ("30", "30", True, False),  # ours
    ("", "30", True, False),
])  # fmt: skip
def test_a_step_in_somebody_else_s_job_is_left_to_srun(number: str, own: str, batch: bool, leaves: bool) -> None:
    options = (f"--jobid={number}",) if number else ()
    order = Order((Component(options, ("train",)),), SettingsAsked(), {"SLURM_JOB_ID": own} if own else {})
    view = replace(parse_job((RECORDED / "job-running.txt").read_text(), 30), batch=batch)
    assert attaches(order, JobSite(resolve([]), {}, Place.ALLOCATION, view=view)) is leaves
