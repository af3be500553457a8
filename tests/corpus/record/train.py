"""A small data-parallel training run that fails in the way it is asked to: `train.py FAILURE --ranks 2 --at 3`.

The recorder starts one process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

import argparse
import logging
import os
import signal
import sys
import time

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

parser = argparse.ArgumentParser(prog="train.py")
parser.add_argument("failure")
parser.add_argument("--ranks", default="all", help="the ranks that fail, `all` or as 1,3")
parser.add_argument("--at", type=int, default=2, help="the step in which they fail")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--timeout", type=float, default=30.0, help="seconds that a collective waits")
args = parser.parse_args()
FAILS = args.ranks == "all" or str(RANK) in args.ranks.split(",")


# ---- before torch is loaded
def import_error():
    import flash_attn_2_cuda  # noqa: F401


def syntax_error():
    import schedule  # noqa: F401


def too_new():
    from typing import Unpacked  # noqa: F401


def exit_3():
    print("nothing left to do for this shard", flush=True)
    sys.exit(3)


def no_words():
    os._exit(1)


def open_config():
    return open("/home/user/config/model.json").read()


def read_shard():
    with open(f"/data/c4/shard-{RANK:05d}.bin", "rb") as shard:
        return shard.read(1024)


def decode_config():
    import json

    return json.loads('{"lr": 0.001, "layers": }')


def recursion():
    def walk(tree):
        return walk(tree)

    walk({})


def memory_error():
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    cache = bytearray(8 << 30)
    return cache


def thread_fails():
    import threading

    def publish():
        raise ConnectionResetError(104, "Connection reset by peer")

    publisher = threading.Thread(target=publish, name="metrics")
    publisher.start()
    publisher.join()


def retries_tracker():
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for attempt in range(3):
        try:
            import socket

            socket.create_connection(("127.0.0.1", 9), timeout=1)
        except OSError as error:
            logging.warning("tracker not reachable (attempt %d of 3): %s; going on without", attempt + 1, error)
            time.sleep(0.1)
    try:
        open("/home/user/.config/tracker.ini")  # noqa: SIM115
    except FileNotFoundError:
        logging.warning("no tracker.ini", exc_info=True)


FIRST = {
    f.__name__: f
    for f in (
        import_error,
        syntax_error,
        too_new,
        exit_3,
        no_words,
        open_config,
        read_shard,
        decode_config,
        recursion,
        memory_error,
    )
}
if FAILS and args.failure in FIRST:
    FIRST[args.failure]()
if args.failure == "retries_tracker" and RANK == 0:
    retries_tracker()
if args.failure == "thread_fails" and RANK == 0:
    thread_fails()

import warnings  # noqa: E402

warnings.filterwarnings("ignore", message="Failed to initialize NumPy")

import ctypes  # noqa: E402
from datetime import timedelta  # noqa: E402

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


# ---- while the run is set up
def cuda_missing():
    return torch.zeros(1, device="cuda")


def late_for_the_store():
    time.sleep(60)


def truncated_checkpoint(values=1 << 20):
    torch.save({"w": torch.zeros(values)}, f"last-{RANK}.pt")
    os.truncate(f"last-{RANK}.pt", os.path.getsize(f"last-{RANK}.pt") // 2)
    return torch.load(f"last-{RANK}.pt")


def truncated_small_checkpoint():
    return truncated_checkpoint(4096)


def other_checkpoint():
    old = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    model.load_state_dict(old.state_dict())


# ---- in a training step
def load_batch():
    rows = {n: torch.randn(4, 8) for n in range(args.at)}
    return rows[args.at]


def check_batch():
    labels = torch.tensor([1, 2, 51234])
    if int(labels.max()) >= 50257:
        raise ValueError(f"label {int(labels.max())} is outside the vocabulary of 50257")


def embed():
    return torch.nn.Embedding(100, 8)(torch.tensor([3, 250]))


def shapes():
    return model(torch.randn(4, 9))


def check_norm():
    assert torch.tensor(3.0) < 1.0, "gradient norm out of bounds"


def unlisted_error():
    raise RuntimeError("the sampler's epoch does not fit the checkpoint")


def loss_nan():
    loss = torch.tensor(-1.0).log()
    print(f"step {args.at} loss: {loss.item()}", flush=True)
    print("loss is NaN, giving up", file=sys.stderr, flush=True)
    sys.exit(1)


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def terminated():
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(1)


def interrupted():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(1)


def segfault():
    ctypes.string_at(0)


def abort():
    os.abort()


def bus_error():
    import mmap

    with open(f"cache-{RANK}.bin", "wb+") as cache:
        cache.truncate(4 << 20)
        view = mmap.mmap(cache.fileno(), 4 << 20)
        cache.truncate(0)
        return view[2 << 20]


def silent():
    time.sleep(60)


def early_end():
    sys.exit(0)


def ragged():
    dist.all_reduce(torch.zeros(3 + RANK))


def different_collectives():
    dist.all_reduce(torch.zeros(4)) if RANK else dist.broadcast(torch.zeros(4), 0)


def barrier():
    if RANK == WORLD - 1:
        time.sleep(60)
    dist.monitored_barrier(timeout=timedelta(seconds=args.timeout))


def write_checkpoint():
    with open(os.environ.get("CHECKPOINT", "/dev/full"), "wb", buffering=0) as file:
        file.write(b"\0" * 65536)


def save_checkpoint():
    torch.save({"model": model.state_dict(), "moments": torch.zeros(1 << 20)}, os.environ["CHECKPOINT"])


def out_of_memory():
    return torch.empty(1 << 50)


class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, n):
        if n > 8 and args.failure == "worker_killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if n > 8:
            return {"text": torch.zeros(4)}["label"]
        return torch.zeros(4)


def worker_killed():
    for _ in torch.utils.data.DataLoader(Rows(), batch_size=4, num_workers=1):
        pass


def worker_error():
    worker_killed()


def child(n):
    if n == 1:
        raise IndexError("tokenizer shard 1 is empty")


def spawn_fails():
    torch.multiprocessing.spawn(child, nprocs=2)


def tensor_dump():
    print(f"debug batch: {list(range(10400))}", flush=True)
    raise KeyError("attention_mask")


def tell(step, loss):
    if RANK == 0:
        print(f"step {step} loss: {loss:.4f}", flush=True)


IN_STEP = {
    f.__name__: f
    for f in (
        load_batch, check_batch, embed, shapes, check_norm, unlisted_error, loss_nan, killed, terminated, interrupted, segfault, abort,
        bus_error, silent, early_end, ragged, different_collectives, barrier, write_checkpoint, save_checkpoint, out_of_memory,
        worker_killed, worker_error, spawn_fails, tensor_dump,
    )
}  # fmt: skip
if args.failure == "late_for_the_store" and FAILS:
    late_for_the_store()
if __name__ == "__main__":
    # A process that torch's own spawn or loader starts loads this file again and must not train.
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Linear(8, 1)
    SETUP = (cuda_missing, truncated_checkpoint, truncated_small_checkpoint, other_checkpoint)
    for failure in SETUP:
        if FAILS and args.failure == failure.__name__:
            failure()
    dist.init_process_group("gloo", timeout=timedelta(seconds=args.timeout))
    for step in range(args.steps):
        if FAILS and step == args.at and args.failure in IN_STEP:
            IN_STEP[args.failure]()
        loss = model(torch.randn(4, 8)).square().mean()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        tell(step, loss.item())
        time.sleep(0.05)
    if args.failure in ("retries_tracker", "thread_fails") and RANK == WORLD - 1:
        load_batch()
    dist.barrier()
