"""Images for containers, made of the machine's own files: folders, as spank_box.c, ch-run and bwrap take them."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

SOURCE = Path(__file__).with_name("spank_box.c")
# What ranks of the tests call.
PROGRAMS = ("sh", "cat", "date", "grep", "id", "ls", "mkdir", "sleep", "touch", "env")
_FILES = ("passwd", "group", "hosts", "nsswitch.conf")


def build_plugin(folder: Path) -> Path:
    """The plugin, and the plugstack.conf that names it; gives the latter."""
    plugin, conf = folder / "spank_box.so", folder / "plugstack.conf"
    flags = ["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
    subprocess.run(["gcc", *flags, "-o", plugin, SOURCE], check=True)
    conf.write_text(f"required {plugin}\n")
    return conf


def bare_image(folder: Path, environment: str = "") -> Path:
    """With a shell and what ranks call, and no Python. environment: of /etc/environment."""
    for name in PROGRAMS:
        program = Path(shutil.which(name) or name).resolve()
        _copy(program, folder / "usr/bin" / name)
        for library in re.findall(r"/\S+", subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout):
            _copy(Path(library), folder / "usr" / library.removeprefix("/usr").lstrip("/"))
    return _with_etc(folder, environment)


CONDA = "PATH=/conda/bin:/usr/bin:/bin\nLD_LIBRARY_PATH=/conda/lib\nPYTHONHOME=/conda\n"


def conda_image(folder: Path) -> Path:
    """As `bare_image`; an old Python and a library that nothing can load come first, by the image's own variables."""
    old, library = folder / "conda/bin/python3", folder / "conda/lib/libz.so.1"
    for path in (old, library):
        path.parent.mkdir(parents=True)
    old.write_text("#!/bin/sh\necho Python 3.6.8\nexit 1\n")
    old.chmod(0o755)
    library.write_text("no library\n")
    return bare_image(folder, CONDA)


def whole_image(folder: Path, environment: str = "") -> Path:
    """All that the machine has in /usr, its Python too."""
    folder.mkdir(parents=True)
    (folder / "usr").symlink_to("/usr")
    return _with_etc(folder, environment)


def oci_bundle(folder: Path, user: str, mounts: Sequence[Path]) -> Path:
    """For `--container`: the machine's /usr, no /etc at all, and `mounts`; user 0 inside is `user`. Gives the oci.conf.

    Each word of it is one that 22.05 knows: runc's commands find the container by the same folder, which is the user's.
    """
    (folder / "rootfs").mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / "rootfs" / name).symlink_to(f"usr/{name}")
    known = folder.with_name("runc")
    known.mkdir()
    owner = pwd.getpwnam(user)
    for path in (known, folder / "rootfs"):
        os.chown(path, owner.pw_uid, owner.pw_gid)
    shown = [{"destination": str(path), "type": "none", "source": str(path), "options": ["rbind"]} for path in mounts]
    (folder / "config.json").write_text(json.dumps({
        "ociVersion": "1.0.0",
        "process": {"user": {"uid": 0, "gid": 0}, "args": ["true"], "env": [], "cwd": "/"},
        "root": {"path": str(folder / "rootfs")},
        "mounts": [{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]}, *shown],
        "linux": {
            "uidMappings": [{"containerID": 0, "hostID": owner.pw_uid, "size": 1}],
            "gidMappings": [{"containerID": 0, "hostID": owner.pw_gid, "size": 1}],
            "namespaces": [{"type": "user"}, {"type": "mount"}],
        },
    }))  # fmt: skip
    conf = folder.with_name("oci.conf")
    run = f"runc --rootless=true --root={known}"
    commands = {"Query": "state {}", "Run": "run {} -b %b", "Kill": "kill -a {}", "Delete": "delete --force {}"}
    conf.write_text("".join(f'RunTime{name}="{run} {words.format("%n.%u.%j.%s.%t")}"\n' for name, words in commands.items()))
    return conf


def _with_etc(folder: Path, environment: str) -> Path:
    for name in ("bin", "lib", "lib64", "sbin"):
        (folder / name).symlink_to(f"usr/{name}")
    (folder / "etc").mkdir()
    for name in _FILES:
        shutil.copy(Path("/etc", name), folder / "etc" / name)
    (folder / "etc/environment").write_text(environment)
    return folder


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        shutil.copy(source, target)
