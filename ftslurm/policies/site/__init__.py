"""Which parts of a site's configuration hinder ftrun: facts in, findings out (`ftslurm doctor`).

A check is a row of catalogs/site-checks.yaml, with the words of its outcomes, and a function of its name here that says which
outcome holds.
"""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.site import Change, Site, SiteCheck, SiteChecks, SiteFinding, SiteLevel, Whose
from ftslurm.policies.site import cluster_rules, machine_rules, requeue_rules
from ftslurm.policies.site.reading import NotSaid

JUDGES = {**machine_rules.JUDGES, **requeue_rules.JUDGES, **cluster_rules.JUDGES}

_SLURM = "scontrol(1), show config"
_ORDER = tuple(SiteLevel)
_USERS = ("job script", "policy.yaml", "shell")


def examine(site: Site, checks: SiteChecks) -> tuple[SiteFinding, ...]:
    """One finding for each check that applies here, the worst first, otherwise in the order of the checks.

    If Slurm does not answer, nothing is guessed from defaults: all checks of Slurm become one finding, unknown.
    """
    asked = {**checks.machine, **(checks.slurm if site.config else {})}
    found = [finding for name, check in asked.items() if (finding := _finding(name, check, site)) is not None]
    if not site.config:
        reason = f"{len(checks.slurm)} checks need an answer from Slurm"
        found.append(SiteFinding("configuration", SiteLevel.UNKNOWN, reason, source=_SLURM))
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.level)))


def _finding(name: str, check: SiteCheck, site: Site) -> SiteFinding | None:
    try:
        if missing := [key for key in check.keys if key not in site.config]:
            raise NotSaid(f"Slurm does not show {missing[0]}")
        holds = JUDGES[name](site)
    except NotSaid as why:
        return SiteFinding(name, SiteLevel.UNKNOWN, str(why), source=check.source)
    if holds is None:
        return None
    said = check.outcomes[holds.outcome]
    reason, lost, *changes = (text.format(**holds.values) for text in (said.reason, said.lost, *said.changes))
    return SiteFinding(name, said.level, reason, lost, said.rungs, tuple(map(_change, changes)), check.source)


def _change(text: str) -> Change:
    file, _, line = text.partition(": ")
    return Change(Whose.USER if file in _USERS else Whose.ADMIN, file.removeprefix("root's "), line)


def blocks(findings: Sequence[SiteFinding]) -> bool:
    """Is there a rung that cannot be used here?"""
    return any(finding.level is SiteLevel.BLOCKS for finding in findings)
