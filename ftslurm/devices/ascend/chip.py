"""What a look at an Ascend chip gives, whichever way it was looked at; and what a check of a condition gives."""

from __future__ import annotations

from collections.abc import Mapping

from ftslurm.model.devices import DeviceHealth, DeviceReport, Severity
from ftslurm.model.values import Value, field, replace

KIND = "ascend"

_FROM_MILD = tuple(Severity)
_BY_NUMBER = dict(enumerate(_FROM_MILD[1:]))


class Checked(Value):
    """One check of a condition. holds None: there was no answer. why: what stands in the way."""

    holds: bool | None
    why: str = ""


class Chip(Value):
    """device: `card.chip`. severity: the worst on the chip. codes: each with its own severity, UNKNOWN if not told.

    A chip can be well and have codes: those of hints. blind: why its codes are not known, if they were asked for.
    """

    device: str
    health: DeviceHealth
    severity: Severity = Severity.UNKNOWN
    codes: Mapping[str, Severity] = field(default_factory=dict)
    detail: str = ""
    blind: str = ""

    def reports(self) -> tuple[DeviceReport, ...]:
        """One report, or one for each severity where the driver tells that of every code: each code is then graded by
        its own, not by the worst of the chip."""
        groups: dict[Severity, list[str]] = {}
        for code, own in self.codes.items():
            groups.setdefault(self.severity if own is Severity.UNKNOWN else own, []).append(code)
        worst_first = sorted(groups, key=_FROM_MILD.index, reverse=True) or [self.severity]
        return tuple(
            DeviceReport(self.device, KIND, self.health, severity, tuple(groups.get(severity, ())), self.detail)
            for severity in worst_first
        )

    def with_code(self, code: str, severity: Severity, words: str) -> Chip:
        """Also this code, which is over already: for one look the chip counts as it did while the fault was there."""
        worst = max(self.severity, severity, key=_FROM_MILD.index)
        harmless = severity is Severity.HINT or self.health is DeviceHealth.UNKNOWN
        return replace(
            self,
            health=self.health if harmless else DeviceHealth.FAULTY,
            severity=worst,
            codes={**self.codes, code: severity},
            detail="; ".join(part for part in (self.detail, f"{code} came and went: {words}".rstrip(": ")) if part),
        )

    def __str__(self) -> str:
        if self.health is DeviceHealth.UNKNOWN:
            return f"{self.device}: {self.detail or 'health unknown'}"
        codes = " ".join(self.codes) or "no codes"
        return f"{self.device} is {self.health.value} ({self.severity.value}), {codes}"


def severity_by_number(number: int) -> Severity:
    """The driver's 0 to 3."""
    return _BY_NUMBER.get(number, Severity.UNKNOWN)


def unlisted_chip(device: str) -> Chip:
    return Chip(device, DeviceHealth.UNKNOWN, detail=f"there is no chip {device} to be seen")


def by_number(device: str) -> tuple[int, ...]:
    """For sorting: `10.0` after `2.0`."""
    return tuple(int(number) for number in device.split("."))
