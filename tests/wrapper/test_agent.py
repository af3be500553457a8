"""The agent's answers, without a connection."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from ftslurm.model import messages as wire
from ftslurm.model.collectives import RankView
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer
from ftslurm.wrapper.agent.agent import Agent, load_late, signs_of_life
from ftslurm.wrapper.agent.node_watch import Examined
from ftslurm.wrapper.shim.lease import Lease
from ftslurm.wrapper.shim.messages import LinkError

ROOT = str(Path(__file__).resolve().parents[2])


class Told:
    """Stands for the line: what comes and goes is kept."""

    def __init__(self) -> None:
        self.poll = select.poll()
        self.gone = ""
        self.lease = Lease()
        self.said: list[dict[str, Any]] = []
        self.coming: list[dict[str, Any]] = []
        self.turns = 0

    def say(self, message: dict[str, Any]) -> None:
        self.said.append(message)

    def listen(self) -> list[dict[str, Any]]:
        found, self.coming = self.coming, []
        return found

    def turn(self, now: float) -> None:
        self.turns += 1

    def wakes_in(self, now: float) -> float:
        return 0.05


def watch(*numbers: int) -> dict[str, Any]:
    ranks = [[rank, os.getpid(), number] for rank, number in enumerate(numbers)]
    return {"t": "watch", "ranks": ranks, "quiet_s": 60.0, "step": "1.0", "limits": {}, "stall_s": 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def test_what_it_tells_of_ranks_names_the_latest_start(folder: Path) -> None:
    line = Told()
    agent = Agent("n1", (), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    for orders, latest in (([], 0), ([watch(1, 1)], 1), ([watch(1, 4)], 4)):
        line.coming = [*orders, {"t": "evidence", "limit_s": 1.0}, {"t": "compare"}]
        assert agent._listen()
        line.said, told = [], line.said
        assert {message["t"] for message in told} == {"evidence", "compared"}
        assert {wire.agent_report(message).attempt for message in told} == {latest}  # type: ignore[union-attr]


def test_before_it_looks_at_devices_it_tells_when_ranks_were_last_at_work(folder: Path) -> None:
    """The younger of its last IO and its last beat; nothing of a rank that has shown neither."""
    line, chips = Told(), Chips()
    agent = Agent("n1", (chips,), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    agent._told(watch(1))
    agent._told({"t": "look"})
    assert [message["t"] for message in line.said] == ["devices"]
    assert agent._activity._quiet is not None
    agent._activity._quiet.did[0] = time.monotonic() - 5.0
    agent._told({"t": "look"})
    (alive,) = [wire.agent_report(message) for message in line.said if message["t"] == "alive"]
    assert alive.attempt == 1 and alive.signs[0][0] == pytest.approx(5.0, abs=2.0)  # type: ignore[union-attr]
    assert signs_of_life({0: 10.0, 1: 30.0}, {1: 20.0, 2: 39.0}, 40.0) == {
        0: (30.0, "it did IO"), 1: (10.0, "it did IO"), 2: (1.0, "its heart beat")
    }  # fmt: skip


def test_one_that_comes_while_a_program_has_switched_detection_off_watches_once_it_is_on_again(folder: Path) -> None:
    agent = Agent("n1", (), Told(), 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    agent._told({**watch(1), "quiet_s": 0.0})
    assert agent._activity.wakes_at is None
    agent._told({"t": "quiet", "after_s": 60.0})
    now = time.monotonic()
    assert agent._activity.wakes_at is not None
    assert [message["t"] for message in agent._activity.turn(now + 61.0)] == ["quiet"]


class Slow:
    """Devices that take as long as it takes the line to be turned some times."""

    kind = "slow"

    def __init__(self, line: Told, limit_s: float = 30.0) -> None:
        self._line = line
        self._limit_s = limit_s
        self.order: list[str] = []

    def _wait(self, what: str) -> bool:
        begun, until = self._line.turns, time.monotonic() + self._limit_s
        while self._line.turns < begun + 3 and time.monotonic() < until:
            time.sleep(0.01)
        self.order.append(what)
        return self._line.turns >= begun + 3

    def read(self, timeout_s: float) -> ProbeAnswer:
        return ProbeAnswer(error="" if self._wait("look") else "nobody has beaten meanwhile")

    def heal(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        self._line.coming = [{"t": "look"}, {"t": "bye"}]
        return HealResult(device, self._wait("heal"), "")


class Chips:
    """As many as are said, and all are well."""

    kind = "ascend"

    def __init__(self) -> None:
        self.count = 8

    def read(self, timeout_s: float) -> ProbeAnswer:
        return ProbeAnswer(tuple(DeviceReport(str(number), self.kind, DeviceHealth.GOOD) for number in range(self.count)))

    def utilisation(self, timeout_s: float) -> tuple[()]:
        return ()


def test_its_first_look_tells_how_many_devices_there_are_and_the_next_nothing_while_all_is_well(folder: Path) -> None:
    line, chips = Told(), Chips()
    agent = Agent("n1", (chips,), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    for _ in range(3):
        agent._look(asked=False)
    chips.count = 7
    agent._look(asked=True)
    reports = [wire.agent_report(message) for message in line.said]
    assert [report.there for report in reports] == [{"ascend": 8}, {"ascend": 7}]  # type: ignore[union-attr]


HEAL = {"t": "heal", "devices": [["0", []]], "may_reset": True, "wait_s": 1.0, "reset_wait_s": 1.0}


def test_one_that_heals_is_not_silent_and_hears_what_it_is_told_meanwhile_afterwards(folder: Path) -> None:
    line = Told()
    slow = Slow(line)
    agent = Agent("n1", (slow,), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    line.coming = [HEAL]
    assert agent._listen() and agent._wait_ms(time.monotonic() + 60.0) == 0
    assert not agent._listen(), "it was told to end"
    assert slow.order == ["heal", "look"]
    assert [(said["t"], said.get("error", "")) for said in line.said] == [("healed", ""), ("devices", "")]
    assert line.said[0]["results"][0]["healed"] is True


def test_evidence_and_comparison_take_their_time_beside_the_connection(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = Told()
    slow = Slow(line)
    agent = Agent("n1", (), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    found = Examined((), "")
    monkeypatch.setattr(agent._stalls.node, "examine", lambda budget_s: found if slow._wait("examine") else None)
    monkeypatch.setattr(agent._stalls.node, "enters", lambda: () if slow._wait("enters") else None)
    monkeypatch.setattr(agent._stalls.node, "look", lambda: (RankView(0, "n1", probed=True),))
    line.coming = [{"t": "evidence", "limit_s": 1.0}, {"t": "compare"}]
    assert agent._listen() and slow.order == ["examine", "enters"] and line.turns >= 6
    assert [said["t"] for said in line.said] == ["evidence", "compared"]
    assert "no evidence" not in line.said[0]["text"]


def test_a_controller_that_speaks_another_language_ends_it_once_the_work_is_done(folder: Path) -> None:
    line = Told()
    slow = Slow(line, limit_s=1.0)
    agent = Agent("n1", (slow,), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    listens = iter([[HEAL]])

    def listen() -> list[dict[str, Any]]:
        for messages in listens:
            return messages
        raise LinkError("gibberish")

    line.listen = listen  # type: ignore[method-assign]
    assert agent._listen(), "what it was told to do it does"
    assert slow.order == ["heal"] and not agent._listen()


def test_an_order_that_cannot_be_understood_ends_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = Told()
    agent = Agent("n1", (), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    line.coming = [{"t": "heal", "devices": 7}]
    assert not agent._listen() and "the agent on n1 ends" in capsys.readouterr().err


def test_what_a_program_asked_for_is_told_before_the_answer_that_a_decision_waits_for(folder: Path) -> None:
    line = Told()
    agent = Agent("n1", (), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    line.coming = [watch(1)]
    assert agent._listen()
    assert agent._pages.turn(time.monotonic()) == [], "the next turn is in a second"
    asks = "from ftslurm.sdk import client; client.shut_down('the data is used up')"
    env = {
        "FTSLURM_PAGE": f"{folder}/0.1",
        "SLURM_PROCID": "0",
        "FTSLURM_ATTEMPT": "1",
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": ROOT,
    }
    subprocess.run([sys.executable, "-c", asks], env=env, check=True, timeout=180)
    line.coming = [{"t": "look"}]
    assert agent._listen()
    assert [(said["t"], said.get("what")) for said in line.said] == [("said", "shutdown"), ("devices", None)]


def test_who_watches_is_told_of_the_ranks_it_has_and_of_the_last_look_at_its_devices(folder: Path) -> None:
    line, chips = Told(), Chips()
    agent = Agent("n1", (chips,), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    agent._told(watch(1))
    agent._look(asked=False)
    agent._told({"t": "live", "for_s": 30.0, "every_s": 2.0})
    agent._told({"t": "stacks", "asked": "a"})
    assert agent._glance is not None
    line.said += agent._glance.turn(time.monotonic(), agent._pages.ranks.values(), (), agent._seen)
    stacks, told = [wire.agent_report(message) for message in line.said if message["t"] in ("live", "stacks")]
    assert stacks.asked == "a" and "rank 0" in stacks.text  # type: ignore[union-attr]
    assert [rank.rank for rank in told.ranks] == [0] and len(told.devices) == 8  # type: ignore[union-attr]


def test_who_watches_is_told_while_a_device_is_healed(folder: Path) -> None:
    line = Told()
    agent = Agent("n1", (Slow(line),), line, 10.0, lambda step: str(folder))  # type: ignore[arg-type]
    agent._told(watch(1))
    agent._told({"t": "live", "for_s": 30.0, "every_s": 2.0})
    agent._told({"t": "heal", "devices": [["0", []]], "may_reset": False, "wait_s": 1.0, "reset_wait_s": 1.0})
    assert [message["t"] for message in line.said] == ["live", "healed"]
    assert [message["t"] for message in agent._waiting] == ["look", "bye"]


# Prints what an agent has loaded, and what its modules import of ftslurm within a function that is not there yet.
LATE_IMPORTS = """
import ast, sys
from ftslurm.wrapper.agent import agent
agent.load_late({"nodes": ["n1", "n2", "n3"], "batch_node": "n1"}, sys.argv[1])
loaded = {name for name in sys.modules if name.startswith("ftslurm.")}
print("standby" if "ftslurm.wrapper.agent.standby" in loaded else "none")
for name in sorted(loaded - {"ftslurm.sdk.probe"}):
    for node in ast.walk(ast.parse(open(sys.modules[name].__file__).read())):
        if isinstance(node, ast.ImportFrom) and node.col_offset and node.module.startswith("ftslurm") and node.module not in loaded:
            print(name, node.module)
