"""Does a verdict prove a hang, so that the ranks may be stopped unasked? Only what is wrong within a rank, or in the ranks'
communication, does. A rank that waits for something beyond both may still get it, however long nothing moves.

| the named ranks | for example |
|---|---|
| wake up again and again | a rank that polls, or copies what another process makes (seen in healthy jobs) |
| sleep in one call that another process ends | the answer of a server, a command, a lock on a file, a debugger |
| wait for storage or a driver | a file server that is started again; no signal ends such a wait |
| are all in communication, and data moves | a large broadcast over a slow network |
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from ftslurm.model.collectives import Finding, Kind, ProcessState, RankView, fold
from ftslurm.policies.hang.polling import LEAST_PER_S
from ftslurm.policies.hang.whohangs import BUSY_IO_BYTES_S

HUNG = (Kind.COMM_HANG, Kind.NON_COMM_HANG)
# Kernel functions of Linux 3.10 to 6.18 in which a thread sleeps until another process answers, ends, releases a lock on a file,
# or no longer debugs it. A lock within the program is a futex.
_OTHER_PROCESS = re.compile(r"sk_wait|wait_woken|do_wait|kernel_wait|\w*lock_\w*wait|fcntl_|nlmclnt_|ptrace_")
# Where helpers sleep all their life as well: the thread of a pool that reads results, a server's.
_OR_HELPER = re.compile(r"unix_|inet_csk_|__skb_|(do_|do_sys_|ep_)?poll|do_select|do_epoll|(anon_)?pipe_|fifo_|wait_for_partner")
_OWN_LOCK = "futex_"


NOBODY = "no rank is named from within as the one that hangs"


def doubt(finding: Finding | None, views: Iterable[RankView]) -> str:
    """Why it is no proof, in words; empty if it is one. views: of all ranks, at the look that led to the finding, while no rank
    works that others may wait for.
    """
    if finding is None or finding.kind not in HUNG or not finding.ranks:
        return NOBODY
    there = list(views)
    if finding.kind is Kind.COMM_HANG and any((view.io_bytes_s or 0.0) > BUSY_IO_BYTES_S for view in there):
        return "data still moves between the ranks"
    named = [view for view in there if view.rank in finding.ranks]
    if awake := [view.rank for view in named if wakes_up(view)]:
        return f"rank {fold(awake)} wakes up again and again: it polls for what may still come, or does a little"
    if beyond := [view.rank for view in named if waits_beyond(view)]:
        return f"rank {fold(beyond)} waits for another process, for storage or a driver, and may still get it"
    return ""


def wakes_up(view: RankView) -> bool:
    """Does its program run now and then? One that waits for the interpreter lock wakes up every 5 ms to try it."""
    if view.gil_held or view.inside is not None or view.process in (ProcessState.STOPPED, ProcessState.EXITED):
        return False
    waits = view.wchan.startswith(_OWN_LOCK)  # for a thread, perhaps
    return max(view.polls_s or 0.0, view.wakes_s or 0.0, (view.beside_wakes_s or 0.0) if waits else 0.0) >= LEAST_PER_S


def waits_beyond(view: RankView) -> bool:
    """Does it wait for something that is neither in it nor in the ranks' communication? One whose Python code runs now and then
    does not: it waits for its data loader, in steps of five seconds.
    """
    if view.process is ProcessState.DISK:
        return True
    if view.process is ProcessState.EXITED or view.inside is not None or view.main_fresh:
        return False
    if view.wchan.startswith(_OWN_LOCK):  # of a thread that it waits for, perhaps
        return any(map(_OTHER_PROCESS.match, view.beside))
    return bool(_OTHER_PROCESS.match(view.wchan) or _OR_HELPER.match(view.wchan))
