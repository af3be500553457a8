"""Outside an allocation: gets one through salloc and runs ftrun in it, as srun gets one for its step.

salloc has the terminal, the signals while the job waits, and the release of the nodes; the ftrun in the allocation is an
ordinary one. Between the two sits a process that does what srun does otherwise than salloc: it tells only what srun tells,
and passes on to the job the signals that salloc would keep to itself.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ftslurm.launchers.python import Python
from ftslurm.launchers.srun_options import Component, NewAllocation, join_components
from ftslurm.model.exits import from_returncode
from ftslurm.model.text import visible
from ftslurm.system.commands import real_program
from ftslurm.wrapper.controller.sources import SignalPipe

# What salloc tells and srun does not. Source: both of 22.05 to 26.05.
_UNTOLD = (
    "Pending job allocation", "Granted job allocation", "Relinquishing job allocation", "Waiting for resource configuration",
    "Nodes ",
)  # fmt: skip
# Of a job that waited srun says it as well; of one whose command runs, the step does.
_UNTOLD_ONCE_BEGUN = (*_UNTOLD, "Job allocation ")
_PASSED_ON = frozenset({
    signal.SIGINT, signal.SIGTERM, signal.SIGQUIT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM
})  # fmt: skip
_LINE_BYTES = 65536


def salloc_argv(request: NewAllocation, own: Sequence[str], python: Python, stderr: int, hello: int) -> tuple[str, ...]:
    """own: the --ft-* options. stderr: descriptor of the user's, as salloc's own is ours to read. hello: says the pid."""
    start = (
        f"import os, sys; os.write({hello}, str(os.getpid()).encode()); os.dup2({stderr}, 2); "
        f"os.close({stderr}); os.close({hello}); "
        f"sys.path.insert(0, {python.root!r}); from ftslurm.cli.ftrun import main; main()"
    )
    return ("salloc", *request.salloc, *python.interpreter, "-I", "-c", start, *own, *join_components([request.component]))


def line_of_ours(line: str, begun: bool) -> str:
    """A line of salloc's in our name, empty for one that srun would not say. begun: the command runs, or has run."""
    words = line.removeprefix("salloc: ")
    if words == line:
        return line
    return "" if words.startswith(_UNTOLD_ONCE_BEGUN if begun else _UNTOLD) else f"ftrun: {words}"


def refusal(components: Sequence[Component], env: Mapping[str, str]) -> int:
    """srun's status for options that it does not take, which it has said; 0 if it takes them. Later an allocation would have been
    waited for. srun reads its options in order: all before `--version` have been checked when it comes to that (seen on 22.05).

    Raises: CommandMissing.
    """
    for component in components:
        argv = ("srun", *component.options, "--version")
        program, its_env = real_program(argv, env)
        done = subprocess.run(argv, executable=program, env=its_env, stdout=subprocess.DEVNULL, check=False)
        if done.returncode:
            return from_returncode(done.returncode).shell
    return 0


def run_in_new_allocation(request: NewAllocation, own: Sequence[str], python: Python) -> int:
    """Gives the exit status: of the ftrun in the allocation, or salloc's if there was none. Raises: CommandMissing."""
    signals = SignalPipe()
    said, their_stderr = os.pipe()
    hello, their_hello = os.pipe()
    stderr = os.dup(2)
    try:
        argv = salloc_argv(request, own, python, stderr, their_hello)
        process = _start(argv, request.env, their_stderr, (stderr, their_hello))
    finally:
        for descriptor in (their_stderr, their_hello, stderr):
            os.close(descriptor)
    try:
        _attend(process, signals, said, hello)
        return from_returncode(process.wait()).shell
    finally:
        signals.close()


def _start(argv: Sequence[str], env: Mapping[str, str], stderr: int, kept: Sequence[int]) -> subprocess.Popen[bytes]:
    """In our own process group where there is a terminal, which salloc hands on; elsewhere in another, so that a Ctrl-C comes
    by us and once."""
    program, its_env = real_program(argv, env)
    return subprocess.Popen(
        argv, executable=program, env=its_env, stderr=stderr, pass_fds=kept, preexec_fn=None if os.isatty(0) else os.setpgrp
    )


def _attend(process: subprocess.Popen[bytes], signals: SignalPipe, said: int, hello: int) -> None:
    """Until salloc has closed its stderr, which it does by ending."""
    passed_to = process.pid
    text = b""
    with selectors.DefaultSelector() as selector:
        for descriptor in (signals.fd, said, hello):
            selector.register(descriptor, selectors.EVENT_READ)
        while said in selector.get_map():
            for key, _ in selector.select():
                if key.fd == signals.fd:
                    for number in signals.read():
                        if number in _PASSED_ON:
                            with suppress(ProcessLookupError):  # it has just ended, and salloc is about to
                                os.kill(passed_to, number)
                elif data := os.read(key.fd, _LINE_BYTES):
                    if key.fd == hello:
                        passed_to = int(data)
                    else:
                        *lines, text = (text + data).split(b"\n")
                        _tell(lines, begun=passed_to != process.pid)
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
    _tell([text], begun=passed_to != process.pid)


def _tell(lines: Sequence[bytes], begun: bool) -> None:
    for line in lines:
        if words := line_of_ours(line.decode(errors="replace"), begun):
            print(visible(words), file=sys.stderr, flush=True)
