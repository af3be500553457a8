"""Where the pages of ranks are: on the node, or in the /dev/shm of a container."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

from ftslurm.wrapper.agent import pages as module
from ftslurm.wrapper.agent.pages import Folders, root_with

PAGE = "/dev/shm/ftslurm.test-of-folders/0.1"


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_page_in_a_shared_memory_of_a_container_s_own_is_seen_through_its_process() -> None:
    make = f"mkdir {Path(PAGE).parent} && touch {PAGE} && echo made && exec sleep 60"
    argv = ["bwrap", "--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--tmpfs", "/dev/shm", "sh", "-c", make]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as shim:
        try:
            assert shim.stdout is not None and shim.stdout.readline() == "made\n"
            root = root_with(PAGE, shim.pid)
            assert root.startswith("/proc/") and Path(root + PAGE).exists() and not Path(PAGE).exists()
        finally:
            shim.kill()
    assert root_with(PAGE, shim.pid) == ""


def test_it_is_looked_for_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, int]] = []
    found = {7: "/proc/70/root"}
    monkeypatch.setattr(module, "root_with", lambda page, shim: asked.append((page, shim)) or found.get(shim, ""))
    (tmp_path / "1.2").touch()
    folders = Folders(str(tmp_path), [(0, 7, 2), (1, 8, 2)], 100.0)
    assert not folders.turn(101.0) and asked == []
    assert folders.turn(102.0) and asked == [(f"{tmp_path}/0.2", 7)], "the other one is there"
    assert [task.page for task in folders.tasks] == [f"/proc/70/root{tmp_path}/0.2", f"{tmp_path}/1.2"]
    assert not folders.turn(103.0)
    assert [now for now in range(104, 400) if not folders.turn(float(now)) and len(asked) != len(set(asked))] != []
    assert not Folders("", (), 0.0).turn(time.monotonic())
