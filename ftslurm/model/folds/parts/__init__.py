"""What a history has as parts: each keeps one concern of a job's past, and only its own methods change it."""
