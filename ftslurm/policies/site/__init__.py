"""Which parts of a site's configuration hinder ftrun: facts in, findings out. Pure."""
