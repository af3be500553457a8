"""Builds the parts of one ftrun and joins them. The only place that chooses.

`survey` finds out where ftrun is and what is in force, `run` goes on from there: `on_slurm`, `locally`, or in a new allocation.
These two make what differs between them, `facts`, `earlier` and `ranks` what the judge, and the ranks, are told, and `joining`
puts it all together.
"""
