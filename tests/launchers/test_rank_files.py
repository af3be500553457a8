"""Into which files ranks write, by their srun's command line."""

from __future__ import annotations

import pytest

from ftslurm.launchers.rank_logs import NODE, ONE, TASK, RankFiles, rank_files

W = "/work"


@pytest.mark.parametrize(("options", "env", "expected"), [
    ("", {}, RankFiles()),
    ("-l", {}, RankFiles(label=True)),
    ("", {"SLURM_LABELIO": "1"}, RankFiles(label=True)),
    ("-o %j_%t.out", {}, RankFiles(((TASK, f"{W}/7_%t.out"),))),
    ("-o log -e log", {}, RankFiles(((ONE, f"{W}/log"),))),
    ("-o log", {}, RankFiles(((ONE, f"{W}/log"),))),
    ("-o /abs/%x.%4t.%s.%%", {"SLURM_JOB_NAME": "train"}, RankFiles(((TASK, "/abs/train.%4t.%s.%%"),))),
    ("-o out.%N -e err.%t", {}, RankFiles(((NODE, f"{W}/out.%N"), (TASK, f"{W}/err.%t")))),
    ("-e err.%t", {}, RankFiles(((TASK, f"{W}/err.%t"),))),
    ("-D /data -o %t.out", {}, RankFiles(((TASK, "/data/%t.out"),))),
    ("-D /data -o out", {}, RankFiles(((ONE, f"{W}/out"),))),
    ("", {"SLURM_STDOUTMODE": "%A_%a.%t", "SLURM_ARRAY_JOB_ID": "5", "SLURM_ARRAY_TASK_ID": "2"},
     RankFiles(((TASK, f"{W}/5_2.%t"),))),
    ("-o none", {}, RankFiles()),
])  # fmt: skip
def test_files_of_ranks(options: str, env: dict[str, str], expected: RankFiles) -> None:
    found = rank_files(options.split(), env, 7, "me", W)
    assert (found.files, found.label) == (expected.files, expected.label)


@pytest.mark.parametrize(
    ("options", "errors"),
    [
        ("", None),
        ("-o out", f"{W}/out"),
        ("-o out -e err.%t", f"{W}/err.%t"),
        ("-e none", ""),
        ("-o out -e all", None),
        ("-o 0", ""),
    ],
)
def test_where_errors_go(options: str, errors: str | None) -> None:
    assert rank_files(options.split(), {}, 7, "me", W).errors == errors
