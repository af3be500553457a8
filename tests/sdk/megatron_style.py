"""A training program as Megatron-LM integrates fault tolerance: written against nvidia_resiliency_ext's documentation alone.

Arguments: the folder for checkpoints, the number of steps.
"""

import json
import os
import sys
import time

from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient, WorkloadAction, WorkloadControlRequest

WARMUP = 2


def save(client, folder, step):
    client.start_section("checkpointing")
    time.sleep(0.01)
    with open(os.path.join(folder, "latest.json"), "w") as file:
        json.dump({"iteration": step}, file)
    client.end_section("checkpointing")
    client.calculate_and_set_section_timeouts(selected_sections=["step", "checkpointing"], calc_out_of_section=False)
    with open(os.path.join(folder, "ft_state.json"), "w") as file:
        json.dump(client.state_dict(), file)


def main(folder, steps):
    client = RankMonitorClient()
    client.init_workload_monitoring(num_warmup_iters=WARMUP)
    state = os.path.join(folder, "ft_state.json")
    if os.path.exists(state):
        with open(state) as file:
            client.load_state_dict(json.load(file))
    print("FT: initialized. Timeouts:", client.section_timeouts)
    client.start_section("setup")
    time.sleep(0.5)  # far more than a step, on a busy machine too
    latest = os.path.join(folder, "latest.json")
    first = 0
    if os.path.exists(latest):
        with open(latest) as file:
            first = json.load(file)["iteration"]
    client.end_section("setup")
    for step in range(first, steps):
        if step >= first + WARMUP:
            client.start_section("step")
        time.sleep(0.002)
        client.send_heartbeat()
        if step >= first + WARMUP:
            client.end_section("step")
    save(client, folder, steps)
    client.start_section("checkpointing")
    client.end_all_sections()
    client.calculate_and_set_hb_timeouts()
    client.calculate_and_set_section_timeouts()
    print("FT: hb:", client.hb_timeouts)
    client.send_workload_control_request(WorkloadControlRequest(WorkloadAction.Continue, "all is well"))
    if "--leave" not in sys.argv:
        client.shutdown_workload_monitoring()
    print("iterations", first, "to", steps)


main(sys.argv[1], int(sys.argv[2]))
