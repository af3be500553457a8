#!/bin/sh
# @key@ of slurm.conf; written by `ftslurm install-hooks`.
# Runs as the user. The counters for steps of plain srun and for the batch script; never fails a task.
[ -n "$FTSLURM_CHANNEL" ] && exit 0  # in a step of ftrun's each rank gets its own
job=$SLURM_JOB_ID
[ -n "$SLURM_ARRAY_TASK_ID" ] && job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
set -- "${FTSLURM_STATE_DIR:-$HOME/.ftslurm}"/jobs/*."$job".jsonl
if [ -e "$1" ]; then
    said=$(timeout --kill-after=1 @limit@ @python@ -I -m ftslurm.hooks.task_prolog 2>/dev/null)
    [ $? -eq 0 ] && [ -n "$said" ] && echo "$said" && exit 0
fi
schedule=$(expr "${SLURM_RESTART_COUNT:-0}" + @first@ 2>/dev/null) || schedule=@first@
cat <<END
@without_ledger@END
exit 0