"""


def test_one_that_comes_when_its_ftrun_has_ended_ends_at_once() -> None:
    """ftrun waits for it: a step that ended while its agents started took two seconds more."""
    with socket.create_server(("127.0.0.1", 0)) as over:
        port = over.getsockname()[1]
    env = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
    argv = [sys.executable, "-c", "from ftslurm.wrapper.agent.agent import main; main()", "10"]
    env["FTSLURM_CHANNEL"] = f"1:{port}/0:{'00' * 32}:127.0.0.1"
    ended = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=20)
    assert (ended.returncode, "cannot reach ftrun" in ended.stderr) == (1, True), ended.stderr


def test_it_starts_without_what_only_a_hang_or_a_vendors_bug_needs() -> None:
    code = "import sys, ftslurm.wrapper.agent.agent; print(*{'logging', 'shutil', 'traceback', 'tempfile'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60).stdout == "\n"


def test_what_it_needs_late_is_loaded_ahead_and_a_take_over_only_where_it_may_have_to() -> None:
    told = {}
    for node in ("n1", "n2"):
        argv = [sys.executable, "-c", LATE_IMPORTS, node]
        told[node] = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout.splitlines()
    assert told["n1"][0] == "none" and told["n2"][0] == "standby"
    rooms = ("ftslurm.wrapper.agent", "ftslurm.wrapper.requeue", "ftslurm.slurm", "ftslurm.ledger", "ftslurm.launchers")
    assert [line for line in told["n2"][1:] if line.startswith(rooms)] == []


def test_a_file_that_is_being_replaced_then_is_left_for_later(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "half_written.py").write_text("def begun(")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("ftslurm.wrapper.agent.agent.OF_STANDBYS", ("half_written", "json.tool"))
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    load_late({"nodes": ["n1"]}, "n1")
    assert "json.tool" in sys.modules
