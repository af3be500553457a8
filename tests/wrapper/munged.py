"""A munged of the test's own, with a key of its own."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

MUNGED = shutil.which("munged", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_munge = pytest.mark.skipif(MUNGED is None, reason="munged is not installed")
SOON_S = 60.0


@contextmanager
def munged() -> Iterator[Path]:
    """Its socket, which every user reaches."""
    assert MUNGED is not None
    folder = Path(tempfile.mkdtemp(prefix="ftslurm-munge-", dir="/var/tmp"))
    folder.chmod(0o755)
    fd = os.open(folder / "key", os.O_WRONLY | os.O_CREAT, 0o400)
    os.write(fd, os.urandom(128))
    os.close(fd)
    argv = [MUNGED, "--force", "--foreground", *(f"--{name}={folder / name.partition('-')[0]}" for name in ("key-file", "socket", "seed-file", "pid-file", "log-file"))]  # fmt: skip
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + SOON_S
            while not (folder / "socket").exists():
                assert process.poll() is None and time.monotonic() < deadline, "munged did not come up"
                time.sleep(0.01)
            yield folder / "socket"
        finally:
            process.terminate()
            process.wait(SOON_S)
            shutil.rmtree(folder)
