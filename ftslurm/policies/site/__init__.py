"""What of a site's configuration stands in the way of ftrun: facts in, findings out. Pure."""
