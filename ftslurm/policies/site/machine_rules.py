"""Rules about this machine: Python, ftrun, Slurm's commands, and the folder of the ledgers."""

from __future__ import annotations

from ftslurm.model.rungs import RUNG_NAMES, SWAPS, Rung
from ftslurm.model.site import Change, Folder, Said, Site, SiteLevel, Whose
from ftslurm.policies.site.reading import NotSaid, Rule, is_ours, policy_line, shell_line
from ftslurm.policies.site.requeue_rules import HOOKS, REQUEUES

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
ALL_RUNGS = tuple(rung for rung in map(Rung, RUNG_NAMES) if rung is not Rung.FAIL)
SLURM_RUNGS = tuple(rung for rung in ALL_RUNGS if rung in SWAPS or rung.is_requeue)


def _is_shared(folder: Folder) -> bool | None:
    """None: unknown, since other machines may mount a local disk."""
    if folder.kind in SHARED:
        return True
    return False if folder.kind in IN_MEMORY else None


def _state_dir(where: str = "/shared/$USER/ftslurm") -> Change:
    return shell_line(f"export FTSLURM_STATE_DIR={where}")


def _slurm(site: Site) -> Said:
    bin_ = policy_line("slurm.bin: /opt/slurm/bin")
    if site.machine.srun.why:
        return Said(
            SiteLevel.BLOCKS,
            f"ftrun finds no srun to start steps with: {site.machine.srun.why}",
            "",
            SLURM_RUNGS,
            (bin_, shell_line("ftrun --ft-launcher local ...")),
        )
    if site.silent:
        return Said(SiteLevel.BLOCKS, f"Slurm does not answer: {site.silent}", "", SLURM_RUNGS, (shell_line("scontrol ping"),))
    return Said(SiteLevel.OK, f"slurmctld answers, and srun is {site.machine.srun.path}")


def _stands_in(site: Site) -> Said:
    m = site.machine
    if m.srun.why:
        raise NotSaid("no srun was found")
    if m.stands_in:
        return Said(SiteLevel.OK, f"`srun` on PATH is ftrun ({m.first_srun}), and ftrun finds Slurm's own")
    return Said(
        SiteLevel.OK,
        "`srun` on PATH is Slurm's own, so a program that calls srun itself runs without ftrun",
        "",
        changes=(shell_line("ln -s $(command -v ftrun) /shared/ftslurm/as-srun/srun"),),
    )


def _ftrun(site: Site) -> Said:
    m = site.machine
    if m.version < OLDEST_PYTHON:
        return Said(SiteLevel.BLOCKS, f"{m.python} is older than Python 3.10", "", ALL_RUNGS)
    if not m.ftrun.path:
        return Said(
            SiteLevel.COSTS,
            "`ftrun` is not on PATH",
            "job scripts must name its path",
            changes=(shell_line(f"export PATH={m.installed.path}:$PATH"),),
        )
    return Said(SiteLevel.OK, f"ftrun is {m.ftrun.path}, with Python {m.version[0]}.{m.version[1]}")


def _installation(site: Site) -> Said:
    place = site.machine.installed
    shared = _is_shared(place)
    if shared:
        return Said(SiteLevel.OK, f"ftslurm is installed on {place.kind}, which other machines can see")
    again = shell_line("/usr/bin/python3 -m venv /shared/ftslurm && /shared/ftslurm/bin/pip install .")
    if shared is False:
        return Said(
            SiteLevel.BLOCKS,
            f"ftslurm is installed in the memory of this machine ({place.path}), so other nodes do not have it",
            "",
            ALL_RUNGS,
            (again,),
        )
    return Said(
        SiteLevel.UNKNOWN,
        f"ftslurm is installed on {place.kind or 'an unknown file system'} ({place.path}); every node needs it at that path",
        "",
        changes=(again,),
    )


def _writable(site: Site) -> Said:
    ledgers = site.machine.ledgers
    if ledgers.trouble:
        return Said(
            SiteLevel.BLOCKS,
            f"ftrun cannot write its ledger in {ledgers.folder.path} and ends with status 73: {ledgers.trouble}",
            "",
            ALL_RUNGS,
            (_state_dir(),),
        )
    return Said(SiteLevel.OK, f"ftrun can write its ledger in {ledgers.folder.path}")


def _shared(site: Site) -> Said:
    folder = site.machine.ledgers.folder
    shared = _is_shared(folder)
    if shared:
        return Said(SiteLevel.OK, f"the ledgers are on {folder.kind}, which other machines can see")
    if shared is False:
        return Said(
            SiteLevel.BLOCKS,
            f"the ledgers are in the memory of this machine ({folder.path}, {folder.kind}), so a job that is requeued to"
            " another node does not find its ledger",
            "counters, budgets and excluded nodes",
            REQUEUES,
            (_state_dir(),),
        )
    return Said(
        SiteLevel.UNKNOWN,
        f"the ledgers are on {folder.kind or 'an unknown file system'} ({folder.path}); ftslurm cannot tell whether every"
        " node sees that folder",
        "if not: counters, budgets and excluded nodes of a job that is requeued to another node",
        changes=(shell_line(f"srun -N2 ls -d {folder.path}"), _state_dir()),
    )


