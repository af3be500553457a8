"""Classifies an unknown error by its words: what it complains about, and so whether another try may help.

Whoever writes an error names what was in the way: a connection, memory, a file, a licence. That is enough to place an error of a
program that was never seen before, and too little to blame a node for it. The rows are read from top to bottom, the more
special before the more general.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import re2

from ftslurm.catalogs.scanner import asks
from ftslurm.model.verdict import ErrorClass, Retriable

# --- What the numbers and paths in a line tell: who holds the memory, how many joined, which port, where a file should be

# PyTorch says it in two ways, by its age; MiB and GiB as printed.
_SIZE = r"(\d{1,7}(?:\.\d{1,3})?) ?([KMGT])iB"
_TOTAL = re.compile(rf"(?:total capacity of {_SIZE}|; {_SIZE} total capacity)")
_FREE = re.compile(rf"(?:of which {_SIZE} is free|; {_SIZE} free)")
_MINE = re.compile(rf"this process has {_SIZE} memory in use|{_SIZE} reserved in total|; {_SIZE} already allocated")
_OTHERS = re.compile(rf"Process \d{{1,10}} has {_SIZE} memory in use")
_AMOUNT = re.compile(r"tried to allocate \d|\ballocate \d[\d.]* ?(?:[KMGT]i?B|bytes)|\bsize \d+ (?:bytes )?too large")
# The driver's own word, where a library that takes care of memory would name the amount: not even a start fitted beside others.
_OF_THE_DRIVER = re.compile(r"(?:CUDA|HIP)(?: driver| runtime)? error: out of memory|CUDA_ERROR_OUT_OF_MEMORY")
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


def asked_for_too_much(line: str) -> bool:
    """Does it name how much was asked for at once? That is the program's own measure, not what others have left."""
    return _AMOUNT.search(line) is not None


def refused_by_the_driver(line: str) -> bool:
    """Did the driver itself refuse a device's memory, before any library that would name the amount took some?"""
    return _OF_THE_DRIVER.search(line) is not None


def from_a_stream(line: str) -> bool:
    """Was it read over a connection, which breaks off where a file on a disk would be broken?"""
    return _STREAM.search(line) is not None


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
MEANS: dict[str, tuple[tuple[Callable[[str], bool], str], ...]] = {
    "npu-oom": (_TAKEN,),
    **dict.fromkeys(("cuda-oom", "hip-oom"), (_TAKEN, (refused_by_the_driver, "gpu-memory-none"))),
    **dict.fromkeys(("file-missing", "file-race", "io-error", "stale-nfs"), (_IN_A_CACHE,)),
    **dict.fromkeys(("data-broken", "ckpt-corrupt"), ((from_a_stream, "stream-cut"),)),
    "cannot-alloc": ((asked_for_too_much, "alloc-refused"),),
}


def _size(pattern: re.Pattern[str], line: str) -> float:
    found = pattern.search(line)
    groups = [group for group in found.groups() if group is not None] if found else []
    return _bytes(groups[0], groups[1]) if groups else 0.0


def _bytes(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]


# --- the words

# A message names its subject in its first words.
LOOKED_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Kind:
    """What an error is about. retriable: has the same start a fair chance?"""

    error_class: ErrorClass
    retriable: Retriable


