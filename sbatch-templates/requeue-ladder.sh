#!/bin/bash
# A long training with the requeue ladder spelled out. Copy it, change the lines marked <--, and `sbatch requeue-ladder.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=2                     # <-- nodes
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --time=1-00:00:00             # <-- a day; the training goes on in the next requeue
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue
#SBATCH --signal=TERM@300             # 5 minutes before the limit every rank gets SIGTERM: time for a checkpoint
# The ladder of ModelArts, as its annotations: 8 requeues in all, also after a crash that nothing explains.
# The single quotes are needed: sbatch would take the double ones for its own.
#SBATCH --comment='{"fault-tolerance/job-retry-num":"8","fault-tolerance/job-unconditional-retry":"true"}'

# Where the ledger is kept: on the shared file system. The default is ~/.ftslurm.
# export FTSLURM_STATE_DIR=/shared/$USER/ftslurm

# The counters for this script itself; every rank gets them anyway.
eval "$(ftslurm env)"

# 1 at first, one more with every requeue: what must be done once a scheduling, on fresh nodes, goes here.
echo "scheduling $MA_SCHEDULE_CNT, attempt $FTSLURM_ATTEMPT, last remedy: ${FTSLURM_RESTART_RUNG:-none}, without: ${FTSLURM_EXCLUDED_NODES:-none}"

# warning.requeue: the SIGTERM above ends in a requeue that costs nothing, once the ranks have written their checkpoint.
# stop.grace: what a rank gets between SIGTERM and SIGKILL when another one has failed.
ftrun \
    --ft-set warning.requeue=true --ft-set warning.grace=4m \
    --ft-set stop.grace=20s \
    --ft-rendezvous torch \
    ${TRAIN:-python3 train.py}        # <-- your command
status=$?

# A requeue ends this script by SIGTERM, so what follows runs only when the job is over, well or not.
ftslurm history "$SLURM_JOB_ID"
exit $status
