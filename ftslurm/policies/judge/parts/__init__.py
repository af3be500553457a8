"""The judge's parts: each owns its state, and only its own methods change it. The groups decide what follows."""
