"""`python -m ftslurm` is `ftrun`."""

from ftslurm.cli.doors import ftrun

ftrun()
