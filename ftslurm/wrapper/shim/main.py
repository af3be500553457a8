"""Where a shim starts."""

from __future__ import annotations

import os
import sys

from ftslurm.wrapper.shim.fast_stdlib import socket
from ftslurm.wrapper.shim.loop import OWN_FAILURE, Shim
from ftslurm.wrapper.shim.output.output import DELIVER_S, Output
from ftslurm.wrapper.shim.output.target import complain, open_streams
from ftslurm.wrapper.shim.protocol.connection import CHANNEL_VARIABLE, Channel, NobodyAnswers, connect
from ftslurm.wrapper.shim.signals import catch_signals, end_as, passes_signals_on

CONNECT_TIMEOUT_S = 30.0
MARK = "FTSLURM_CALLED"  # see system/programs.py
SET_ASIDE = ("FTSLURM_LD_PRELOAD", "FTSLURM_LD_AUDIT")  # see launchers/python.py


def main() -> None:
    argv = sys.argv[1:]
    env = dict(os.environ)
    # Slurm gives every task pipes of its own; the local launcher, if it need not label, its own to all.
    output = Output(open_streams(), shared=bool(env.get("FTSLURM_LOCAL")))
    if argv[:1] == ["--"]:
        argv = argv[1:]
    wakeup = catch_signals()
    rank = env.get("SLURM_PROCID", "?")
    try:
        channel = Channel(env.pop(CHANNEL_VARIABLE))
        env.pop(MARK, None)
        for name in [name for name in env if name.startswith(SET_ASIDE)]:
            env[name.removeprefix("FTSLURM_")] = env.pop(name)
        sock, link = connect(channel, env, CONNECT_TIMEOUT_S)
        local = passes_signals_on(env)
        env.pop("FTSLURM_LOCAL", None)
        status = Shim(argv, env, channel, sock, link, wakeup, local, output).run()
    except (IndexError, KeyError, OSError, ValueError) as error:
        firewall = " (a firewall between the nodes? FTRUN_NODES_PORTS and FTRUN_NODES_ADDRESS say what it lets through)"
        why = f"{error}{firewall if isinstance(error, NobodyAnswers) else ''}"
        complain(f"ftslurm: rank {rank} on {socket.gethostname()} cannot reach ftrun, so its command was not started: {why}")
        os._exit(OWN_FAILURE)
    output.deliver(DELIVER_S)
    end_as(status)
