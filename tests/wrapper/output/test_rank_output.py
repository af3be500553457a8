"""Where a rank's words are found afterwards."""

from __future__ import annotations

import pytest

from ftslurm.launchers.rank_logs import RankFiles, rank_files
from ftslurm.wrapper.controller.output_files import output_place


@pytest.mark.parametrize(("options", "env", "place"), [
    ([], {}, "/job/slurm-7.out"),
    (["-o", "out.%t"], {}, "/job/out.%t"),
    (["-o", "out.%t", "-e", "/e/%j-%N.%3t"], {}, "/e/7-%N.%3t"),
    (["--output=none"], {}, ""),
    (["--output=all"], {}, "/job/slurm-7.out"),
    (["-o", "3"], {}, ""),
    (["-o", "%x-%A_%a-%8j-%s.txt"], {"SLURM_JOB_NAME": "50%", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"},
     "/job/50%%-5_2-00000007-*.txt"),
    (["-D", "/sub", "-o", "x"], {}, "/job/x"),
    (["-D", "/sub", "-o", "x.%t"], {}, "/sub/x.%t"),
    (["-o", "x", "-e", "all"], {}, "/job/slurm-7.out"),
    ([], {"SLURM_STDOUTMODE": "o.%t"}, "/job/o.%t"),
])  # fmt: skip
def test_the_options_of_srun_say_where(options: list[str], env: dict[str, str], place: str) -> None:
    assert output_place(rank_files(options, env, 7, "me", "/job"), 7, "/job/slurm-7.out") == (place, False)


def test_labels_are_known() -> None:
    assert output_place(RankFiles(label=True), 7, "") == ("", True)
    assert output_place(RankFiles(), 7, "/job/slurm-7.out") == ("", False), "what nobody knows is not told"
