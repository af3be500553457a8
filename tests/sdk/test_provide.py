"""The import hook: other systems' sdks in a Python that has only our folder on its path."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from ftslurm.sdk import notes
from ftslurm.sdk.page import page_paths, read_page
from tests.sdk.conftest import ROOT
from tests.sdk.reading import read_notes

INJECT = ROOT / "ftslurm" / "sdk" / "inject"
PROGRAM = Path(__file__).with_name("megatron_style.py")


@pytest.fixture(scope="session")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with nothing installed, so without ftslurm, too."""
    folder = tmp_path_factory.mktemp("bare")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


class Ranks:
    """Runs programs as a rank, with the folder ahead of `path` on PYTHONPATH."""

    def __init__(self, python: Path, env: dict[str, str], folder: Path) -> None:
        self._python, self._env, self._folder = python, env, folder

    def __call__(self, *argv: str, path: tuple[Path, ...] = (), **more: str) -> str:
        places = os.pathsep.join(str(place) for place in (INJECT, *path))
        env = {**self._env, "PYTHONPATH": places, **more}
        done = subprocess.run([str(self._python), *argv], env=env, cwd=self._folder, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0 and done.stderr == "", done.stdout + done.stderr
        return done.stdout

    def code(self, source: str, path: tuple[Path, ...] = (), **more: str) -> str:
        return self("-c", textwrap.dedent(source), path=path, **more)


@pytest.fixture
def rank(bare: Path, rank_env: dict[str, str], tmp_path: Path) -> Ranks:
    return Ranks(bare, rank_env, tmp_path)


# --- stories


@pytest.mark.parametrize("configuration", [
    "", '{"rank_section_timeouts": {"setup": 600, "step": 180, "checkpointing": 420}, "rank_out_of_section_timeout": 300}',
], ids=["no configuration", "configuration"])  # fmt: skip
def test_a_megatron_style_program_runs_unchanged(
    rank: Ranks, rank_env: dict[str, str], tmp_path: Path, configuration: str
) -> None:
    page = rank_env["FTSLURM_PAGE"]
    first = rank(str(PROGRAM), str(tmp_path), "20", FTSLURM_FT_CONFIG=configuration)
    assert "iterations 0 to 20" in first
    state = read_page(page)
    assert state is not None and (state.init_ns, state.beats, state.warmup, state.rank, state.attempt) == (0, 20, 2, 3, 2)
    assert {one.name: one.times for one in state.sections} == {"setup": 1, "step": 18, "checkpointing": 2}
    told, end = read_notes(page + notes.SUFFIX, 0)
    *calculated, control = told
    assert [note.what for note in calculated] == ["limits"] * 3 and control == notes.Note("continue", ("all is well",))
    last = calculated[-1].limits
    assert last is not None and set(dict(last.sections)) == {"setup", "step", "checkpointing"}
    assert last.out_of_section_s and 0 < dict(last.sections)["step"] < dict(last.sections)["setup"]

    saved = json.loads((tmp_path / "ft_state.json").read_text())["current_timeouts"]["section"]
    second = rank(str(PROGRAM), str(tmp_path), "40", "--leave", FTSLURM_FT_CONFIG=configuration)
    assert "iterations 20 to 40" in second and page_paths(page) == [page]
    state = read_page(page)
    assert state is not None and (state.init_ns, state.beats) == (0, 20)  # it ended without a shutdown, and is not watched
    told, _ = read_notes(page + notes.SUFFIX, end)
    assert told[0].limits is not None
    assert dict(told[0].limits.sections) == {name: value for name, value in saved["section"].items() if value is not None}
    again = json.loads((tmp_path / "ft_state.json").read_text())["current_timeouts"]["section"]
    assert sorted(again["calculated_sections"]) == ["checkpointing", "step"]


def test_an_aimaster_program_runs_unchanged(rank: Ranks, rank_env: dict[str, str]) -> None:
    rank.code("""
        from aimaster import job_monitor as jm
        from aimaster.job_monitor import hang_detect
        monitor = jm.Monitor(config=jm.PyTorchConfig(job_hang_interval=1800))

        @hang_detect(-1)
        def test():
            st = monitor.send_custom_message(content="The training loss of the job is NaN.")
            assert st.ok(), st.to_string()
            import os
            os._exit(0)
        test()
        """)
    state = read_page(rank_env["FTSLURM_PAGE"])
    assert state is not None and state.stage_s == -1
    found, _ = read_notes(rank_env["FTSLURM_PAGE"] + notes.SUFFIX, 0)
    assert [note.words for note in found] == [("The training loss of the job is NaN.",)]


def test_our_own_interface_is_there_without_an_installation(rank: Ranks, rank_env: dict[str, str]) -> None:
    said = rank.code("""
        from ftslurm.sdk import client as ft
        with ft.section("step"):
            ft.heartbeat()
        print(ft.restart_info().attempt)
        """)
    state = read_page(rank_env["FTSLURM_PAGE"])
    assert said == "2\n" and state is not None and state.beats == 1


# --- who has what


NAMES = """
from nvidia_resiliency_ext.fault_tolerance import (
    FaultToleranceConfig, RankMonitorClient, RankMonitorClientError, RankMonitorServer, WorkloadAction,
    WorkloadControlRequest, RankMonitorState, RankMonitorStateMachine, InvalidStateTransitionException)
import nvidia_resiliency_ext.fault_tolerance as fault_tolerance
from nvidia_resiliency_ext.fault_tolerance.config import FaultToleranceConfig as config
from nvidia_resiliency_ext.fault_tolerance.data import HeartbeatTimeouts, RankInfo, SectionTimeouts
from nvidia_resiliency_ext.fault_tolerance.data import WorkloadAction as action
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_client import RankMonitorClient as client
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_server import RankMonitorServer as server
from nvidia_resiliency_ext.fault_tolerance.rank_monitor_state_machine import RankMonitorState as state
from nvidia_resiliency_ext.fault_tolerance.timeouts_calc import TimeoutsCalc, TimeoutsCalcError
assert fault_tolerance.RankMonitorClient is RankMonitorClient is client
assert (config, action, server, state) == (FaultToleranceConfig, WorkloadAction, RankMonitorServer, RankMonitorState)
from nvidia_resiliency_ext.fault_tolerance import *
try:
    from nvidia_resiliency_ext.checkpointing import local
except ImportError as error:
    print(error)
"""


def test_all_documented_places_have_the_same_names(rank: Ranks) -> None:
    said = rank.code(NAMES)
    assert said.startswith("No module named 'nvidia_resiliency_ext.checkpointing': nvidia_resiliency_ext is not installed, and ")


def test_a_name_that_is_not_ours_is_missing_with_a_reason(rank: Ranks) -> None:
    said = rank.code("""
        import nvidia_resiliency_ext.fault_tolerance as ft
        print(hasattr(ft, "FaultToleranceCallback"), hasattr(ft, "__path__"))
        try:
            ft.FaultToleranceCallback
        except AttributeError as error:
            print(error)
        """)
    assert said.startswith("False True\n") and "nvidia_resiliency_ext is not installed" in said


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Somewhere with the real ones, or what passes for them."""
    place = tmp_path / "site"
    for name in ("nvidia_resiliency_ext/fault_tolerance", "nvidia_resiliency_ext/inprocess", "aimaster"):
        (place / name).mkdir(parents=True)
        (place / name / "__init__.py").write_text("WHO = 'real'\n")
    (place / "nvidia_resiliency_ext" / "__init__.py").write_text("__version__ = '0.7.0'\n")
    (place / "nvidia_resiliency_ext" / "fault_tolerance" / "config.py").write_text("WHO = 'real'\n")
    (place / "aimaster" / "job_monitor.py").write_text("WHO = 'real'\n")
    return place


WHO = """
import nvidia_resiliency_ext.fault_tolerance as ft, nvidia_resiliency_ext.fault_tolerance.config as config
import nvidia_resiliency_ext.inprocess as inprocess, nvidia_resiliency_ext as all_of_it
from aimaster import job_monitor
print(*["ours" if type(one.__loader__).__name__ == "_Loader" else "real" for one in (ft, config, inprocess, job_monitor)], all_of_it.__version__)
"""


def test_beside_the_installed_package_all_other_names_and_modules_are_its_own(rank: Ranks, installed: Path) -> None:
    package = installed / "nvidia_resiliency_ext"
    (package / "fault_tolerance" / "__init__.py").write_text(
        "from .config import FaultToleranceConfig\nfrom .utils import HELP\nclass RankMonitorClient: pass\nCallback = 'theirs'\n"
    )
    (package / "fault_tolerance" / "config.py").write_text("class FaultToleranceConfig: pass\nMORE = 'more of theirs'\n")
    (package / "fault_tolerance" / "utils.py").write_text("from .config import MORE\nHELP = 'help'\n")
    (package / "inprocess" / "__init__.py").write_text(
        "from ..fault_tolerance import Callback\nfrom ..fault_tolerance.utils import HELP\n"
    )
    said = rank.code("""
        from nvidia_resiliency_ext.inprocess import Callback, HELP
        from nvidia_resiliency_ext.fault_tolerance import FaultToleranceConfig, RankMonitorClient, utils
        from nvidia_resiliency_ext.fault_tolerance.config import MORE
        from ftslurm.sdk import nvrx
        print(Callback, HELP, MORE, utils.MORE, FaultToleranceConfig is nvrx.FaultToleranceConfig, RankMonitorClient is nvrx.RankMonitorClient)
        """, path=(installed,), FTSLURM_PROVIDE="nvrx")  # fmt: skip
    assert said == "theirs help more of theirs more of theirs True True\n"


@pytest.mark.parametrize(("asked", "told"), [
    ("", "real real real real 0.7.0\n"),
    ("nvrx", "ours ours real real 0.7.0\n"),
    ("aimaster", "real real real ours 0.7.0\n"),
    (" aimaster , nvrx ", "ours ours real ours 0.7.0\n"),
    ("nonsense", "real real real real 0.7.0\n"),
])  # fmt: skip
def test_the_real_ones_stand_unless_ours_are_asked_for(rank: Ranks, installed: Path, asked: str, told: str) -> None:
    assert rank.code(WHO, path=(installed,), FTSLURM_PROVIDE=asked) == told


def test_it_costs_a_process_nothing_but_a_finder(rank: Ranks) -> None:
    said = rank.code("""
        import sys
        print(sorted(name for name in sys.modules if "ftslurm" in name or "importlib." in name), sys.path[1].split("/")[-1])
        """)
    assert said == "[] inject\n"


# --- other sitecustomizes


def other(folder: Path, source: str) -> Path:
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(textwrap.dedent(source))
    return folder


def test_the_sitecustomize_behind_it_is_run_and_known_by_its_name(rank: Ranks, tmp_path: Path) -> None:
    site = other(tmp_path / "site", "import builtins; builtins.greeting = 'hello'; MARK = 5\n")
    assert rank.code("import sitecustomize; print(greeting, sitecustomize.MARK)", path=(site,)) == "hello 5\n"


@pytest.mark.parametrize("ours_first", [True, False])
def test_two_that_chain_do_not_run_each_other_for_ever(rank: Ranks, tmp_path: Path, ours_first: bool) -> None:
    """Another injector, that looks for the next one anywhere but in its own folder."""
    site = other(tmp_path / "site", """
        import builtins, os, sys
        from importlib.machinery import PathFinder
        from importlib.util import module_from_spec
        builtins.runs = getattr(builtins, "runs", 0) + 1
        here = os.path.dirname(os.path.abspath(__file__))
        spec = PathFinder.find_spec("sitecustomize", [place for place in sys.path if os.path.abspath(place) != here])
        if spec:
            spec.loader.exec_module(module_from_spec(spec))
        """)  # fmt: skip
    places = (INJECT, site) if ours_first else (site, INJECT)
    said = rank.code("import aimaster.job_monitor; print(runs)", PYTHONPATH=os.pathsep.join(str(place) for place in places))
    assert said == "1\n"


def test_one_that_fails_is_reported_as_without_us(bare: Path, rank_env: dict[str, str], tmp_path: Path) -> None:
    site = other(tmp_path / "site", "raise RuntimeError('mine')\n")
    env = {**rank_env, "PYTHONPATH": f"{INJECT}{os.pathsep}{site}"}
    done = subprocess.run([str(bare), "-c", NAMES], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0 and "RuntimeError: mine" in done.stderr and "No module" in done.stdout


def test_if_ours_cannot_be_loaded_the_program_runs_all_the_same(bare: Path, rank_env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sdk" / "inject").mkdir(parents=True)
    (tmp_path / "sdk" / "inject" / "sitecustomize.py").write_text((INJECT / "sitecustomize.py").read_text())
    env = {**rank_env, "PYTHONPATH": str(tmp_path / "sdk" / "inject")}
    done = subprocess.run([str(bare), "-c", "print('runs')"], env=env, capture_output=True, text=True, timeout=180)
    assert done.stdout == "runs\n" and "cannot stand in" in done.stderr
