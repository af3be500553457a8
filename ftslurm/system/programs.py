"""Where Slurm's commands are: in the folder that `slurm.bin` names, else on PATH, and never ftrun itself.

ftrun may be linked, copied or wrapped under the name `srun`, first on PATH, so that a launcher without support for it (submitit,
snakemake, Hydra) starts it. If that ftrun searched PATH for `srun`, it would start itself, again and again. Two rules prevent it.
A file that is recognised as ftrun is skipped. And every command that is started as Slurm's carries a mark in its environment: an
ftrun that finds the mark is behind an opaque wrapper, and runs the next program of that name.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from ftslurm.errors import CalledItself, CommandMissing

# Holds the setting slurm.bin; ftrun sets it for its children if a policy has named the folder.
FOLDER_VARIABLE = "FTRUN_SLURM_BIN"
# "PLACE PATH:PATH...": the commands that were started as Slurm's, and the place of the ftrun that did; the last one is the
# latest.
MARK = "FTSLURM_CALLED"
SLURM_PROGRAMS = frozenset({"sacct", "salloc", "sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun"})
# Bytes of a script's head: the import of ftrun is one of the first lines that pip and setuptools write.
_HEAD_BYTES = 4096
_OUR_DOORS = (b"ftslurm.cli.ftrun", b"from ftslurm.cli.doors import ftrun")


def real_program(argv: Sequence[str], env: Mapping[str, str]) -> tuple[str, dict[str, str]]:
    """The file to execute for `argv`, and the environment for it. Searches only Slurm's commands.

    Raises: CommandMissing, CalledItself.
    """
    if argv[0] not in SLURM_PROGRAMS:
        return argv[0], dict(env)
    path = find_program(argv[0], env)
    tried = ":".join((*mistaken_for(env), path))
    return path, {**env, MARK: f"{_place(env)} {tried}"}


def become(program: str, argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Slurm's own program in our place. Raises: CommandMissing, CalledItself, OSError."""
    path, its_env = real_program((program,), env)
    os.execve(path, [program, *argv], its_env)


def find_program(name: str, env: Mapping[str, str]) -> str:
    """The first command of Slurm of that name that is not ftrun. Raises: CommandMissing, CalledItself."""
    passed_over = list(mistaken_for(env))
    for path in _candidates(name, env):
        if any(_same_file(path, other) for other in passed_over):
            continue
        if not _is_ftrun(path):
            return path
        passed_over.append(path)
    folder = env.get(FOLDER_VARIABLE, "")
    if passed_over:
        raise CalledItself(
            f"`{name}` is ftrun itself ({passed_over[-1]}), and {folder or 'PATH'} has no other {name}",
            hint="name the folder of Slurm's commands: slurm.bin in the policy, or FTRUN_SLURM_BIN",
        )
    raise CommandMissing(
        f"`{name}` is not {f'in {folder}, which slurm.bin names' if folder else 'on PATH'}",
        hint="is Slurm installed here? FTRUN_SLURM_BIN names the folder of its commands; --ft-launcher local runs without Slurm",
    )


def mistaken_for(env: Mapping[str, str]) -> tuple[str, ...]:
    """If another ftrun has started this one as a command of Slurm: the programs tried so far, the last one this.

    Empty for every other process. A rank, or a child of salloc, has the mark of another place than its own.
    """
    place, _, tried = env.get(MARK, "").partition(" ")
    return tuple(tried.split(":")) if tried and place == _place(env) else ()


def with_folder(env: Mapping[str, str], folder: str) -> dict[str, str]:
    """folder: of Slurm's commands, from the settings; empty: search PATH."""
    others = {name: value for name, value in env.items() if name != FOLDER_VARIABLE}
    return {**others, FOLDER_VARIABLE: folder} if folder else others


def _place(env: Mapping[str, str]) -> str:
    """Job and step of a process. A process that Slurm starts is in another one than its starter; a wrapper is in the same."""
    return f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"


def _candidates(name: str, env: Mapping[str, str]) -> Iterator[str]:
    folder = env.get(FOLDER_VARIABLE, "")
    for each in [folder] if folder else os.get_exec_path(env):
        path = os.path.join(each, name)  # noqa: PTH118 -- before every start of ftrun's; pathlib is slow
        if os.access(path, os.X_OK) and not os.path.isdir(path):  # noqa: PTH112
            yield path


def _is_ftrun(path: str) -> bool:
    """Is the file ftrun? By its inode, or by the short script that an installer writes."""
    if _same_file(path, sys.argv[0]):
        return True
    try:
        with Path(path).open("rb") as file:
            head = file.read(_HEAD_BYTES)
        return head.startswith(b"#!") and any(door in head for door in _OUR_DOORS)
    except OSError:
        return False


def _same_file(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)  # noqa: PTH121
    except OSError:
        return False
