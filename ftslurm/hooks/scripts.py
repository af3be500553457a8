"""The scripts that slurm.conf names, as text: each starts its module in ftslurm.hooks, time-boxed, and fails open.

Exit status 1 comes from one thing only: the module's own word that the node is bad. A Python that is gone, a bug, a time
limit give 0.
"""

from __future__ import annotations

import shlex
from binascii import crc32
from collections.abc import Mapping

from ftslurm.model.folds.history import History, counters_of_node
from ftslurm.model.values import Value
from ftslurm.policies.environment import counters_env, restart_env

BAD_NODE_STATUS = 10  # of a module, see hooks/hook_inputs.py

# Seconds. Slurm kills a health check after 60 s (slurm.conf(5)); a Prolog should end within MessageTimeout, 10 s by default, and
# takes well under one when all is well. An Epilog may have a chip to reset and a clean-up to wait for.
LIMITS_S: Mapping[str, int] = {"prolog": 30, "epilog": 900, "health_check": 50, "epilog_slurmctld": 700}
TASK_LIMIT_S = 10

_HEAD = """#!/bin/sh
# {key} of slurm.conf; written by `ftslurm install-hooks`.
"""
_HOOK = """# Its own trouble is nobody's: whatever happens in here, the status is 0 unless the node is proven bad.
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
{conf}cd /
timeout --kill-after=2 {limit} {python} -I -m ftslurm.hooks.{name} {config} {folder} </dev/null
status=$?
[ $status -eq {bad} ] && exit 1
said="{name}: ended with status $status (124, 137: cut off after {limit} s); nothing was concluded"
[ $status -eq 0 ] || logger -t ftslurm "$said" 2>/dev/null
exit 0
"""
# slurmctld starts one for each job that ends or is requeued, however many do at once; each of ours is two Pythons of 27 MB.
SLOTS = 4
# Where the slots are, after StateSaveLocation: the first of these that we and nobody but root may write to, on slurmctld's host.
# Without any each one looks at once.
SLOT_PLACES = "/run/slurmctld /run/slurm /run"
_SLURMCTLD = """# Its own trouble is nobody's. Few of them look at jobs at the same time: who finds no slot leaves the job to
# one that does so later, one job after the other, and slurmctld need not wait for that.
# Most jobs are never requeued: no Python for them.
[ "$1" != later ] && [ "${{SLURM_JOB_RESTART_COUNT:-0}}" = 0 ] && exit 0
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
{conf}cd /
look() {{
    (cd / && exec timeout --kill-after=2 {limit} {python} -I -m ftslurm.hooks.{name} {config} {folder} "$@" </dev/null 8>&- 9>&-)
    status=$?
    said="{name}: ended with status $status (124, 137: cut off after {limit} s); nothing was concluded"
    [ $status -eq 0 ] || logger -t ftslurm "$said" 2>/dev/null
}}
# Entered once, and asked of itself whose it is: a name could lead elsewhere the next time. From here on names are relative.
me=$(id -u) slots=
for place in {state} {places}; do
    safe=$(find -H "$place" -maxdepth 0 -type d '(' -uid 0 -o -uid "$me" ')' ! -perm /022 2>/dev/null)
    [ -n "$safe" ] && [ -w "$place" ] || continue
    mkdir -m 0700 "$place/ftslurm-epilog.$me.{mark}" 2>/dev/null
    cd -P "$place/ftslurm-epilog.$me.{mark}" 2>/dev/null && [ "$(stat -c '%u %a' .)" = "$me 700" ] && slots=yes && break
    logger -t ftslurm "{name}: $place/ftslurm-epilog.$me.{mark} is not ours" 2>/dev/null
    cd /
done
if [ "$1" = later ]; then
    while [ -n "$slots" ]; do
        exec 9>later
        flock -n 9 || exit 0
        for job in job.*; do
            [ -f "$job" ] || continue
            (
                while IFS= read -r line; do export "$line"; done <"$job"
                rm -f "$job" && look later
            )
            [ ! -e "$job" ] || exit 0
        done
        exec 9>&-
        set -- job.*  # one may have come before we were gone
        [ -e "$1" ] || exit 0
    done
    exit 0
fi
if [ -z "$slots" ] || ! command -v flock >/dev/null; then
    look
    exit 0
fi
slot=0
while [ $slot -lt {slots} ]; do
    exec 8>"slot.$slot"
    if flock -n 8; then
        look
        exit 0
    fi
    slot=$((slot + 1))
done
exec 8>&-
umask 077
for variable in {variables}; do
    eval "value=\\${{$variable-}}"
    [ -z "$value" ] || printf '%s=%s\\n' "$variable" "$value"
done >"new.$$"
mv "new.$$" "job.$SLURM_JOB_ID"
setsid env -i PATH="$PATH" sh "$0" later </dev/null >/dev/null 2>&1 &
exit 0
"""
# What the hook reads (hooks/hook_inputs.py), and commands of Slurm.
_VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_UID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CLUSTER_NAME", "SLURM_JOB_NODELIST",
    "SLURM_JOB_RESTART_COUNT", "SLURM_CONF",
)  # fmt: skip
_TASK = """# Runs as the user. The counters for steps of plain srun and for the batch script; never fails a task.
[ -n "$FTSLURM_CHANNEL" ] && exit 0  # in a step of ftrun's each rank gets its own
job=$SLURM_JOB_ID
[ -n "$SLURM_ARRAY_TASK_ID" ] && job=${{SLURM_ARRAY_JOB_ID}}_$SLURM_ARRAY_TASK_ID
set -- "${{FTSLURM_STATE_DIR:-$HOME/.ftslurm}}"/jobs/*."$job".jsonl
if [ -e "$1" ]; then
    said=$(timeout --kill-after=1 {limit} {python} -I -m ftslurm.hooks.task_prolog 2>/dev/null)
    [ $? -eq 0 ] && [ -n "$said" ] && echo "$said" && exit 0
fi
schedule=$(expr "${{SLURM_RESTART_COUNT:-0}}" + {first} 2>/dev/null) || schedule={first}
cat <<END
{without_ledger}END
exit 0
"""
_OWNER = """# Started by the others as the owner of a job, to read that job's ledger with no more rights than its owner.
# Where Slurm's configuration lies was settled when this was written, and no variable gets through: whoever may start this
# names nothing that Slurm loads a plug-in by.
cd /
exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin LANG=C.UTF-8 {owner_conf}\\
    {python} -I -m ftslurm.hooks.as_owner {config} "$@"
"""


