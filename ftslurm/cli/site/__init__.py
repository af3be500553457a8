"""The doors that look at the cluster: its configuration, its nodes, its hooks, its metrics, and who is notified."""
