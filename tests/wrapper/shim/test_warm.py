"""A rank that a spare process has become cannot be told from one that was started cold, but by its time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import ftslurm
from ftslurm.wrapper.shim.processes import memory_left
from ftslurm.wrapper.shim.warm import HEAD_START_S, _before, _launcher
from tests.wrapper.shim_controller import Shim, is_gone, until

pytestmark = pytest.mark.timeout(300)

INJECT = str(Path(ftslurm.__file__).parent / "sdk" / "inject")
MEMORY = 1 << 30
READ = {"x86_64": "0", "aarch64": "63"}[os.uname().machine]  # read(2)
# What a program can learn of itself, and then the end that is asked for.
PROGRAM = Path(__file__).with_name("tells_all.py")
WAITS = "import numpy, os, sys, time\nprint(os.getpid(), flush=True)\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"


class Rank:
    """A shim whose rank imports `numpy` from `packages`, and has a spare soon."""

    def __init__(
        self, folder: Path, command: Sequence[str], memory: int = MEMORY, numpy: str = "", named: str = "numpy,torch", **how: Any
    ) -> None:
        """numpy: the code of a package of that name; empty for the real one. named: what may be imported early."""
        self.packages = folder / "packages"
        if numpy:
            (self.packages / "numpy").mkdir(parents=True, exist_ok=True)
            (self.packages / "numpy" / "__init__.py").write_text(numpy)
        env = {"SLURM_LOCALID": "0", "PYTHONPATH": str(self.packages), "HOME": str(folder)} | how.pop("env", {})
        self.shim = Shim(command, tail=1 << 16, env=env, **how)
        self.memory = memory
        self.named = named
        self.attempt = 0

    def start(self, **env: str) -> int:
        """The pid of the rank."""
        self.attempt += 1
        env = {"FTSLURM_ATTEMPT": str(self.attempt)} | env
        warm = {"after_s": 0.05, "memory": self.memory, "packages": self.named}
        self.shim.say(t="start", attempt=self.attempt, env=env, argv=None, tail=1 << 16, inject=INJECT, warm=warm)
        return int(self.shim.hear("started")["pid"])

    def below(self) -> list[int]:
        pid = self.shim.process.pid
        return [int(child) for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]

    def spare(self, but: int) -> int:
        """Its pid, once it waits: it reads from a socket."""
        until(lambda: set(self.below()) - {but} != set(), "a spare")
        (pid,) = set(self.below()) - {but}

        until(lambda: waits(pid), "a spare that waits")
        assert Path(f"/proc/{pid}/oom_score_adj").read_text() == "1000\n"
        return pid

    def ended(self) -> Mapping[str, Any]:
        said = self.shim.hear("exited")
        self.shim.stop(self.attempt)
        assert self.shim.hear("stopped")["left"] == []
        return said


def waits(pid: int) -> bool:
    try:
        call, *words = Path(f"/proc/{pid}/syscall").read_text().split()
        return call == READ and os.readlink(f"/proc/{pid}/fd/{int(words[0], 16)}").startswith("socket:")
    except OSError:
        return False  # it has ended


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[Callable[..., Rank]]:
    made: list[Rank] = []

    def make(*command: str, **how: Any) -> Rank:
        made.append(Rank(tmp_path, command, **how))
        return made[-1]

    yield make
    for rank in made:
        rank.shim.close()


# --- the same but for its time

FORMS: Mapping[str, Callable[[Path], Sequence[str]]] = {
    "script": lambda folder: (sys.executable, str(PROGRAM)),
    "relative": lambda folder: (sys.executable, os.path.relpath(PROGRAM)),
    "flags": lambda folder: (sys.executable, "-u", "-O", "-X", "dev", "-W", "ignore", str(PROGRAM)),
    "by path": lambda folder: ("python3", str(PROGRAM)),
    "module": lambda folder: (sys.executable, "-m", "tells_all"),
    "code": lambda folder: (sys.executable, "-c", PROGRAM.read_text()),
    "folder": lambda folder: (sys.executable, str(folder / "zipped")),
    "itself": lambda folder: (str(folder / "itself"),),
    "input": lambda folder: (sys.executable, "-"),
    "prefixes": lambda folder: ("/usr/bin/env", "NAME=2", "taskset", "-c", "0", "nice", "-n", "1", sys.executable, str(PROGRAM)),
    "shell": lambda folder: ("bash", "-c", f'NAME="$HOME" exec nice {sys.executable} {PROGRAM} "$0" "$@"'),
}
VARIABLES = {
    "PYTHONHASHSEED": "1", "PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1", "PYTHONDEVMODE": "1", "PYTHONSAFEPATH": "1",
    "PYTHONOPTIMIZE": "2", "PYTHONNOUSERSITE": "1", "PYTHONUTF8": "1", "OMP_NUM_THREADS": "1", "TZ": "UTC+5", "LC_ALL": "C", "NAME": "1",
}  # fmt: skip
ENDS = ("0", "3", "255", "text", "raise", "interrupt", "_exit 4", *(f"signal {n}" for n in (6, 9, 11, 15)), "children", "thread")


@settings(
    max_examples=12, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=[Phase.generate],
)  # fmt: skip
@given(
    form=st.sampled_from(sorted(FORMS)), end=st.sampled_from(ENDS), words=st.lists(st.text("ab '\"\u00e9\n", max_size=5), max_size=2),
    variables=st.lists(st.sampled_from(sorted(VARIABLES.items())), max_size=3).map(dict),
)  # fmt: skip
def test_a_warm_rank_is_a_cold_one(
    tmp_path_factory: pytest.TempPathFactory, form: str, end: str, words: list[str], variables: dict[str, str]
) -> None:
    folder = tmp_path_factory.mktemp("warm")
    (folder / "zipped").mkdir()
    (folder / "zipped" / "__main__.py").write_text(PROGRAM.read_text())
    (folder / "itself").write_text(f"#!{sys.executable}\n{PROGRAM.read_text()}")
    (folder / "itself").chmod(0o700)
    (folder / "input").write_text(PROGRAM.read_text() if form == "input" else "a line\nanother\n")
    packages = f"{folder}/packages:{PROGRAM.parent}"
    env = variables | {"PYTHONPATH": packages, "GO": str(folder / "go"), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    with open(folder / "input") as given_input:
        rank = Rank(folder, (*FORMS[form](folder), end, *words), env=env, stdin=given_input)
    try:
        first = rank.start()
        cold = told(rank.shim)
        spare = rank.spare(but=first)
        (folder / "go").touch()
        cold_end = rank.ended()
        second = rank.start()
        assert second == spare, "it was started cold"
        warm = told(rank.shim)
        warm_end = rank.ended()
        assert {name: (value, cold[name]) for name, value in warm.items() if value != cold[name]} == {}
        assert without_numbers(warm_end, second) == without_numbers(cold_end, first)
    finally:
        rank.shim.close()


def told(shim: Shim) -> Mapping[str, Any]:
    """The line that a program has told; others are of the one before it."""
    while not (line := "".join(shim.words())).startswith("7b22"):
        pass
    found: Mapping[str, Any] = json.loads(bytes.fromhex(line))
    return found


def without_numbers(said: Mapping[str, Any], pid: int) -> Mapping[str, Any]:
    """How it ended, with its last words."""
    text = "".join(str(piece[-1]) for piece in said.get("tail", ())).replace(str(pid), "PID")
    words = re.sub("0x[0-9a-f]+", "ADDRESS", text).splitlines()
    return {**said, "at": 0, "attempt": 0, "tail": sorted(line for line in words if not line.startswith("7b22"))}


# --- started cold

CHANGED = ".before it imports torch the program changes "


def cold_after(rank: Rank, go: Path, **env: str) -> tuple[bool, str]:
    """Is the second start a cold one, and what is said of it?"""
    first = rank.start()
    assert rank.shim.words() == [str(first)]
    until(lambda: len(rank.below()) == 2, "a spare")
    spare = [pid for pid in rank.below() if pid != first]
    until(lambda: is_gone(spare[0]) or waits(spare[0]), "a spare that waits or has ended")
    go.touch()
    rank.ended()
    second = rank.start(**env)
    assert rank.shim.words() == [str(second)]
    rank.ended()
    rank.shim.end(0)
    stderr = rank.shim.process.stderr
    return [second] != spare, stderr.read().decode() if stderr else ""


@pytest.mark.parametrize(("numpy", "program", "env", "why"), [
    ("import os; os.environ.get('FTSLURM_ATTEMPT')", WAITS, {}, "FTSLURM_ATTEMPT was read when packages were imported"),
    ("import os; own = os.environ.copy()", WAITS, {}, "FTSLURM_ATTEMPT was read when packages were imported"),
    ("", WAITS, {"OMP_NUM_THREADS": "2"}, "OMP_NUM_THREADS has changed"),
    ("import os; os.write(2, b'hello')", WAITS, {}, "something is printed before the program begins"),
    ("opened = open('/dev/zero')", WAITS, {}, "an import opens"),
    ("import socket; opened = socket.socket()", WAITS, {}, "an import opens"),
    ("import subprocess; opened = subprocess.Popen(['sleep', '60'])", WAITS, {}, "an import starts a process"),
    ("import mpi4py", WAITS, {}, "the program imports mpi4py"),
    ("import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()", WAITS, {}, "an import starts a thread"),
    ("import sys, ctypes\nif 'other' not in sys.modules: ctypes.CDLL('libresolv.so.2')", "import other\n" + WAITS, {}, "libresolv.so.2"),
    ("a = 1", "import os; os.environ['OMP_NUM_THREADS'] = '1'\n" + WAITS, {}, "the program changes the variable OMP_NUM_"),
    ("a = 1", "import os; os.chdir('/')\n" + WAITS, {}, "the program changes its folder"),
    ("a = 1", "import sys; sys.meta_path.insert(0, sys.meta_path[-1])\n" + WAITS, {}, "the program changes sys.meta_path"),
])  # fmt: skip
def test_what_could_be_told_apart_is_started_cold_and_told(
    ranks: Callable[..., Rank], tmp_path: Path, numpy: str, program: str, env: dict[str, str], why: str
) -> None:
    for name in ("mpi4py", "other"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").touch()
    with open(tmp_path / "err", "w+") as errors:
        rank = ranks(sys.executable, "-c", program, str(tmp_path / "go"), numpy=numpy or "a = 1", stderr=errors)
        cold, _ = cold_after(rank, tmp_path / "go", **env)
        errors.seek(0)
        said = errors.read()
    assert cold and why in said and said.count("restarts import again") == 1


def test_a_changed_package_is_imported_again(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    rank = ranks(sys.executable, "-c", WAITS + "print(numpy.a)", str(tmp_path / "go"), numpy="a = 1")
    spare = rank.spare(but=rank.start())
    (rank.packages / "numpy" / "__init__.py").write_text("a = 'new'")
    (tmp_path / "go").touch()
    rank.ended()
    assert rank.start() != spare
    assert [rank.shim.words()[0] for _ in range(4)][-1] == "new"


@pytest.mark.parametrize("numpy", [
    "import os\nnumbers = {k: v for k, v in os.environ.items() if k.startswith('OWN_')}\nlen(dict(os.environ))\n",  # tqdm, fsspec
    "opened = open(next(line.split()[5] for line in open('/proc/self/maps') if '.so' in line))",  # libffi 3.5, for ctypes
], ids=["all variables", "a library's own file"])  # fmt: skip
def test_what_looks_like_more_than_an_import_and_is_not(ranks: Callable[..., Rank], tmp_path: Path, numpy: str) -> None:
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy=numpy)
    spare = rank.spare(but=rank.start())
    (tmp_path / "go").touch()
    rank.ended()
    assert rank.start() == spare


def test_a_folder_of_the_path_that_the_program_writes_to_is_no_package(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    env = {"PYTHONPATH": f"{tmp_path}:{tmp_path}/packages"}
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = 1", env=env)
    spare = rank.spare(but=rank.start())
    (tmp_path / "go").touch()
    rank.ended()
    assert rank.start() == spare


def test_a_spare_that_takes_too_much_memory_ends(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = bytearray(1 << 26)", memory=1 << 25)
    cold, _ = cold_after(rank, tmp_path / "go")
    assert cold


@pytest.mark.parametrize("words", [
    ("bash", "-c", f"exec {sys.executable} -c '{WAITS}' $0"), (sys.executable, "-I", "-c", WAITS), (sys.executable, "-E", "-c", WAITS),
    (sys.executable, "-S", "-c", WAITS), ("env", "A=1", "bash", "-c", 'exec "$0" "$@"', sys.executable, "-c", WAITS),
    ("bash", "-c", "echo $$; until [ -e $0 ]; do sleep 0.01; done"), (sys.executable, "-c", WAITS),
])  # fmt: skip
def test_a_command_that_is_not_surely_python_has_no_spare_and_it_is_told(
    ranks: Callable[..., Rank], tmp_path: Path, words: Sequence[str]
) -> None:
    """It would run a second time beside itself."""
    words = tuple(word.replace("import numpy, ", "import ") for word in words)
    why = (
        "imports none of numpy,torch (warm.packages)"
        if words[:2] == (sys.executable, "-c")
        else "is not Python itself, or is Python with"
    )
    errors = open(tmp_path / "err", "w+")  # noqa: SIM115 -- the shim has it
    rank = ranks(*words, str(tmp_path / "go"), numpy="a = 1", stderr=errors)
    first = rank.start()
    assert rank.shim.words() == [str(first)]
    deadline = time.monotonic() + 1
    while time.monotonic() < deadline:
        assert rank.below() == [first]
        time.sleep(0.05)
    (tmp_path / "go").touch()
    for _ in range(2):
        assert rank.ended()["code"] == 0
        rank.start()
    said = (tmp_path / "err").read_text()
    assert said.count("restarts import again") == said.count(why) == 1


@pytest.mark.parametrize(("command", "may"), [
    (["env", "-i", "A=1", "/usr/bin/numactl", "--localalloc", "-C", "0-3", "python", "a"], True),
    (["bash", "-c", "python a"], True),
    (["/bin/sh", "-lc", "A=$HOME exec taskset -c 0 python a $SLURM_PROCID ${B}", "x"], True),
    (["env", "./wrapper", "python", "a"], False),
    (["wrapper", "python", "a"], False),
    (["bash", "run.sh", "python", "a"], False),
    (["bash", "-c"], False),
    (["bash", "-c", "echo python a"], False),
    (["bash", "-c", "$WRAPPER python a"], False),
    (["bash", "-c", "'wrapper' python a"], False),
    (["bash", "-c", "mkdir b; python a"], False),
    (["bash", "-c", "mkdir b\npython a"], False),
    (["bash", "-c", "python a $(next-number)"], False),
    (["bash", "-c", "python a > b"], False),
    (["bash", "-c", "python a *.pt"], False),  # the newest may be another
])  # fmt: skip
def test_what_only_executes_python_may_run_twice(command: list[str], may: bool) -> None:
    assert (_before(["python", "a"], command, "/usr/bin:/bin") is not None) is may


@pytest.mark.parametrize(("ran", "name"), [
    (["python", "-m", "torch.distributed.run", "a"], "torch.distributed.run"), (["python", "-u", "/b/torchrun", "a"], "torchrun"),
    (["python", "train.py", "torchrun"], ""), (["python"], ""),
])  # fmt: skip
def test_a_launcher_is_known_by_its_name(ran: list[str], name: str) -> None:
    assert _launcher(ran) == name


def test_a_command_with_the_old_port_among_its_words_is_no_spare(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    with open(tmp_path / "err", "w+") as errors:
        command = f"{sys.executable} {tmp_path / 'waits.py'} {tmp_path / 'go'} $MASTER_PORT"
        (tmp_path / "waits.py").write_text(WAITS)
        rank = ranks("bash", "-c", command, numpy="a = 1", stderr=errors)
        cold, _ = cold_after(rank, tmp_path / "go", MASTER_PORT="4712")
    assert cold and "the command names MASTER_PORT, which has changed" in (tmp_path / "err").read_text()


def test_where_an_import_fails_no_line_of_ours_is_told(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    program = "import warnings, traceback\ntry: import numpy\nexcept ValueError: traceback.print_exc()\n"
    fails = "import warnings; warnings.warn('from', stacklevel=2)\nraise ValueError"
    with open(tmp_path / "err", "w+") as errors:
        rank = ranks(sys.executable, "-c", program, numpy=fails, stderr=errors)
        rank.start()
        rank.ended()
        rank.shim.end(0)
    said = (tmp_path / "err").read_text()
    assert "<string>:2: UserWarning: from" in said and "ValueError" in said and "warm.py" not in said and "importlib" not in said


OWN = """
import os, ours, numpy
print(os.getpid(), ours.A, os.environ["OURS"], "numpy" in ours.LOADED, flush=True)
os.environ["OURS"] = "later"
while not os.path.exists(os.environ["GO"]): pass
"""


@pytest.mark.parametrize("edited", [False, True])
def test_the_programs_own_modules_are_imported_early_if_they_are_named(
    ranks: Callable[..., Rank], tmp_path: Path, edited: bool
) -> None:
    """With what they make of the environment."""
    (tmp_path / "own").mkdir()
    (tmp_path / "own/ours.py").write_text(
        "import os, sys, beside\nA = 0\nos.environ['OURS'] = 'now'\nLOADED = list(sys.modules)\n"
    )
    (tmp_path / "own/beside.py").touch()
    (tmp_path / "own/train.py").write_text(OWN)
    rank = ranks(
        sys.executable, str(tmp_path / "own/train.py"), numpy="a = 1", named="numpy,ours", env={"GO": str(tmp_path / "go")}
    )
    first = rank.start()
    spare = rank.spare(but=first)
    assert rank.shim.words() == [str(first), "0", "now", "False"]
    if edited:
        (tmp_path / "own/beside.py").write_text("\n")
    (tmp_path / "go").touch()
    rank.ended()
    second = rank.start()
    assert rank.shim.words() == [str(second), "0", "now", "False"]
    assert (second == spare) is not edited


def test_what_is_imported_early_in_part_is_told(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    for name in ("another", "torch"):
        (tmp_path / "packages" / name).mkdir(parents=True)
        (tmp_path / "packages" / name / "__init__.py").touch()
    with open(tmp_path / "err", "w+") as errors:
        rank = ranks(
            sys.executable, "-c", "import numpy, another, torch\n" + WAITS, str(tmp_path / "go"), numpy="a = 1", stderr=errors
        )
        cold, _ = cold_after(rank, tmp_path / "go")
    said = (tmp_path / "err").read_text()
    assert not cold and "import in part again in spite of --ft-warm: another is imported before torch" in said


@pytest.mark.parametrize(("program", "noted"), [
    ("import numpy, torch", ["numpy", "torch"]),
    ("import other, numpy", ["numpy"]),
    ("import numpy, other, torch", ["numpy", ".other is imported before torch"]),  # which may have changed numpy
    ("import numpy, beside, torch", ["numpy", "torch"]),  # numpy has loaded it
    ("import numpy; numpy.later(); import torch", ["numpy", "torch"]),  # in its own time
    ("from torch import lazy", ["torch", "torch.lazy"]),  # which torch imports when it is asked for
    ("import torch; torch.lazy", ["torch"]),
    ("import importlib.util as u; u.find_spec('torch'); import os; os.environ['A'] = '1'; import torch", [CHANGED + "the variable A"]),
    ("import importlib.util as u, numpy; u.find_spec('mpi4py')", ["numpy"]),
    ("import numpy, os; os.environ['A'] = '1'; import torch", ["numpy", CHANGED + "the variable A"]),
    ("import warnings; warnings.filterwarnings('ignore'); import torch", [CHANGED + "filters of warnings"]),
    ("import logging; logging.basicConfig(); import torch", [CHANGED + "how it logs"]),
    ("import logging; import torch", ["torch"]),
    ("import torch.space.of; import numpy", ["torch", "torch.space.of", "numpy"]),  # in a folder without __init__.py
    ("import sys, io; sys.stdout = io.StringIO(); import torch", [CHANGED + "its streams or sys.excepthook"]),
    ("import sys; sys.settrace(lambda *_: None); import torch", [CHANGED + "how it is traced"]),
    ("import multiprocessing as m; m.set_start_method('spawn'); import torch", [CHANGED + "how processes are started"]),
    ("import sys; sys.modules['absent'] = None; import numpy", [CHANGED.replace("torch", "numpy") + "sys.modules"]),
    ("import sys, types; sys.modules['one'] = types.ModuleType('one'); import torch", [CHANGED + "sys.modules"]),
    ("import os; os.nice(1); import torch", [CHANGED + "its priority"]),
    ("import signal as s; s.pthread_sigmask(s.SIG_BLOCK, {s.SIGUSR1}); import torch", [CHANGED + "the signals that it blocks"]),
    ("import os, numpy\nif not os.fork():\n    import torch, mpi4py", ["numpy"]),  # of the rank, not of a child
    ("import numpy, mpi4py", ["numpy", "!the program imports mpi4py"]),
    ("import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); import numpy", [".FileNotFoundError"]),
    ("import os; os.system(f'{__import__(\"sys\").executable} -c \"import numpy\"')", []),  # another process
])  # fmt: skip
def test_only_what_nothing_before_could_change_is_noted(tmp_path: Path, program: str, noted: list[str]) -> None:
    modules = {
        "numpy/__init__": "import beside, numpy.part, os, inspect\nos.environ['OWN'] = '1'\ndef later():\n    import numpy.late\n",
        "numpy/part": "", "numpy/late": "", "other": "", "beside": "", "mpi4py": "", "torch/lazy": "", "torch/space/of": "",
        "torch/__init__": "import beside, importlib, opcode\ndef __getattr__(n):\n    return importlib.import_module('torch.' + n)",
    }  # fmt: skip
    for name, text in modules.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.py").write_text(text)
    env = {"PYTHONPATH": f"{INJECT}:{tmp_path}", "FTSLURM_WARM": f"{os.getpid()}:numpy,torch", "FTSLURM_PAGE": f"{tmp_path}/0.1"}
    subprocess.run([sys.executable, "-c", program], env=env, cwd=tmp_path, check=True)
    _, *lines = (tmp_path / "0.warm").read_text().splitlines()
    assert [line for line in lines if line[0] not in "=>"] == noted


# --- a spare is no part of the rank


def test_what_a_rank_leaves_is_found_beside_a_spare(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    leaves = "import numpy, subprocess; print(subprocess.Popen(['setsid', 'sleep', '1000'], stdout=-3).pid, flush=True)\n"
    rank = ranks(sys.executable, "-c", leaves + WAITS, str(tmp_path / "go"), numpy="a = 1")
    first = rank.start()
    left = rank.shim.pid()
    assert rank.shim.pid() == first
    until(lambda: len(set(rank.below()) - {first}) == 1, "a spare")
    (tmp_path / "go").touch()
    assert rank.ended()["code"] == 0
    assert is_gone(left)


def test_a_spare_ends_with_its_shim(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = 1")
    spare = rank.spare(but=rank.start())
    rank.shim.process.kill()
    until(lambda: is_gone(spare), "the end of the spare")


def test_a_spare_ends_when_the_shim_is_let_go(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = 1")
    spare = rank.spare(but=rank.start())
    assert rank.shim.end(0) == 0
    until(lambda: is_gone(spare), "the end of the spare")


def test_a_spare_that_is_killed_is_no_harm(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    errors = open(tmp_path / "err", "w+")  # noqa: SIM115 -- the shim has it
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = 1", stderr=errors)
    first = rank.start()
    os.kill(rank.spare(but=first), signal.SIGKILL)
    until(lambda: rank.below() == [first], "the end of the spare")
    until(
        lambda: "--ft-warm: signal 9 ended the spare process (9: memory was short)\n" in (tmp_path / "err").read_text(),
        "the reason",
    )
    (tmp_path / "go").touch()
    assert rank.ended()["code"] == 0
    rank.start()
    assert rank.ended()["code"] == 0


def test_rank_0_is_ahead_of_warm_ranks_that_will_call_its_port(ranks: Callable[..., Rank], tmp_path: Path) -> None:
    rank = ranks(sys.executable, "-c", WAITS, str(tmp_path / "go"), numpy="a = 1", rank=1)
    spare = rank.spare(but=rank.start(MASTER_PORT="4711"))
    (tmp_path / "go").touch()
    rank.ended()
    began = time.monotonic()
    assert rank.start(MASTER_PORT="4712") == spare and time.monotonic() - began >= HEAD_START_S


def test_memory_that_is_left_is_that_of_the_narrowest_limit(tmp_path: Path) -> None:
    job = tmp_path / "sys/fs/cgroup/job_1"
    for folder, (most, used) in {job / "step_0": ("max", 50), job: ("1000", 900)}.items():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 600\ninactive_file 100\nactive_file 200\n")
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/job_1/step_0\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 900 kB\n")
    assert memory_left(str(tmp_path)) == pytest.approx(0.4)
    assert memory_left(str(tmp_path / "nothing")) == 1.0
