"""For programs written for AIMaster's sdk: `from aimaster import job_monitor as jm`, on ftrun's page instead of a service.

Nothing of it raises into the training. A parameter that ftrun knows nothing of is passed on by its name, and kept.
"""

from __future__ import annotations

from typing import Any, Iterable  # noqa: UP035 -- training environments are older

from ftslurm.sdk import client as ft
from ftslurm.sdk import notes

__all__ = ["Monitor", "PyTorchConfig", "Status", "TFConfig", "hang_detect"]


class Status:
    """How a call went."""

    def __init__(self, why: str = "") -> None:
        self._why = why

    def ok(self) -> bool:
        return not self._why

    def to_string(self) -> str:
        return self._why or "OK"

    __str__ = to_string

    def __bool__(self) -> bool:
        return self.ok()

    def __repr__(self) -> str:
        return f"Status({self.to_string()!r})"


class Config:
    """AIMaster's parameters by their names there, such as job_hang_interval in seconds."""

    def __init__(self, **params: Any) -> None:
        self.params = params


class PyTorchConfig(Config):
    pass


class TFConfig(Config):
    pass


class Monitor:
    """What a rank tells. config: its parameters hold from now on."""

    def __init__(self, config: Config | None = None) -> None:
        self.config = config if config is not None else PyTorchConfig()
        self.reset_config(getattr(self.config, "params", {}))

    def send_custom_message(self, content: str) -> Status:
        """To the people who follow the job."""
        return Status(ft.tell(notes.write_message, content))

    def set_retryable_errors(self, errors: Iterable[str]) -> Status:
        """Words in the last output of a failed rank that call its error worth another try."""
        return Status(ft.tell(notes.write_retriable, [errors] if isinstance(errors, str) else errors))

    def reset_config(self, *configs: Any, **params: Any) -> Status:
        """job_hang_interval: seconds without a sign that are a hang from now on; -1: nothing is.

        Inside a function under `hang_detect` it holds to the function's end.
        """
        try:
            for config in configs:
                params = {**dict(getattr(config, "params", config)), **params}
            whys = [self._reset(name, value) for name, value in params.items()]
        except Exception as error:
            return Status(f"{type(error).__name__}: {error}")
        return Status("; ".join(why for why in whys if why))

    def _reset(self, name: str, value: Any) -> str:
        if name == "job_hang_interval":
            if ft.interval(value) is None:
                return f"{name}: {value!r} is neither a positive number of seconds nor -1"
            ft.set_hang_interval(value)
            return "" if ft.notes_path() else ft.NOT_THERE
        if not isinstance(value, (int, float, str)):
            return f"{name}: {value!r} is neither a number nor text"
        return ft.tell(notes.write_setting, name, str(value) if isinstance(value, bool) else value)


class hang_detect(ft.hang_interval):
    """`@hang_detect(180)`: for as long as the function runs, 180 s without a sign are a hang; -1: nothing is."""

    __slots__ = ()
