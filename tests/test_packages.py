"""What `make deb` and `make rpm` build is all that runs, where it belongs."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests.test_dist import LEFT_OUT, ROOT, run

# In a mount namespace of its own /opt has the package's files only.
INSTALLED = """
set -eu
mount -t tmpfs none /opt && mkdir /opt/ftslurm && mount --bind "$1/opt/ftslurm" /opt/ftslurm
"$1/usr/bin/ftslurm" --version
"$1/usr/bin/ftrun" --ft-launcher local -n2 sh -c 'echo rank $SLURM_PROCID' | sort
/opt/ftslurm/bin/python3 -c 'import pydantic, pynvml, ClusterShell'
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
    for kind in ("deb", "rpm"):
        root = tmp_path / kind
        env = "env", "-i", "PATH=/usr/bin:/bin:/usr/sbin", f"HOME={tmp_path}", f"FTSLURM_STATE_DIR={tmp_path}/state"
        said = run(*env, "unshare", "--mount", "sh", "-c", INSTALLED, "sh", root, cwd=tmp_path)
        assert "rank 0\nrank 1\n" in said, kind
        manuals = {page.name for page in (root / "usr/share/man").rglob("*.[157]")}
        assert {"ftrun.1", "ftslurm-settings.5"} <= manuals and all(name.startswith("ft") for name in manuals), kind
        assert not [path for path in (root / "opt").rglob("*") if path.is_file() and b"/tmp/tmp." in path.read_bytes()], kind