class Script(Value):
    """key: of slurm.conf, empty for a helper."""

    name: str
    key: str
    text: str


KEYS: Mapping[str, str] = {
    "prolog": "Prolog",
    "epilog": "Epilog",
    "task_prolog": "TaskProlog",
    "epilog_slurmctld": "EpilogSlurmctld",
    "health_check": "HealthCheckProgram",
    "as_owner": "",
}


def _without_ledger() -> tuple[int, str]:
    """MA_SCHEDULE_CNT of a job that was never requeued, and the lines for a task of a job without a ledger.

    All but that one number is the same whatever happened to such a job. A requeue adds one to it (`schedule_count`), and the
    script does that itself: steps of jobs that never saw ftrun would start a Python for each task to have it added.
    """
    first = counters_of_node(History(), 0, None)
    told = {**counters_env(first), "MA_SCHEDULE_CNT": "$schedule", **restart_env("", "", "")}
    return first.schedule, "".join(f"export {name}={value}\n" for name, value in told.items())


def scripts(folder: str, python: str, config: str, slurm_conf: str, state: str = "") -> tuple[Script, ...]:
    """python: the interpreter that has ftslurm. config: the site's file. state: slurmctld's StateSaveLocation, empty if it is not
    known. Full paths.

    slurm_conf: where it is not at its usual place; slurmctld does not tell EpilogSlurmctld.
    """
    conf = f"SLURM_CONF=${{SLURM_CONF:-{shlex.quote(slurm_conf)}}}\nexport SLURM_CONF\n" if slurm_conf else ""
    owner_conf = f"SLURM_CONF={shlex.quote(slurm_conf)} " if slurm_conf else ""
    quoted = {"folder": shlex.quote(folder), "python": shlex.quote(python), "config": shlex.quote(config)}
    mark = crc32(f"{folder} {config}".encode())  # two clusters of one host have slots of their own
    first, without_ledger = _without_ledger()
    made = []
    for name, key in KEYS.items():
        body = {"task_prolog": _TASK, "as_owner": _OWNER, "epilog_slurmctld": _SLURMCTLD}.get(name, _HOOK)
        limit = LIMITS_S.get(name, TASK_LIMIT_S)
        text = (_HEAD + body).format(
            key=key or "No line",
            name=name,
            mark=f"{mark:08x}",
            limit=limit,
            state=shlex.quote(state) if state else "",
            places=SLOT_PLACES,
            slots=SLOTS,
            variables=" ".join(_VARIABLES),
            conf=conf,
            owner_conf=owner_conf,
            bad=BAD_NODE_STATUS,
            first=first,
            without_ledger=without_ledger,
            **quoted,
        )
        made.append(Script(name, key, text))
    return tuple(made)


SETTINGS = """# What ftslurm's Prolog, Epilog, HealthCheckProgram and EpilogSlurmctld do here. Root's; all of it may be left out.
# health_command: [/usr/sbin/nhc]   # status 0: well; 1 to 125: not, and its last line is the reason; else: not known
# health_timeout: 10s
# devices: {ascend: 8}              # fewer than these: the node is bad (ascend, nvidia, amd or a plugin's)
# device_timeout: 10s
# limit: 20s                        # for all that the Prolog or the health check looks at
# kernel_log: /dev/kmsg             # '' reads none
# leftovers: true                   # Epilog: end what the job's user left, if no other job of the user is on the node
# kill_grace: 2s                    # from SIGTERM to SIGKILL
# kill_wait: 10s                    # from SIGKILL to calling a process unkillable; the node is drained for it
# leftovers_limit: 2m               # for all that the Epilog does about leftovers
# cleanup: [[/usr/local/sbin/unmount-scratch]]   # Epilog: the site's own commands, as root
# cleanup_limit: 10m                # for all of them
# cleanup_grace_of_job: false       # true: a job's MA_FAILOVER_TERMINATION_GRACE_PERIOD_SECONDS may cut the wait for it short
# reset_wait: 3m                    # Epilog: reset chips whose fault stays; for sites where jobs share no nodes; default: never
# ledgers: ['{home}/.ftslurm']      # where users keep their ledgers (FTSLURM_STATE_DIR)
# first_user_id: 1000               # jobs of users below are left alone
# finish_requeues: true             # false: EpilogSlurmctld does nothing
# finish_after: 3s                  # for so long it lets a job finish its requeue itself
# start_in: 4s                      # the least time to a requeued job's start where its nodes are not watched
# slurm_timeout: 10s                # for one request to slurmctld
# catalogs: []                      # files of the site's own codes and log lines; root's, as this one
# state: /var/lib/ftslurm           # on each node: what was seen, evidence of leftovers
# environment: {LD_LIBRARY_PATH: /usr/local/Ascend/driver/lib64/driver}   # of health command and device tools
"""
