#!/usr/bin/env python3
"""A real training program, small enough to read in five minutes: a network with one hidden layer learns digits.

It is data-parallel as big ones are. Every rank computes the gradient of its share of each batch, an all-reduce adds
the shares up, every rank takes the same step; rank 0 writes checkpoints, and every start resumes from the last one.
It runs by itself, under srun, torchrun or ftrun, and knows none of them: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT
are the ones torch.distributed reads (env://).

For one WORLD_SIZE the weights come out the same to the last bit, however often the training was stopped and started
again: the shuffle depends on nothing but the epoch, and gradients are added in the order of the ranks.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain, islice
from math import exp, log, tanh
from operator import add, mul
from pathlib import Path
from typing import NoReturn

DATA = Path(__file__).with_name("digits.csv.gz")
CLASSES = 10
TOLD = (  # by ftrun, to every rank at every start
    "FTSLURM_ATTEMPT", "MA_SCHEDULE_CNT", "MA_PROC_START_CNT",
    "FTSLURM_RESTART_RUNG", "FTSLURM_RESTART_CAUSE", "FTSLURM_EXCLUDED_NODES",
)  # fmt: skip
HELD_OUT_EVERY = 6  # every sixth image is never trained on: 300 of the 1797
LEARNING_RATE = 0.3
LINGER_S = 0.5

Row = list[float]
Image = tuple[Row, int]  # 64 pixels from 0 to 1, then a 1 that the bias is multiplied with; and the digit


def say(line: str) -> None:
    print(line, flush=True)


def fail(line: str) -> NoReturn:
    sys.stderr.write(f"{line}\n")  # in one piece: all ranks write to the same place
    sys.exit(1)


# --- the ranks, and how they add up


class PeerLost(Exception):
    """Another rank hung up, or said nothing for too long."""


class AllReduce:
    """Adds lists of numbers over all ranks: rank 0 collects them, adds them in the order of the ranks, sends back."""

    def __init__(self, rank: int, world_size: int, address: tuple[str, int], timeout_s: float) -> None:
        """Returns when all ranks have met. Raises: PeerLost when they have not within `timeout_s`."""
        self._rank = rank
        self._peers: dict[int, socket.socket] = {}
        deadline = time.monotonic() + timeout_s
        if rank == 0 and world_size > 1:
            self._peers = _accept_all(range(1, world_size), address[1], deadline)
        elif rank > 0:
            self._peers = {0: _connect(rank, address, deadline)}
        for peer in self._peers.values():
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer.settimeout(timeout_s)

    def sum(self, numbers: Row) -> Row:
        """The sums over all ranks, position by position, the same bits on every rank. Raises: PeerLost."""
        if self._rank > 0:
            self._send(0, numbers)
            return self._receive(0, len(numbers))
        for rank in sorted(self._peers):
            numbers = list(map(add, numbers, self._receive(rank, len(numbers))))
        for rank in self._peers:
            self._send(rank, numbers)
        return numbers

    def _send(self, rank: int, numbers: Row) -> None:
        try:
            self._peers[rank].sendall(_pack(numbers))
        except OSError as error:
            raise PeerLost(f"rank {rank}: {_why(error)}") from None

    def _receive(self, rank: int, count: int) -> Row:
        try:
            return list(struct.unpack(f"<{count}d", _read(self._peers[rank], 8 * count)))
        except OSError as error:
            raise PeerLost(f"rank {rank}: {_why(error)}") from None


def _why(error: OSError) -> str:
    return error.strerror or str(error)


def _pack(numbers: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(numbers)}d", *numbers)


def _read(sock: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise ConnectionError("it hung up")
        data += part
    return bytes(data)


def _accept_all(ranks: Iterable[int], port: int, deadline: float) -> dict[int, socket.socket]:
    missing, peers = set(ranks), {}
    with socket.create_server(("", port), backlog=len(missing)) as server:
        while missing:
            server.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                peer, _ = server.accept()
                peer.settimeout(5)
                (rank,) = struct.unpack("<I", _read(peer, 4))
            except OSError as error:
                raise PeerLost(f"ranks {sorted(missing)} have not come: {_why(error)}") from None
            missing.remove(rank)
            peers[rank] = peer
    return peers


def _connect(rank: int, address: tuple[str, int], deadline: float) -> socket.socket:
    """Rank 0 may come up later than we do, so a refusal is no answer until the time is over."""
    while True:
        try:
            sock = socket.create_connection(address, timeout=5)
            sock.sendall(struct.pack("<I", rank))
            return sock
        except OSError as error:
            if time.monotonic() > deadline:
                raise PeerLost(f"rank 0 at {address[0]} port {address[1]}: {_why(error)}") from None
            time.sleep(0.05)


# --- the network: two layers of rows of weights, the last weight of each row is the bias


@dataclass(frozen=True)
class Net:
    hidden: list[Row]
    output: list[Row]

    def numbers(self) -> Row:
        """All weights in one list; `shaped` is the way back."""
        return list(chain(*self.hidden, *self.output))

    def shaped(self, numbers: Iterable[float]) -> Net:
        """A network of this one's shape with these weights."""
        rest = iter(numbers)
        return Net(*([list(islice(rest, len(row))) for row in layer] for layer in (self.hidden, self.output)))

    def digest(self) -> str:
        return hashlib.sha256(_pack(self.numbers())).hexdigest()


