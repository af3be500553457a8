"""The program that becomes a job's owner: whoever may start it (SlurmUser, by sudo) chooses what it looks at, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftslurm.errors import UsageError
from ftslurm.hooks import as_owner
from ftslurm.hooks.scripts import scripts

CONF = "/etc/sl urm/slurm.conf"


@pytest.mark.parametrize(("slurm_conf", "known"), [(CONF, {f"SLURM_CONF={CONF}"}), ("", set())])
def test_no_variable_and_no_slurm_conf_gets_through(tmp_path: Path, slurm_conf: str, known: set[str]) -> None:
    """SlurmUser's own, with a PluginDir of its own, would be loaded as the job's owner."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\necho --\nexec env\n')
    (text,) = (script.text for script in scripts("/h", str(python), "/etc/hooks.yaml", slurm_conf) if script.name == "as_owner")
    for path, content in ((python, ""), (tmp_path / "as_owner", text)):
        path.write_text(content or path.read_text())
        path.chmod(0o755)
    env = {
        "PATH": os.environ["PATH"],
        "SLURM_CONF": "/tmp/mine.conf",
        "PYTHONPATH": "/tmp",
        "LD_LIBRARY_PATH": "/tmp",
        "SLURM_X": "1",
    }
    done = subprocess.run([tmp_path / "as_owner", "grace", "5", "5", "c"], env=env, capture_output=True, text=True, check=True)
    words, _, variables = done.stdout.partition("--\n")
    assert words.split() == ["-I", "-m", "ftslurm.hooks.as_owner", "/etc/hooks.yaml", "grace", "5", "5", "c"]
    mine = {line for line in variables.splitlines() if not line.startswith(("PWD=", "SHLVL=", "_="))}
    assert mine == {"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8", *known}


@pytest.mark.parametrize("words", [
    (), ("grace",), ("grace", "5", "5"), ("grace", "5", "5", "c", "/tmp/mine.conf"), ("rm", "5", "5", "c"), ("grace", "x", "5", "c"),
    ("grace", "-5", "5", "c"), ("grace", "\u0665", "5", "c"),
])  # fmt: skip
def test_other_words_are_refused_with_a_sentence(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match="wrong arguments"):
        as_owner.work(str(tmp_path / "none.yaml"), *words)


@pytest.mark.parametrize("user_id", [0, 8, 999])
def test_who_is_no_user_of_jobs_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, user_id: int) -> None:
    monkeypatch.setattr(os, "getuid", lambda: user_id)
    with pytest.raises(UsageError, match="below first_user_id"):
        as_owner.work(str(tmp_path / "none.yaml"), "grace", "5", "5", "c")
