"""The agent: one on each node. It checks the devices and reports to the controller; it heals devices when asked.

It runs as the user, decides nothing, and ends when the controller does. If the controller has died with its node, an agent may
take over (standby.py). While all is well it runs the device tool once every `poll_s` seconds and sends nothing.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from ftslurm.devices.probe import choose_probes
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Severity, Utilisation
from ftslurm.model.messages import STANDBYS, alive_message, devices_message, evidence_message, healed_message
from ftslurm.model.ports import Probe
from ftslurm.model.text import visible
from ftslurm.model.values import replace
from ftslurm.system.commands import run as run_command
from ftslurm.system.meanwhile import Meanwhile
from ftslurm.wrapper.agent.activity import ActivityWatch
from ftslurm.wrapper.agent.live import Glance
from ftslurm.wrapper.agent.pages import Folders, PageWatch, limits_told, sweep_pages
from ftslurm.wrapper.agent.stalls import JobClock, StallReports
from ftslurm.wrapper.shim.connection import CHANNEL_VARIABLE, Channel, connect
from ftslurm.wrapper.shim.lease import CUT_OFF, boot_s
from ftslurm.wrapper.shim.messages import LinkError
from ftslurm.wrapper.shim.pages import page_folder
from ftslurm.wrapper.shim.session import Session

CONNECT_TIMEOUT_S = 30.0
# Share of the time that the controller waits for evidence; the rest is for the transport.
EVIDENCE_SHARE = 0.8
# Limit of one device check on a node; a healthy npu-smi takes well under a second.
LOOK_TIMEOUT_S = 20.0
# For people who watch: how busy the devices are, and what the ranks do.
GLANCE_TIMEOUT_S, STACKS_S = 5.0, 10.0
# Seconds between two checks of the connection during other work.
BESIDE_S = 0.05

# Loaded so long after the controller's plan has come, when the ranks have started.
LATE_S = 10.0
OF_STANDBYS = ("ftslurm.wrapper.agent.standby", "ftslurm.wrapper.controller.teller", "tenacity", "ClusterShell.NodeSet")

T = TypeVar("T")


class Agent:
    """One loop over the connection and the clock."""

    def __init__(
        self, node: str, probes: tuple[Probe, ...], line: Session, poll_s: float, pages_of: Callable[[str], str] = str
    ) -> None:
        """pages_of: gives the folder with a step's pages."""
        self._pages_of = pages_of
        self._node = node
        self._probes = probes
        self._line = line
        self._poll_s = poll_s
        self._to_tell = True  # report the next check, even if all is well
        self._named: dict[str, frozenset[str]] = {}  # kind -> the devices that its last reports named
        self._clock = JobClock()
        self._activity = ActivityWatch(probes)
        self._pages = PageWatch()
        self._stalls = StallReports(node, self._use_of_devices if probes else None, self._clock)
        self._glance = Glance(self._use_while_watched if probes else None)
        self._watched: Mapping[str, Any] = {}  # the controller's order to watch ranks
        self._folders = Folders("", (), 0.0)  # of their pages
        self._seen: tuple[DeviceReport, ...] = ()  # results of the last device check
        self._plan: Mapping[str, Any] = {}  # the controller's plan in case it dies
        self._attempt = 0  # the latest start of the ranks that it watches
        self._waiting: list[Mapping[str, Any]] = []  # messages that arrived during work
        self._broken: LinkError | None = None  # the connection error that was found during work
        self._drilled: dict[str, tuple[DeviceReport, bool]] = {}  # device -> its ordered fault, and whether it heals

    @property
    def handover_plan(self) -> Mapping[str, Any]:
        """The plan for taking over from a silent controller; empty if this agent must not."""
        silent = bool(self._line.gone) or (self._line.lease.over(boot_s()) and self._line.lease.why == CUT_OFF)
        return self._plan if silent else {}

    def run(self) -> None:
        next_look = self._clock()
        while True:
            wait_ms = self._wait_ms(next_look)
            self._expect(wait_ms / 1000 if wait_ms is not None else None)
            self._line.poll.poll(wait_ms)
            self._expect(0.0)
            if not self._listen():
                return
            self._line.turn(boot_s())
            now = self._clock()
            if self._probes and now >= next_look:
                self._look(asked=False)
                next_look = self._clock() + self._poll_s
            if self._folders.turn(now):
                self._read_pages(now)
            self._tell(*self._activity.turn(now), *self._pages.turn(now))
            self._tell_stalls(now)
            self._tell_who_watches(now)

    def _expect(self, wait_s: float | None) -> None:
        """After a suspension: an agent runs nothing under its lease, and whoever heard of a stall has counted on."""
        if self._clock.expect(wait_s):
            self._line.lease.excuse(boot_s())
            self._stalls.tell_again = True

    def _wait_ms(self, next_look: float) -> float | None:
        if self._waiting or self._broken:
            return 0
        times = [next_look] if self._probes else []
        parts = [self._activity.wakes_at, self._pages.wakes_at, self._stalls.wakes_at, self._glance.wakes_at]
        times += [at for at in parts if at is not None]
        own_s = min(times) - self._clock() if times else float("inf")
        wait_s = max(0.0, min(own_s, self._line.wakes_in(boot_s())))
        return wait_s * 1000 if wait_s < 1e6 else None

    def _listen(self) -> bool:
        """Read messages. False when the controller has ended, has released the agent, or was
        unreachable for the time of a lease.
        """
        try:
            for message in self._heard():
                if message["t"] == "bye":
                    self._plan = {}
                    return False
                self._told(message)
            return not (self._line.gone or self._line.lease.over(boot_s()))
        except (LinkError, KeyError, TypeError, ValueError) as error:
            print(f"ftslurm: the agent on {self._node} ends: {visible(error)}", file=sys.stderr)
            return False

    def _heard(self) -> list[Mapping[str, Any]]:
        if self._broken is not None:
            raise self._broken
        waiting, self._waiting = self._waiting, []
        return [*waiting, *self._line.listen()]

    def _beside(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and keep the connection up: a busy agent is not silent, and its lease is renewed."""
        done = Meanwhile(work)
        while not done.has_ended(BESIDE_S):
            self._expect(BESIDE_S)
            self._keep_up()
            if self._line.gone and self._line.ending(boot_s()):
                raise LinkError("Slurm ends the step, and ftrun has ended")
        return done.answer()

    def _keep_up(self) -> None:
        try:
            if self._broken is None:
                for message in self._line.listen():
                    if message.get("t") == "live":
                        self._show(message)
                    else:
                        self._waiting.append(message)
                self._tell(*self._pages.turn(self._clock()))
                self._tell_who_watches(self._clock(), at_work=True)
                self._line.turn(boot_s())
        except LinkError as error:
            self._broken = error

    def _told(self, message: Mapping[str, Any]) -> None:
        if (method := _ORDERS.get(message["t"])) is None:
            raise ValueError(f"unknown message {message['t']!r}")
        method(self, message)

    def _look_now(self, _: Mapping[str, Any]) -> None:
        self._tell(*self._pages.turn(self._clock(), at_once=True))  # a decision may depend on it now
        if signs := signs_of_life(self._activity.did_io(), self._pages.beat(), self._clock()):
            self._tell(alive_message(signs))
        self._look(asked=True)

    def _keep_plan(self, message: Mapping[str, Any]) -> None:
        if not self._plan:
            timer = threading.Timer(LATE_S, load_late, (message, self._node))
            timer.daemon = True
            timer.start()
        self._plan = message

    def _tell_evidence(self, message: Mapping[str, Any]) -> None:
        limit_s = float(message["limit_s"])
        found = self._beside(lambda: self._evidence(limit_s))
        # First report whether the ranks have moved meanwhile: the findings count only if they have not.
        self._tell_stalls(self._clock(), at_once=True)
        self._tell(found)

    def _look(self, asked: bool) -> None:
        """Check the devices. Reports the answer to a question, anything that is not well, and the first check of all and after a
        fault.
        """
        read = self._beside(lambda: [self._read(probe) for probe in self._probes])
        answer = self._with_drills(_merged(read))
        self._seen = answer.reports
        bad = bool(answer.error) or any(report.health is not DeviceHealth.GOOD for report in answer.reports)
        if asked or bad or self._to_tell:
            self._line.say(devices_message(answer, asked, {kind: len(names) for kind, names in self._named.items()}))
        self._to_tell = bad

    def _read(self, probe: Probe) -> ProbeAnswer:
        answer = probe.read(LOOK_TIMEOUT_S)
        if answer.reports:
            self._named[probe.kind] = frozenset(report.device for report in answer.reports)
        return answer

    def _use_of_devices(self, timeout_s: float) -> list[Utilisation]:
        """How busy the devices of all kinds are."""
        return [one for probe in self._probes for one in probe.utilisation(timeout_s / len(self._probes))]

    def _probe_of(self, device: str) -> Probe | None:
        """The probe whose last reports named the device; for an unknown name the first probe there is."""
        named = (probe for probe in self._probes if device in self._named.get(probe.kind, ()))
        return next(named, next(iter(self._probes), None))

    def _evidence(self, limit_s: float) -> dict[str, Any]:
        """What the ranks of this node do, as text for people. Never raises: it must not delay a restart."""
        try:
            examined = self._stalls.node.examine(EVIDENCE_SHARE * limit_s)
            return evidence_message(examined.text, examined.views)
        except Exception as error:
            return evidence_message(f"no evidence could be taken: {error!r}")

    def _tell_stalls(self, now: float, at_once: bool = False) -> None:
        self._tell(*self._stalls.turn(now, self._pages.stage_s, self._pages.reports, at_once))

    def _watch(self, message: Mapping[str, Any]) -> None:
        ranks = [(int(rank), int(pid), int(number)) for rank, pid, number in message["ranks"]]
        now, quiet_s = self._clock(), float(message["quiet_s"])
        self._activity.watch([(rank, pid) for rank, pid, _ in ranks], quiet_s, now)
        self._attempt = max((number for _, _, number in ranks), default=0)
        folder = self._pages_of(str(message["step"]))
        sweep_pages(folder, time.time())
        self._watched, self._folders = message, Folders(folder, ranks, now)
        self._read_pages(now)

    def _read_pages(self, now: float) -> None:
        tasks, message = self._folders.tasks, self._watched
        self._tell(*self._pages.watch(tasks, limits_told(message["limits"]), now))
        self._stalls.watch(tasks, float(message["stall_s"]), now)

    def _show(self, message: Mapping[str, Any]) -> None:
        """Someone watches the job: begin to report for them."""
        self._glance.want(float(message["for_s"]), float(message["every_s"]), self._clock())

    def _tell_who_watches(self, now: float, at_work: bool = False) -> None:
        """Report to people who watch, also while a device heals: that is when they look."""
        self._tell(*self._glance.turn(now, self._pages.ranks.values(), self._stalls.views, self._seen, at_work))

    def _use_while_watched(self) -> list[Utilisation]:
        return self._beside(lambda: self._use_of_devices(GLANCE_TIMEOUT_S))

    def _tell_stacks(self, message: Mapping[str, Any]) -> None:
        """Send the stacks to people; no judgement uses them."""
        found = self._beside(lambda: self._evidence(STACKS_S))
        self._tell({"t": "stacks", "asked": str(message["asked"]), "text": found["text"]})

    def _drill(self, message: Mapping[str, Any]) -> None:
        """Inject a device fault on order: the device shows it, beside its real state, until it is healed."""
        device, code = str(message["device"]), str(message["code"])
        severity = Severity(message["severity"])
        report = DeviceReport(device, str(message["kind"]), DeviceHealth.FAULTY, severity, (code,), "a drill")
        self._drilled[device] = (report, bool(message["heals"]))
        self._look(asked=False)

    def _with_drills(self, answer: ProbeAnswer) -> ProbeAnswer:
        drilled = tuple(report for report, _ in self._drilled.values())
        real = tuple(report for report in answer.reports if report.device not in self._drilled)
        return replace(answer, reports=(*real, *drilled))

    def _heal_drilled(self, device: str) -> HealResult:
        heals = self._drilled[device][1]
        if heals:
            del self._drilled[device]
        return HealResult(device, heals, "a drill: the fault was taken back" if heals else "a drill: it does not heal")

    def _heal(self, message: Mapping[str, Any]) -> None:
        before = signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a reset takes minutes, and a cancelled job must not wait for it
        results = self._beside(lambda: self._heal_all(message))
        signal.signal(signal.SIGTERM, before)
        self._line.say(healed_message(results))

    def _heal_all(self, message: Mapping[str, Any]) -> tuple[HealResult, ...]:
        wait_s, reset_wait_s = float(message["wait_s"]), float(message["reset_wait_s"])
        results: list[HealResult] = []
        for device, codes in message["devices"]:
            if str(device) in self._drilled:
                results.append(self._heal_drilled(str(device)))
                continue
            results.append(self._healed(str(device), tuple(codes), bool(message["may_reset"]), wait_s, reset_wait_s))
        return tuple(results)

    def _healed(self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float) -> HealResult:
        if probe := self._probe_of(device):
            return probe.heal(device, codes, may_reset, wait_s, reset_wait_s)
        return HealResult(device, None, "no device tool is on this node")

    def _tell(self, *messages: dict[str, Any]) -> None:
        """Send the messages, with the start of the ranks that they are about."""
        for message in messages:
            self._line.say({"attempt": self._attempt, **message})


_ORDERS: Mapping[str, Callable[[Agent, Mapping[str, Any]], None]] = {
    "look": Agent._look_now,
    "heal": Agent._heal,
    "drill": Agent._drill,
    "watch": Agent._watch,
    "will": Agent._keep_plan,
    "live": Agent._show,
    "stacks": Agent._tell_stacks,
    "use": lambda agent, message: agent._activity.sample_use(float(message["window_s"]), agent._clock()),
    "quiet": lambda agent, message: agent._activity.set_interval(float(message["after_s"]), agent._clock()),
    "compare": lambda agent, _: agent._tell(agent._beside(agent._stalls.compare)),
    "evidence": Agent._tell_evidence,
}


def signs_of_life(io: Mapping[int, float], beats: Mapping[int, float], now: float) -> dict[int, tuple[float, str]]:
    """rank -> (seconds since its last sign of activity, what that was). All arguments are monotonic seconds."""
    found = {rank: (at, "it did IO") for rank, at in io.items()}
    found |= {rank: (at, "its heart beat") for rank, at in beats.items() if at >= found.get(rank, (at, ""))[0]}
    return {rank: (max(0.0, now - at), what) for rank, (at, what) in found.items()}


def _merged(answers: list[ProbeAnswer]) -> ProbeAnswer:
    """The answers of all kinds of devices of a node as one answer."""
    errors = [answer.error for answer in answers if answer.error]
    return ProbeAnswer(tuple(report for answer in answers for report in answer.reports), "; ".join(errors))


def load_late(message: Mapping[str, Any], node: str) -> None:
    """What a take-over needs, where this agent may have to (0.15 s and 6 MB): by then somebody may have put another version into
    our folder, or none."""
    others = [name for name in message.get("nodes", ()) if name != message.get("batch_node")]
    for name in OF_STANDBYS if node in others[:STANDBYS] else ():
        try:
            importlib.import_module(name)
        except Exception:  # of a file that is being replaced, whatever it is
            pass  # who needs it says so


def stand_by(message: Mapping[str, Any], node: str, heard_at: float, ending: bool) -> None:
    """Stand by for a dead controller. heard_at: when the controller was last heard, as boot_s(). ending: Slurm has asked the step
    to end.
    """
    from ftslurm.errors import FtslurmError
    from ftslurm.model.messages import from_message
    from ftslurm.policies.take_over import may_take_over
    from ftslurm.wrapper.agent.standby import say_to_reader, take_over_from

    plan = from_message(message)
    if may_take_over(plan, node):
        try:
            say_to_reader(f"the agent on {node} ends: {take_over_from(plan, node, heard_at, ending)}")
        except FtslurmError as error:
            say_to_reader(f"the agent on {node} cannot find out whether ftrun still runs:  {error}")


def main() -> None:
    """Runs the agent. Argument: seconds between two device checks."""
    env = dict(os.environ)
    # Signals to the job are for its ranks (`scancel --signal=USR1 JOB` reaches every step); the agent ends with its connection,
    # and before it has one by a SIGTERM: the job may end while it starts.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    node = env.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        channel = Channel(env.pop(CHANNEL_VARIABLE))
        probes, poll_s = choose_probes(env, run_command), float(sys.argv[1])
        hello = {"t": "agent", "node": node, "kinds": [probe.kind for probe in probes]}
        # ftrun listens before it starts us: where all refuse it has ended meanwhile, and it waits for our end.
        line = Session(channel, env, *connect(channel, env, CONNECT_TIMEOUT_S, refused_s=0.0), hello)
        signal.signal(signal.SIGTERM, lambda *_: line.asked_to_end(boot_s()))
        agent = Agent(node, probes, line, poll_s, lambda step: page_folder(step, channel))
        agent.run()
        if plan := agent.handover_plan:
            line.hang_up()
            stand_by(plan, node, line.lease.answered, line.ending(boot_s()))
    except (IndexError, KeyError, OSError, ValueError) as error:
        sys.exit(f"ftslurm: the agent on {node} cannot reach ftrun: {visible(error)}")


if __name__ == "__main__":
    main()
