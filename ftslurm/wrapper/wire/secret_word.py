"""How shims and agents receive the secret of a run.

srun sends a step's whole environment to its nodes, and without TLS in Slurm anyone on the way can read it. So the environment
holds a munge credential, which munge decodes only for processes of our own user. A step that starts in a container without munge
reads a file of our user, which ftrun mounts there with its interpreter. Otherwise (the local launcher, auth/slurm, a container
that ftrun mounts nothing in) the environment holds the secret itself.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from ftslurm.errors import LaunchFailed
from ftslurm.system.files import private_folder
from ftslurm.wrapper.shim.protocol.munge import munge_word

MUNGE, FILE, ENVIRONMENT, AUTO = "munge", "file", "environment", "auto"


def munge_socket(config: Mapping[str, str]) -> str | None:
    """munged's socket, from slurm.conf: empty for munge's default, None if Slurm does not use munge.

    config: of `scontrol show config`; empty if nobody answers, which does not rule munge out.
    """
    if config.get("AuthType", "auth/munge") != "auth/munge":
        return None
    words = config.get("AuthInfo", "").split(",")
    return next((word.removeprefix("socket=") for word in words if word.startswith("socket=")), "")


class SecretFile:
    """A file in a folder of our own, in the state folder or in what containers get mounted; each run has its own name, since a
    file system may show an old file for some time. name: of the job's.
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
