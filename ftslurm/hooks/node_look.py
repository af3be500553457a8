"""Looks at a node with all that a Prolog and a health check may ask: devices, the site's command, the kernel log, leftovers.

The time for all of it is set; what finds no time any more is UNKNOWN.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from itertools import chain

from ftslurm.config.fault_lookup import fault_lookup
from ftslurm.hooks.hook_inputs import HookMemory
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.values import Value, replace
from ftslurm.policies import node as rules
from ftslurm.policies.kernel_log import kernel_findings, last_kernel_line, parse_kernel_log
from ftslurm.policies.node import NodeFinding, NodeHealth
from ftslurm.system.owner import PATH
from ftslurm.system.processes import still_there
from ftslurm.wrapper.node_check import command_findings, read_devices

# The kernel keeps some hundred KB of its log.
MAX_LOG_BYTES = 8 << 20
MAX_RECORD_BYTES = 8192


class Looked(Value):
    """remembered: what there is to remember now."""

    findings: tuple[NodeFinding, ...]
    remembered: HookMemory


def tool_env(settings: HookSettings, node: str) -> dict[str, str]:
    """Of what we start as root: nothing of the job's, and the node's name."""
    return {"PATH": PATH, "LANG": "C.UTF-8", "SLURMD_NODENAME": node, **settings.environment}


def look_at_node(settings: HookSettings, node: str, known: HookMemory) -> Looked:
    """The cheap things first. May raise what a bug raises; nothing is concluded then."""
    deadline = time.monotonic() + settings.limit_s
    stuck = still_there(known.stuck)
    findings = [NodeFinding("leftover", NodeHealth.BAD, f"process {one.pid} ({one.name}) outlives SIGKILL") for one in stuck]
    said, known = _kernel(settings, node, replace(known, stuck=stuck))
    findings += said
    findings += _command(settings, node, deadline)
    findings += _devices(settings, node, deadline)
    return Looked(tuple(findings), known)


def _kernel(settings: HookSettings, node: str, known: HookMemory) -> tuple[tuple[NodeFinding, ...], HookMemory]:
    """Each line is judged once. What it proved stays proved until the next boot, or until a person takes the node back."""
    if not settings.kernel_log:
        return (), known
    try:
        data = _read_log(settings.kernel_log.replace("{node}", node))
    except OSError as error:
        return (NodeFinding("kernel log", NodeHealth.UNKNOWN, f"it cannot be read: {error.strerror}"),), known
    lines = parse_kernel_log(data, known.read_to)
    known = replace(known, read_to=last_kernel_line(data, known.read_to))
    if lines:
        from ftslurm.config.catalog_files import load_pattern_book

        said = kernel_findings(
            lines, load_pattern_book(settings.catalogs, only_roots=True), fault_lookup((), settings.catalogs, only_roots=True)
        )
        if said[0].health is NodeHealth.BAD:
            return said, replace(known, proof=said[0].what)
    if known.proof:
        return (NodeFinding("kernel log", NodeHealth.BAD, known.proof, stays=True),), known
    return (NodeFinding("kernel log", NodeHealth.GOOD),), known


def _read_log(path: str) -> bytes:
    """All that is there now. Of /dev/kmsg each read gives one record, EPIPE where some were lost, EAGAIN at the end."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    data = bytearray()
    try:
        while len(data) < MAX_LOG_BYTES:
            try:
                piece = os.read(fd, MAX_RECORD_BYTES)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue
            if not piece:
                break
            data += piece
    finally:
        os.close(fd)
    return bytes(data)


def _command(settings: HookSettings, node: str, deadline: float) -> tuple[NodeFinding, ...]:
    left_s = min(settings.health_timeout_s, deadline - time.monotonic())
    return command_findings(settings.health_command, left_s, tool_env(settings, node))


def _devices(settings: HookSettings, node: str, deadline: float) -> tuple[NodeFinding, ...]:
    env: Mapping[str, str] = tool_env(settings, node)
    os.environ.update(env)  # the probes' helpers inherit ours
    meaning = fault_lookup((), settings.catalogs, only_roots=True)
    seen = dict(read_devices(env, deadline, settings.device_timeout_s))
    found = (rules.device_findings(kind, answer, settings.devices.get(kind, 0), meaning) for kind, answer in seen.items())
    return (*chain.from_iterable(found), *rules.missing_kinds(settings.devices, list(seen)))
