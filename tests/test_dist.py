"""What `make dist` builds is all that runs: the package from its wheel, away from the checkout."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import click
import pytest

ROOT = Path(__file__).resolve().parents[1]
LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist", "tests")
BESIDE = (
    "share/man/man1/ftrun.1",
    "share/doc/ftslurm/json/status.schema.json",
    "share/man/man5/ftslurm-settings.5",
    "share/bash-completion/completions/ftslurm",
)


def run(*argv: str | Path, cwd: Path) -> str:
    done = subprocess.run(argv, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, f"{argv}: status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_wheel_from_the_source_package_runs(tmp_path: Path) -> None:
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=LEFT_OUT)
    (source / "venv").symlink_to(sys.prefix)
    run("tools/share", "venv", cwd=source)
    (source / "venv").unlink()
    run(
        sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path / "dist", ".", cwd=source
    )  # the wheel is built from the sdist
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    assert len(list((tmp_path / "dist").glob("*.tar.gz"))) == 1
    venv.create(tmp_path / "venv", with_pip=False)
    (site,) = (tmp_path / "venv/lib").glob("python3*/site-packages")
    (site / "libraries.pth").write_text(str(Path(click.__file__).parents[1]))  # what it depends on, not ftslurm
    python = tmp_path / "venv/bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel, cwd=tmp_path)
    assert str(site) in run(python, "-c", "import ftslurm; print(ftslurm.__file__)", cwd=tmp_path)
    assert "GPU fell off the bus" in run(tmp_path / "venv/bin/ftslurm", "explain", "Xid 79", cwd=tmp_path)
    options = ("--ft-launcher", "local", "--ft-local-nodes", "1", "--ft-profile", "modelarts")
    function = "BASH_FUNC_said%%=() { echo well $PYTHONHOME; }"  # as `export -f` makes it
    env = "env", f"FTSLURM_STATE_DIR={tmp_path}/state", "PYTHONHOME=/of/the/program", function
    said = run(*env, tmp_path / "venv/bin/ftrun", *options, "-n1", "bash", "-c", "said", cwd=tmp_path)
    assert said == "well /of/the/program\n"
    assert (site / "ftslurm/py.typed").exists()
    prefix = tmp_path / "venv"
    assert all((prefix / name).stat().st_size > 500 for name in BESIDE)
    pages = prefix / "share/doc/ftslurm"
    assert {
        *re.findall(r"docs/([a-z-]+\.md)", "".join(map(Path.read_text, (site / "ftslurm/catalogs").glob("site-checks.yaml"))))
    } <= {page.name for page in pages.iterdir()}
    checked = subprocess.run(
        [prefix / "bin/ftslurm", "doctor"],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert f"docs/ is {pages}" in checked.stdout, checked
