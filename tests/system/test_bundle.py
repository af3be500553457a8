"""The interpreter that comes along: it needs nothing of where it runs, and is made once."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ftslurm.errors import StateError
from ftslurm.launchers.python import in_bundle
from ftslurm.system import bundle as module
from ftslurm.system.bundle import bundle_in, is_whole, libraries_in, make_bundle

LISTING = """\tlinux-vdso.so.1 (0x00007ffd)
\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f1b)
\tlibnone.so => not found
\tlibre2.so.9 => /opt/a b/libre2.so.9 (0x00007f1c)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f1d)
"""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = bundle_in(tmp_path_factory.mktemp("state"))
    make_bundle(made)
    return made


def run(bundle: Path, argv: tuple[str, ...], **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, text=True, timeout=60, check=False)


def test_it_runs_by_its_own_files_alone(bundle: Path) -> None:
    """Of an image only /bin/sh is used; what is preloaded there comes back for the command."""
    look = (
        "import os, sys, socket, ctypes, json; sys.path.insert(0, sys.argv[1]); import ftslurm.wrapper.agent.standby, re2, yaml"
    )
    show = (
        "; print(socket.gethostbyname('localhost'), *{l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}, sep='\\n')"
    )
    python = in_bundle(str(bundle))
    argv = (*python.interpreter, "-I", "-c", look + show, python.root)
    done = run(bundle, argv, LD_PRELOAD="/usr/lib/libnowhere.so", LD_LIBRARY_PATH="/nowhere", PYTHONHOME="/nowhere")
    assert done.returncode == 0, done.stderr
    address, *loaded = done.stdout.split()
    assert address == "127.0.0.1" and all(path.startswith(str(bundle)) for path in loaded), loaded
    kept = run(
        bundle, (*python.interpreter, "-I", "-c", "import os; print(os.environ['FTSLURM_LD_PRELOAD'])"), LD_PRELOAD="/x.so"
    )
    assert kept.stdout == "/x.so\n"


def test_where_it_is_not_mounted_one_sentence_says_so(tmp_path: Path) -> None:
    argv = in_bundle(str(tmp_path / "none")).shim_argv(("true",))
    done = subprocess.run(argv, env={"SLURMD_NODENAME": "n3"}, capture_output=True, text=True, check=False)
    assert (
        done.returncode == 71 and done.stderr.startswith(f"ftslurm: n3 has no {tmp_path}/none,") and done.stderr.count("\n") == 1
    )
    other = subprocess.run(argv, env={"SLURM_LOCALID": "1"}, capture_output=True, text=True, check=False)
    assert (other.returncode, other.stderr) == (71, "")


def test_it_is_made_once_and_again_where_something_of_it_is_missing(bundle: Path) -> None:
    said: list[str] = []
    make_bundle(bundle, said.append)
    assert said == [] and is_whole(bundle) and bundle.stat().st_mode & 0o777 == 0o700
    (bundle / "secrets" / "one").touch()
    assert is_whole(bundle)
    next((bundle / "lib").rglob("json/decoder.py")).unlink()
    (bundle / "bin/python3").write_bytes(b"x")
    assert not is_whole(bundle)
    make_bundle(bundle, said.append)
    assert len(said) == 1 and is_whole(bundle) and [path.name for path in bundle.parent.iterdir()] == [bundle.name]


def test_others_that_nobody_uses_go(bundle: Path, tmp_path: Path) -> None:
    for name, age_s in ("new", 0.0), ("old", module.UNUSED_S + 60):
        (tmp_path / name).mkdir()
        at = (tmp_path / name).stat().st_mtime - age_s
        os.utime(tmp_path / name, (at, at))
    module._remove_unused(tmp_path, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_no_room_for_it_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(new: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_fill", full)
    with pytest.raises(StateError, match="No space left"):
        make_bundle(bundle_in(tmp_path / "state"))


def test_what_the_loader_lists() -> None:
    assert libraries_in(LISTING) == {Path("/lib/x86_64-linux-gnu/libm.so.6"), Path("/opt/a b/libre2.so.9")}
