"""Limits of a whole group, by the output of real Slurm."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from ftslurm.slurm.fitting import GROUP_REASON, group_limits, taken, without_room

RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "slurm" / "22.05"
# As recorded, of an account with GrpJobs=1; nobody has others.
TEXT = (RECORDED / "assoc-mgr.txt").read_text()
NOBODY = 65534
NODES_2 = TEXT.replace("GrpJobs=1(0)", "GrpJobs=N(0)").replace("node=N(0)", "node=2(2)", 1)
OTHERS = TEXT.replace("UserName=nobody(65534)", "UserName=games(5)").replace("GrpJobs=N(0)", "GrpJobs=0(0)", 1)


@pytest.mark.parametrize(
    ("text", "limits"),
    [
        (TEXT, {"jobs": 1}),
        (NODES_2, {"node": 2}),
        (OTHERS, {"jobs": 1}),
        (TEXT.replace("GrpJobs=N(0)", "GrpJobs=0(0)", 1), {"jobs": 0}),
        (
            TEXT.replace("mem=N(0)", "mem=4096(0)", 1).replace("GrpTRESMins=cpu=N(0)", "GrpTRESMins=cpu=9(0)"),
            {"jobs": 1, "mem": 4096},
        ),
        (TEXT.replace("GrpTRES=cpu=N(0)", "GrpTRES=cpu=N(0),gres/gpu:a100=16(8)"), {"jobs": 1, "gres/gpu:a100": 16}),
        ("", {}),
        ("Access/permission denied", {}),
    ],
)
def test_the_least_limit_of_our_groups_counts_and_none_of_other_users(text: str, limits: dict[str, int]) -> None:
    assert group_limits(text, NOBODY) == limits


def test_what_a_job_takes() -> None:
    told = "   NumNodes=2\n   TRES=cpu=2,mem=2.5G,node=2,billing=2,gres/gpu=8\n   Comment=x TRES=node=9\n"
    assert taken(told) == {"jobs": 1, "cpu": 2, "mem": 2560, "node": 2, "billing": 2, "gres/gpu": 8}
    assert taken("   ReqTRES=cpu=1,node=1\n   AllocTRES=(null)\n")["node"] == 1
    assert taken("") == {"jobs": 1}


OURS, DONOR = Counter({"jobs": 1, "node": 2, "cpu": 4}), Counter({"jobs": 1, "node": 1, "cpu": 2})


@pytest.mark.parametrize(
    ("limits", "exceeded"),
    [
        ({"jobs": 1}, "GrpJobs=1"),
        ({"jobs": 2}, ""),
        ({"node": 2}, "GrpTRES=node=2"),
        ({"node": 3}, ""),
        ({"node": 3, "cpu": 5}, "GrpTRES=cpu=5"),
        ({"gres/gpu": 0}, ""),
        ({}, ""),
    ],
)
def test_two_jobs_beside_each_other(limits: dict[str, int], exceeded: str) -> None:
    assert without_room(limits, OURS, DONOR) == exceeded


@pytest.mark.parametrize("reason", ["AssocGrpJobsLimit", "AssocGrpNodeLimit", "AssocGrpGRES", "QOSGrpCpuLimit"])
def test_such_limits_are_asked_about(reason: str) -> None:
    assert GROUP_REASON.fullmatch(reason)


@pytest.mark.parametrize("reason", ["Resources", "Priority", "AssocMaxJobsLimit", "QOSMaxJobsPerUserLimit", ""])
def test_others_are_not(reason: str) -> None:
    assert not GROUP_REASON.fullmatch(reason)
