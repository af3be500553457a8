#!/bin/bash
# Ranks in a container of pyxis and enroot: `srun --container-image=...` became `ftrun --container-image=...`, and nothing else
# changes. The image needs neither ftslurm nor Python. Copy it, change the lines marked <--, and `sbatch pyxis.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=2                     # <-- nodes
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue                     # without it (or JobRequeue=1 in slurm.conf) the ladder ends before the requeue

IMAGE=${IMAGE:-nvcr.io#nvidia/pytorch:25.01-py3}  # <-- or a squashfs file, which nodes need not load from a registry
MOUNTS=${MOUNTS:-$PWD}                # <-- folders of the node, as A:B or A, with commas; ftrun adds its own
TRAIN=${TRAIN:-"python3 train.py"}    # <-- your command; it resumes from its last checkpoint when it is started again

exec ftrun --container-image="$IMAGE" --container-mounts="$MOUNTS" --container-workdir="$PWD" $TRAIN
