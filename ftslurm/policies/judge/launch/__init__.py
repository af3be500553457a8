"""A step and its ranks start."""
