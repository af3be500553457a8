"""An interpreter that needs nothing of where it runs: for containers, and for nodes whose own Python is too old.

It is a copy of the interpreter that runs ftrun, with its loader and C libraries, its standard library, this package and what that
depends on. Nothing is compiled. It lies in the state folder, which all nodes see and only its owner writes, under a name that
changes with any of its sources; each use compares it with the hashes that were taken when it was made.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import ftslurm
from ftslurm.errors import StateError
from ftslurm.model.text import fingerprint
from ftslurm.system.files import private_folder
from ftslurm.system.plugins import DEVICES, OURS, find

FOLDER, MANIFEST = "bundles", "manifest"
INTERPRETER, LOADER, LIBRARIES, PACKAGES = "bin/python3", "bin/ld.so", "libraries", "packages"
# Where a container has the secrets of runs: mounted over this folder, since the bundle itself is mounted read-only.
SECRETS = "secrets"
UNUSED_S = 30 * 24 * 3600.0  # then another release's is removed
_OURS = Path(ftslurm.__file__).resolve().parent
_VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"
_NOT_NEEDED = (
    "__phello__", "_curses*", "_dbm*", "_gdbm*", "_tkinter*", "config-*", "dist-packages", "ensurepip", "idlelib", "lib2to3",
    "nis.*", "pydoc_data", "readline.*", "site-packages", "sitecustomize.py", "test", "tests", "tkinter", "turtle*", "venv",
)  # fmt: skip
# What only commands for people need. Of the extras agents need those of the device vendors.
_FOR_PEOPLE = frozenset({"rich"})
# The C library loads them by name where it looks up hosts and users.
_NAME_SERVICES = ("libnss_files.so.2", "libnss_dns.so.2", "libresolv.so.2")


def make_bundle(path: Path, say: Callable[[str], None] = lambda text: None) -> None:
    """Make it, if it is not there or not as it was made. say: is told what takes seconds. Raises: StateError."""
    folder = private_folder(private_folder(path.parent.parent) / FOLDER)
    if is_whole(path):
        with contextlib.suppress(OSError):
            os.utime(path)
        return
    say(f"making the interpreter for containers and old nodes in {path}, once for this release")
    new = folder / f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}"
    try:
        _fill(new)
        _put(new, path)
    except (OSError, subprocess.SubprocessError) as error:
        raise StateError(
            f"the interpreter for containers cannot be made in {path}: {error}",
            hint="is there room for 50 MB? FTSLURM_STATE_DIR names another folder",
        ) from None
    finally:
        _remove(new)
    _remove_unused(folder, path)


def bundle_in(state: Path) -> Path:
    """Where that of this installation is or will be, by its interpreter and its package. state: the state folder."""
    if own := bundle_of(_OURS.parent):
        return own
    sources = (Path(sys.executable).resolve(), *sorted(_OURS.rglob("*.py")))
    seen = [f"{path} {info.st_size} {info.st_mtime_ns}" for path in sources for info in [path.stat()]]
    return state / FOLDER / fingerprint("\n".join((sys.version, *seen, *_plugins())), 8)


def _plugins() -> list[str]:
    """Name and version of the packages whose plugins are found here."""
    return sorted({plugin.package for group in OURS for plugin in find(group).values() if plugin.folder})


def bundle_of(packages: Path) -> Path | None:
    """The bundle whose packages are in this folder, if it is one."""
    return packages.parent if packages.name == PACKAGES and (packages.parent / MANIFEST).is_file() else None


def is_whole(bundle: Path) -> bool:
    """Is it there, and each file as it was when it was made?"""
    try:
        return (bundle / MANIFEST).read_text() == _manifest(bundle)
    except OSError:
        return False


def _manifest(bundle: Path) -> str:
    """A line for each file: the hash of what the kernel and the loader take, of the thousand others the size, which costs no open
    on a file system of the network. Compiled forms aside: Python itself may write those."""
    from hashlib import blake2s  # with OpenSSL it takes 2 ms of each start

    lines = []
    for place, _, names in os.walk(bundle):
        for path in (Path(place, name) for name in names if not name.endswith(".pyc") and name != MANIFEST):
            if path.parent.name == SECRETS:
                continue
            hashed = path.parent.name in ("bin", LIBRARIES)
            mark = blake2s(path.read_bytes()).hexdigest() if hashed else str(path.stat().st_size)
            lines.append(f"{mark} {path.relative_to(bundle)}")
    return "\n".join(sorted(lines)) + "\n"


def _put(new: Path, path: Path) -> None:
    """Another ftrun may have been quicker."""
    (new / MANIFEST).write_text(_manifest(new))
    if path.exists() and not is_whole(path):
        path.rename(new.with_name(f"{new.name}.bad"))
        _remove(new.with_name(f"{new.name}.bad"))
    try:
        new.rename(path)
    except OSError:
        if not is_whole(path):
            raise


def _remove(folder: Path) -> None:
    import shutil  # with the libraries of three kinds of archives: most runs make no bundle

    shutil.rmtree(folder, ignore_errors=True)


def _remove_unused(folder: Path, ours: Path) -> None:
    for other in folder.iterdir():
        with contextlib.suppress(OSError):
            if other != ours and time.time() - other.stat().st_mtime > UNUSED_S:
                _remove(other)


# --- what is in it


def _fill(new: Path) -> None:
    """Raises: OSError, subprocess.SubprocessError."""
    import shutil
    import sysconfig

    new.mkdir(mode=0o700)
    for name in ("bin", LIBRARIES, SECRETS):
        (new / name).mkdir(mode=0o700)
    shutil.copy2(Path(sys.executable).resolve(), new / INTERPRETER)
    library = sysconfig.get_path("stdlib")
    shutil.copytree(library, new / sys.platlibdir / _VERSION, ignore=shutil.ignore_patterns(*_NOT_NEEDED))
    dynamic = Path(sysconfig.get_config_var("DESTSHARED") or "")
    if dynamic.is_dir() and not dynamic.is_relative_to(library):
        shutil.copytree(dynamic, new / sys.platlibdir / _VERSION / "lib-dynload")
    shutil.copytree(_OURS, new / PACKAGES / _OURS.name)
    for source, place in _dependencies():
        (new / PACKAGES / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, new / PACKAGES / place)
    _copy_libraries(new)


def _dependencies() -> Iterator[tuple[Path, str]]:
    """(file, its place) of the plugins and the distributions that ours depends on, as far as they are installed."""
    from importlib import metadata

    waiting, known = [_OURS.name, *(package.partition(" ")[0] for package in _plugins())], set[str]()
    while waiting:
        name = waiting.pop()
        with contextlib.suppress(metadata.PackageNotFoundError):
            found = metadata.distribution(name)
            waiting += [other for line in found.requires or () if (other := _needed(line)) and other not in known]
            known.update(waiting)
            if name != _OURS.name:
                files = ((Path(str(file.locate())), file.as_posix()) for file in found.files or ())
                yield from ((path, place) for path, place in files if not place.startswith("..") and path.is_file())


def _needed(requirement: str) -> str:
    """The name in `name[extra]>=1; marker`; empty for what only an extra needs that ranks and agents do without."""
    name = re.match(r"[A-Za-z0-9._-]+", requirement)
    extra = re.search(r"""extra\s*==\s*['"]([^'"]+)""", requirement)
    return name[0] if name and name[0] not in _FOR_PEOPLE and (not extra or extra[1] in OURS[DEVICES]) else ""


