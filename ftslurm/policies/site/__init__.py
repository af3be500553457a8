"""Which parts of a site's configuration hinder ftrun: facts in, findings out (`ftslurm doctor`). Here the table of rules."""

from __future__ import annotations

from collections.abc import Sequence

from ftslurm.model.site import Said, Site, SiteFinding, SiteLevel
from ftslurm.policies.site import cluster_rules, machine_rules, requeue_rules
from ftslurm.policies.site.reading import NotSaid, Rule

# Rules about this machine: they are checked even if Slurm does not answer.
OF_THE_MACHINE: Sequence[Rule] = machine_rules.RULES
OF_SLURM: Sequence[Rule] = (*requeue_rules.RULES, *cluster_rules.RULES)
RULES: Sequence[Rule] = (*OF_THE_MACHINE, *OF_SLURM)

_SLURM = "scontrol(1), show config"
_ORDER = tuple(SiteLevel)


def examine(site: Site) -> tuple[SiteFinding, ...]:
    """One finding for each rule that applies here, the worst first, otherwise in the order of the table.

    If Slurm does not answer, nothing is guessed from defaults: all rules about Slurm become one finding, unknown.
    """
    rules = RULES if site.config else OF_THE_MACHINE
    found = [SiteFinding(rule.check, said, rule.source) for rule in rules if (said := _said(rule, site)) is not None]
    if not site.config:
        found.append(
            SiteFinding("configuration", Said(SiteLevel.UNKNOWN, f"{len(OF_SLURM)} checks need an answer from Slurm"), _SLURM)
        )
    return tuple(sorted(found, key=lambda finding: _ORDER.index(finding.said.level)))


def _said(rule: Rule, site: Site) -> Said | None:
    missing = [key for key in rule.keys if key not in site.config]
    if missing:
        return Said(SiteLevel.UNKNOWN, f"Slurm does not show {missing[0]}")
    try:
        return rule.judge(site)
    except NotSaid as why:
        return Said(SiteLevel.UNKNOWN, str(why))


def blocks(findings: Sequence[SiteFinding]) -> bool:
    """Is there a rung that cannot be used here?"""
    return any(finding.said.level is SiteLevel.BLOCKS for finding in findings)
