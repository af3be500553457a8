#!/bin/bash
# A training that keeps its allocation when a node dies: a spare takes its place. Copy it, change the lines marked <--, and
# `sbatch spare-nodes.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=3                     # <-- nodes of the training, and the spares
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --exclusive
#SBATCH --time=1-00:00:00             # <--
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue
#SBATCH --no-kill                     # the allocation outlives a node that dies

# --ft-spares 1: the training runs on two of the three nodes, and sees only these. The bad one is replaced in place: the other
# ranks are started again where they are, with MA_PROC_START_CNT one more; those of the new node have MA_SCHEDULE_CNT one more.
# Once the spare is used up a node is borrowed by a small job of its own (nodes.donor). It is waited for five minutes at the most;
# then the job is requeued without the bad nodes. node-replacement.budget: how many nodes may be replaced in all.
# nodes.health_command: a check of your own, run on a node before ranks go there.
ftrun \
    --ft-spares 1 \
    --ft-set rungs.node-replacement.budget=4 --ft-set nodes.replacement_wait=5m \
    --ft-set nodes.health_command=/bin/true \
    --ft-rendezvous torch \
    ${TRAIN:-python3 train.py}        # <-- your command
status=$?

# A requeue ends this script by SIGTERM, so what follows runs only when the job is over, well or not.
ftslurm history "$SLURM_JOB_ID"
exit $status
