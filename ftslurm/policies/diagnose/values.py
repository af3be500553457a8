"""What the numbers and paths in a line tell: who holds the memory, how many joined, which port, where a file should be."""

from __future__ import annotations

import re
from collections.abc import Callable

# PyTorch says it in two ways, by its age; MiB and GiB as printed.
_SIZE = r"(\d{1,7}(?:\.\d{1,3})?) ?([KMGT])iB"
_TOTAL = re.compile(rf"(?:total capacity of {_SIZE}|; {_SIZE} total capacity)")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|; {_SIZE} free)")
_MINE = re.compile(rf"this process has {_SIZE} memory in use|{_SIZE} reserved in total|; {_SIZE} already allocated")
_OTHERS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
# The driver's own word, where a library that takes care of memory would name the amount: not even a start fitted beside others.
_OF_THE_DRIVER = re.compile(r"(?:CUDA|HIP)(?: driver| runtime)? error: out of memory|CUDA_ERROR_OUT_OF_MEMORY")
# What joins the memory of GPUs, and is set up by a service of its own: it says more than the number of the error beside it.
_FABRIC = re.compile(r"(?i)\bimex\b|\bfabric[ -]?manager\b")
# A connection breaks off where a file on a disk would be broken.
_STREAM = re.compile(r"<Pipe\b|\bpipe:|\b(?:https?|s3|gs|hdfs|oss)://")
_PATH = re.compile(r"(?:'|\"|: |^|\s)(/[^\s'\":,;)]{2,300})")
_CACHE = re.compile(
    r"/\.triton/|/triton_?cache|torchinductor|torch_extensions|/\.nv/ComputeCache|torch_compile_cache|kernel_meta"
    r"|/neuron-compile-cache|/modules/transformers_modules|jax_?cache|/\.julia/compiled/"
    r"|/\.cache/(?:torch|vllm|flashinfer|huggingface|tilelang|deep_gemm)|\.lock$"
)
_OF_THE_NODE = re.compile(
    r"^/(?:dev|tmp|run|local|scratch/local|localscratch|raid|nvme\d*|ssd\d*|mnt/(?:local|nvme|ssd)\w*)(?:/|$)"
)
_TEMPORARY = "temp file"  # as a shell calls its own, which it makes below /tmp
_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# The runtime and its libraries take up to so much for themselves.
OVERHEAD_BYTES = 2 * 2**30
# Below this share of the device it may be a small service, and the program would not have fitted either.
SHARE = 0.25


def held_by_another(line: str) -> bool:
    """Does somebody else hold so much of a device's memory that this program's share alone does not explain the lack of it?"""
    total, free, mine = (_size(pattern, line) for pattern in (_TOTAL, _FREE, _MINE))
    if not total:
        return False
    others = sum(_bytes(number, unit) for number, unit in _OTHERS.findall(line))
    rest = total - free - mine - OVERHEAD_BYTES if mine or free else 0.0
    return max(others, rest) > SHARE * total


def path_in(line: str) -> str:
    """The last path that a line names."""
    found = _PATH.findall(line)
    return found[-1] if found else ""


def in_a_cache(line: str) -> bool:
    """Is it about a file that several processes make for each other?"""
    return _CACHE.search(path_in(line)) is not None


def of_the_node(line: str, device: bool = False) -> bool:
    """Is it about a file that every node has for itself? device: below /dev, where no program makes folders of its own."""
    path = path_in(line)
    return path.startswith("/dev/") if device else _OF_THE_NODE.search(path) is not None or _TEMPORARY in line


_TAKEN = (held_by_another, "gpu-memory-taken")
_IN_A_CACHE = (in_a_cache, "cache-race")
# Pattern -> (what to look at, what it means if so), the first that fits counts.
MEANS: dict[str, tuple[tuple[Callable[[str], object], str], ...]] = {
    "npu-oom": (_TAKEN,),
    **dict.fromkeys(("cuda-oom", "hip-oom"), (_TAKEN, (_OF_THE_DRIVER.search, "gpu-memory-none"))),
    **dict.fromkeys(("cuda-call", "cuda-unknown"), ((_FABRIC.search, "cuda-system-not-ready"),)),
    **dict.fromkeys(("file-missing", "file-race", "io-error", "stale-nfs"), (_IN_A_CACHE,)),
    **dict.fromkeys(("data-broken", "ckpt-corrupt"), ((_STREAM.search, "stream-cut"),)),
}


def _size(pattern: re.Pattern[str], line: str) -> float:
    found = pattern.search(line)
    groups = [group for group in found.groups() if group is not None] if found else []
    return _bytes(groups[0], groups[1]) if groups else 0.0


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]
