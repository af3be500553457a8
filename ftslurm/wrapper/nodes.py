"""Nodes that jobs excluded after a fault, or that were drained for one: from each user's memory, and from Slurm."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from ftslurm.errors import FtslurmError, StateError, UnknownJob, UsageError
from ftslurm.ledger.shared_file import NodeMemory, parse_memory
from ftslurm.model.folds.node_memory import NodeCleared, Remembered, remembered
from ftslurm.model.nodes import expand, fold_nodes
from ftslurm.model.settings.tree import Settings
from ftslurm.model.values import Value, field
from ftslurm.policies.node import PREFIX
from ftslurm.policies.node_advice import advice
from ftslurm.report.site import LeftBy, NodeReport
from ftslurm.slurm.cli_client import SlurmClient
from ftslurm.slurm.client import NodeView
from ftslurm.slurm.parse import conf_seconds
from ftslurm.wrapper.all_ledgers import CLEARED, FORGET, MEMORY, MEMORY_BYTES, asked_of_all
from ftslurm.wrapper.explain_code import Explainer

# A person waits for this.
ASK_S = 10.0
LIMIT_S = 30.0
DRAINED = re.compile(r"DRAIN|DOWN|FAIL")


def of_me(root: Path, settings: Settings, now: float) -> tuple[Remembered, ...]:
    """The nodes that this user's jobs remember. Raises: StateError."""
    return remembered(NodeMemory(root).read(), now, settings.isolation.memory_s)


def of_all(
    ledgers: Sequence[str], first_user_id: int, settings: Settings, now: float, passed_over: Callable[[str], None]
) -> dict[str, tuple[Remembered, ...]]:
    """user -> the remembered nodes. ledgers: as in hooks.yaml. Only root can read others' memory."""
    found = {}
    for owner, said in asked_of_all(first_user_id, ledgers, MEMORY, (), LIMIT_S, MEMORY_BYTES, also=(os.geteuid(),)):
        if isinstance(said, StateError):
            passed_over(f"what jobs of {owner.name} remember cannot be read: {said}")
        elif told := remembered(parse_memory(said), now, settings.isolation.memory_s):
            found[owner.name] = told
    return found


def clear(root: Path, known: Iterable[Remembered], wanted: str, now: float) -> str:
    """Forget all nodes of the set `wanted`. Gives what was done. Raises: UsageError for no node set, UnknownJob, StateError."""
    nodes = frozenset(expand(wanted))
    found = [node for node in known if node.node in nodes]
    if not found:
        raise UnknownJob(f"no job has excluded {wanted}", hint="`ftslurm nodes` lists the nodes that jobs excluded")
    NodeMemory(root).add([NodeCleared(now, node.cluster, node.node) for node in found])
    jobs = dict.fromkeys(job for node in found for job in node.jobs)
    unknown = nodes - {node.node for node in found}
    rest = f"; no job had excluded {fold_nodes(unknown)}" if unknown else ""
    return f"{fold_nodes({node.node for node in found})}: forgotten, excluded by {', '.join(jobs)}{rest}"


def clear_for_all(ledgers: Sequence[str], first_user_id: int, wanted: str, now: float) -> list[str]:
    """As root: forget them in each user's memory, with that user's rights. Gives the users whose memory changed. Raises:
    UsageError.
    """
    if os.geteuid() != 0:
        raise UsageError("only root may change what other users' jobs remember", hint="omit --all-users, or use sudo")
    expand(wanted)
    asked = asked_of_all(first_user_id, ledgers, FORGET, (now, wanted), LIMIT_S, MEMORY_BYTES, also=(0,))
    return sorted(owner.name for owner, said in asked if said == CLEARED)


# --- Slurm's word


class SlurmSays(Value):
    """config: as SlurmClient.config. silent: why Slurm does not answer, empty if it does."""

    cluster: str = ""
    nodes: tuple[NodeView, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    silent: str = ""


def ask_slurm(env: Mapping[str, str], client: SlurmClient | None = None) -> SlurmSays:
    client = client or SlurmClient(timeout_s=ASK_S, env=env)
    try:
        config = client.config()
        return SlurmSays(config.get("ClusterName", ""), client.nodes(), config)
    except FtslurmError as error:
        return SlurmSays(silent=str(error))


def reports(told: Mapping[str, Sequence[Remembered]], slurm: SlurmSays, advise: Callable[[str], str]) -> list[NodeReport]:
    """One report for each node that is remembered, or that ftslurm drained. told: user -> remembered nodes."""
    left: dict[tuple[str, str], list[LeftBy]] = {}
    for user, nodes in told.items():
        for node in nodes:
            by = LeftBy(user, node.jobs, node.at, node.why, node.expires, node.suspect)
            left.setdefault((node.cluster, node.node), []).append(by)
    seen = {(slurm.cluster, view.name): view for view in slurm.nodes}
    drained = {key for key, view in seen.items() if view.reason.startswith(PREFIX) and DRAINED.search(view.words)}
    return [
        _report(key, seen.get(key), sorted(left.get(key, ()), key=lambda by: -by.at), key in drained, slurm.config, advise)
        for key in sorted(left.keys() | drained)
    ]


def _report(
    key: tuple[str, str], view: NodeView | None, left: Sequence[LeftBy], drained: bool, config: Mapping[str, str],
    advise: Callable[[str], str],
) -> NodeReport:  # fmt: skip
    out = view if view is not None and DRAINED.search(view.words) else None
    reasons = [out.reason] if out is not None and drained else []
    advices = [advise(reason) for reason in (*reasons, *(by.why for by in left))]
    told = "; ".join(dict.fromkeys(each for each in advices if each))
    words = view.words if view is not None else ""
    if out is None:
        return NodeReport(key[1], key[0], words, "", "", 0, tuple(left), "", told)
    comes_back = _comes_back(key[1], out.reason, config) if drained else "when whoever took it out of service says so"
    return NodeReport(key[1], key[0], words, out.reason, out.reason_by, out.reason_at, tuple(left), comes_back, told)


def _comes_back(node: str, reason: str, config: Mapping[str, str]) -> str:
    by_hand = f"scontrol update NodeName={node} State=RESUME"
    if "kernel log: " in reason or "uninterruptible" in reason:
        return f"after a reboot, or by hand: {by_hand}"
    if "ftslurm" in config.get("HealthCheckProgram", "") and (every_s := conf_seconds(config.get("HealthCheckInterval", ""))):
        return f"as soon as the health check (every {every_s:g} s) finds it well"
    return f"by hand: {by_hand}"


def adviser(settings: Settings) -> Callable[[str], str]:
    """Gives the function that explains a drain reason. Raises: PolicyError if a site's catalogue is wrong."""
    explainer = Explainer(settings)

    return lambda reason: advice(reason, explainer.known_in(reason))
