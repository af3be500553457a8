"""What `ftslurm explain` shows: the decisions of a job, the ladder in force, the meaning of a code. Pure: values in, text out."""
