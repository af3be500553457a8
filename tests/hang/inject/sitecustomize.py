"""What puts the probe into the ranks of these tests, and nothing else."""

from ftslurm.sdk import probe

probe.arm()
