"""What `make deb` and `make rpm` build is all that runs, where it belongs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
import yaml

import ftslurm
from tests.test_dist import LEFT_OUT, ROOT, run

# In a mount namespace of its own /opt has the package's files only.
INSTALLED = """
set -eu
mount -t tmpfs none /opt && mkdir /opt/ftslurm && mount --bind "$1/opt/ftslurm" /opt/ftslurm
"$1/usr/bin/ftslurm" --version
"$1/usr/bin/ftrun" --ft-launcher local -n2 sh -c 'echo rank $SLURM_PROCID' | sort
/opt/ftslurm/bin/python3 -c 'import pydantic, pynvml, ClusterShell'
. /usr/share/modules/init/sh && module use "$2" && module load ftslurm && command -v ftrun && command -v python3
module unload ftslurm && ! command -v ftrun
/opt/ftslurm/bin/ftslurm doctor | grep "docs/ is /opt/ftslurm/share/doc/ftslurm"
"""


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root has a mount namespace")
def test_the_packages_bring_all_that_runs(tmp_path: Path) -> None:
    source = shutil.copytree(ROOT, tmp_path / "source", ignore=LEFT_OUT)
    (source / "venv").symlink_to(sys.prefix)
    run("tools/share", "venv", cwd=source)
    (source / "venv").unlink()
    run("tools/package", tmp_path / "packages", "deb", "rpm", cwd=source)
    (deb,), (rpm,) = (list((tmp_path / "packages").glob(f"*.{kind}")) for kind in ("deb", "rpm"))
    run("dpkg-deb", "-x", deb, tmp_path / "deb", cwd=tmp_path)
    (tmp_path / "rpm").mkdir()
    run("sh", "-c", f"rpm2cpio {rpm} | cpio -idm --quiet", cwd=tmp_path / "rpm")
    modules = tmp_path / "modules"
    (modules / "ftslurm").mkdir(parents=True)
    shutil.copy(ROOT / "packaging/modulefile", modules / "ftslurm" / ftslurm.__version__)
    for kind in ("deb", "rpm"):
        root = tmp_path / kind
        env = "env", "-i", "PATH=/usr/bin:/bin:/usr/sbin", f"HOME={tmp_path}", f"FTSLURM_STATE_DIR={tmp_path}/state"
        said = run(*env, "unshare", "--mount", "sh", "-c", INSTALLED, "sh", root, modules, cwd=tmp_path)
        assert "rank 0\nrank 1\n" in said and "/opt/ftslurm/commands/ftrun\n/usr/bin/python3\n" in said, kind
        manuals = {page.name for page in (root / "usr/share/man").rglob("*.[157]")}
        assert {"ftrun.1", "ftslurm-settings.5"} <= manuals and all(name.startswith("ft") for name in manuals), kind
        assert not [path for path in (root / "opt").rglob("*") if path.is_file() and b"/tmp/tmp." in path.read_bytes()], kind


def test_the_recipes_are_of_this_version_and_parse() -> None:
    assert yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())["context"]["version"] == ftslurm.__version__
    spack = (ROOT / "packaging/spack/spack_repo/ftslurm/packages/ftslurm/package.py").read_text()
    assert f'version("{ftslurm.__version__}")' in spack
    compile(spack, "package.py", "exec")


@pytest.mark.long
def test_rattler_build_renders_the_recipe(tmp_path: Path) -> None:
    run(sys.executable, "-m", "pip", "install", "--quiet", "--target", tmp_path / "rattler", "py-rattler-build", cwd=tmp_path)
    code = "import sys; from rattler_build import *; print(*Stage0Recipe.from_file(sys.argv[1]).render(VariantConfig()))"
    env = "env", f"PYTHONPATH={tmp_path}/rattler"
    assert "package='ftslurm'" in run(*env, sys.executable, "-c", code, ROOT / "packaging/conda/recipe.yaml", cwd=tmp_path)