def _copy_libraries(new: Path) -> None:
    """The loader, and the C libraries that the interpreter and all extension modules load."""
    import shutil

    loader = _loader()
    shutil.copy2(loader, new / LOADER)
    programs = [Path(sys.executable).resolve(), *(new / sys.platlibdir).rglob("*.so"), *(new / PACKAGES).rglob("*.so")]
    found = {path for program in programs for path in _libraries_of(loader, program) if not path.is_relative_to(new)}
    near = {path.parent for path in found if path.name.startswith("libc.so")}
    found |= {folder / name for folder in near for name in _NAME_SERVICES if (folder / name).is_file()}
    for path in sorted(found):
        if not (new / LIBRARIES / path.name).exists():
            shutil.copy2(path, new / LIBRARIES / path.name)


def _loader() -> Path:
    """The one that has loaded us. Source: proc(5), /proc/self/maps. Raises: OSError."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        path = line.split(maxsplit=5)[-1]
        if re.fullmatch(r"ld(-linux.*|-musl.*|64|-2\..*)\.so(\.\d+)?", path.rpartition("/")[2]):
            return Path(path)
    raise OSError("this Python is not dynamically linked")


def _libraries_of(loader: Path, program: Path) -> set[Path]:
    """Source: ld.so(8), --list. Empty for what it cannot load here, which the bundle does without."""
    done = subprocess.run((loader, "--list", program), capture_output=True, text=True, timeout=30.0, check=False)
    return libraries_in(done.stdout) if done.returncode == 0 else set()


def libraries_in(listing: str) -> set[Path]:
    """Those of lines `libm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x7f...)`; the loader's own line has no arrow."""
    return {Path(found) for found in re.findall(r"=> (/.+) \(0x[0-9a-f]+\)$", listing, re.MULTILINE)}
