"""What can be set: the tree of ftrun's settings, the hooks' own, and the flags and files of other programs that mean the same."""
