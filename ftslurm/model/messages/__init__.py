"""What ranks, shims, agents and controller tell each other, as values and as the dicts that travel."""
