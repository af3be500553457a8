"""What a rank has said in its notes, without the places that they stand at."""

from __future__ import annotations

from ftslurm.sdk.notes import Note, read_placed


def read_notes(path: str, offset: int) -> tuple[tuple[Note, ...], int]:
    found, end = read_placed(path, offset)
    return tuple(note for _, note in found), end