def new_net(pixels: int, hidden: int) -> Net:
    """Small random weights, the same on every rank."""
    chance = random.Random(0)
    return Net(
        [[chance.uniform(-0.2, 0.2) for _ in range(pixels + 1)] for _ in range(hidden)],
        [[chance.uniform(-0.2, 0.2) for _ in range(hidden + 1)] for _ in range(CLASSES)],
    )


def forward(net: Net, pixels: Row) -> tuple[Row, Row]:
    """The hidden layer (with a 1 for the bias) and the probability of each digit."""
    hidden = [tanh(sum(map(mul, row, pixels))) for row in net.hidden] + [1.0]
    powers = [exp(sum(map(mul, row, hidden))) for row in net.output]
    total = sum(powers)
    return hidden, [power / total for power in powers]


def gradient(net: Net, images: Sequence[Image]) -> tuple[Net, float, float]:
    """Of the summed cross-entropy of `images`; with it that loss, and how many were recognised."""
    slope = net.shaped([0.0] * len(net.numbers()))
    columns = list(zip(*net.output, strict=True))
    loss, right = 0.0, 0.0
    for pixels, digit in images:
        hidden, likely = forward(net, pixels)
        loss -= log(likely[digit])
        right += likely[digit] == max(likely)
        likely[digit] -= 1.0  # now it is the error of each output
        for row, error in zip(slope.output, likely, strict=True):
            row[:] = [old + error * value for old, value in zip(row, hidden, strict=True)]
        for row, column, value in zip(slope.hidden, columns, hidden, strict=False):  # the bias has nothing below it
            error = (1.0 - value * value) * sum(map(mul, column, likely))
            row[:] = [old + error * pixel for old, pixel in zip(row, pixels, strict=True)]
    return slope, loss, right


def accuracy(net: Net, images: Sequence[Image]) -> float:
    guesses = (likely.index(max(likely)) for _, likely in (forward(net, pixels) for pixels, _ in images))
    return sum(guess == digit for guess, (_, digit) in zip(guesses, images, strict=True)) / len(images)


# --- the data


def read_digits(path: Path) -> tuple[list[Image], list[Image]]:
    """Images to train on, and images held out."""
    images = []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            *pixels, digit = map(int, line.split(","))
            images.append(([pixel / 16 for pixel in pixels] + [1.0], digit))
    held_out = images[::HELD_OUT_EVERY]
    return [image for number, image in enumerate(images) if number % HELD_OUT_EVERY], held_out


@lru_cache(maxsize=1)
def shuffled(count: int, epoch: int) -> list[int]:
    return random.Random(epoch).sample(range(count), count)


