"""Hangs, stalls and slow ranks: what is seen of them, and what follows."""
