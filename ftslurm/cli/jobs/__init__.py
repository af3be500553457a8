"""The doors that look at a job and steer it."""
