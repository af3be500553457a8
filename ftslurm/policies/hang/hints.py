"""Common reasons why a job hangs, recognised in the output and the stacks of its ranks, with advice.

Source: the common cases of ModelArts' hang detection (ModelArts, hang detection). Text is hostile input: RE2, linear in the text.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise

import re2

from ftslurm.model.text import visible
from ftslurm.model.values import Value
from ftslurm.model.verdict import RankEnd
from ftslurm.policies.diagnose.joblog import NO_NODE
from ftslurm.policies.diagnose.traces import outline, plain

LINE_CHARS = 200


class Hint(Value):
    """name: fixed, for programs. what: the observation. advice: what the user can do. evidence: the lines that support it."""

    name: str
    what: str
    advice: str
    evidence: tuple[str, ...]


_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_OPTIONS.log_errors = False


def _compiled(pattern: str) -> re2._Regexp:
    return re2.compile(pattern.encode(), _OPTIONS)


# NCCL's own lines, with NCCL_DEBUG=INFO: which way each channel takes.
# Each line begins with its host, so that the log of a whole job tells of its nodes, too.
_CHANNEL = _compiled(
    r"(?:([\w.-]{1,255}):\d{1,9}:\d{1,9} \[\d{1,4}\] )?NCCL INFO Channel \S+ ?: .*\bvia (NET/[\w-]+/\d+/GDRDMA)?"
)
_ERROR_12 = _compiled(r"Got completion (?:from peer .*)?with (?:status=|error )12\b")
# HCCL's cluster heartbeat spreads what it finds, so the line of any rank names the place where it began.
_HCCL_PLACE = _compiled(
    r"Cluster Exception Location\[IP/ID\]:\s?\[([^\]\n]{1,100})\][^\n]{0,400}ExceptionType:\s?\[([^\]\n]{1,60})\]"
)
_EPOCH = _compiled(r"(?i)\bepoch\b[ :=\[(]*(\d{1,6})")
# Of a launcher that starts several ranks below one task: each line names its own.
_RANK_EPOCH = _compiled(r"(?i)\brank\b[ :=\[(]*(\d{1,7})\b[^\n]{0,60}?\bepoch\b[ :=\[(]*(\d{1,6})")
_NCCL = _compiled(r"NCCL (?:INFO|WARN)|\[Rank \d+\]|ProcessGroupNCCL")
_STEP = _compiled(r"(?i)\b(?:step|iter(?:ation)?|epoch|loss)\b")
# The last line of a Python trace, and what loggers call an error.
_ERROR = _compiled(r"(?m)^(?:[\w.]{1,80}\.)?[A-Z]\w{0,60}(?:Error|Exception)(?::.*)?$|^.{0,80}\b(?:ERROR|CRITICAL|FATAL)\b.*$")
# ModelArts writes it in two ways; in a trace it is a source line.
_WRITER = _compiled(r"(?i)\bsum+ary_?writer\(|tensorboard(?:x)?/[\w/]*\.py|event_file_writer\.py")
_COPY = _compiled(r"(?i)copy_parallel|\bmoxing\b|OBS-Python-SDK|Listing OBS|file_io\.")
# PyTorch's own warning, "... might get DataLoader running slow or even freeze"; a model that is printed names its layers.
_WORKERS = _compiled(r"This DataLoader will create \d{1,9} worker processes")
_SYNC_LAYER = _compiled(r"\bSyncBatchNorm\(|\bconvert_sync_batchnorm\b")
# The last characters of a stream that tell where a rank is.
LAST_CHARS = 2000

_STACKS = (
    (
        "loader",
        _compiled(r"_try_get_data|utils/data/dataloader\.py|utils/data/_utils/(?:worker|fetch)\.py"),
        "ranks wait for their DataLoader workers",
        "use fewer workers (num_workers), give the job more shared memory, or check the storage that holds the data",
    ),
    (
        "sync-batch-norm",
        _compiled(r"SyncBatchNorm|sync_batch_norm|nn/modules/_functions\.py"),
        "ranks are in SyncBatchNorm, which synchronises all ranks in every layer",
        "switch SyncBatchNorm off, or use a newer PyTorch (1.10 or later)",
    ),
    (
        "remote-writer",
        _compiled(r"event_file_writer|tensorboard(?:X)?/|SummaryWriter|[Rr]ecord_?[Ww]riter"),
        "ranks are writing TensorBoard events",
        "write them to a local folder, not to an object store or a remote file system",
    ),
    (
        "copying",
        _compiled(r"copy_parallel|moxing|shutil\.py.*copy|copyfileobj|copytree|file_io"),
        "ranks are copying files",
        "copy with fewer processes: mox.file.set_auth(is_secure=False), copy_parallel(threads=0, is_processing=False); files"
        " of 5 GB and more by file_io._LARGE_FILE_METHOD = 1 and _NUMBER_OF_PROCESSES = 1, or _LARGE_FILE_TASK_NUM = 1",
    ),
    (
        "rendezvous",
        _compiled(r"init_process_group|TCPStore|rendezvous"),
        "ranks wait for each other in init_process_group",
        "check that all ranks were started, with one MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and each with its own RANK",
    ),
)
_ADVICE = {name: (what, advice) for name, _, what, advice in _STACKS}
# Idle threads, which delay nobody: workers of a pool, readers of a queue, and the one that pins a data loader's memory.
_IDLE = _compiled(r"\bget \(queue\.py|queue\.py\", line \d+ in get\b|_pin_memory_loop|utils/data/_utils/pin_memory\.py")
_THREAD = _compiled(r"(?m)^(?:Current t|T)hread ")
_DUMP = _compiled(r"(?m)^(?:Current t|T)hread .{1,200}\n(?:[ \t]+\S.{0,1000}\n)+")


def hints(ends: Sequence[RankEnd], stacks: Mapping[str, str]) -> tuple[Hint, ...]:
    """All hints that apply. ends: what the ranks printed. stacks: node -> evidence taken there before the ranks were stopped."""
    texts = {end.rank: _said(end) for end in ends}
    found = [_gdr(ends, texts), _error_12(ends, texts), _hccl_place(ends, texts), _epochs(ends, texts), *_in_stacks(stacks)]
    found.append(_odd_wait(stacks))
    known = {hint.name for hint in found if hint is not None}
    for name, pattern, last in (("remote-writer", _WRITER, False), ("copying", _COPY, True)):
        found += [_printed(name, pattern, ends, last)] if name not in known else []
    found += [_error_of_some(ends, texts)] if not known & {"ib-retries", "hccl-place"} else []
    if not any(found):
        found = [_before_nccl(ends, texts)]
    if not any(found) and not stacks:
        found = [_printed("loader", _WORKERS, ends, False, "PyTorch warns of more DataLoader workers than the node can run")]
        what = "the model has SyncBatchNorm, which synchronises all ranks in every layer"
        found.append(_printed("sync-batch-norm", _SYNC_LAYER, ends, False, what))
    return tuple(hint for hint in found if hint is not None)


def _said(end: RankEnd) -> bytes:
    """What the rank printed, one stream after the other, without colours and without what it only quotes: source lines and frames
    of a trace."""
    return b"".join(
        outline(plain("".join(piece.text for piece in end.output if piece.stream == stream))).said for stream in ("out", "err")
    )


def _printed(name: str, pattern: re2._Regexp, ends: Sequence[RankEnd], last: bool, what: str = "") -> Hint | None:
    """A hint from what ranks printed, traces included. last: look at their last LAST_CHARS characters only. what: instead of what
    the stacks of such ranks show."""
    lines = []
    for end in ends:
        text = plain("".join(piece.text for piece in end.output))
        text = text[-LAST_CHARS:] if last else text
        if hit := pattern.search(text):
            lines.append(f"rank {end.rank} on {end.node}: {_line(text, hit)}")
    shown, advice = _ADVICE[name]
    return Hint(name, what or shown, advice, tuple(lines[:4])) if lines else None


def _error_of_some(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    """Some ranks printed an error and still run, while the others printed none: the others wait for them."""
    running = [end for end in ends if end.status is None or end.stopped]
    lines = {end: hit for end in running if (hit := _ERROR.search(texts[end.rank]))}
    if not lines or len(lines) == len(ends):
        return None
    told = tuple(f"rank {end.rank} on {end.node}: {_line(texts[end.rank], hit)}" for end, hit in list(lines.items())[:4])
    return Hint(
        "error-and-running", "some ranks printed an error but still run, and the others wait for them",
        "fix that error, and make the program exit on an error (sys.exit, no bare except)", told,
    )  # fmt: skip


def _gdr(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    uses: dict[str, bool] = {}
    for end in ends:
        for hit in _CHANNEL.finditer(texts[end.rank]):
            host = (hit.group(1) or b"").decode(errors="replace")
            node = host if end.node == NO_NODE and host else end.node
            uses[node] = bool(hit.group(2)) or uses.get(node, False)
    with_gdr, without = ([node for node in sorted(uses) if uses[node] is wanted] for wanted in (True, False))
    if not with_gdr or not without:
        return None
    return Hint(
        "gdr-mixed", "NCCL uses GPUDirect RDMA on some nodes only",
        "set NCCL_NET_GDR_LEVEL=0, or load the GPUDirect module on the other nodes",
        (f"with: {', '.join(with_gdr)}", f"without: {', '.join(without)}"),
    )  # fmt: skip


def _error_12(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    lines = [f"rank {end.rank} on {end.node}: {_line(texts[end.rank], hit)}" for end in ends
             if (hit := _ERROR_12.search(texts[end.rank]))]  # fmt: skip
    if not lines:
        return None
    return Hint(
        "ib-retries", "the network gave up sending (RDMA retries exhausted, error 12)",
        "NCCL_IB_GID_INDEX=3 (RoCE v2), NCCL_IB_TC=128 and NCCL_IB_TIMEOUT=22 (17 s) survive short breaks; check the links",
        tuple(lines[:4]),
    )  # fmt: skip


def _hccl_place(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    places: dict[str, str] = {}
    for end in ends:
        for hit in islice(_HCCL_PLACE.finditer(texts[end.rank]), 8):
            place, kind = (visible(hit.group(number).decode(errors="replace")) for number in (1, 2))
            places.setdefault(f"{kind} at {place}", f"rank {end.rank} on {end.node}: {_line(texts[end.rank], hit)}")
    if not places:
        return None
    return Hint(
        "hccl-place", f"HCCL reports where it began: {'; '.join(list(places)[:4])}",
        "check the device and link there first; `Heartbeat Lost` means a process that ended, `Stuck` one without progress",
        tuple(places.values())[:4],
    )  # fmt: skip


def _epochs(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    last: dict[int, int] = {}
    for rank, text in texts.items():
        named = {int(hit.group(1)): int(hit.group(2)) for hit in _RANK_EPOCH.finditer(text[-16384:])}
        if len(named) > 1:
            last.update(named)
            continue
        for hit in _EPOCH.finditer(text[-16384:]):
            last[rank] = int(hit.group(1))
    if len(set(last.values())) < 2:
        return None
    told = ", ".join(f"rank {rank}: {epoch}" for rank, epoch in sorted(last.items())[:16])
    return Hint(
        "epochs", "ranks are in different epochs: their data is split unevenly, so some wait for ranks that have finished",
        "split the data so that all ranks take the same number of steps (drop_last, DistributedSampler, slicing)", (told,),
    )  # fmt: skip


def _before_nccl(ends: Sequence[RankEnd], texts: Mapping[int, bytes]) -> Hint | None:
    """The ranks print, but none has reached the first collective."""
    if len(ends) < 2 or any(end.status is not None and end.status.ok for end in ends):
        return None
    if not any(texts.values()) or any(_NCCL.search(text) or _STEP.search(text) for text in texts.values()):
        return None
    return Hint(
        "before-first-collective",
        "no rank has printed a line of NCCL or of a training step: the job stalled before it began to train",
        "set NCCL_DEBUG=INFO to see more; check that every process gets the master address, the port and its rank",
        (),
    )  # fmt: skip


def _in_stacks(stacks: Mapping[str, str]) -> list[Hint]:
    """Hints from threads that are not idle, as py-spy or faulthandler print them."""
    found = []
    threads = {node: list(_threads(text.encode(errors="replace"))) for node, text in sorted(stacks.items())}
    for name, pattern, what, advice in _STACKS:
        found_in = {node: next(_hits(pattern, each), "") for node, each in threads.items()}
        lines = [f"{node}: {line}" for node, line in found_in.items() if line]
        if lines:
            found.append(Hint(name, what, advice, tuple(lines[:4])))
    return found


# What process_line (wrapper/agent/processes.py) prints: what the main thread of each process of a rank does in the kernel.
_RANK_LINE = _compiled(r"(?m)^rank (\d{1,9}): ")
_WAIT = _compiled(r"(?m)^pid \d{1,9} (\w{1,40}) wchan=(\S{1,80})(?: voluntary_switches=\S{1,20})?(?: syscall=(\d{1,5}))?")
# At least so many ranks must wait alike before a rank that waits differently is worth a hint.
LEAST_ALIKE = 3


def _odd_wait(stacks: Mapping[str, str]) -> Hint | None:
    """The one rank that does not wait where all others do: they may wait for it. This is no proof, so it blames no node."""
    waits: dict[tuple[str, int], tuple[str, ...]] = {}
    for node, text in sorted(stacks.items()):
        data = text.encode(errors="replace")
        begins = [(hit.start(), int(hit.group(1))) for hit in _RANK_LINE.finditer(data)]
        for (begin, rank), (end, _) in pairwise([*begins, (len(data), 0)]):
            told = (_wait(hit) for hit in _WAIT.finditer(data[begin:end]))
            waits[node, rank] = tuple(sorted(set(told)))
    kinds = Counter(wait for wait in waits.values() if wait)
    if len(kinds) != 2 or len(waits) != sum(kinds.values()):
        return None
    (usual, many), (odd, times) = kinds.most_common()
    if many < LEAST_ALIKE or times != 1:
        return None
    node, rank = next(each for each, wait in waits.items() if wait == odd)
    what = f"rank {rank} on {node} does not wait where the others do: it is in {', '.join(odd)}, they are in {', '.join(usual)}"
    return Hint("odd-wait", what, f"find out what rank {rank} does outside collectives", (what,))


def _wait(hit: re2._Match) -> str:
    state, place, call = (group.decode(errors="replace") if group else "" for group in hit.groups())
    return visible(place if place != "-" else f"{state} (system call {call})" if call else state)


def dumped_stacks(text: str) -> str:
    """The stacks that somebody had dumped into a log (faulthandler, py-spy); empty if there are none."""
    return "".join(hit.group(0).decode(errors="replace") for hit in _DUMP.finditer(text.encode(errors="replace")))


def _hits(pattern: re2._Regexp, threads: Sequence[bytes]) -> Iterator[str]:
    return (_line(thread, hit) for thread in threads if (hit := pattern.search(thread)))


def _threads(text: bytes) -> Iterator[bytes]:
    """The text of each thread that is not idle."""
    begins = [hit.start() for hit in _THREAD.finditer(text)]
    for begin, end in pairwise([0, *begins, len(text)]):
        thread = text[begin:end]
        if not _IDLE.search(thread) or b"_try_get_data" in thread:
            yield thread


def _line(text: bytes, hit: re2._Match) -> str:
    begin = text.rfind(b"\n", 0, hit.start()) + 1
    end = text.find(b"\n", hit.end())
    return visible(text[begin : end if end >= 0 else len(text)].decode(errors="replace").strip()[:LINE_CHARS])
