"""What is made of a ledger's records, read from first to last: a job's past, what its owner asked for, its line in a list."""
