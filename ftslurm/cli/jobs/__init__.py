"""The doors that look at jobs, one or all, and steer them."""
