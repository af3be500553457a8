"""The state behind the NVML and nvidia-smi stand-ins, and the body of the latter.

One text file, which the C library reads in every call:
    driver ok             the driver is loaded; `driver !N`: NVML does not start and returns N
    hang CALL             this call of the library does not return while the line stands
    eventset !N           there is no event set, the call returns N
    reset HOW             what a reset does: one of RESETS
    root no               nvidia-smi is not root's
    gpu N key=value ...   one GPU; blanks in values are underscores
    event SEQ N TYPE DATA
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
SOURCE = os.path.join(HERE, "libnvidia-ml.c")
LIBRARY = "libnvidia-ml.so.1"

XID, DOUBLE_BIT = 0x8, 0x2
ALL_EVENTS = 0xFF9F  # nvmlEventTypeAll of driver 580
# ok; fail: the tool says so; keeps: done, but the state stays; gone: the GPU does not come back; slow:SECONDS
RESETS = ("ok", "fail", "keeps", "gone")
NO_DRIVER, NOT_SUPPORTED, OTHER = 9, 3, 255  # nvidia-smi(1), "RETURN VALUE"


def build(folder: str) -> str:
    """Compile the library into `folder` and return it. Raises if there is no C compiler: a test that needs one fails."""
    target = os.path.join(folder, LIBRARY)
    os.makedirs(folder, exist_ok=True)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", target, SOURCE], check=True)
    return folder


def fresh_gpu(number: int) -> dict[str, str]:
    return {
        "listed": "1", "lost": "0", "uuid": f"GPU-{number:08x}-1111-2222-3333-444444444444",
        "bus": f"00000000:{16 + number:02X}:00.0", "name": "NVIDIA_H200", "serial": str(1650000000000 + number),
        "recovery": "0", "remap": "0,0,0,0", "ecc": "0", "busy": "0", "traffic": "0", "power": "76500",
        "processes": "", "events": str(ALL_EVENTS),
    }  # fmt: skip


class NvmlSim:
    """Moves the GPUs of one node. Every change begins with what the file says and is written at once."""

    def __init__(self, path: str, gpus: int = 0) -> None:
        self.path = path
        self.words: dict[str, str] = {"driver": "ok"}
        self.gpus: dict[int, dict[str, str]] = {number: fresh_gpu(number) for number in range(gpus)}
        self.events: list[str] = []
        if gpus:
            self.save()
        else:
            self.load()

    def load(self) -> None:
        self.words, self.gpus, self.events = {}, {}, []
        with open(self.path) as file:
            for line in file.read().splitlines():
                kind, _, rest = line.partition(" ")
                if kind == "gpu":
                    number, *pairs = rest.split(" ")
                    self.gpus[int(number)] = dict(pair.split("=", 1) for pair in pairs)
                elif kind == "event":
                    self.events.append(rest)
                else:
                    self.words[kind] = rest

    def save(self) -> None:
        lines = [f"{kind} {rest}" for kind, rest in self.words.items()]
        for number, gpu in sorted(self.gpus.items()):
            lines.append(" ".join((f"gpu {number}", *(f"{key}={value}" for key, value in gpu.items()))))
        lines += [f"event {event}" for event in self.events]
        temporary = f"{self.path}.{os.getpid()}"
        with open(temporary, "w") as file:
            file.write("\n".join(lines) + "\n")
        os.replace(temporary, self.path)

    def set(self, number: int, **values: object) -> None:
        self.load()
        self.gpus[number].update({key: str(value) for key, value in values.items()})
        self.save()

    def say(self, **words: str | None) -> None:
        """driver="ok", hang="fields", eventset="!3", reset="fail", root="no"; None takes the line away."""
        self.load()
        for kind, rest in words.items():
            self.words.pop(kind, None)
            if rest is not None:
                self.words[kind] = rest
        self.save()

    def event(self, number: int, kind: int, data: int = 0) -> None:
        self.load()
        self.events.append(f"{len(self.events) + 1} {number} {kind} {data}")
        self.save()

    def xid(self, number: int, xid: int) -> None:
        self.event(number, XID, xid)

    def find(self, word: str) -> int | None:
        """By number, UUID or PCI address, as nvidia-smi -i takes them."""
        listed = [number for number, gpu in sorted(self.gpus.items()) if gpu["listed"] == "1"]
        for index, number in enumerate(listed):
            gpu = self.gpus[number]
            if word in (str(index), gpu["uuid"], gpu["bus"], gpu["bus"][4:]):
                return number
        return None


# ---- nvidia-smi: the words are those of the true tool, driver 535 to 580


def say(text: str, status: int = 0) -> int:
    sys.stdout.write(text)
    return status


def nvidia_smi(words: list[str], env: dict[str, str]) -> int:
    """The tool. Returns its exit status."""
    path = env.get("NVML_SIM", "")
    if not os.path.exists(path):
        return say(
            "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest "
            "NVIDIA driver is installed and running.\n\n", NO_DRIVER,
        )  # fmt: skip
    sim = NvmlSim(path)
    if words == ["-L"]:
        lines = (
            f"GPU {index}: {gpu['name'].replace('_', ' ')} (UUID: {gpu['uuid']})\n"
            for index, gpu in enumerate(gpu for gpu in sim.gpus.values() if gpu["listed"] == "1")
        )
        return say("".join(lines))
    if len(words) == 3 and words[0] in ("--gpu-reset", "-r") and words[1] == "-i":
        number = sim.find(words[2])
        if number is None:
            return say(f"No devices were found\nThe ID {words[2]} is not known.\n", 6)
        return reset(sim, number)
    return say(f"Option \"{' '.join(words)}\" is not recognized. Please run 'nvidia-smi -h'.\n", 1)


def refused(sim: NvmlSim, number: int, why: str, more: str = "") -> int:
    return say(f"The following GPUs could not be reset:\n  GPU {sim.gpus[number]['bus']}: {why}\n{more}", OTHER)


def reset(sim: NvmlSim, number: int) -> int:
    how = sim.words.get("reset", "ok")
    if sim.words.get("root") == "no":
        return refused(sim, number, "Insufficient Permissions")
    if sim.gpus[number]["processes"] or not nobody_else(sim.path):
        return refused(
            sim, number, "In use by another client",
            "\n1 device is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "
            "graphics application such as an X server, or a monitoring application such as another instance of "
            "nvidia-smi). Please first kill all processes using this device and all compute applications running in the "
            "system.\n",
        )  # fmt: skip
    if how == "fail":
        return refused(sim, number, "Unknown Error")
    if how.startswith("slow:"):
        time.sleep(float(how[5:]))
    if how == "gone":
        sim.set(number, listed=0)
    elif how != "keeps":
        sim.set(number, recovery=0, remap="1,1,0,0", ecc=0, lost=0)
    return say(f"GPU {sim.gpus[number]['bus']} was successfully reset.\nAll done.\n")


def nobody_else(path: str) -> bool:
    """Has nobody NVML open? The library holds this lock for as long."""
    with open(f"{path}.lock", "a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
    return True


def main() -> int:
    return nvidia_smi(sys.argv[1:], dict(os.environ))
