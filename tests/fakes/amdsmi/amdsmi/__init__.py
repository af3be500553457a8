"""A stand-in for the module `amdsmi` 7.0.2 as far as ftslurm uses it, answered from the JSON file that AMDSMI_SIM names.

Names, arguments and keys are the true module's; test_amd_stand_in.py holds them against it. amdsmi_sim.py writes the
file. Each function reads it anew, so a test moves the GPUs under a process that runs; the list of GPUs alone is taken
at the start, as the true library does.
"""

import ctypes
import fcntl
import json
import os
import time
from enum import IntEnum

SUCCESS, NOT_SUPPORTED, NO_PERM, NOT_FOUND, DRIVER_NOT_LOADED, NO_DATA = 0, 2, 10, 31, 34, 40
INFO = {
    1: "AMDSMI_STATUS_INVAL - Invalid parameters",
    2: "AMDSMI_STATUS_NOT_SUPPORTED - Feature not supported",
    10: "AMDSMI_STATUS_NO_PERM - Permission Denied",
    12: "AMDSMI_STATUS_IO - I/O Error",
    31: "AMDSMI_STATUS_NOT_FOUND - Device Not found",
    32: "AMDSMI_STATUS_NOT_INIT - Device not initialized",
    34: "AMDSMI_STATUS_DRIVER_NOT_LOADED - Driver not loaded",
    40: "AMDSMI_STATUS_NO_DATA - No data was found for given input",
}

if "AMDSMI_SIM" not in os.environ:  # the true module without its library
    print("Unable to find libamd_smi.so library try installing amd-smi-lib from your package manager")
    raise KeyError("libamd_smi.so")


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, err_code):
        super().__init__(abs(err_code))
        self.err_code = abs(err_code)
        self.err_info = INFO.get(self.err_code, "AMDSMI_STATUS_UNKNOWN_ERROR - An unknown error occurred")

    def __str__(self):
        return f"Error code:\n\t{self.err_code} | {self.err_info}"


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiEvtNotificationType(IntEnum):
    NONE = 0
    VMFAULT = 1
    THERMAL_THROTTLE = 2
    GPU_PRE_RESET = 3
    GPU_POST_RESET = 4
    MIGRATE_START = 5


_handles = {}  # PCI address -> handle; the true ones are pointers too
_masks = {}  # number of the GPU -> mask
_seen = 0


def _state(call=""):
    """The file; waits while it says that this call hangs."""
    while True:
        with open(os.environ["AMDSMI_SIM"]) as file:
            state = json.load(file)
        if not call or state["hang"] not in (call, "all"):
            return state
        time.sleep(0.02)


def _gpu(handle, call):
    state = _state(call)
    for gpu in state["gpus"]:
        if _handles.get(gpu["bus"]) is handle and gpu["listed"]:
            if gpu["lost"]:
                raise AmdSmiLibraryException(12)
            return gpu
    raise AmdSmiLibraryException(NOT_FOUND if handle in _handles.values() else 1)


def _value(handle, call, key):
    value = _gpu(handle, call)[key]
    if value is None:
        raise AmdSmiLibraryException(NOT_SUPPORTED)
    return value


def amdsmi_init(flag=AmdSmiInitFlags.INIT_AMD_GPUS):
    global _seen
    state = _state("init")
    print("AMD SMI greets")  # as libraries do; it must not get between the answers
    if not state["driver"]:
        raise AmdSmiLibraryException(DRIVER_NOT_LOADED)
    _handles.clear()
    _handles.update({gpu["bus"]: ctypes.c_void_p(0x1000 + i) for i, gpu in enumerate(state["gpus"]) if gpu["listed"]})
    _seen = len(state["events"])  # no history


def amdsmi_shut_down():
    _handles.clear()
    _masks.clear()


def amdsmi_get_processor_handles():
    return list(_handles.values())


