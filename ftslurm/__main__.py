"""`python -m ftslurm` is `ftrun`."""

from ftslurm.cli.ftrun import main

main()
