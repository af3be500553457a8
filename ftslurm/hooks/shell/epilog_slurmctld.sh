#!/bin/sh
# @key@ of slurm.conf; written by `ftslurm install-hooks`.
# Its own trouble is nobody's. Few of them look at jobs at the same time: who finds no slot leaves the job to
# one that does so later, one job after the other, and slurmctld need not wait for that.
# Most jobs are never requeued: no Python for them.
[ "$1" != later ] && [ "${SLURM_JOB_RESTART_COUNT:-0}" = 0 ] && exit 0
PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
@conf@cd /
look() {
    (cd / && exec timeout --kill-after=2 @limit@ @python@ -I -m ftslurm.hooks.@name@ @config@ @folder@ "$@" </dev/null 8>&- 9>&-)
    status=$?
    said="@name@: ended with status $status (124, 137: cut off after @limit@ s); nothing was concluded"
    [ $status -eq 0 ] || logger -t ftslurm "$said" 2>/dev/null
}
# Entered once, and asked of itself whose it is: a name could lead elsewhere the next time. From here on names are relative.
me=$(id -u) slots=
for place in @state@ @places@; do
    safe=$(find -H "$place" -maxdepth 0 -type d '(' -uid 0 -o -uid "$me" ')' ! -perm /022 2>/dev/null)
    [ -n "$safe" ] && [ -w "$place" ] || continue
    mkdir -m 0700 "$place/ftslurm-epilog.$me.@mark@" 2>/dev/null
    cd -P "$place/ftslurm-epilog.$me.@mark@" 2>/dev/null && [ "$(stat -c '%u %a' .)" = "$me 700" ] && slots=yes && break
    logger -t ftslurm "@name@: $place/ftslurm-epilog.$me.@mark@ is not ours" 2>/dev/null
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
while [ $slot -lt @slots@ ]; do
    exec 8>"slot.$slot"
    if flock -n 8; then
        look
        exit 0
    fi
    slot=$((slot + 1))
done
exec 8>&-
umask 077
# What the hook reads, and commands of Slurm.
for variable in SLURM_JOB_ID SLURM_JOB_UID SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_CLUSTER_NAME SLURM_JOB_NODELIST \
    SLURM_JOB_RESTART_COUNT SLURM_CONF; do
    eval "value=\${$variable-}"
    [ -z "$value" ] || printf '%s=%s\n' "$variable" "$value"
done >"new.$$"
mv "new.$$" "job.$SLURM_JOB_ID"
setsid env -i PATH="$PATH" sh "$0" later </dev/null >/dev/null 2>&1 &
exit 0