def _compiled(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    return re2.compile(f"(?i){pattern}", options)


# Before the number that a service answers with; `error 524` may be any library's own.
_HTTP = r"\b(?:http\w*(?:/[\d.]+)?|status(?:[ _]code)?|error code|returned error|(?:client|server) error)\W{0,3}(?:code\W{0,2})?"
# A service that was reached, and will answer the same question in the same way.
_SAYS_NO = (
    _HTTP + r"40[0-57]\b|\b40[0-57] (?:bad|unauthorized|forbidden|not|client|method|get|head|put|post)\b|\(40[0-57]\)"
    r"|\berror:? 40[0-57]\b|\b(?:no ?such ?(?:key|bucket|upload)|access ?denied|signature ?does ?not ?match"
    r"|invalid ?access ?key)\b"
)
# An adapter that cannot even be opened on its own node: the set-up, before any peer is spoken to.
_ADAPTER = (
    r"\b(?:ibv|mlx5dv|fi|psm[23]?|hfi|uct|cxil?)_\w*(?:open|create|init|modify|alloc|query|reg|getinfo|domain|fabric|ep\b"
    r"|endpoint|bind|listen)\w*\b|hfi_userinit|\bhfi unit\b|psm\d? can't open"
    r"|\bcan(?:'t|not) (?:open|init(?:iali[sz]e)?) (?:\w+ )?(?:provider|nic|adapter|hca)|\binit failed for transport"
    r"|\bofi (?:\w+(?:\(\))? ){0,3}(?:open|init\w*|create|domain|fabric|endpoint|enable|bind|\w*info|alloc\w*"
    r"|av_?\w*|address|vector|\w*insert|fi_(?:open|get|dom|fab|av)\w*)(?:\(\))? (?:\w+ ){0,2}fail(?:ed|ure)\b"
    r"|\b(?:cannot|can't|could not|unable to|fail\w* to) (?:open|create|init\w*|allocate|register|query|modify) (?:\w+ ){0,3}"
    r"(?:ah|qp|cq|pd|mr|srq|dct|queue pair|completion queue|protection domain|memory region|endpoint|transports?"
    r"|rdma device|ib device|hca|nic|provider)\b|\bfabric is not available"
    r"|\bno (?:suitable|usable|matching) (?:\w+ )?(?:provider|transport|fabric)|\bcan't find suitable provider"
)
_RUNS_OUT = r"(?:token|credential|session|ticket|api.?key|password|subscription|account)s?"
_ROWS: tuple[tuple[Any, Kind], ...] = tuple(
    (_compiled(pattern), Kind(error_class, retriable))
    for pattern, error_class, retriable in (
        (r"\binternal assert failed\b|\bplease report (?:this|a) bug\b", ErrorClass.USER_CODE, Retriable.NO),
        # What gRPC and XLA call their errors.
        (  # Slurm's own reason for an end, and what a launcher says of a signal: nobody's error
            r"\bdue to time.?limit|\b(?:time|wall.?time|wall.?clock)[ -]limit (?:exceeded|reached|of)|\bexceeded (?:the )?(?:time"
            r"|wall.?time) limit",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (
            r"\bgot signal:? ?\d|\b\d+ death signal\b|\b(?:received|caught|got) (?:signal )?sig(?:term|hup|int|usr)"
            r"|\bdue to pre-?emption",
            ErrorClass.UNKNOWN, Retriable.YES,
        ),
        (  # a controller that does not answer
            r"\bunable to (?:allocate resources|contact|confirm|register)\b.{0,60}"
            r"\b(?:timed out|refused|reset|zero bytes|not respond)"
            r"|\bsocket timed out on send/recv|\bzero bytes were (?:transmitted|received)",
            ErrorClass.NETWORK, Retriable.YES,
        ),
        (r"\bunable to (?:allocate resources|create step)\b", ErrorClass.USER_CODE, Retriable.NO),
        (  # what the submitter asks for, as a scheduler refuses it
            r"\bunable to (?:satisfy|lay ?out) \w+|\bbinding outside of\b"
            r"|\brequested\b.{0,60}\b(?:than (?:permitted|available|allowed)|not (?:available|permitted))"
            r"|\binvalid (?:reference format|image name|account|partition|qos|feature|generic resource|node name|constraint)",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (r"\bexecv\w* error\b", ErrorClass.USER_CODE, Retriable.NO),
        (_ADAPTER, ErrorClass.NETWORK, Retriable.NO),
        (  # certificates and protocols are as they are set up
            r"\bcertificate\b.{0,20}\b(?:verify|expired|not trusted|unknown)|\bself.signed certificate"
            r"|\bunknown (?:ca|authority)\b|\bssl3?\b.{0,60}\bwrong version number",
            ErrorClass.NETWORK, Retriable.NO,
        ),
        (  # somebody has to renew them
            rf"\b{_RUNS_OUT}\b.{{0,40}}\bexpired\b|\bexpired (?:\w+ )?{_RUNS_OUT}\b",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (r"(?-i:\b(?:UNAVAILABLE|DEADLINE_EXCEEDED|ABORTED|CANCELLED|UNKNOWN_HOST)\b)", ErrorClass.NETWORK, Retriable.YES),
        (r"(?-i:\bRESOURCE_EXHAUSTED\b)", ErrorClass.OOM, Retriable.NO),
        (r"(?-i:\bDATA_LOSS\b)", ErrorClass.DATA, Retriable.NO),
        (
            r"(?-i:\b(?:INVALID_ARGUMENT|NOT_FOUND|UNIMPLEMENTED|OUT_OF_RANGE|ALREADY_EXISTS|PERMISSION_DENIED"
            r"|UNAUTHENTICATED)\b)",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (  # the same codes as Go's gRPC spells them
            r"\bcode = (?:permission ?denied|invalid ?argument|not ?found|already ?exists|unauthenticated|unimplemented"
            r"|out ?of ?range|failed ?precondition)\b",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (  # a service that says what is wrong with the question will say so again
            _SAYS_NO, ErrorClass.USER_CODE, Retriable.NO,
        ),
        (
            _HTTP + r"(?:429|50[0234]|52\d)\b|\btoo ?many ?requests|\brate.?limit|\bslow ?down\b|\brequest rate\b"
            r"|\bservice unavailable|\bbad gateway|\binternal server error"
            r"|\b50[0234] (?:\w+ )?(?:error|service|server|gateway)\b",
            ErrorClass.NETWORK, Retriable.YES,
        ),
        (
            r"\b(?:gpu|device|npu|tpu|chip|accelerator)\b.{0,30}\bnot healthy\b"
            r"|\b(?:gpu|device|npu|tpu|chip|accelerator) driver (?:error|fail\w*|fault)|\bnvlink error"
            r"|\bpcie? (?:bus )?(?:error|fault)|\b(?:bus|parity) error on (?:the )?pcie?\b|\bthermal (?:shutdown|trip)"
            r"|\buncorrectable|\bdouble.bit|\b(?:gpu|device|npu|card|chip|hardware|hw)\b.{0,20}\b(?:is |was |has "
            r"|been |have )*(?:lost|hang|hung|fell|fallen"
            r"|dead|broken|unhealthy)\b|\b(?:lost|losing) (?:the )?(?:gpu|device|npu)\b|\b(?:hardware"
            r"|hw) (?:error|exception|failure|fault)|\bmachine check",
            ErrorClass.HARDWARE, Retriable.YES,
        ),
        (  # a file that ends early is broken, a connection that does is gone
            r"\bconnection\b.{0,60}\b(?:end[- ]of[- ]file|eof)\b|\beof occurred in violation\b"
            r"|\b(?:eof|end[- ]of[- ]file)\b.{0,40}\b(?:sockets?|peers?|connections?|pipes?)\b",
            ErrorClass.NETWORK, Retriable.YES,
        ),
        (
            r"\bout of (?:\w+ )?memory|\boom\b|\bbad_alloc|\bmemory (?:limits?|budget|exhausted|pressure"
            r"|shortage)|\b(?:not enough|insufficient|no"
            r"|low on|lack of|exceed\w*)\b(?: \S+){0,4} memory|\bmemory\b(?: \S+){0,3} (?:insufficient|exceeded"
            r"|full|exhausted)\b"
            r"|\b(?:cannot|can't|could not|couldn't|unable to|fail\w* to|failed) (?:(?:re|pre|m|c)?-?alloc\w*|reserve)"
            r"|\bm?alloc\w*(?:\(\))? (?:(?:of|for) \S+ )?fail|\bmemory\b.{0,30}\bfail"
            r"|\bkilled process \d+ .{0,60}\btotal-?vm|\b(?:cannot|can't|could not|unable to|fail\w* to) mmap \d"
            r"|\bmore than total mem|\bworker\b.{0,60}\bby signal: (?:killed|bus error)",
            ErrorClass.OOM, Retriable.NO,
        ),
        (  # MPI's own checks of a call, and the C library's of its heap
            r"\bmpi err (?:truncate|arg|count|type|tag|comm|rank|buffer|group|op|root|topology|dims|request)\b"
            r"|\bmessage truncated\b|\bmessage from rank .{0,40}\btruncated\b|\bdouble free\b|\bstack smashing\b"
            r"|\b(?:free|malloc|realloc)\(\): \w|\bcorrupted (?:size|double.linked)",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (  # a service or a peer that has gone, or has too much to do, whatever was asked of it
            r"\bserver (?:has )?(?:disconnected|closed|gone away|dropped)\b|\b(?:remote end|peer|other (?:side|end))"
            r" (?:unexpectedly )?(?:hung up|closed)\b|\bwithout (?:sending a )?response\b"
            r"|\btoo many (?:clients|connections|concurrent)\b|\bi/o time-?out\b|\btls handshake timeout\b"
            r"|\bdial (?:tcp|udp|unix)\b|\berror communicating\b|\bcommunication (?:error|fail)"
            r"|\bchannel is (?:shutting down|closed)"
            r"|\b(?:n|r|h)ccl remote error\b|\bupstream connect\b|\bkex.exchange\b"
            r"|\bconnection\b.{0,30}\b(?:is|was|been) lost\b"
            r"|\b(?:cannot|can't|could not|couldn't|unable to|fail\w* to|failed) (?:find|look ?up|determine) (?:\w+ ){0,2}"
            r"(?:address|host ?name|ip)\b"
            r"|\b(?:message|packet|send|recv|receive) (?:\w+ )?fail(?:ed|ure)|\bfail\w* to (?:send|receive|transmit)\b"
            r"|\berror (?:while |when |in |on )?(?:sending|receiving|transmitting)\b"
            r"|\b(?:did|does|do|has|have) not (?:respond|repl(?:y|ied)|answer)|\bnot responding\b"
            r"|\b(?:server|service|system|database|cluster)\b.{0,20} is (?:still )?(?:starting up|shutting down|restarting)\b"
            r"|\bno (?:response|reply|answer) (?:from|within|after|in)\b",
            ErrorClass.NETWORK, Retriable.YES,
        ),
        (
            r"\bno space|\bquota|\b(?:disk|device|filesystem|file system|volume) (?:is )?full|\bread.only file"
            r"|\bf?lock(?:ing)?\b.{0,20}\bfile"
            r"|\bfile.?lock|\bunable to f?lock",
            ErrorClass.STORAGE, Retriable.NO,
        ),
        (
            r"\bhome (?:directory|folder)\b|\bconsistency check failed\b"
            r"|\b(?:input/output|i/o|io) (?:error|fail)|\bstale (?:nfs|file|handle|mount|lock)"
            r"|\b(?:error|fail\w*|unable|cannot|could not|couldn't)\b(?: \w+){0,3} (?:writ\w+|sav\w+|flush\w*|sync\w*"
            r"|upload\w*)\b|\b(?:write|writing|save|saving|flush|upload)\b(?: \S+){0,3} fail|\b(?:s3|gs|hdfs"
            r"|oss)://|\btransport endpoint shutdown\b|\bdatabase is locked\b|\bf(?:data)?sync\b.{0,10}\bfail"
            r"|\b(?:fail\w*|unable|cannot|could not)(?: to)? commit\b|\bdeadlock avoided\b"
            r"|\bbuckets?(?:$|[^\w# ]| [^#\d])|\bobject store",
            ErrorClass.STORAGE, Retriable.YES,
        ),
        (
            r"\bpars(?:e|ing) (?:the )?(?:\w+ )?(?:config\w*|settings|options|arguments|command.line|namelist)\b",
            ErrorClass.USER_CODE, Retriable.NO,
        ),
        (
            r"\bnot in (?:gzip|zip|bzip2|xz|tar|hdf5?|parquet|tiff?|jpe?g|png) format\b"
            r"|\bfile read failed\b|\bfile signature\b|\binvalid load key\b"
            r"|\bwhile decompressing\b|\bstack underflow\b"
            r"|\bincorrect header|\bbad magic\b"
            r"|\bcorrupt|\binvalid data\b|\btruncated?\b|\bchecksum|\bcrc\b|\b(?:unexpected|premature)\w* (?:end|eof)"
            r"|\bend[- ]of[- ](?:file|stream|input|record)|\bpast end of record|\bmagic (?:number|bytes)|\bmalformed"
            r"|\bis not (?:an?|the) (?:valid )?(?:\w+ ){0,2}(?:file|image|archive|record)|\b(?:cannot|can't"
            r"|could not|fail\w* to|unable to) (?:identify|decode|parse|deserialize|unpickle|unpack|decompress)"
            r"|\b(?:greater|larger|smaller|shorter|longer) than (?:the )?file|\b(?:invalid|bad|broken|damaged"
            r"|incomplete|wrong) (?:\w+ )?(?:header|record|image|data ?file|archive|footer|shard)\b"
            r"|\b(?:hdf|netcdf)\w*\b.{0,10}\berror|\bloss is nan"
            r"|\b(?:nan|inf)s? (?:loss|found|detected|in (?:local )?grad)|\bfound (?:nan|inf)\b|\bresult (?:nan|inf)\b"
            r"|\bmissing key"
            r"|\bnot in (?:the )?checkpoint|\bdiverged",
            ErrorClass.DATA, Retriable.NO,
        ),
        (  # one that does not fit stays so, one that is away comes back
            r"\blicen[cs]e\b.{0,60}\b(?:not valid|invalid|expired|does not (?:support|cover|allow))"
            r"|\b(?:invalid|expired) licen[cs]e"
            r"|\bnot licen[cs]ed\b|\bnot in (?:the )?(?:authori[sz]ed|allowed)\b|\blicensing pool\b|\bno such feature\b",
            ErrorClass.UNKNOWN, Retriable.NO,
        ),
        (r"\blicen[cs](?:e|es|ing)\b|\blicen[cs]ed number of\b", ErrorClass.UNKNOWN, Retriable.YES),
        (
            r"\b(?:protocol|address family|socket type) not (?:supported|available)"
            r"|\bunable to reach each other\b"
            r"|\bno such (?:network )?(?:device|interface)"
            r"|\bno (?:\w+ ){0,2}(?:interface|adapter|nic|provider)s? (?:found|available|match)",
            ErrorClass.NETWORK, Retriable.NO,
        ),
        (
            r"\bconnection (?:\w+ ){0,2}(?:reset|refused|closed|lost|aborted|timed out|timeout|failed|error"
            r"|broken|dropped|terminated)|\b(?:reset|closed|refused|terminated) by (?:the )?(?:remote|peer|server)"
            r"|\b(?:cannot|can't|could not|couldn't|unable to|fail\w* to|failed) (?:\w+ ){0,3}(?:connect|reach"
            r"|contact|resolve|communicate|bind to|download|fetch)|\bconnect(?:ing)?(?:\(\))?(?: to \S+)? (?:failed|timed out)"
            r"|\b(?:lost|losing|no) (?:the )?(?:communication|connection|contact|heartbeat|link)|\bunreachable"
            r"|\bno route|\bbroken pipe|\bgot read error|\bsocket\b.{0,30}\b(?:error|closed|fail|timed)"
            r"|\bheartbeat|\b(?:remote|peer)\b.{0,30}\b(?:closed|exited|gone|disconnect|died|lost|fail)"
            r"|\bhandshake|\bname resolution|\bname or service|\bunknown host|\bresolve host"
            r"|\b(?:rpc|grpc|transport|network|link|endpoint)\b.{0,20}\b(?:error|fail|unavailable|timed|timeout"
            r"|down|closed|lost)|\bsocket tim(?:ed|es) out|\b(?:libfabric|rdma|infiniband|roce|efa)\b.{0,80}\berr(?:or)?\b"
            r"|\btimed out waiting for (?:\w+ ){0,4}(?:node|host|worker|peer|client|server|rank|task)s?\b"
            r"|\bendpoint\b.{0,60}\btimeout\b|\bdaemon\b.{0,80}\b(?:communicat|contact|connect)\w*"
            r"|\brendezvous (?:timeout|connection) error|\bretry (?:count|counter|limit)\b.{0,20}\bexceeded"
            r"|\bsocket\w*connect\w*\b|\bmarked (?:as )?(?:dead|lost|gone)\b|\bcompletion (?:queue )?(?:with )?error\b"
            r"|\b(?:read|write|connect|request|gateway) time-?d?[ -]?out\b|\bprotocol (?:banner|data stream|error)\b",
            ErrorClass.NETWORK, Retriable.YES,
        ),
        (
            r"\btask launch\b.{0,60}\bfailed|\bcollective\b.{0,80}\btime-?d?[ -]?out"
            r"|\btemporar(?:y|ily)\b|\btry again\b|\boverloaded\b|\bpre-?empt|\b(?:device|resource|port"
            r"|node)s? (?:or resource )?(?:is |are )?busy|\b(?:died|killed|exited|ended|vanished|crashed) unexpectedly"
            r"|\bunexpectedly (?:died|killed|exited|ended|vanished|crashed|failed)\b"
            r"|\b(?:lost|losing) (?:the )?(?:executor|worker|container|pod)s?\b"
            r"|\b(?:executor|worker|container|pod)\b.{0,20} lost\b"
            r"|\binterrupted system call\b|\b(?:was|been|is being) (?:drained|evicted|reclaimed)\b"
            r"|\bspot (?:reclaim|interruption)"
            r"|\bcancell?ed by (?:the )?(?:system|scheduler|controller|admin\w*)\b|\bkilled by signal:? ?(?:15|sigterm)\b"
            r"|\bnot (?:yet )?ready\b|\bnot (?:yet available|available yet)\b"
            r"|\btime[sd] out\b|\btime-?out (?:of|after|waiting|expired|reached|exceeded)\b",
            ErrorClass.UNKNOWN, Retriable.YES,
        ),
    )
)  # fmt: skip
# What follows says what others have met, and not what has happened here.
_GUESSED = re.compile(
    r"(?i)\b(?:potential|possible|common|likely|typical|usual) (?:root )?(?:causes?|reasons?)\b"
    r"|\b(?:error|failure|problem|reason|cause)s? such as\b|\(?\b(?:e\.g\.|for example|assuming)\s"
)
# `ERROR_DEVICE_LOST` and `DeviceLost` are words, too.
_IN_NAMES = re.compile(r"([a-z])([A-Z])")
# Types of errors that say that the program itself is wrong, whatever words stand behind them.
_PROGRAM = _compiled(
    r"(?:^|\.)(?:Attribute|Import|Index|Key|ModuleNotFound|Name|NotImplemented|Syntax|Type|UnboundLocal"
    r"|Indentation|ZeroDivision"
    r"|Recursion)Error$|^(?:panic|shell)$"
)
# These are raised over a wrong argument as well: of their words only those on a thing count.
_ARGUMENT = _compiled(r"(?:^|\.)(?:Value|Assertion|Validation\w*|Argument|Config\w*)Error$")
_THINGS = frozenset({ErrorClass.OOM, ErrorClass.STORAGE, ErrorClass.DATA})


_OF_AN_ADAPTER = _compiled(_ADAPTER)
_REFUSED = _compiled(_SAYS_NO)


_ASKS_OF_AN_ADAPTER = asks(f"(?i){_ADAPTER}")


def of_an_adapter(line: bytes) -> bool:
    """Is it about a network adapter that its own node cannot open? What the system says of the call (no memory, no such device)
    tells less."""
    if line.isascii():
        return _ASKS_OF_AN_ADAPTER(line[:LOOKED_CHARS])
    return _OF_AN_ADAPTER.search(line.decode(errors="replace")[:LOOKED_CHARS]) is not None


def is_refused(line: str) -> bool:
    """Has a service answered that it will not do this, whoever asks again?"""
    return _REFUSED.search(line[:LOOKED_CHARS]) is not None


def kind_of_words(words: str) -> Kind | None:
    """What an error with these words is about; None if they do not tell."""
    looked = words[:LOOKED_CHARS]
    guessed = _GUESSED.search(looked)
    return _kind_of(looked[: guessed.start()] if guessed else looked)


# What fails on one rank mostly fails on all of them, in the same words.
@lru_cache(maxsize=256)
def _kind_of(looked: str) -> Kind | None:
    spelled = _IN_NAMES.sub(r"\1 \2", looked).replace("_", " ")
    # As bytes: of a str RE2's wrapper makes bytes anew for each of the rows.
    ways = [way.encode() for way in dict.fromkeys((looked, spelled))]
    return next((kind for pattern, kind in _ROWS if any(pattern.search(way) for way in ways)), None)


def kind_of_error(type_name: str, message: str) -> Kind | None:
    """The same of an exception, whose type may say already that it is the program's own."""
    if _PROGRAM.search(type_name):
        return None
    kind = kind_of_words(message)
    if kind and _ARGUMENT.search(type_name) and kind.error_class not in _THINGS:
        return None
    return kind
