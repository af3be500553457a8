"""`ft_launcher`: the command line of NVIDIA's and of torchrun, run by ftrun."""
