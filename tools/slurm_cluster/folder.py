"""The folder that holds all of a cluster."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from slurm_cluster import accounting, conf
from slurm_cluster.cluster import Cluster
from slurm_cluster.spec import BACKUP, Spec
from slurm_cluster.trouble import EX_USAGE, Trouble
from slurm_cluster.users import slurm_user, user_name

MARKER = "cluster.json"  # only a folder that holds this file is ever emptied
# A Unix socket's path has 107 bytes at most (unix(7)); slurmstepd's is the longest: DIR/spool/nNN/nNN_JOBID.STEPID.
MAX_FOLDER_LENGTH = 60
# For local and experimental use (Linux, Documentation/admin-guide/devices.txt).
GPU_MAJOR = 240
# What slurm.conf(5) takes in a path without quoting; the comma would end AuthInfo's socket=.
PLAIN_PATH = re.compile(r"[\w/.+@-]+")


def default_folder() -> Path:
    """One place for each user. Root's XDG_RUNTIME_DIR would be closed to the ordinary users who submit jobs."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.geteuid() != 0 and runtime and Path(runtime).is_dir():
        return Path(runtime) / "slurm-cluster"
    return Path(f"/tmp/slurm-cluster-{os.geteuid()}")  # noqa: S108 - check_folder refuses what others have put there


def absolute(folder: Path) -> Path:
    """Links above the folder are resolved, as /proc shows resolved paths; the folder itself may not be one."""
    return Path(os.path.realpath(folder.parent)) / folder.name


def check_folder(folder: Path) -> None:
    """Raises Trouble unless `folder` is a real folder that this user alone can change."""
    found = os.lstat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise Trouble(f"{folder} is not a folder; name another one with --dir")
    if found.st_uid != os.geteuid():
        raise Trouble(f"{folder} belongs to uid {found.st_uid}, not to you; name another folder with --dir")
    if found.st_mode & 0o022:
        raise Trouble(f"{folder} can be changed by others; run `chmod go-w {folder}` or name another folder with --dir")


def check_path(folder: Path) -> None:
    if not PLAIN_PATH.fullmatch(str(folder)) or len(str(folder)) > MAX_FOLDER_LENGTH:
        raise Trouble(
            f"{folder} cannot hold a cluster: slurm.conf and Unix sockets need a path of letters, digits and"
            f" /._+@- with at most {MAX_FOLDER_LENGTH} characters; name another folder with --dir",
            EX_USAGE,
        )


def check_open(folder: Path) -> None:
    """Daemons and jobs are other users': each folder above has to let them pass. Raises: Trouble."""
    for above in folder.parents:
        if not above.stat().st_mode & 0o001:
            raise Trouble(
                f"{above} is closed to other users, and slurmctld is not root's; name a folder elsewhere with --dir,"
                f" or run `chmod o+x {above}`"
            )


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(mode=0o755, exist_ok=True)
    except FileExistsError:
        pass  # no folder; check_folder says so
    except OSError as error:
        raise Trouble(f"cannot make the folder {folder}: {error.strerror}; name another one with --dir") from error
    check_folder(folder)
    folder.chmod(0o755)  # mkdtemp's 0700 would close the configuration and the munge socket to other users


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Nobody else changes the cluster in `folder` meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise Trouble(f"another slurm-cluster is at work in {folder}; try again when it has ended") from error
    else:
        yield
    finally:
        os.close(handle)


def read_cluster(folder: Path) -> Cluster | None:
    """The cluster that was booted in `folder`, None if there is none."""
    try:
        fields = json.loads((folder / MARKER).read_text())
        spec = Spec(**{key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()})
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Trouble(f"{folder} is closed to you; whoever owns it has to run this") from error
    except (ValueError, TypeError, KeyError) as error:
        raise Trouble(
            f"{folder / MARKER} is damaged, so the cluster's processes are not known;"
            f" end those with {folder} in their command line, then remove the folder"
        ) from error
    return Cluster(folder, spec)


def existing(folder: Path) -> Cluster:
    cluster = read_cluster(folder)
    if cluster is None:
        raise Trouble(f"there is no cluster in {folder}; boot one with `slurm-cluster up --dir {folder}`")
    return cluster


def empty(folder: Path) -> None:
    """Remove what a cluster left in `folder`; raises Trouble if the folder is anything else."""
    inside = list(folder.iterdir())
    if inside and not (folder / MARKER).is_file():
        raise Trouble(f"{folder} holds files that are no cluster's; name an empty or a new folder with --dir")
    # The marker goes last, so that an interrupted removal can be taken up again.
    for path in sorted(inside, key=lambda path: path.name == MARKER):
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def write_private(path: Path, content: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(handle, "wb") as file:
        file.write(content)


def write_files(cluster: Cluster) -> None:
    """All that the daemons want to find. Only state and key are closed: jobs of other users run below spool."""
    folder, spec = cluster.folder, cluster.spec
    (folder / MARKER).write_text(json.dumps(asdict(spec), indent=1) + "\n")
    for name in ("munge", "run", "spool", "log", "state"):
        (folder / name).mkdir(mode=0o700 if name == "state" else 0o755)
    if spec.backup:
        (folder / f"run-{BACKUP}").mkdir()
    for node in spec.node_names:
        (folder / "spool" / node).mkdir()
    write_private(folder / "munge/munge.key", os.urandom(128))
    cluster.conf.write_text(conf.render_slurm_conf(spec, folder))
    if cgroups := conf.render_cgroup_conf(spec):
        (folder / "cgroup.conf").write_text(cgroups)
    if spec.apart:
        write_files_of_nodes(cluster)
    if spec.accounting:
        accounting.write_files(cluster)
    if (user := slurm_user(spec)) != user_name():  # slurmctld, started by root, becomes that user
        for name in ("run", "log", "state", *((f"run-{BACKUP}",) if spec.backup else ())):
            shutil.chown(folder / name, user)


def write_files_of_nodes(cluster: Cluster) -> None:
    folder, spec = cluster.folder, cluster.spec
    (folder / "hosts").write_text(conf.render_hosts(spec))
    for machine in spec.machines:  # seen there in the place of munge/
        (folder / f"munge-{machine}").mkdir()
        os.link(folder / "munge/munge.key", folder / f"munge-{machine}/munge.key")
    (folder / "epilog-seconds").write_text("0\n")
    (folder / "epilog").write_text(conf.EPILOG.format(folder=folder))
    (folder / "epilog").chmod(0o755)
    if spec.gpus:
        (folder / "gres.conf").write_text(conf.render_gres_conf(spec, folder))
        (folder / "dev").mkdir()
        for number in range(spec.gpus):  # no driver answers them: who may open one is told ENXIO, who may not EPERM
            path = folder / f"dev/gpu{number}"
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(GPU_MAJOR, number))
            path.chmod(0o666)