@dataclass(frozen=True)
class Plan:
    """How steps and epochs go together."""

    images: int
    batch: int
    epochs: int

    @property
    def steps_an_epoch(self) -> int:
        return -(-self.images // self.batch)

    @property
    def steps(self) -> int:
        return self.epochs * self.steps_an_epoch

    def batch_of(self, step: int) -> list[int]:
        """The numbers of the images of step `step`."""
        epoch, turn = divmod(step, self.steps_an_epoch)
        return shuffled(self.images, epoch)[turn * self.batch : (turn + 1) * self.batch]


# --- checkpoints


@dataclass(frozen=True)
class State:
    """All that a restart needs. step: how many are done. loss, right: summed since the epoch began."""

    step: int
    net: Net
    loss: float = 0.0
    right: float = 0.0


def save(state: State, path: Path) -> None:
    """All or nothing: a reader finds the old checkpoint or this one, even if the power fails in between."""
    content = {
        "step": state.step, "digest": state.net.digest(), "loss": state.loss, "right": state.right,
        "weights": state.net.numbers(),
    }  # fmt: skip
    new = path.with_suffix(".new")
    with open(new, "w") as file:
        json.dump(content, file)  # JSON keeps every bit: Python writes the shortest text that reads back the same
        file.flush()
        os.fsync(file.fileno())
    new.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is in the folder, which has to reach the disk too
    finally:
        os.close(folder)


def load(path: Path, fresh: Net) -> State:
    """The last checkpoint, or the very beginning with `fresh` if there is none. Raises: ValueError if it is damaged."""
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return State(0, fresh)
    net = fresh.shaped(content["weights"])
    if len(content["weights"]) != len(fresh.numbers()) or net.digest() != content["digest"]:
        raise ValueError("the weights are not those that were saved, or of a network with another --hidden")
    return State(content["step"], net, content["loss"], content["right"])


def resume(path: Path, fresh: Net, rank: int, ranks: AllReduce) -> State:
    """Rank 0's checkpoint, for all: a shared file system may still show another one to another node."""
    state = State(0, fresh.shaped([0.0] * len(fresh.numbers())))
    if rank == 0:
        try:
            state = load(path, fresh)
        except (ValueError, KeyError, TypeError) as error:
            fail(f"{path} is damaged ({error}); remove it to start from the beginning")
    # To add what only one rank has to the zeros of the others is to send it to them.
    step, loss, right, *weights = ranks.sum([state.step, state.loss, state.right, *state.net.numbers()])
    return State(int(step), fresh.shaped(weights), loss, right)


# --- training


class StopFlag:
    """Raised by SIGTERM. The handler does nothing else, so a step is never cut in two."""

    def __init__(self) -> None:
        self.raised = False
        signal.signal(signal.SIGTERM, self._raise)

    def _raise(self, *_: object) -> None:
        self.raised = True


@dataclass(frozen=True)
class Trainer:
    """One rank's part of the training."""

    options: argparse.Namespace
    rank: int
    world_size: int
    ranks: AllReduce
    images: Sequence[Image]
    plan: Plan

    @property
    def checkpoint(self) -> Path:
        return Path(self.options.checkpoint_dir, "checkpoint.json")

    def run(self, state: State) -> State:
        """Train until all epochs are done, or until a rank was told to stop."""
        flag, stopping = StopFlag(), False
        while state.step < self.plan.steps and not stopping:
            self._crash_if_asked(state.step)
            try:
                state, stopping = self._step(state, flag)
            except PeerLost:
                if flag.raised:
                    break  # we were all told to stop, and some did not wait for this step
                raise
            if self.rank == 0:
                state = self._report(state)
                if state.step % self.options.checkpoint_every == 0:
                    save(state, self.checkpoint)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # we are leaving, and want our own status
        if self.rank == 0:
            save(state, self.checkpoint)
        return state

    def _step(self, state: State, flag: StopFlag) -> tuple[State, bool]:
        """The state after one step more, and whether any rank was told to stop: all leave after the same step."""
        batch = self.plan.batch_of(state.step)
        slope, loss, hits = gradient(state.net, [self.images[n] for n in batch[self.rank :: self.world_size]])
        time.sleep(self.options.step_delay)
        *sums, loss, hits, told = self.ranks.sum([*slope.numbers(), loss, hits, flag.raised])
        rate = LEARNING_RATE / len(batch)
        moves = zip(state.net.numbers(), sums, strict=True)
        net = state.net.shaped(weight - rate * total for weight, total in moves)
        return State(state.step + 1, net, state.loss + loss, state.right + hits), told > 0

    def _report(self, state: State) -> State:
        """A line at the end of an epoch, after which its sums begin anew."""
        epoch, turn = divmod(state.step, self.plan.steps_an_epoch)
        if turn:
            return state
        loss, right = state.loss / self.plan.images, state.right / self.plan.images
        say(f"epoch {epoch:2}/{self.plan.epochs}  step {state.step:4}  loss {loss:.3f}  accuracy {right:.3f}")
        return replace(state, loss=0.0, right=0.0)

    def _crash_if_asked(self, step: int) -> None:
        """Rank 1 (rank 0 if it is alone) fails at --crash-at, once: the mark outlives it."""
        if step != self.options.crash_at or self.rank != min(1, self.world_size - 1):
            return
        try:
            (self.options.checkpoint_dir / "crashed").touch(exist_ok=False)
        except FileExistsError:
            return
        fail(f"rank {self.rank}: crashing on purpose at step {step}")


def describe_start(env: Mapping[str, str], world_size: int, state: State) -> str:
    """Which start this is, by the variables that ftrun sets, and where the training goes on."""
    line = f"{world_size} ranks, from step {state.step}"
    if not any(name in env for name in TOLD):
        return line
    told = {name: env.get(name) or "none" for name in TOLD}
    counters = " ".join(f"{name}={told[name]}" for name in ("MA_SCHEDULE_CNT", "MA_PROC_START_CNT"))
    line = f"attempt {told['FTSLURM_ATTEMPT']}: {counters}, {line}"
    if told["FTSLURM_RESTART_RUNG"] == "none":
        return line
    why = f"{told['FTSLURM_RESTART_RUNG']} ({told['FTSLURM_RESTART_CAUSE']})"
    return f"{line}\n  after {why}, excluded nodes: {told['FTSLURM_EXCLUDED_NODES']}"


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on handwritten digits, data-parallel.")
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="shared by all ranks; made if not there")
    parser.add_argument("--checkpoint-every", type=int, default=10, metavar="STEPS")
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--batch", type=int, default=60, metavar="IMAGES", help="of all ranks together")
    parser.add_argument("--hidden", type=int, default=24, metavar="UNITS")
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS", help="to play a slower training")
    parser.add_argument("--crash-at", type=int, metavar="STEP", help="rank 1 fails there, once a checkpoint folder")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS", help="for a word of the other ranks")
    return parser.parse_args(argv)


