#!/bin/bash
# The least there is to say: `srun` became `ftrun`. Copy it, change the lines marked <--, and `sbatch plain.sh`.
#
# A rank that fails ends the others. If a device fault that heals stands behind it, all run again in place; if a node is
# to blame, the job is requeued without it; otherwise it is requeued as it is, three times in a row at the most.
#SBATCH --job-name=train
#SBATCH --nodes=2                     # <-- nodes
#SBATCH --ntasks-per-node=2           # <-- one task a device
#SBATCH --output=%x-%j.out
#SBATCH --open-mode=append            # a requeued job keeps its number, and with it this file: do not overwrite it
#SBATCH --requeue                     # without it (or JobRequeue=1 in slurm.conf) the ladder ends before the requeue

# The program must resume from its last checkpoint when it is started again. That is all that is asked of it.
TRAIN=${TRAIN:-"python3 train.py"}    # <-- your command; it may stand in the next line instead

exec ftrun $TRAIN
