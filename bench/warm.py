"""From a rank's crash to the first all_reduce of all ranks again: torch with gloo, cold and warm (--ft-warm), beside torchrun.

bench/warm.py [ROUNDS [RANKS ...]]     the three after each other in each round
bench/warm.py slow [ROUNDS]            cold and warm, where each file that is imported takes 20 ms
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from measure import Series, run, shared_folder

FTRUN = f"{Path(sys.executable).parent}/ftrun"
TORCHRUN = shutil.which("torchrun", path=str(Path(sys.executable).parent))
KINDS = ("cold", "warm", "torchrun")
TRAIN_S = 3  # until the crash, and until all spares wait, if there are any
PROGRAM = """
import glob, os, sys, time
import torch
import torch.distributed as dist

folder, spares, train_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])


def waits(process):
    try:
        with open(f"{process}/oom_score_adj") as score, open(f"{process}/cmdline") as words, open(f"{process}/syscall") as call:
            number, fd, *_ = call.read().split()
            ours = score.read() == "1000\\n" and folder in words.read()
            return ours and number in ("0", "63") and os.readlink(f"{process}/fd/{int(fd, 16)}").startswith("socket:")
    except (OSError, ValueError):
        return False


first = not os.path.exists(f"{folder}/crash")
dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
if not first:
    with open(f"{folder}/up.{dist.get_rank()}", "w") as file:
        file.write(repr(time.time()))
else:
    time.sleep(train_s if dist.get_rank() == 0 else 600)
    while sum(map(waits, glob.glob("/proc/[0-9]*"))) < spares:
        time.sleep(1)
    if dist.get_rank() == 0:
        with open(f"{folder}/crash", "w") as file:
            file.write(repr(time.time()))
        os._exit(1)
while any(not os.path.exists(f"{folder}/up.{rank}") for rank in range(dist.get_world_size())):
    time.sleep(0.05)
time.sleep(1)  # others may be connecting to this one still
os._exit(0)
"""
SLOW = """
import importlib.machinery, time
for loader in (importlib.machinery.SourceFileLoader, importlib.machinery.ExtensionFileLoader):
    def slow(self, module, usual=loader.exec_module):
        time.sleep(0.02)
        return usual(self, module)
    loader.exec_module = slow
"""


def seconds(how: str, ranks: int, slow: bool = False) -> float:
    """how: cold, warm or torchrun."""
    with shared_folder() as temporary:
        folder = Path(temporary)
        (folder / "train.py").write_text(PROGRAM)
        if slow:
            (folder / "sitecustomize.py").write_text(SLOW)
        program = [str(folder / "train.py"), temporary, str(ranks if how == "warm" else 0), str(TRAIN_S)]
        if how == "torchrun":
            argv = [str(TORCHRUN), "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=3", *program]
        else:
            warm = ["--ft-warm", "--ft-set", "warm.after=1s"] if how == "warm" else []
            argv = [FTRUN, "--ft-launcher", "local", "--ft-rendezvous", "torch", *warm, f"-n{ranks}", sys.executable, *program]
        env = {"FTSLURM_STATE_DIR": f"{temporary}/state", "OMP_NUM_THREADS": "1", "PYTHONPATH": temporary if slow else ""}
        # torchrun's own store keeps gloo's addresses of the attempt before (2.13), and no restart succeeds.
        run(argv, env | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}, timeout_s=400)
        return max(float(file.read_text()) for file in folder.glob("up.*")) - float((folder / "crash").read_text())


def measure(rounds: int = 3, ranks: int = 4, kinds: tuple[str, ...] = KINDS, slow: bool = False) -> list[Series]:
    times: dict[str, list[float]] = {how: [] for how in kinds}
    for _ in range(rounds if TORCHRUN else 0):
        for how, found in times.items():
            found.append(seconds(how, ranks, slow))
    what = (", 20 ms a file" if slow else "") + ("" if TORCHRUN else " (pip install torch)")
    return [Series(f"crash to first all_reduce, {how}, {ranks} ranks{what}", tuple(found), "s") for how, found in times.items()]


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["slow"]:
        found = measure(int(arguments[1]) if arguments[1:] else 1, 4, ("cold", "warm"), slow=True)
    else:
        rounds, *sizes = map(int, arguments or ["3", "4", "8"])
        found = [one for ranks in sizes or [4, 8] for one in measure(rounds, ranks)]
    print(*found, sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
