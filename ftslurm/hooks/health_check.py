"""Slurm's HealthCheckProgram: drains the node on proof of its own, and undrains it when that proof is gone.

It knows its own drains by the prefix of their reason; those of an administrator or of another program it leaves alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ftslurm.hooks.hook_inputs import Memory, drain, node_name, run_hook, taken_back, undrain
from ftslurm.hooks.node_look import look_at_node
from ftslurm.model.settings.hook_settings import HookSettings
from ftslurm.model.values import replace
from ftslurm.policies.node import PREFIX, Drain, Leave, NodeHealth, Undrain, judge, next_step
from ftslurm.slurm.cli_client import SlurmAdmin, is_drained, is_to_reboot
from ftslurm.slurm.client import NodeState, NodeView


def check(settings: HookSettings, env: Mapping[str, str]) -> tuple[bool, str]:
    """Slurm is asked only where something is to be done: every node of a cluster runs this at the same time."""
    node = node_name(env)
    memory, admin = Memory(settings.state, node), SlurmAdmin(settings.slurm_timeout_s)
    known = memory.read()
    view = admin.node(node) if known.drained else None
    looked = look_at_node(settings, node, taken_back(known, view))
    verdict = judge(looked.findings)
    if view is None and verdict.health is not NodeHealth.BAD:
        memory.change(known, looked.remembered)
        return True, f"{node} is left as it is ({verdict.health.value}: {verdict.reason})"
    view = admin.node(node)  # again: the look may have taken a while
    step = next_step(verdict, is_drained(view), view.state is NodeState.BAD, is_to_reboot(view), view.reason)
    sentence = _do(admin, node, step)
    memory.change(known, replace(looked.remembered, drained=_drained_by_us(step, view)))
    return True, sentence


def _do(admin: SlurmAdmin, node: str, step: Drain | Undrain | Leave) -> str:
    if isinstance(step, Drain):
        return f"{node} {drain(admin, node, step.reason)}: {step.reason}"
    if isinstance(step, Undrain):
        return f"{node} {undrain(admin, node)}: {step.why}"
    return f"{node} is left as it is: {step.why}"


def _drained_by_us(step: Drain | Undrain | Leave, view: NodeView) -> bool:
    if isinstance(step, Leave):
        return is_drained(view) and view.reason.startswith(PREFIX)
    return isinstance(step, Drain)


def main() -> None:
    run_hook("health_check", node_name(os.environ), check)


if __name__ == "__main__":
    main()
