"""The agent: one a node. Looks at the devices and tells the controller; heals them when asked.

It runs as the user, decides nothing, and ends when the controller does. While all is well it costs one run of the
device tool every `poll_s` seconds and sends nothing.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any

from ftslurm.devices.probe import Probe, choose_probes
from ftslurm.model.devices import DeviceHealth, HealResult, ProbeAnswer
from ftslurm.model.wire import devices_message, healed_message
from ftslurm.system.commands import run as run_command
from ftslurm.wrapper.shim import CHANNEL_VARIABLE, Channel, Link, LinkError, connect, receive

CONNECT_TIMEOUT_S = 30.0
# For one look at the devices of a node; npu-smi takes well under a second when it is well.
LOOK_TIMEOUT_S = 20.0


class Agent:
    """One loop over the socket and the clock."""

    def __init__(self, node: str, probes: tuple[Probe, ...], sock: Any, link: Link, poll_s: float) -> None:
        self._node = node
        self._probes = probes
        self._sock = sock
        self._link = link
        self._poll_s = poll_s
        self._told_bad = False

    def run(self) -> None:
        self._say({"t": "agent", "node": self._node, "kinds": [probe.kind for probe in self._probes]})
        poll = select.poll()
        poll.register(self._sock, select.POLLIN)
        next_look = time.monotonic()
        while True:
            wait_s = max(0.0, next_look - time.monotonic()) if self._probes else None
            if poll.poll(None if wait_s is None else wait_s * 1000):
                if not self._listen():
                    return
            else:
                self._look(asked=False)
                next_look = time.monotonic() + self._poll_s

    def _listen(self) -> bool:
        """False when the controller has gone."""
        try:
            for message in receive(self._sock, self._link):
                self._told(message)
        except EOFError:
            return False
        except (OSError, LinkError, KeyError, TypeError, ValueError) as error:
            print(f"ftslurm: the agent on {self._node} ends: {error}", file=sys.stderr)
            return False
        return True

    def _told(self, message: Mapping[str, Any]) -> None:
        if message["t"] == "look":
            self._look(asked=True)
        elif message["t"] == "heal":
            self._heal(message)
        else:
            raise ValueError(f"unknown message {message['t']!r}")

    def _look(self, asked: bool) -> None:
        """Told are answers to questions, anything that is not well, and the first look after that."""
        answer = merged([probe.read(LOOK_TIMEOUT_S) for probe in self._probes])
        bad = bool(answer.error) or any(report.health is not DeviceHealth.GOOD for report in answer.reports)
        if asked or bad or self._told_bad:
            self._say(devices_message(answer, asked))
        self._told_bad = bad

    def _heal(self, message: Mapping[str, Any]) -> None:
        wait_s, reset_wait_s = float(message["wait_s"]), float(message["reset_wait_s"])
        results: list[HealResult] = []
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # a reset takes minutes; a cancelled job does not wait for it
        for device, codes in message["devices"]:
            probe = self._probes[0]  # the one whose report named the device; one kind a node
            results.append(probe.heal(str(device), tuple(codes), bool(message["may_reset"]), wait_s, reset_wait_s))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        self._say(healed_message(tuple(results)))

    def _say(self, message: dict[str, Any]) -> None:
        self._sock.sendall(self._link.pack(message))


def merged(answers: list[ProbeAnswer]) -> ProbeAnswer:
    """All kinds of a node as one answer."""
    errors = [answer.error for answer in answers if answer.error]
    return ProbeAnswer(tuple(report for answer in answers for report in answer.reports), "; ".join(errors))


def main() -> None:
    """Argument: seconds between two looks."""
    env = dict(os.environ)
    # Signals to the job are for its ranks (`scancel --signal=USR1 JOB` reaches every step); the agent ends with its
    # connection.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    node = env.get("SLURMD_NODENAME") or socket.gethostname()
    try:
        sock, link = connect(Channel(env.pop(CHANNEL_VARIABLE)), env, CONNECT_TIMEOUT_S)
        Agent(node, choose_probes(env, run_command), sock, link, float(sys.argv[1])).run()
    except (IndexError, KeyError, OSError, ValueError) as error:
        sys.exit(f"ftslurm: the agent on {node} cannot reach ftrun: {error}")


if __name__ == "__main__":
    main()
