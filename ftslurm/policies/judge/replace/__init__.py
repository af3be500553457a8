"""Where ranks run, and other nodes for the slots of bad ones."""