def _locks(site: Site) -> Said:
    ledgers = site.machine.ledgers
    if ledgers.trouble:
        raise NotSaid("no file can be created there")
    if ledgers.no_lock:
        return Said(
            SiteLevel.BLOCKS,
            f"ftrun locks each write, but files in {ledgers.folder.path} cannot be locked: {ledgers.no_lock}",
            "",
            ALL_RUNGS,
            (_state_dir(),),
        )
    local = sorted({"nolock", "local_lock=all", "local_lock=flock", "localflock"} & ledgers.folder.options)
    if local:
        return Said(
            SiteLevel.COSTS,
            f"{ledgers.folder.path} is mounted with {local[0]}, so a lock on one machine does not stop another machine",
            "two machines that write the same ledger at once may mix their lines",
            changes=(Change(Whose.ADMIN, "fstab", f"mount it without {local[0]}"), _state_dir()),
        )
    return Said(SiteLevel.OK, "files there can be locked")


def _sync(site: Site) -> Said:
    ledgers = site.machine.ledgers
    if ledgers.sync_s is None:
        raise NotSaid("no file can be created there")
    took = f"{ledgers.sync_s * 1000:.1f} ms" if ledgers.sync_s < SLOW_SYNC_S else f"{ledgers.sync_s:.1f} s"
    if ledgers.sync_s < SLOW_SYNC_S:
        return Said(SiteLevel.OK, f"a write to the ledger is on disk after {took}")
    return Said(
        SiteLevel.COSTS, f"a write to the ledger took {took} to be on disk", f"{took} for each decision", changes=(_state_dir(),)
    )


def _devices(site: Site) -> Said:
    m = site.machine
    if not m.tools:
        return Said(
            SiteLevel.UNKNOWN, "this machine has no tool of a device vendor (`ftslurm plugins`); run `ftslurm doctor` on a node"
        )
    if m.deaf:
        missing = sorted(m.deaf.values())
        return Said(
            SiteLevel.COSTS,
            f"this machine has devices ({', '.join(sorted(m.deaf))}), but the package that reads their faults is missing",
            "ftrun notices a faulty device only by what ranks print",
            changes=tuple(shell_line(f"pip install '.[{extra}]'") for extra in missing),
        )
    return Said(SiteLevel.OK, f"ftslurm can read faults of these devices: {', '.join(m.tools)}")


def _scripts(site: Site) -> Said | None:
    scripts = site.machine.scripts
    ours = {path for path in scripts if is_ours(path)}
    missing = sorted(path for path, there in scripts.items() if not there)
    if not scripts or not (ours or missing):
        return None
    if not missing:
        return Said(SiteLevel.OK, "the scripts that slurm.conf names are on this machine")
    if site.machine.on_node:
        return Said(
            SiteLevel.COSTS,
            f"slurm.conf names {missing[0]}, which is missing on this node or not executable",
            "Slurm drains a node on which the Prolog is missing",
            changes=(shell_line("sudo ftslurm install-hooks", Whose.ADMIN), HOOKS),
        )
    return Said(
        SiteLevel.UNKNOWN, f"slurm.conf names {missing[0]}, which is not on this machine; every node and slurmctld's host need it"
    )


def _hook_settings(site: Site) -> Said | None:
    """The finding for the one who can correct the hooks' settings."""
    if not site.admin or not any(map(is_ours, site.machine.scripts)):
        return None
    if site.machine.hook_settings:
        return Said(
            SiteLevel.COSTS, site.machine.hook_settings, "the hooks do nothing, neither to nodes nor to jobs", changes=(HOOKS,)
        )
    return Said(SiteLevel.OK, "the settings of the hooks are valid, or the defaults")


_INSTALL, _LEDGER = "docs/install.md", "docs/operating.md, The ledger"

RULES = (
    Rule("Slurm", (), _INSTALL, _slurm),
    Rule("srun", (), "docs/migrating.md", _stands_in),
    Rule("ftrun", (), _INSTALL, _ftrun),
    Rule("installation", (), _INSTALL, _installation),
    Rule("state folder", (), _LEDGER, _writable),
    Rule("state folder, shared", (), _LEDGER, _shared),
    Rule("state folder, locks", (), "docs/administrators.md, What a site sets", _locks),
    Rule("state folder, sync", (), _LEDGER, _sync),
    Rule("devices", (), "docs/how-it-works.md, Devices", _devices),
    Rule("hook scripts", (), "docs/administrators.md, The hooks", _scripts),
    Rule("hook settings", (), "docs/administrators.md, The hooks", _hook_settings),
)  # fmt: skip
