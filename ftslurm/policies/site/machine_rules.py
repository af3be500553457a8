"""Checks of this machine: Python, ftrun, Slurm's commands, and the folder of the ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ftslurm.model.site import Folder, Site
from ftslurm.policies.site.reading import Holds, NotSaid, holds, is_ours

OLDEST_PYTHON = (3, 10)
# File systems that several machines share, and those that a machine keeps in its memory.
SHARED = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "fuse.beegfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.glusterfs", "fuse.juicefs",
    "fuse.sshfs", "gfs2", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "virtiofs",
    "wekafs",
})  # fmt: skip
IN_MEMORY = frozenset({"tmpfs", "ramfs"})
# Each decision waits for a sync, so a slower one delays it.
SLOW_SYNC_S = 1.0


def _slurm(site: Site) -> Holds:
    m = site.machine
    if m.srun.why:
        return holds("no srun", why=m.srun.why)
    return holds("silent", why=site.silent) if site.silent else holds("well", path=m.srun.path)


def _stands_in(site: Site) -> Holds:
    m = site.machine
    if m.srun.why:
        raise NotSaid("no srun was found")
    return holds("stands in", path=m.first_srun) if m.stands_in else holds("slurm's")


def _ftrun(site: Site) -> Holds:
    m = site.machine
    if m.version < OLDEST_PYTHON:
        return holds("old", python=m.python)
    return holds("well", path=m.ftrun.path, version=m.version) if m.ftrun.path else holds("not on PATH", folder=m.installed.path)


def _lies(folder: Folder) -> Holds:
    """Do other machines see it? Not known of a local disk, which they may mount."""
    outcome = "shared" if folder.kind in SHARED else "in memory" if folder.kind in IN_MEMORY else "unknown"
    return holds(outcome, kind=folder.kind or "an unknown file system", path=folder.path)


def _writable(site: Site) -> Holds:
    ledgers = site.machine.ledgers
    return holds("no file" if ledgers.trouble else "well", path=ledgers.folder.path, why=ledgers.trouble)


def _locks(site: Site) -> Holds:
    ledgers = site.machine.ledgers
    if ledgers.trouble:
        raise NotSaid("no file can be created there")
    if ledgers.no_lock:
        return holds("none", path=ledgers.folder.path, why=ledgers.no_lock)
    local = sorted({"nolock", "local_lock=all", "local_lock=flock", "localflock"} & ledgers.folder.options)
    return holds("of this machine", path=ledgers.folder.path, option=local[0]) if local else holds("well")


def _sync(site: Site) -> Holds:
    took_s = site.machine.ledgers.sync_s
    if took_s is None:
        raise NotSaid("no file can be created there")
    quick = took_s < SLOW_SYNC_S
    return holds("quick" if quick else "slow", took=f"{took_s * 1000:.1f} ms" if quick else f"{took_s:.1f} s")


def _open_files(site: Site) -> Holds | None:
    needed, most = site.machine.connections
    return holds("few", needed=needed, most=most) if needed > most else None


def _devices(site: Site) -> Holds:
    m = site.machine
    if not m.tools:
        return holds("no tool")
    if m.deaf:
        return holds("deaf", kinds=", ".join(sorted(m.deaf)), extras=",".join(sorted({*m.deaf.values()})))
    return holds("well", kinds=", ".join(m.tools))


def _scripts(site: Site) -> Holds | None:
    scripts = site.machine.scripts
    missing = sorted(path for path, there in scripts.items() if not there)
    if missing:
        return holds("missing here" if site.machine.on_node else "unknown", path=missing[0])
    return holds("well") if any(map(is_ours, scripts)) else None


def _hook_settings(site: Site) -> Holds | None:
    """For the one who can correct them."""
    if not site.admin or not any(map(is_ours, site.machine.scripts)):
        return None
    return holds("wrong" if site.machine.hook_settings else "well", what=site.machine.hook_settings)


JUDGES: Mapping[str, Callable[[Site], Holds | None]] = {
    "Slurm": _slurm, "srun": _stands_in, "ftrun": _ftrun, "installation": lambda site: _lies(site.machine.installed),
    "state folder": _writable, "state folder, shared": lambda site: _lies(site.machine.ledgers.folder),
    "state folder, locks": _locks, "state folder, sync": _sync, "open files": _open_files, "devices": _devices,
    "hook scripts": _scripts, "hook settings": _hook_settings,
}  # fmt: skip
