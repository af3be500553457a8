"""The rules of `ftslurm doctor`, over what real Slurm said of its configuration, and over one change of it at a time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from ftslurm.config.catalog_files import load_site_checks
from ftslurm.config.settings_files import SettingsAsked, settings_in_force
from ftslurm.hooks.scripts import KEYS, LIMITS_S
from ftslurm.model.rungs import LEAVES, RUNG_NAMES, Rung
from ftslurm.model.site import Folder, Ledgers, Machine, OwnJob, Partition, Program, Site, SiteFinding, SiteLevel
from ftslurm.policies.site import JUDGES, blocks, cluster_rules, requeue_rules
from ftslurm.policies.site import examine as examined
from ftslurm.policies.start_time import SLURMS_OWN_S, WATCH_S
from ftslurm.slurm.parse import parse_config, parse_partitions
from ftslurm.wrapper.requeue.dead_nodes import KEEPS_GPUS
from ftslurm.wrapper.requeue.finish import SPARE_S

CHECKS = load_site_checks()
ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests/recorded/slurm"
CONFIGS = {
    path: parse_config((RECORDED / f"{path}.txt").read_text())
    for path in ("22.05/config", "22.05/config-apart", "24.11/config", "26.05/config")
}
ON_NFS = Folder("/home/me/.ftslurm", "nfs4", frozenset({"rw", "local_lock=none"}))
WELL = Machine(
    python="/shared/bin/python", version=(3, 11), installed=Folder("/shared/bin", "lustre"), ftrun=Program("/shared/bin/ftrun"),
    srun=Program("/usr/bin/srun"), first_srun="/usr/bin/srun", ledgers=Ledgers(ON_NFS, sync_s=0.002), tools=("nvidia",),
)  # fmt: skip
PARTITIONS = (Partition("main", nodes=4),)
OURS = {key: f"/usr/local/lib/ftslurm/{name}" for name, key in KEYS.items() if key}
# A site with all that ftrun may wish for.
GOOD = {
    **CONFIGS["24.11/config"], **OURS, "HealthCheckInterval": "300 sec", "KillWait": "30 sec", "SlurmdTimeout": "60 sec",
    "SchedulerParameters": "sched_interval=10,nohold_on_prolog_fail", "PrologFlags": "Alloc", "JobFileAppend": "1",
    "AccountingStorageType": "accounting_storage/slurmdbd", "ProctrackType": "proctrack/cgroup", "TaskPlugin": "task/cgroup",
    "ConstrainDevices": "yes", "ConstrainRAMSpace": "yes", "SrunPortRange": "60000-60100", "GresTypes": "gpu",
}  # fmt: skip


def site(config: Mapping[str, str], **more: object) -> Site:
    return replace(Site(config=config, partitions=PARTITIONS, nodes=4, machine=WELL), **more)  # type: ignore[arg-type]


def examine(asked: Site) -> tuple[SiteFinding, ...]:
    return examined(asked, CHECKS)


def found(asked: Site) -> dict[str, SiteFinding]:
    findings = examine(asked)
    assert len({finding.check for finding in findings}) == len(findings)
    return {finding.check: finding for finding in findings}


def levels(asked: Site) -> dict[str, str]:
    """Of what is not well."""
    return {name: finding.level.value for name, finding in found(asked).items() if finding.level is not SiteLevel.OK}


def test_a_site_where_nothing_is_missing() -> None:
    assert levels(site(GOOD)) == {}
    assert not blocks(examine(site(GOOD)))


_FLAT = {
    "SlurmdTimeout": None, "slurmdbd": "costs", "JobFileAppend": "costs", "KillWait": "costs", "EpilogSlurmctld": "costs",
    "Prolog": "costs", "Epilog": "costs", "TaskProlog": "costs", "HealthCheckProgram": "costs", "SrunPortRange": "unknown",
    "ProctrackType": "costs", "TaskPlugin": "costs",
}  # fmt: skip


@pytest.mark.parametrize(("recorded", "other"), [
    ("22.05/config", {}),
    ("24.11/config", {}),
    ("26.05/config", {"expedited requeue": "costs"}),
    ("22.05/config-apart", {
        "Slurm's release": "costs", "SlurmdTimeout": "costs", "KillWait": None, "Epilog": "unknown", "ProctrackType": None, "TaskPlugin": None,
    }),
])  # fmt: skip
def test_what_is_found_in_recorded_configurations(recorded: str, other: Mapping[str, str | None]) -> None:
    wanted = {name: level for name, level in {**_FLAT, **other}.items() if level}
    assert levels(site(CONFIGS[recorded])) == wanted


CASES: list[tuple[str, Mapping[str, str], str, str, str]] = [
    # check, what differs from GOOD, level, words of reason or loss, a line to change
    ("Slurm's release", {"SLURM_VERSION": "22.05.8"}, "costs", "bug 16121", "Slurm 23.02.2 or later"),
    ("Slurm's release", {"SLURM_VERSION": "22.05.8", "GresTypes": ""}, "ok", "has no GPUs", ""),
    ("Slurm's release", {"SLURM_VERSION": "23.02.2"}, "ok", "none of the bugs", ""),
    ("Slurm's release", {"SLURM_VERSION": "27.11.0"}, "unknown", "22.05 to 26.05", ""),
    ("Slurm's release", {"SLURM_VERSION": "devel"}, "unknown", "cannot read", ""),
    ("JobRequeue", {"JobRequeue": "0"}, "blocks", "--requeue", "#SBATCH --requeue"),
    ("EpilogSlurmctld", {"EpilogSlurmctld": ""}, "costs", "45 s after its first requeue", OURS["EpilogSlurmctld"]),
    ("EpilogSlurmctld", {"EpilogSlurmctld": "", "Epilog": ""}, "costs", "6 s after its first requeue", "ftslurm install-hooks --dry-run"),
    ("EpilogSlurmctld", {"EpilogSlurmctld": "/site/ctld"}, "unknown", "cannot see", ""),
    ("expedited requeue", {"SLURM_VERSION": "25.11.0"}, "costs", "0.1 s", "SlurmctldParameters=enable_expedited_requeue"),
    ("expedited requeue", {"SLURM_VERSION": "26.05.5", "SlurmctldParameters": "enable_expedited_requeue"}, "ok", "0.1 s", ""),
    ("MaxBatchRequeue", {"MaxBatchRequeue": "1"}, "costs", "1 times", "MaxBatchRequeue=5"),
    ("RequeueExit", {"RequeueExit": "1-9,18"}, "costs", "1-9, 18", "RequeueExit="),
    ("RequeueExitHold", {"RequeueExitHold": "93"}, "costs", "releases", "RequeueExitHold="),
    ("scheduling interval", {"SchedulerParameters": ""}, "costs", "every 30 s", "sched_interval=10"),
    ("scheduling interval", {"SchedulerParameters": "bf_interval=-1,sched_interval=-1"}, "costs", "16 to 22 s", "bf_interval=10"),
    ("scheduling interval", {"SchedulerParameters": "sched_interval=soon"}, "unknown", "not a number", ""),
    ("CompleteWait", {"CompleteWait": "32 sec"}, "costs", "32 s", "CompleteWait=0"),
    ("KillWait", {"KillWait": "5 sec"}, "costs", "for 2 s instead of 9 s", "KillWait=30"),
    ("KillWait", {"KillWait": "five"}, "unknown", "cannot read", ""),
    ("JobFileAppend", {"JobFileAppend": "0"}, "costs", "16 MB", "#SBATCH --open-mode=append"),
    ("SlurmdTimeout", {"SlurmdTimeout": "300 sec"}, "costs", "450 to 600 s", "SlurmdTimeout=60"),
    ("SlurmdTimeout", {"SlurmdTimeout": "0 sec"}, "blocks", "for ever", "SlurmdTimeout=60"),
    ("disable_job_shrink", {"SchedulerParameters": "bf_interval=1,disable_job_shrink"}, "costs", "90 to 120 s", "SchedulerParameters=bf_interval=1"),
    ("slurmdbd", {"AccountingStorageType": ""}, "costs", "90 to 120 s", "AccountingStorageType=accounting_storage/slurmdbd"),
    ("slurmdbd", {"AccountingStorageType": "", "SLURM_VERSION": "22.05.8"}, "costs", "121 s", ""),
    ("MessageTimeout", {"MessageTimeout": "60 sec"}, "costs", "50 s more", "MessageTimeout=10"),
    ("PrivateData", {"PrivateData": "jobs,nodes"}, "costs", "90 to 120 s", "PrivateData=jobs"),
    ("ReturnToService", {"ReturnToService": "0"}, "costs", "resumes it", "ReturnToService=1"),
    ("UnkillableStepTimeout", {"UnkillableStepTimeout": "600 sec"}, "costs", "600 s", "UnkillableStepTimeout=60"),
    ("Prolog", {"Prolog": ""}, "costs", "Prolog is not set", OURS["Prolog"]),
    ("Prolog", {"Prolog": "", "Prolog[0]": "/site/prolog", "Prolog[1]": OURS["Prolog"]}, "ok", "checks each node", ""),
    ("TaskProlog", {"TaskProlog": ""}, "costs", "MA_SCHEDULE_CNT", 'eval "$(ftslurm env)"'),
    ("HealthCheckInterval", {"HealthCheckInterval": "0 sec"}, "costs", "never runs", "HealthCheckInterval=300"),
    ("nohold_on_prolog_fail", {"SchedulerParameters": "bf_interval=1"}, "costs", "releases", "SchedulerParameters=bf_interval=1,nohold_on_prolog_fail"),
    ("PrologFlags", {"PrologFlags": "X11"}, "costs", "spare", "PrologFlags=X11,Alloc"),
    ("PrologFlags", {"PrologFlags": "Contain,X11"}, "ok", "spares", ""),
    ("PrologEpilogTimeout", {"PrologEpilogTimeout": "600 sec"}, "costs", "900 s", "PrologEpilogTimeout=960"),
    ("PrologEpilogTimeout", {"PrologEpilogTimeout": "600 sec", "Epilog": ""}, "ok", "", ""),
    ("limits", {"AccountingStorageEnforce": "associations,limits,qos"}, "unknown", "donor", ""),
    ("power saving", {"SuspendTime": "600 sec", "ResumeTimeout": "600 sec"}, "costs", "600 s", "nodes.replacement_wait: 660s"),
    ("MpiDefault", {"MpiDefault": "pmix"}, "costs", "pmix", "#SBATCH --nodes=N+1"),
    ("PreemptMode", {"PreemptMode": "GANG,SUSPEND"}, "costs", "lease.time", "nodes.donor: false"),
    ("PreemptMode", {"PreemptMode": "CANCEL"}, "costs", "ends a job", "PreemptMode=REQUEUE"),
    ("PreemptMode", {"PreemptMode": "REQUEUE"}, "ok", "does not end", ""),
    ("SrunPortRange", {"SrunPortRange": "0-0"}, "unknown", "firewall", "SrunPortRange=60000-60100"),
    ("SrunPortRange", {"SrunPortRange": "7-9-1"}, "unknown", "cannot read", ""),
    ("AuthType", {"AuthType": "auth/slurm"}, "costs", "network", "nodes.secret: file"),
    ("AuthType", {"AuthType": "auth/slurm", "TLSType": "tls/s2n"}, "ok", "TLS", ""),
    ("ProctrackType", {"ProctrackType": "proctrack/linuxproc"}, "costs", "under 1 s", "ProctrackType=proctrack/cgroup"),
    ("ProctrackType", {"ProctrackType": "proctrack/pgid"}, "unknown", "not tried", "ProctrackType=proctrack/cgroup"),
    ("TaskPlugin", {"TaskPlugin": "task/none"}, "costs", "does not confine", "TaskPlugin=task/cgroup,task/affinity"),
    ("ConstrainDevices", {"ConstrainDevices": "no"}, "costs", "devices", "ConstrainDevices=yes"),
    ("ConstrainRAMSpace", {"ConstrainRAMSpace": "no"}, "costs", "memory", "ConstrainRAMSpace=yes"),
    ("memory", {"SelectTypeParameters": "CR_CORE_MEMORY"}, "costs", "empty node", "#SBATCH --mem=SIZE"),
    ("memory", {"SelectTypeParameters": "CR_CORE_MEMORY", "DefMemPerCPU": "4000"}, "ok", "on each node", ""),
    ("SelectType", {"SelectType": "select/linear"}, "unknown", "not tried", "SelectType=select/cons_tres"),
    ("job_container", {"JobContainerType": "job_container/tmpfs"}, "costs", "donor", ""),
    ("LaunchParameters", {"LaunchParameters": "use_interactive_step,mpir_use_nodeaddr"}, "unknown", "mpir_use_nodeaddr", ""),
]  # fmt: skip


@pytest.mark.parametrize(("check", "differs", "level", "words", "line"), CASES)
def test_one_change_of_a_good_site(check: str, differs: Mapping[str, str], level: str, words: str, line: str) -> None:
    every = found(site({**GOOD, **differs}))
    if level == "ok" and not words:
        assert check not in every or every[check].level is SiteLevel.OK
        return
    said = every[check]
    assert said.level.value == level
    assert words in f"{said.reason}; {said.lost}"
    assert any(line in change.line for change in said.changes) or not line
    if level in ("costs", "blocks"):
        assert said.changes and (said.lost or said.rungs)
    assert (said.level is SiteLevel.BLOCKS) == bool(said.rungs) == blocks(examine(site({**GOOD, **differs})))


def test_partitions_and_nodes() -> None:
    exclusive = (*PARTITIONS, Partition("whole", exclusive=True, nodes=2), Partition("one", nodes=1))
    every = found(site(GOOD, partitions=exclusive))
    assert "whole" in every["exclusive partitions"].reason
    assert every["exclusive partitions"].changes[0].line == "#SBATCH --no-kill"
    assert every["partitions of one node"].level is SiteLevel.COSTS
    assert found(site(GOOD, nodes=1))["nodes"].level is SiteLevel.BLOCKS
    assert levels(site(GOOD, nodes=0, partitions=None)) == dict.fromkeys(
        ("nodes", "exclusive partitions", "partitions of one node"), "unknown"
    )


@pytest.mark.parametrize(("job", "level"), [
    (OwnJob(7), "ok"), (OwnJob(7, batch=False), "blocks"), (OwnJob(7, requeue=False), "blocks"),
])  # fmt: skip
def test_the_job_that_asks(job: OwnJob, level: str) -> None:
    assert found(site(GOOD, job=job))["this job"].level.value == level


MACHINES: list[tuple[str, Machine, str]] = [
    ("Slurm", replace(WELL, srun=Program(why="`srun` is not on PATH")), "blocks"),
    ("srun", replace(WELL, first_srun="/as-srun/srun", stands_in=True), "ok"),
    ("ftrun", replace(WELL, ftrun=Program()), "costs"),
    ("ftrun", replace(WELL, version=(3, 9)), "blocks"),
    ("installation", replace(WELL, installed=Folder("/opt/x/bin", "ext4")), "unknown"),
    ("installation", replace(WELL, installed=Folder("/dev/shm/x", "tmpfs")), "blocks"),
    ("state folder", replace(WELL, ledgers=Ledgers(ON_NFS, "Permission denied")), "blocks"),
    ("state folder, shared", replace(WELL, ledgers=Ledgers(Folder("/tmp/x", "tmpfs"), sync_s=0.0)), "blocks"),
    ("state folder, shared", replace(WELL, ledgers=Ledgers(Folder("/home/x", "xfs"), sync_s=0.0)), "unknown"),
    ("state folder, shared", replace(WELL, ledgers=Ledgers(sync_s=0.0)), "unknown"),
    ("state folder, locks", replace(WELL, ledgers=Ledgers(ON_NFS, no_lock="No locks available", sync_s=0.0)), "blocks"),
    ("state folder, locks", replace(WELL, ledgers=Ledgers(replace(ON_NFS, options=frozenset({"nolock"})), sync_s=0.0)), "costs"),
    ("state folder, sync", replace(WELL, ledgers=Ledgers(ON_NFS, sync_s=2.5)), "costs"),
    ("open files", replace(WELL, connections=(9216, 3968)), "blocks"),
    ("devices", replace(WELL, tools=()), "unknown"),
    ("devices", replace(WELL, deaf={"nvidia": "nvidia"}), "costs"),
    ("hook scripts", replace(WELL, scripts={OURS["Prolog"]: False}), "unknown"),
    ("hook scripts", replace(WELL, scripts={OURS["Prolog"]: False}, on_node=True), "costs"),
    ("hook scripts", replace(WELL, scripts={OURS["Prolog"]: True}), "ok"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "machine", "level"), MACHINES)
def test_one_change_of_the_machine(check: str, machine: Machine, level: str) -> None:
    assert found(site(GOOD, machine=machine))[check].level.value == level


def test_a_home_that_cannot_be_written_costs_the_requeues_alone() -> None:
    finding = found(site(GOOD, machine=replace(WELL, ledgers=Ledgers(ON_NFS, "Permission denied"))))["state folder"]
    assert finding.rungs == ("isolated-requeue", "unconditional-requeue") and "first node" in finding.reason


def test_only_an_administrator_hears_of_the_settings_of_the_hooks() -> None:
    machine = replace(WELL, scripts={OURS["Prolog"]: True}, hook_settings="hooks.yaml: line 3 is no setting")
    assert "hook settings" not in found(site(GOOD, machine=machine))
    assert found(site(GOOD, machine=machine, admin=True))["hook settings"].level is SiteLevel.COSTS


def test_a_key_that_slurm_does_not_show_is_unknown() -> None:
    tried = 0
    for name, check in CHECKS.slurm.items():
        for key in check.keys:
            config = {other: value for other, value in GOOD.items() if other != key}
            finding = found(site(config)).get(name)
            assert finding is not None and finding.level is SiteLevel.UNKNOWN, (name, key)
            assert key in finding.reason
            tried += 1
    assert tried >= 30
    old = {key: value for key, value in GOOD.items() if key not in ("Prolog", "Epilog")} | {"SLURM_VERSION": "22.05.8"}
    assert {name for name, level in levels(site(old)).items() if level == "unknown"} >= {"Prolog", "Epilog"}


def test_a_slurm_that_does_not_answer_says_nothing() -> None:
    every = found(Site(silent="no answer", machine=WELL))
    assert every["Slurm"].level is SiteLevel.BLOCKS
    assert every["configuration"].level is SiteLevel.UNKNOWN
    assert not CHECKS.slurm.keys() & {*every}


@pytest.mark.parametrize("text", ["", "x", "-1", "9" * 40, "1 day", "\x1b[31m", "a=b,c", "INFINITE", "UNLIMITED sec", "٣ sec"])
def test_no_value_of_a_key_is_an_error(text: str) -> None:
    for key in {key for check in CHECKS.slurm.values() for key in check.keys} | {"Prolog", "Epilog", "EpilogSlurmctld"}:
        examine(site({**GOOD, key: text}))


def test_the_worst_comes_first() -> None:
    ranks = [list(SiteLevel).index(each.level) for each in examine(site({**CONFIGS["22.05/config"], "JobRequeue": "0"}))]
    assert ranks == sorted(ranks) and len({*ranks}) == len(SiteLevel)


# --- what the checks say holds


def test_each_check_has_its_function_and_its_rungs() -> None:
    every = {**CHECKS.machine, **CHECKS.slurm}
    assert every.keys() == JUDGES.keys()
    named = {rungs for check in every.values() for each in check.outcomes.values() if (rungs := each.rungs)}
    assert {tuple(Rung(name) for name in RUNG_NAMES if name != Rung.FAIL), LEAVES} <= named


def everything() -> list[SiteFinding]:
    asked = [site({**GOOD, **differs}) for _, differs, *_ in CASES] + [site(GOOD, machine=machine) for _, machine, _ in MACHINES]
    asked += [site(config) for config in CONFIGS.values()] + [site(GOOD, job=OwnJob(7, requeue=False))]
    return [finding for each in asked for finding in examine(each)]


def test_lines_of_a_policy_are_settings(tmp_path: Path) -> None:
    lines = {change.line for each in everything() for change in each.changes if change.file == "policy.yaml"}
    assert len(lines) >= 6
    for line in lines:
        assert isinstance(yaml.safe_load(line), dict), line
        file = tmp_path / "policy.yaml"
        file.write_text(line + "\n")
        settings_in_force(SettingsAsked(policy=str(file)), {}, site=tmp_path / "none")


def test_sources_are_there() -> None:
    for check in (*CHECKS.machine.values(), *CHECKS.slurm.values()):
        path, _, heading = check.source.partition(", ")
        if re.fullmatch(r"\w+(\.conf)?\(\d\)", path):
            continue
        headings = re.findall(r"^##+ (.*)$", (ROOT / path).read_text(), re.MULTILINE)
        in_the_text = re.findall(r"^\*\*([^*]+)\.\*\*", (ROOT / path).read_text(), re.MULTILINE)
        assert not heading or any(each.startswith(heading.strip('"')) for each in (*headings, *in_the_text)), check.source


def test_figures_are_those_of_the_code() -> None:
    assert KEEPS_GPUS == requeue_rules.LOSES_GPUS_BEFORE
    assert requeue_rules.KILL_WAIT_S == WATCH_S + SPARE_S
    assert requeue_rules.SLURMS_OWN_S == SLURMS_OWN_S
    assert (LIMITS_S["prolog"], LIMITS_S["epilog"]) == (cluster_rules.PROLOG_S, cluster_rules.EPILOG_S)
    lines = {change for check in CHECKS.slurm.values() for each in check.outcomes.values() for change in each.changes}
    assert {f"slurm.conf: {key}={OURS[key]}" for key in OURS} <= lines
    assert (
        settings_in_force(SettingsAsked(), {}, site=Path("/nowhere")).settings.nodes.replacement_wait_s
        == cluster_rules.REPLACEMENT_WAIT_S
    )


def test_reads_the_partitions_of_a_real_slurm() -> None:
    text = (RECORDED / "22.05/partitions.txt").read_text()
    (main,) = parse_partitions(text)
    assert (main.name, main.exclusive, main.nodes) == ("main", False, 3)
    assert parse_partitions(text.replace("OverSubscribe=NO", "OverSubscribe=EXCLUSIVE"))[0].exclusive
