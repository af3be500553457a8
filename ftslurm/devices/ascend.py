"""Ascend NPUs, by the text of npu-smi."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ftslurm.devices.npu_smi import (
    ChipRow,
    HealthBlock,
    InfoTable,
    ProcessTable,
    ResetAnswer,
    ResetOutcome,
    health_of,
    parse_health,
    parse_info,
    parse_processes,
    parse_reset,
    severity_of,
)
from ftslurm.errors import FtslurmError
from ftslurm.model.devices import DeviceHealth, DeviceReport, HealResult, ProbeAnswer, Severity
from ftslurm.system.commands import CommandResult, Runner

TOOL = "npu-smi"
KIND = "ascend"

# The vendor's own watchers look once a second while they wait for a chip.
LOOK_AGAIN_S = 1.0
# A look takes about a second on a node with 16 dies; a tool that needs longer than this hangs.
LOOK_LIMIT_S = 15.0
# Also the last look before a deadline gets the time a healthy tool needs.
LEAST_LOOK_S = 2.0
# MindCluster waits 30 s for the processes on a chip to vanish before it resets.
PROCESSES_GONE_S = 30.0
# The vendor asks to leave a chip alone for 20 s after a reset. Who grants little time in all gets a part of that.
SETTLE_S = 20.0
SETTLE_SHARE = 0.1
# The tool asks once, and a second time where linked chips are reset together (A3, A2 with HCCS); what it does not ask
# for it does not read.
YES = "Y\nY\n"


class _NoAnswer(Exception):
    """The tool is missing, fails, hangs or talks nonsense; the text says which."""


@dataclass(frozen=True, slots=True)
class _Finding:
    """One check of a condition. holds None: the tool gave no answer. why: what stands in the way."""

    holds: bool | None
    why: str = ""


class AscendProbe:
    """Reads the NPUs of this node and heals them.

    Remembers the chips it has seen: one that is no longer listed is reported as unknown, never passed over.
    run, sleep and clock are arguments so that tests need no chip and no waiting; clock gives seconds, monotonic.
    """

    kind = KIND

    def __init__(
        self,
        run: Runner,
        env: Mapping[str, str],
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._run = run
        self._env = env
        self._sleep = sleep
        self._clock = clock
        self._known: frozenset[str] = frozenset()
        self._has_chips = True

    def present(self) -> bool:
        return shutil.which(TOOL, path=self._env.get("PATH", "")) is not None

    def read(self, timeout_s: float) -> ProbeAnswer:
        """All chips within `timeout_s`: one call of the tool, and one more for each chip that is not well."""
        try:
            return ProbeAnswer(self._look(self._clock() + timeout_s))
        except _NoAnswer as silence:
            return ProbeAnswer(error=str(silence))

    def heal(
        self, device: str, codes: tuple[str, ...], may_reset: bool, wait_s: float, reset_wait_s: float
    ) -> HealResult:
        """As the protocol says.

        On linked servers a reset takes all chips of the node with it. So it is ordered only when npu-smi lists no
        process on any of them; that the job owns them all is for the caller to know, and to say by `may_reset`.
        """
        started = self._clock()
        finding = self._poll(lambda until: self._codes_gone(device, codes, until), wait_s)
        if finding.holds:
            return HealResult(device, True, f"healed by itself after {self._clock() - started:.0f} s")
        if not may_reset:
            return HealResult(device, finding.holds, f"after {wait_s:g} s: {finding.why}")
        if device not in self._known:
            # A wrong name must not cost a whole node its chips.
            return HealResult(device, finding.holds, f"not reset: {finding.why}")
        return self._reset(device, reset_wait_s)

    # ---- looking

    def _look(self, until: float, closely_at: str = "") -> tuple[DeviceReport, ...]:
        """Every chip that is listed or was. closely_at: the codes of this one are asked for however well it looks.

        Raises: _NoAnswer, also when the chip to look at closely does not tell its codes.
        """
        table = self._table(until)
        listed = [self._report(row, until, row.device == closely_at) for row in table.chips]
        return (*listed, *self._missing(table))

    def _table(self, until: float) -> InfoTable:
        result = self._ask(("info",), until)
        table = parse_info(result.stdout)
        whole = result.status == 0 and not table.unread
        # A broken chip can spoil its own rows and the exit status; with an earlier full look the rest still tells.
        if not table.chips or not (whole or self._known):
            raise _NoAnswer(_complaint("info", result, table))
        if whole:
            self._known |= {row.device for row in table.chips}
        self._has_chips = table.has_chips
        return table

    def _report(self, row: ChipRow, until: float, closely: bool) -> DeviceReport:
        shown = health_of(row.health)
        if not closely and shown is not DeviceHealth.FAULTY:
            detail = "" if shown is DeviceHealth.GOOD else f"{TOOL} shows health `{row.health}`"
            return DeviceReport(row.device, KIND, shown, severity_of(row.health), detail=detail)
        try:
            block = self._health_block(row, until)
        except _NoAnswer as silence:
            if closely:
                raise
            detail = f"{TOOL} shows health `{row.health}`, its codes cannot be read: {silence}"
            return DeviceReport(row.device, KIND, shown, severity_of(row.health), detail=detail)
        # The later answer counts: a chip that has recovered in between is shown as OK and without codes.
        detail = "; ".join(block.information)
        return DeviceReport(
            row.device, KIND, health_of(block.word), severity_of(block.word), tuple(dict.fromkeys(block.codes)), detail
        )

    def _health_block(self, row: ChipRow, until: float) -> HealthBlock:
        # Without `-c` the tool of A2 and A3 prints no codes; the 950's tool refuses `-c`.
        result = self._ask(("info", "-t", "health", *self._address(row.card, row.chip)), until)
        for block in parse_health(result.stdout):
            if not block.part and block.card in (None, row.card) and block.chip in (None, row.chip) and block.word:
                return block
        raise _NoAnswer(_complaint("info -t health", result))

    def _missing(self, table: InfoTable) -> list[DeviceReport]:
        listed = {row.device for row in table.chips}
        detail = f"not listed by {TOOL} info any more: {len(listed)} of {len(self._known | listed)} chips are"
        return [
            DeviceReport(device, KIND, DeviceHealth.UNKNOWN, Severity.UNKNOWN, detail=detail)
            for device in sorted(self._known - listed, key=_by_number)
        ]

    def _address(self, card: int, chip: int) -> tuple[str, ...]:
        return ("-i", str(card), "-c", str(chip)) if self._has_chips else ("-i", str(card))

    # ---- healing

    def _codes_gone(self, device: str, codes: tuple[str, ...], until: float) -> _Finding:
        """Are `codes` gone (all of the chip if none is named)? Others may stay, they are not what is to be healed."""
        report = self._look_at(device, until)
        left = set(report.codes).intersection(codes or report.codes)
        # A faulty chip that names no other code may still have ours.
        explained = report.health is DeviceHealth.GOOD or bool(report.codes)
        return _Finding(report.health is not DeviceHealth.UNKNOWN and explained and not left, _in_words(report))

    def _all_back(self, device: str, until: float) -> _Finding:
        """Is the chip OK, without codes, and does every chip of the node answer again?"""
        reports = {report.device: report for report in self._look(until, closely_at=device)}
        for report in (reports.get(device, _unlisted(device)), *reports.values()):
            if report.health is DeviceHealth.UNKNOWN:
                return _Finding(False, _in_words(report))
        well = reports[device].health is DeviceHealth.GOOD and not reports[device].codes
        return _Finding(well, _in_words(reports[device]))

    def _idle(self, until: float) -> _Finding:
        result = self._ask(("info",), until)
        cards = {row.card for row in parse_info(result.stdout).chips}
        processes = parse_processes(result.stdout)
        if processes.rows:
            return _Finding(False, _in_use(processes))
        if not cards or not processes.covers(cards):
            return _Finding(False, f"{TOOL} does not tell which processes use the chips")
        return _Finding(True)

    def _reset(self, device: str, wait_s: float) -> HealResult:
        started, until = self._clock(), self._clock() + wait_s
        idle = self._poll(self._idle, min(PROCESSES_GONE_S, wait_s))
        if not idle.holds:
            return HealResult(device, idle.holds, f"not reset: {idle.why}")
        try:
            answer, way = self._order_reset(device, until)
        except _NoAnswer as silence:
            return HealResult(device, None, f"reset: {silence}")
        if answer.outcome is not ResetOutcome.DONE:
            return _reset_failed(device, answer)
        self._sleep(min(SETTLE_S, SETTLE_SHARE * wait_s))
        finding = self._poll(lambda limit: self._all_back(device, limit), until - self._clock())
        took = f"{self._clock() - started:.0f} s"
        if finding.holds:
            return HealResult(device, True, f"healed by an {way} reset after {took}")
        return HealResult(device, finding.holds, f"{way} reset done, but after {took}: {finding.why}")

    def _order_reset(self, device: str, until: float) -> tuple[ResetAnswer, str]:
        """In-band first; through the BMC (which needs ipmitool) if that fails for another reason than missing rights.

        Raises: _NoAnswer.
        """
        card, chip = (int(number) for number in device.split("."))
        order = ("set", "-t", "reset", *self._address(card, chip))
        answer = self._reset_answer((*order, "-m", "1"), until)
        if answer.outcome is not ResetOutcome.FAILED:
            return answer, "in-band"
        try:
            second = self._reset_answer(order, until)
        except _NoAnswer as silence:
            raise _NoAnswer(f"{answer.message}; then {silence}") from None
        if second.outcome is ResetOutcome.DONE:
            return second, "out-of-band"
        return ResetAnswer(second.outcome, f"{answer.message}; without -m 1: {second.message}"), "out-of-band"

    def _reset_answer(self, args: tuple[str, ...], until: float) -> ResetAnswer:
        result = self._ask(args, until, stdin=YES, limit_s=until - self._clock())
        return parse_reset(result.stdout + "\n" + result.stderr)

    def _look_at(self, device: str, until: float) -> DeviceReport:
        reports = self._look(until, closely_at=device)
        return next((report for report in reports if report.device == device), _unlisted(device))

    def _poll(self, check: Callable[[float], _Finding], limit_s: float) -> _Finding:
        """`check` each second until it holds or `limit_s` is over; at least once. The last finding counts."""
        until = self._clock() + limit_s
        while True:
            finding = self._checked(check, until)
            left_s = until - self._clock()
            if finding.holds or left_s <= 0:
                return finding
            self._sleep(min(LOOK_AGAIN_S, left_s))

    def _checked(self, check: Callable[[float], _Finding], until: float) -> _Finding:
        try:
            return check(max(until, self._clock() + LEAST_LOOK_S))
        except _NoAnswer as silence:
            return _Finding(None, str(silence))

    # ---- the tool

    def _ask(
        self, args: tuple[str, ...], until: float, stdin: str = "", limit_s: float = LOOK_LIMIT_S
    ) -> CommandResult:
        left_s = min(limit_s, until - self._clock())
        if left_s <= 0:
            raise _NoAnswer(f"no time left for `{TOOL} {args[0]}`")
        try:
            result = self._run((TOOL, *args), left_s, stdin=stdin, env=dict(self._env))
        except FtslurmError as error:
            raise _NoAnswer(error.message) from None
        except OSError as error:
            raise _NoAnswer(f"`{TOOL}` cannot be run: {error}") from None
        if result.timed_out:
            raise _NoAnswer(f"`{TOOL} {' '.join(args)}` gave no answer within {left_s:.0f} s")
        return result


def _by_number(device: str) -> tuple[int, ...]:
    return tuple(int(number) for number in device.split("."))


def _complaint(command: str, result: CommandResult, table: InfoTable | None = None) -> str:
    lines = (result.stdout + "\n" + result.stderr).splitlines()
    said = next((line.strip() for line in lines if line.strip()), "nothing")
    if result.status != 0:
        return f"`{TOOL} {command}` failed with status {result.status}: {said[:200]}"
    if table is not None and table.chips:
        return f"`{TOOL} {command}` printed {table.unread} rows that make no sense"
    return f"`{TOOL} {command}` printed nothing that makes sense, beginning with: {said[:200]}"


def _unlisted(device: str) -> DeviceReport:
    return DeviceReport(device, KIND, DeviceHealth.UNKNOWN, detail=f"{TOOL} lists no chip {device}")


def _in_words(report: DeviceReport) -> str:
    if report.health is DeviceHealth.UNKNOWN:
        return f"{report.device}: {report.detail or 'health unknown'}"
    codes = " ".join(report.codes) or "no codes"
    return f"{report.device} is {report.health.value} ({report.severity.value}), {codes}"


def _in_use(processes: ProcessTable) -> str:
    first = processes.rows[0]
    others = f" and {len(processes.rows) - 1} more" if len(processes.rows) > 1 else ""
    return f"process {first.pid} ({first.name}) is still on {first.card}.{first.chip}{others}"


def _reset_failed(device: str, answer: ResetAnswer) -> HealResult:
    if answer.outcome is ResetOutcome.REFUSED:
        return HealResult(device, False, f"reset refused: {answer.message}")
    if answer.outcome is ResetOutcome.FAILED:
        return HealResult(device, False, f"reset failed: {answer.message}")
    return HealResult(device, None, f"reset: `{TOOL}` did not say how it went")
