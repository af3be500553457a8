"""The program of the ranks in test_ft_launcher.py: written for nvidia_resiliency_ext, told by its arguments how to end.

Arguments: what each start does, one word a start, and a folder that all ranks see. All ranks wait for each other first.
"""

import os
import signal
import sys
import time

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

RANK, SIZE, START = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT"))
folder, *acts = sys.argv[1:]
act = acts[min(START, len(acts) - 1)]


def beat(client: RankMonitorClient) -> None:
    while True:
        client.send_heartbeat()
        time.sleep(0.1)


def meet() -> None:
    with open(f"{folder}/{START}.{RANK}", "w"):
        pass
    while sum(name.startswith(f"{START}.") for name in os.listdir(folder)) < SIZE:
        time.sleep(0.02)


def leave(*_: object) -> None:
    print("rank obeys", flush=True)
    sys.exit(0)


if act in ("obey", "ignore"):
    signal.signal(signal.SIGTERM, leave if act == "obey" else lambda *_: print("rank ignores", flush=True))
if RANK == 0:
    print(f"start {START} of {SIZE}", flush=True)  # before any other rank can end them all
meet()


def run() -> None:
    client = RankMonitorClient()
    client.init_workload_monitoring()
    if act == "finish":
        if RANK == 0:
            print("ends well")
        sys.exit(0)
    if act == "slow-end":  # the client is let go of, and the end takes its time
        return
    if act == "hang" and RANK == 1:
        print("hangs")
        time.sleep(600)
    client.send_heartbeat()
    if act == "fail" and RANK == 1:
        print("fails")
        raise RuntimeError("an error on purpose")
    if act == "told" and RANK == 1:
        from nvidia_resiliency_ext.fault_tolerance import WorkloadAction, WorkloadControlRequest

        client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.ShutdownWorkload, "it diverged"))
        sys.exit(9)
    if act in ("obey", "ignore") and RANK == 0:
        os.kill(os.getppid(), signal.SIGTERM)
    beat(client)


run()
time.sleep(4)
