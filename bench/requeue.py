"""From a failure to running again on other nodes: ftrun beside plain `scontrol requeue`, which cannot change the nodes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from in_place import FTRUN
from measure import ROOT, Series, batch

ROUNDS = 5
SIM = ROOT / "tests" / "fakes" / "bin"

# A critical fault on the first node while the ranks run; the second scheduling must be elsewhere.
OURS = """#!/bin/bash
export FTSLURM_NPU_SIM={folder}/npu PATH={sim}:$PATH
mkdir -p $FTSLURM_NPU_SIM
echo "$EPOCHREALTIME start ${{SLURM_RESTART_COUNT:-0}} $SLURM_JOB_NODELIST" >>{folder}/marks
if [ -z "$SLURM_RESTART_COUNT" ]; then
    exec {ftrun} --ft-set devices.poll=500ms bash -c '
        if [ $SLURM_PROCID = 0 ]; then
            sleep 2
            echo "$EPOCHREALTIME fault" >>{folder}/marks
            npu-sim --dir $FTSLURM_NPU_SIM inject --node $SLURMD_NODENAME --device 0.0 --code 80E18402
            exit 1
        fi
        exec sleep 100'
fi
"""
PLAIN = """#!/bin/bash
echo "$EPOCHREALTIME start ${{SLURM_RESTART_COUNT:-0}} $SLURM_JOB_NODELIST" >>{folder}/marks
if [ -z "$SLURM_RESTART_COUNT" ]; then
    echo "$EPOCHREALTIME fault" >>{folder}/marks
    scontrol requeue $SLURM_JOB_ID
    sleep 100
fi
"""


def measure(env: Mapping[str, str]) -> list[Series]:
    ours = tuple(_once(OURS, env) for _ in range(ROUNDS))
    plain = (_once(PLAIN, env),)  # one is enough: it is Slurm's own constant (cred_expire + 1)
    return [
        Series("requeue without the bad node, ftrun", ours, "s"),
        Series("requeue, plain scontrol requeue", plain, "s"),
    ]


def _once(script: str, env: Mapping[str, str]) -> float:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        batch(script.format(folder=folder, ftrun=FTRUN, sim=SIM), env, folder, "-N2", "--ntasks-per-node=1")
        marks = [line.split() for line in (folder / "marks").read_text().splitlines()]
    fault = next(float(mark[0]) for mark in marks if mark[1] == "fault")
    first, second = (mark for mark in marks if mark[1] == "start")
    if script is OURS and first[3] == second[3]:
        raise SystemExit(f"bench: the job ran again on the same nodes, {first[3]}")
    return float(second[0]) - fault
