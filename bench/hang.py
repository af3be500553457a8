"""Who hangs, measured: the graph rule at scale, the alarms of the learned limits, and what the probe costs a rank
and the agent.

    bench/hang.py [graph] [stall] [probe] [agent]
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from ftslurm.policies.hang.stall_watch import StallLimits  # noqa: E402
from ftslurm.policies.hang.whohangs import who_hangs  # noqa: E402
from tests.hang.intervals import KINDS, follow, intervals  # noqa: E402
from tests.hang.simulated import missing_ranks, trial  # noqa: E402

SHAPES = (((2, 2, 2), 400), ((4, 4, 4), 300), ((8, 4, 8), 60), ((8, 8, 16), 20))
JOBS, HOURS = 30, 48


def graph() -> None:
    """Simulated jobs, tensor x pipeline x data parallel, with a rank that stops, a dead link, or two swapped operations."""
    rng = random.Random(7)
    for shape, count in SHAPES:
        right, took, sizes, exact, stops = 0, [], [], 0, 0
        for _ in range(count):
            case = trial(rng, shape)
            began = time.perf_counter()
            found = who_hangs(case.views)
            took.append(time.perf_counter() - began)
            right += case.told_by(found)
            if case.kind == "stop":
                missing = missing_ranks(case.views)
                stops += 1
                sizes.append(len(missing))
                exact += missing == set(case.culprits)
        speed = f"verdict {statistics.median(took) * 1e3:.1f} ms, longest {max(took) * 1e3:.1f}"
        others = f"missing ranks a group: exact {exact} of {stops}, {statistics.mean(sizes):.1f} named"
        print(f"{'x'.join(map(str, shape)):>8} {len(case.views):>5} ranks: {right}/{count} right; {speed}; {others}", flush=True)


def stall() -> None:
    """Alarms in jobs in which nothing hangs, and how soon a silent hang would be found."""
    rules = {f"act from {floor_s:g} s": StallLimits(act_floor_s=floor_s) for floor_s in (180.0, 60.0, 30.0)}
    for kind in KINDS:
        for name, limits in rules.items():
            outcomes = [follow(intervals(random.Random(seed), HOURS, kind), limits, random.Random(seed)) for seed in range(JOBS)]
            hours, alarms = sum(each.hours for each in outcomes), sum(each.alarms for each in outcomes)
            found = statistics.median(limit for each in outcomes for limit in each.limits_s)
            print(f"{kind:<7} {name:<25} {alarms:>3} alarms in {hours:.0f} h: {alarms / hours * 1000:5.1f} per 1,000 h;"
                  f" a silent hang found after {found:.0f} s (median)", flush=True)  # fmt: skip


INSIDE = """
import json, os, statistics, sys, threading, time
os.environ.update(RANK="0", WORLD_SIZE="1", GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1", FTSLURM_WATCH="L1")
os.environ["FTSLURM_PAGE"] = sys.argv[1] + "/pages/page.0"
import torch, torch.distributed as dist
from torch._C import _distributed_c10d as native
from ftslurm.sdk import probe
names = [n for n in probe.COLLECTIVES if hasattr(native.ProcessGroup, n)]
plain = {(c, n): c.__dict__[n] for c, ns in ((native.ProcessGroup, names), (native.Work, ["wait", "synchronize"])) for n in ns}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
probe.PERIOD_S = 3600.0
assert probe.start()
probe._wrap(probe.COLLECTIVES)
wrapped = {(c, n): c.__dict__[n] for c, n in plain}
tensor = torch.ones(16)
def use(methods):
    for (owner, name), method in methods.items():
        setattr(owner, name, method)
def block(count=300):
    began, used = time.perf_counter_ns(), time.thread_time_ns()
    for _ in range(count):
        dist.all_reduce(tensor)
    return [(time.perf_counter_ns() - began) / count / 1e3, (time.thread_time_ns() - used) / count / 1e3]
beats = threading.Event()
def beat():
    while True:
        beats.wait(); probe._probe.beat(); time.sleep(0.1)
threading.Thread(target=beat, daemon=True).start()
levels = {"without": (plain, False), "L1": (plain, True), "L2": (wrapped, True)}
rounds = {name: [] for name in levels}
for _ in range(60):
    for name, (methods, beaten) in levels.items():
        use(methods); beats.set() if beaten else beats.clear()
        block(20); rounds[name].append(block(2000))
beats.clear()
class Work:
    def wait(self): pass
class Group:
    def allreduce(self, *args): return work
work, group = Work(), Group()
def pair(count=20000):
    began = time.process_time_ns()
    for _ in range(count):
        group.allreduce(1); work.wait()
    return (time.process_time_ns() - began) / count / 1e3
bare = min(pair() for _ in range(7))
Group.allreduce, Work.wait = probe._issuing(Group.allreduce, 1), probe._waiting(Work.wait)
probe._at[id(group)] = probe.GROUPS
dressed = min(pair() for _ in range(7))
costs = {}
for groups in (1, 4, 8):
    while len(dist.distributed_c10d._world.pg_map) < groups:
        dist.all_reduce(tensor, group=dist.new_group([0]))
    best = []
    for _ in range(7):
        began = time.process_time_ns()
        for _ in range(2000): probe._probe.beat()
        best.append((time.process_time_ns() - began) / 2000 / 1e3)
    costs[groups] = min(best)
print(json.dumps({"rounds": rounds, "pair": dressed - bare, "beats": costs}))
os._exit(0)
"""


def probe() -> None:
    """In one rank: a blocking all_reduce without a probe and with it side by side, the wrappers alone, a beat."""
    import json

    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", INSIDE, folder], env=env, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"bench: the rank ended with {done.returncode}: {done.stderr[-2000:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    for index, time_of in enumerate(("wall", "CPU of the main thread")):
        without = [each[index] for each in told["rounds"]["without"]]
        print(f"all_reduce of one rank, 10 beats a second, {time_of}: without a probe {statistics.median(without):.2f} us")
        for level in ("L1", "L2"):
            pairs = list(zip(without, (each[index] for each in told["rounds"][level]), strict=True))
            more, share = (statistics.median(each) for each in ((b - a for a, b in pairs), (b / a for a, b in pairs)))
            print(f"  with {level}: {more:+.2f} us, {share:.3f} times (medians of {len(pairs)} rounds)")
    print(f"the wrappers of L2 alone: {told['pair']:.2f} us")
    print("a beat: " + ", ".join(f"{cost:.1f} us with {groups} groups" for groups, cost in told["beats"].items()))


RANKS, LOOKS = 8, 200


def agent() -> None:
    """CPU of an agent that looks at eight ranks of a real job: ten times a second, and as often as it does by itself."""
    from ftslurm.wrapper.agent.stalls import LOOK_S
    from tests.hang.rig import Job

    with tempfile.TemporaryDirectory(prefix="hang-") as folder, Job(Path(folder) / "job", RANKS, STEP_S="0.2") as job:
        job.wait_until_ready()
        for every_s in (0.1, LOOK_S):
            shares = []
            for _ in range(5):
                began, used = time.monotonic(), time.thread_time()
                for _ in range(max(5, int(LOOKS * 0.02 / every_s))):
                    job.node.look()
                    time.sleep(every_s)
                shares.append((time.thread_time() - used) / (time.monotonic() - began) * 100)
            spread = f"{min(shares):.2f} to {max(shares):.2f}"
            print(f"{RANKS} ranks, looks {every_s:g} s apart: {statistics.median(shares):.2f} % of a core ({spread})", flush=True)


BENCHES = {"graph": graph, "stall": stall, "probe": probe, "agent": agent}

if __name__ == "__main__":
    for name in sys.argv[1:] or BENCHES:
        BENCHES[name]()
