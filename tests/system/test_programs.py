"""ftrun under Slurm's names, on PATH before Slurm's own commands: it is never taken for one of them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ftslurm.errors import CalledItself, CommandMissing
from ftslurm.system.commands import MARK, find_slurm_program, mistaken_for, real_program, with_folder

DOOR = "#!{python}\nimport sys\nsys.path.insert(0, {root!r})\nfrom ftslurm.cli.ftrun import main\nmain()\n"
ROOT = Path(__file__).resolve().parents[2]
# It says what it was given, and of its environment whether Slurm's own program would see anything of ours.
REAL = """#!/bin/sh
echo "real $# $*"
"""


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """ftrun as an installer writes it."""
    return program(tmp_path / "installed", "ftrun", DOOR.format(python=sys.executable, root=str(ROOT)))


@pytest.fixture
def real(tmp_path: Path) -> Path:
    return program(tmp_path / "slurm", "srun", REAL)


def searched(*folders: Path) -> dict[str, str]:
    return {"PATH": ":".join(map(str, folders))}


def test_a_link_to_ftrun_is_passed_over(tmp_path: Path, door: Path, real: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/srun").symlink_to(door)
    assert find_slurm_program("srun", searched(tmp_path / "first", real.parent)) == str(real)


def test_a_copy_of_ftrun_is_passed_over(tmp_path: Path, door: Path, real: Path) -> None:
    (tmp_path / "first").mkdir()
    shutil.copy(door, tmp_path / "first/srun")
    assert find_slurm_program("srun", searched(tmp_path / "first", real.parent)) == str(real)


def test_what_is_not_ftrun_is_taken_as_it_comes(tmp_path: Path, real: Path) -> None:
    """A site's own srun, which calls Slurm's, has its reasons."""
    own = program(tmp_path / "site", "srun", f'#!/bin/sh\nmodule load x\nexec {real} "$@"\n')
    assert find_slurm_program("srun", searched(own.parent, real.parent)) == str(own)


def test_the_folder_that_is_named_is_the_only_one(tmp_path: Path, real: Path) -> None:
    other = program(tmp_path / "other", "srun", REAL)
    assert find_slurm_program("srun", with_folder(searched(real.parent), str(other.parent))) == str(other)
    with pytest.raises(CommandMissing, match=r"slurm\.bin"):
        find_slurm_program("srun", with_folder(searched(real.parent), str(tmp_path)))


def test_nothing_but_ftrun_is_refused(tmp_path: Path, door: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/srun").symlink_to(door)
    with pytest.raises(CalledItself, match="`srun` is ftrun itself"):
        find_slurm_program("srun", searched(tmp_path / "first"))
    with pytest.raises(CalledItself, match="`srun` is ftrun itself"):
        find_slurm_program("srun", with_folder({}, str(tmp_path / "first")))


def test_programs_that_are_not_slurms_are_left_alone() -> None:
    assert real_program(("true",), {"PATH": "/bin", "A": "b"}) == ("true", {"PATH": "/bin", "A": "b"})


def test_the_mark_counts_where_it_was_set_and_nowhere_else(real: Path) -> None:
    """A rank, a batch script and what salloc starts are in another job or step."""
    _, env = real_program(("srun",), {**searched(real.parent), "SLURM_JOB_ID": "7"})
    assert mistaken_for(env) == (str(real),)
    assert mistaken_for({**env, "SLURM_STEP_ID": "0"}) == ()
    assert mistaken_for({**env, "SLURM_JOB_ID": "8"}) == ()
    assert mistaken_for({name: value for name, value in env.items() if name != MARK}) == ()


def start(path: str, env: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([path, *argv], env=env, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("wrapper", ['#!/bin/sh\nexec {door} "$@"\n', '#!/bin/sh\n{door} --ft-max-restarts 3 "$@"\n'])
def test_a_wrapper_nobody_can_look_into_leads_to_the_real_one(tmp_path: Path, door: Path, real: Path, wrapper: str) -> None:
    first = program(tmp_path / "first", "srun", wrapper.format(door=door))
    path, env = real_program(("srun",), {**searched(first.parent, real.parent), "SLURM_JOB_ID": "7"})
    assert path == str(first)
    done = start(path, env, "-N2", "sh", "-c", "a b")
    assert (done.returncode, done.stdout) == (0, "real 4 -N2 sh -c a b\n"), done.stderr


def test_several_wrappers_one_behind_the_other(tmp_path: Path, door: Path, real: Path) -> None:
    folders = [program(tmp_path / name, "srun", f'#!/bin/sh\nexec {door} "$@"\n').parent for name in "abc"]
    path, env = real_program(("srun",), searched(*folders, real.parent))
    assert start(path, env, "true").stdout == "real 1 true\n"


def test_a_wrapper_with_nothing_behind_it_is_refused_in_one_sentence(tmp_path: Path, door: Path) -> None:
    first = program(tmp_path / "first", "srun", f'#!/bin/sh\nexec {door} "$@"\n')
    path, env = real_program(("srun",), {"PATH": f"{first.parent}:/nowhere"})
    done = start(path, env, "true")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("ftrun: `srun` is ftrun itself") and len(done.stderr.splitlines()) == 1


def test_what_only_asks_srun_asks_the_real_one(tmp_path: Path, door: Path, real: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first/srun").symlink_to(door)
    env = {**os.environ, **searched(tmp_path / "first", real.parent)}
    assert start(str(tmp_path / "first/srun"), env, "--version").stdout == "real 1 --version\n"
