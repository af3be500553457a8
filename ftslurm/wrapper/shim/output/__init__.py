"""The command's output: where it goes, what is kept of it, and when it has been silent for too long."""
