"""What the judge has: each part owns its state, and only its own methods write to it. What follows from it the groups decide."""
