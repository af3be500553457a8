"""`python -m ftslurm.cli.ft_launcher` is ours, whichever package has the script of that name."""

from ftslurm.cli.ft_launcher.command import main

main()
