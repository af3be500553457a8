"""Ascend chips by the text of npu-smi."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping

from ftslurm.devices.ascend.chip import KIND, Checked, Chip
from ftslurm.devices.ascend.dcmi import with_code_words
from ftslurm.devices.ascend.npu_smi import (
    ChipRow,
    HealthBlock,
    InfoTable,
    NpuResetAnswer,
    ProcessTable,
    health_of,
    parse_health,
    parse_info,
    parse_npu_reset,
    parse_processes,
    severity_of,
)  # fmt: skip
from ftslurm.devices.asking import NoAnswer
from ftslurm.errors import FtslurmError
from ftslurm.model.devices import DeviceHealth, Severity, Utilisation
from ftslurm.system.commands import CommandResult, Runner

TOOL = "npu-smi"

# A look takes about a second on a node with 16 dies; a tool that needs longer than this hangs.
LOOK_LIMIT_S = 15.0
# The tool asks once, and a second time where linked chips are reset together (A3, A2 with HCCS); what it does not ask
# for it does not read.
YES = "Y\nY\n"


class NpuSmi:
    """Each question is one run of the tool. Whatever raises, raises NoAnswer; `until` is a time of `clock`."""

    def __init__(self, run: Runner, env: Mapping[str, str], clock: Callable[[], float]) -> None:
        self._run = run
        self._env = env
        self._clock = clock
        self._has_chips: bool | None = None  # not known before the first table

    def present(self) -> bool:
        return shutil.which(TOOL, path=self._env.get("PATH", "")) is not None

    def look(self, until: float, closely_at: str = "", forgiving: bool = False) -> tuple[tuple[Chip, ...], bool]:
        """Every chip that is listed, and whether the list is whole. The codes of those at fault are asked for, and those
        of `closely_at` however well it looks. forgiving: rows that cannot be read do not spoil the others.
        """
        table, whole = self._table(until, forgiving)
        return tuple(self._chip(row, until, row.device == closely_at) for row in table.chips), whole

    def utilisation(self, until: float) -> tuple[Utilisation, ...]:
        table, _ = self._table(until, forgiving=True)
        return tuple(
            Utilisation(row.device, KIND, _percent(row.aicore_percent), row.memory_percent, row.power_w) for row in table.chips
        )

    def idle(self, until: float) -> Checked:
        """Is there no process on any chip of the node?"""
        text = self._ask(("info",), until).stdout
        cards, processes = {row.card for row in parse_info(text).chips}, parse_processes(text)
        if processes.rows:
            return Checked(False, _in_use(processes))
        if not cards or not processes.covers(cards):
            return Checked(False, f"{TOOL} does not tell which processes use the chips")
        return Checked(True)

    def order_reset(self, device: str, in_band: bool, until: float) -> NpuResetAnswer:
        if self._has_chips is None:
            self._table(until, forgiving=True)
        card, chip = (int(number) for number in device.split("."))
        way = ("-m", "1") if in_band else ()
        args = ("set", "-t", "reset", *self._address(card, chip), *way)
        result = self._ask(args, until, stdin=YES, limit_s=until - self._clock())
        return parse_npu_reset(result.stdout + "\n" + result.stderr)

    # ---- looking

    def _table(self, until: float, forgiving: bool) -> tuple[InfoTable, bool]:
        result = self._ask(("info",), until)
        table = parse_info(result.stdout)
        whole = result.status == 0 and not table.unread
        if not table.chips or not (whole or forgiving):
            raise NoAnswer(_complaint("info", result, table))
        self._has_chips = table.has_chips
        return table, whole

    def _chip(self, row: ChipRow, until: float, closely: bool) -> Chip:
        shown, severity = health_of(row.health), severity_of(row.health)
        if not closely and shown is not DeviceHealth.FAULTY:
            detail = "" if shown is DeviceHealth.GOOD else f"{TOOL} shows health `{row.health}`"
            return Chip(row.device, shown, severity, detail=detail)
        try:
            block = self._health_block(row, until)
        except NoAnswer as silence:
            blind = f"its codes cannot be read: {silence}"
            return Chip(row.device, shown, severity, detail=f"{TOOL} shows health `{row.health}`, {blind}", blind=blind)
        # The later answer counts: a chip that has recovered in between is shown as OK and without codes.
        health, severity = health_of(block.word), severity_of(block.word)
        codes = dict.fromkeys(block.codes, Severity.UNKNOWN)
        return Chip(row.device, health, severity, codes, "; ".join(block.information))

    def _health_block(self, row: ChipRow, until: float) -> HealthBlock:
        # Without `-c` the tool of A2 and A3 prints no codes; the 950's tool refuses `-c`.
        result = self._ask(("info", "-t", "health", *self._address(row.card, row.chip)), until)
        block = parse_health(result.stdout)
        if block is None:
            raise NoAnswer(_complaint("info -t health", result))
        return block

    def _address(self, card: int, chip: int) -> tuple[str, ...]:
        return ("-i", str(card)) if self._has_chips is False else ("-i", str(card), "-c", str(chip))

    # ---- the tool

    def _ask(self, args: tuple[str, ...], until: float, stdin: str = "", limit_s: float = LOOK_LIMIT_S) -> CommandResult:
        left_s = min(limit_s, until - self._clock())
        if left_s <= 0:
            raise NoAnswer(f"no time left for `{TOOL} {args[0]}`")
        try:
            result = self._run((TOOL, *args), left_s, stdin=stdin, env=dict(self._env))
        except FtslurmError as error:
            raise NoAnswer(error.message) from None
        except OSError as error:
            raise NoAnswer(f"`{TOOL}` cannot be run: {error}") from None
        if result.timed_out:
            raise NoAnswer(f"`{TOOL} {' '.join(args)}` gave no answer within {left_s:.0f} s")
        return result


def _percent(told: int | None) -> float | None:
    return float(told) if told is not None and told <= 100 else None


def _complaint(command: str, result: CommandResult, table: InfoTable | None = None) -> str:
    lines = (result.stdout + "\n" + result.stderr).splitlines()
    said = with_code_words(next((line.strip() for line in lines if line.strip()), "nothing")[:200])
    if result.status != 0:
        return f"`{TOOL} {command}` failed with status {result.status}: {said}"
    if table is not None and table.chips:
        return f"`{TOOL} {command}` printed {table.unread} rows that make no sense"
    return f"`{TOOL} {command}` printed nothing that makes sense, beginning with: {said}"


def _in_use(processes: ProcessTable) -> str:
    first = processes.rows[0]
    others = f" and {len(processes.rows) - 1} more" if len(processes.rows) > 1 else ""
    return f"process {first.pid} ({first.name}) is still on {first.card}.{first.chip}{others}"