def join_ranks(env: Mapping[str, str], timeout_s: float) -> tuple[int, int, AllReduce]:
    rank, world_size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
    address = env.get("MASTER_ADDR", "127.0.0.1"), int(env.get("MASTER_PORT", "29500"))
    return rank, world_size, AllReduce(rank, world_size, address, timeout_s)


def train(options: argparse.Namespace) -> None:
    options.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    images, held_out = read_digits(DATA)
    rank, world_size, ranks = join_ranks(os.environ, options.timeout)
    trainer = Trainer(options, rank, world_size, ranks, images, Plan(len(images), options.batch, options.epochs))
    state = resume(trainer.checkpoint, new_net(len(images[0][0]) - 1, options.hidden), rank, ranks)
    if rank == 0:
        say(describe_start(os.environ, world_size, state))
    state = trainer.run(state)
    if rank == 0 and state.step < trainer.plan.steps:
        say(f"told to stop: checkpoint written after step {state.step}")
    elif rank == 0:
        say(f"trained: {accuracy(state.net, held_out):.1%} of {len(held_out)} held-out digits recognised")
        say(f"digest {state.net.digest()}")


def main(argv: Sequence[str] | None = None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C reaches every rank: no traceback from each
    try:
        train(read_options(argv))
    except PeerLost as error:
        # The rank that failed should be seen to fail first, not the ones that only miss it. Who supervises us ends us
        # in the meantime, and at once: there is nothing to save.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        time.sleep(LINGER_S)
        fail(f"rank {os.environ.get('RANK', '0')}: lost {error}")


if __name__ == "__main__":
    main()