def amdsmi_get_gpu_device_bdf(processor_handle):
    for bus, handle in _handles.items():
        if handle is processor_handle:
            return bus
    raise AmdSmiLibraryException(1)


def amdsmi_get_gpu_device_uuid(processor_handle):
    return _value(processor_handle, "uuid", "uuid")


def amdsmi_get_gpu_asic_info(processor_handle):
    return {"market_name": "AMD Instinct MI300X", "asic_serial": _value(processor_handle, "asic", "serial")}


def amdsmi_get_gpu_total_ecc_count(processor_handle):
    count = _value(processor_handle, "ecc", "ecc")
    return {"correctable_count": 3, "uncorrectable_count": count, "deferred_count": 0}


def amdsmi_get_gpu_bad_page_info(processor_handle):
    pages = _value(processor_handle, "pages", "bad_pages")
    return [{"value": i, "page_address": 4096 * i, "page_size": 4096, "status": 0} for i in range(pages)]


def amdsmi_get_gpu_bad_page_threshold(processor_handle):
    return _value(processor_handle, "threshold", "threshold")


def amdsmi_get_gpu_activity(processor_handle):
    busy, traffic = _value(processor_handle, "activity", "busy"), _gpu(processor_handle, "activity")["traffic"]
    return {"gfx_activity": busy, "umc_activity": "N/A" if traffic is None else traffic, "mm_activity": "N/A"}


def amdsmi_get_power_info(processor_handle):
    power = _value(processor_handle, "power", "power")
    return {
        "socket_power": power, "current_socket_power": power, "average_socket_power": "N/A", "gfx_voltage": "N/A",
        "soc_voltage": "N/A", "mem_voltage": "N/A", "power_limit": 750000000,
    }  # fmt: skip


def amdsmi_get_gpu_process_list(processor_handle):
    pids = _value(processor_handle, "processes", "processes")
    return [{
        "name": "python3", "pid": pid, "mem": 0, "engine_usage": {"gfx": 0, "enc": 0},
        "memory_usage": {"gtt_mem": 0, "cpu_mem": 0, "vram_mem": 0}, "cu_occupancy": "N/A",
    } for pid in pids]  # fmt: skip


def amdsmi_reset_gpu(processor_handle):
    gpu, state = _gpu(processor_handle, "reset"), _state()
    if not state["root"]:
        raise AmdSmiLibraryException(NO_PERM)
    if state["reset"] == "fail":
        raise AmdSmiLibraryException(12)
    _after_reset(gpu["bus"], state["reset"])


def _after_reset(bus, how):
    with open(os.environ["AMDSMI_SIM"] + ".lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = _state()
        for gpu in state["gpus"]:
            if gpu["bus"] == bus and how != "keeps":
                gpu.update({"listed": False} if how == "gone" else {"ecc": 0})
        with open(os.environ["AMDSMI_SIM"] + ".new", "w") as file:
            json.dump(state, file)
        os.replace(file.name, os.environ["AMDSMI_SIM"])


class AmdSmiEventReader:
    def __init__(self, processor_handle, event_types):
        gpu = _gpu(processor_handle, "events")
        if not gpu["events"]:
            raise AmdSmiLibraryException(NOT_SUPPORTED)
        self.processor_handle = processor_handle
        _masks[gpu["bus"]] = {kind.name for kind in event_types}

    def read(self, timestamp, num_elem=10):
        """The events of all GPUs that were asked for, whichever reader asks."""
        global _seen
        news = _state("read")["events"][_seen:][:num_elem]
        if not news:
            raise AmdSmiLibraryException(NO_DATA)
        _seen += len(news)
        return [
            {"processor_handle": _handles[bus], "event": name, "message": message}
            for bus, name, message in news
            if bus in _handles and name in _masks.get(bus, ())
        ]

    def stop(self):
        _masks.pop(amdsmi_get_gpu_device_bdf(self.processor_handle), None)
