"""What the verdict on a large failed job takes of a processor: 1,000 ranks, 100 MB of last words, benign and hostile."""

from __future__ import annotations

import random
import time

from measure import Series

from ftslurm.config.catalog_files import load_pattern_book
from ftslurm.model.exits import ExitStatus
from ftslurm.model.verdict import Piece, RankEnd
from ftslurm.policies.diagnose import Facts, diagnose

RANKS, TAIL_BYTES, PIECES, ROUNDS = 1000, 100_000, 50, 5
SEED = 20261121

ORDINARY = "[2026-11-21 12:00:01,123] [INFO] [rank {rank}] iteration {n:8}/ 500000 | lm loss: 2.3{n} | grad norm: 0.12\n"
CASCADE = "[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: SeqNum={n}\n"
ROOT = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
# Pieces of what the patterns look for, so that an automaton never settles.
WORDS = (
    "GPU", "CUDA error: ", "NET/IB : ", "Connection ", "timed out", "\tat ", "SIG", "[Errno 1", "EI00", "error code is 5070",
    "loss", " nan",
)  # fmt: skip


def words_of(rank: int, line: str, random_: random.Random) -> tuple[Piece, ...]:
    size = TAIL_BYTES // PIECES
    pieces = []
    for number in range(PIECES):
        text = ""
        while len(text) < size:
            text += line.format(rank=rank, n=random_.randrange(100000)) if line else "".join(random_.choices(WORDS, k=200))
        pieces.append(Piece(1000.0 + number, "err", text[:size]))
    return tuple(pieces)


def job(line: str) -> tuple[RankEnd, ...]:
    random_ = random.Random(SEED)
    ends = []
    for rank in range(RANKS):
        output = words_of(rank, line, random_)
        if rank == 7 and line != "":
            output = (*output, Piece(1050.0, "err", ROOT))
        ends.append(RankEnd(rank, f"n{rank // 8}", ExitStatus(1), 1051.0 + rank / 1000, stopped=rank != 7, output=output))
    return tuple(ends)


def measure() -> list[Series]:
    book = load_pattern_book(()).of_ranks()
    found = []
    for name, line in (("ordinary lines", ORDINARY), ("a cascade on every rank", CASCADE), ("hostile text", "")):
        ends = job(line)
        size = sum(len(piece.text) for end in ends for piece in end.output)
        times = []
        for _ in range(ROUNDS):
            began = time.process_time()  # it waits for nothing, and others may use the machine
            diagnose(ends, Facts(), book)
            times.append(time.process_time() - began)
        found.append(Series(f"verdict on {RANKS} ranks, {size / 1e6:.0f} MB: {name}", tuple(times), "s"))
    return found


if __name__ == "__main__":
    for series in measure():
        print(series)
