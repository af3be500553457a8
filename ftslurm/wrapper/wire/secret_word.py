"""How shims and agents receive the secret of a run.

srun sends a step's whole environment to its nodes, and without TLS in Slurm anyone on the way can read it. So the environment
holds a munge credential, which munge decodes only for processes of our own user. A step that starts in a container without munge
reads a file of our user, if the container mounts the state folder. Otherwise (the local launcher, auth/slurm) the environment
holds the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import LaunchFailed
from ftslurm.launchers.srun_options import Component, has_flag, parse_options
from ftslurm.system.files import private_folder
from ftslurm.wrapper.shim.protocol.munge import munge_word

MUNGE, FILE, ENVIRONMENT, AUTO = "munge", "file", "environment", "auto"
# With these options the task, and so its shim, starts where there is no munge: pyxis, and Slurm's own containers.
_CONTAINERS = ("container", "container-image", "container-name")
_VARIABLES = ("SLURM_CONTAINER",)


def munge_socket(config: Mapping[str, str]) -> str | None:
    """munged's socket, from slurm.conf: empty for munge's default, None if Slurm does not use munge.

    config: of `scontrol show config`; empty if nobody answers, which does not rule munge out.
    """
    if config.get("AuthType", "auth/munge") != "auth/munge":
        return None
    words = config.get("AuthInfo", "").split(",")
    return next((word.removeprefix("socket=") for word in words if word.startswith("socket=")), "")


def begins_in_a_container(components: Sequence[Component], env: Mapping[str, str]) -> bool:
    return any(env.get(name) for name in _VARIABLES) or any(has_flag(each.options, *_CONTAINERS) for each in components)


def is_seen_in_containers(folder: Path, components: Sequence[Component], env: Mapping[str, str]) -> bool:
    """Do the containers of the steps mount the folder at the same path, as far as srun's options tell (pyxis)?

    The options do not tell what an OCI bundle (--container) mounts.
    """
    if any(env.get(name) for name in _VARIABLES):
        return False
    return all(_mounts(folder, parse_options(each.options), env) for each in components if has_flag(each.options, *_CONTAINERS))


def _mounts(folder: Path, options: Sequence[tuple[str, str | None]], env: Mapping[str, str]) -> bool:
    places = [Path(env["HOME"])] if env.get("HOME") and ("container-mount-home", None) in options else []
    for name, value in options:
        if name == "container":
            return False
        for mount in (value or "").split(",") if name == "container-mounts" else ():
            here, _, there = mount.partition(":")
            if here.startswith("/") and there.partition(":")[0] in ("", here):
                places.append(Path(here))
    return any(folder.is_relative_to(place) for place in places)


class SecretFile:
    """A file in our own folder inside the state folder; each run has its own name, since a file system may show an old file for
    some time. name: of the job's.
    """

    def __init__(self, state: Path, name: str) -> None:
        self._folder, self._name = state / "secrets", name
        self._path: Path | None = None

    def word(self, secret: bytes) -> str:
        """Write the file; gives the word that names it. Raises: StateError, OSError."""
        if self._path is None:
            private_folder(self._folder)
            self.remove()  # of a killed run
            path = self._folder / f"{self._name}.{os.urandom(8).hex()}"
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
            self._path = path
        return f"file.{os.fsencode(self._path.absolute()).hex()}"

    def remove(self) -> None:
        with suppress(OSError):
            for path in self._folder.iterdir():
                if path.name.rpartition(".")[0] == self._name:
                    path.unlink(missing_ok=True)


def secret_word(
    secret: bytes, wanted: str, socket: str | None, contained: bool, say: Callable[[str], None] = lambda text: None,
    file: SecretFile | None = None,
) -> str:  # fmt: skip
    """The word that hands `secret` over in a channel's text. wanted: `nodes.secret`. say: is told why the environment is used
    after all. file: for a step in a container that can read it; None if it cannot.

    Raises: LaunchFailed if munge is wanted and unavailable; StateError, OSError if a file cannot be written.
    """
    if file is not None and (wanted == FILE or (wanted == AUTO and contained)):
        return file.word(secret)
    if wanted == ENVIRONMENT or (wanted == AUTO and (socket is None or contained)):
        return secret.hex()
    try:
        return munge_word(secret, os.geteuid(), socket or "")
    except OSError as error:
        if wanted == MUNGE:
            raise LaunchFailed(f"munge cannot pass on the secret of this run: {error}", hint="set nodes.secret=auto") from None
        say(f"munge gives no credential ({error}): the secret of this run goes in the environment, which srun sends as it is")
        return secret.hex()
