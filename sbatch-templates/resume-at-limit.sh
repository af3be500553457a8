#!/bin/bash
# A training that is longer than the time limit: before the limit it saves, and goes on in the next scheduling of the same job.
# Copy it, change the lines marked <--, and `sbatch resume-at-limit.sh`.
#SBATCH --job-name=train
#SBATCH --nodes=2                     # <-- nodes
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --time=12:00:00               # <-- as long as one scheduling may take
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue

# Five minutes before the limit every rank gets SIGTERM: it writes a checkpoint and exits. The requeue costs no budget.
# Without =5m ftrun takes what a checkpoint was seen to take (sections of the program interface), else two minutes.
TRAIN=${TRAIN:-"python3 train.py"}    # <-- your command; it may stand in the next line instead

exec ftrun --ft-resume-at-limit=5m $TRAIN
