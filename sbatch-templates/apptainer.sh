#!/bin/bash
# Ranks in a container of Apptainer, which is to ftrun a program like any other. Copy it, change the lines marked <--, and
# `sbatch apptainer.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=2                     # <-- nodes
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue                     # without it (or JobRequeue=1 in slurm.conf) the ladder ends before the requeue

IMAGE=${IMAGE:-train.sif}             # <-- the image
BIND=${BIND:-$PWD,/opt/ftslurm}       # <-- folders of the node; /opt/ftslurm: where ftslurm is installed, for heartbeats and ftslurm.sdk
TRAIN=${TRAIN:-"python3 train.py"}    # <-- your command; it resumes from its last checkpoint when it is started again

# No --cleanenv: the rank, the rendezvous and the page for heartbeats come by variables.
exec ftrun apptainer exec --nv --bind "$BIND" "$IMAGE" $TRAIN
