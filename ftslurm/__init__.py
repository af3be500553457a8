"""ftslurm keeps a training job alive on Slurm; `ftrun` stands where `srun` stood."""

__version__ = "0.1.0"
