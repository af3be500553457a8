"""For programs written for nvidia_resiliency_ext.fault_tolerance: its client, on ftrun's page instead of a socket.

The names, arguments, return values and errors are those of 0.7.0. What differs:
- There is no monitor that could die, so nothing but a mistake in the program raises; without ftrun all is kept to itself.
- Without a configuration every section is timed from its first use, so calculated timeouts work without any, and to open
  one twice or to close one that is not open is forgiven, as it has no consequence there; with one only those listed are.
- `end_all_sections` ends all sections (there it has sent nothing since 0.5), and `state_dict` works before init.
- Calculated timeouts need a process group only where there are other ranks.
"""

# ruff: noqa: UP006, UP035, UP045 -- these types are looked up at runtime, where Python may be 3.8

from __future__ import annotations

import atexit
import dataclasses
import logging
import os
import sys
from enum import Enum, auto
from time import monotonic
from typing import Any, Collection, Dict, Mapping, Optional, Tuple
from weakref import ref

from ftslurm.sdk import client as ft
from ftslurm.sdk import notes
from ftslurm.sdk.nvrx_config import FaultToleranceConfig, given_by_ftrun, takes_every_section
from ftslurm.sdk.nvrx_timeouts import (
    HeartbeatTimeouts,
    RankInfo,
    SectionTimeouts,
    TimeoutsCalc,
    TimeoutsCalcError,
    WorkloadAction,
    WorkloadControlRequest,
)

FT_RANK_MONITOR_IPC_SOCKET_ENV_VAR, FT_LAUNCHER_IPC_SOCKET_ENV_VAR = "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET"
_ACTIONS = {
    WorkloadAction.Continue: "continue",
    WorkloadAction.ExcludeThisNode: "exclude",
    WorkloadAction.ShutdownWorkload: "shutdown",
}
_MEGATRON = "megatron.training.global_vars"


class RankMonitorClientError(Exception):
    """The client was used in a way that its documentation rules out."""


def _end_at_exit(client: Any) -> None:
    alive = client()
    if alive is not None:
        alive.__del__()


class RankMonitorClient:
    """Heartbeats, sections, and the timeouts calculated from them, of one rank."""

    CURRENT_TIMEOUTS_STATE_KEY = "current_timeouts"

    def __init__(self) -> None:
        self.rank_info: Optional[RankInfo] = None
        self.is_initialized = False
        self.timeouts_calc: Optional[TimeoutsCalc] = None
        self.hb_timeouts: Optional[HeartbeatTimeouts] = None
        self.section_timeouts: Optional[SectionTimeouts] = None
        self.loaded_hb_timeouts: Optional[HeartbeatTimeouts] = None
        self.loaded_section_timeouts: Optional[SectionTimeouts] = None
        self.iter_idx = 0
        self._owner = 0  # process that is watched
        self._told: Dict[Tuple[bool, bool], Tuple[Optional[float], ...]] = {}  # of heartbeats, of sections: to ftrun
        self.cfg: Optional[FaultToleranceConfig] = None
        self.logger = logging.getLogger("nvidia_resiliency_ext.fault_tolerance.rank_monitor_client")
        if not ft.notes_path():
            self.logger.info("this rank was not started by ftrun: nobody watches it")

    def init_workload_monitoring(self, num_warmup_iters: Optional[int] = None) -> None:
        """From now on the rank is watched.

        Raises: RankMonitorClientError if it is already; RuntimeError if nobody says which rank this is.
        """
        if self.is_initialized:
            raise RankMonitorClientError("RankMonitorClient is already initialized")
        self.rank_info = RankInfo.get_for_current_rank()
        given = given_by_ftrun()
        cfg = self.cfg = given or FaultToleranceConfig()
        adopts = given is None or takes_every_section()
        self.timeouts_calc = TimeoutsCalc(cfg.rank_section_timeouts, safety_factor=cfg.safety_factor, adopts=adopts)
        self.hb_timeouts = HeartbeatTimeouts(cfg.initial_rank_heartbeat_timeout, cfg.rank_heartbeat_timeout, False)
        self.section_timeouts = SectionTimeouts(dict(cfg.rank_section_timeouts), cfg.rank_out_of_section_timeout)
        if cfg.install_exception_hook:
            sys.excepthook = _end_on_exception
        page = ft.begin(even_in_a_child=True)
        if num_warmup_iters is not None:
            cfg.num_warmup_iterations = num_warmup_iters
            page.warmup(num_warmup_iters)
        self.is_initialized, self._owner = True, os.getpid()
        atexit.register(_end_at_exit, ref(self))  # also of a client that nobody lets go of
        self._use(self.loaded_hb_timeouts, self.loaded_section_timeouts)

    def shutdown_workload_monitoring(self) -> None:
        """The rank is watched no more; nothing happens if it was not."""
        if self.is_initialized and self.timeouts_calc:
            if self.timeouts_calc.open_sections:
                self.logger.warning("sections %s were still open", list(self.timeouts_calc.open_sections))
            self._end()

    def _end(self) -> None:
        self.is_initialized = False
        ft.over()

    def __del__(self) -> None:
        """There the connection closes with the client, and the rank is forgotten: a program that has let go of it, or that is
        ending, owes no sign of life."""
        try:
            if self.is_initialized and self._owner == os.getpid():
                self._end()
        except Exception:
            pass

    def send_heartbeat(self) -> None:
        """Raises: RankMonitorClientError before init."""
        calc = self.timeouts_calc
        if not self.is_initialized or calc is None:
            raise RankMonitorClientError("RankMonitorClient is not initialized")
        ft.heartbeat()
        calc.update_on_heartbeat()

    def start_section(self, section: str) -> None:
        """Sections may nest and overlap. One that is in no configuration, where there is one, is passed over.

        Raises: RankMonitorClientError before init, and if it is open already.
        """
        calc = self._calc()
        if section in calc.section_to_max_time or calc.takes_in(section):
            try:
                calc.open(section, monotonic())
            except TimeoutsCalcError as error:
                raise _refused(error) from None
            ft.start_section(section)
            if section == "step":
                self._tell_iteration()

    def end_section(self, section: str) -> None:
        """Raises: RankMonitorClientError before init, and if it is not open."""
        calc = self._calc()
        if section in calc.section_to_max_time:
            try:
                calc.close(section, monotonic())
            except TimeoutsCalcError as error:
                raise _refused(error) from None
            ft.end_section(section)

    def end_all_sections(self) -> None:
        """Ends every section that is open, if any. Raises: RankMonitorClientError before init."""
        calc = self._calc()
        for name in list(calc.open_sections):
            calc.close(name, monotonic())
        ft.end_all_sections()

    def calculate_and_set_hb_timeouts(self, skip_if_not_ready: bool = False) -> bool:
        """From the times seen on all ranks: a collective, to be called on all of them.

        False: there is not enough to calculate from yet and `skip_if_not_ready` was asked for; without that it
        raises RankMonitorClientError. Raises also: TimeoutsCalcError where other ranks cannot be asked.
        """
        calc = self._calc()
        calc.synchronize_all()
        if not self._ready(calc.can_get_hb_timeouts(), skip_if_not_ready):
            return False
        self._use(calc.get_hb_timeouts(self.hb_timeouts), None)
        return True

    def calculate_and_set_section_timeouts(
        self,
        selected_sections: Optional[Collection[str]] = None,
        calc_out_of_section: bool = True,
        skip_if_not_ready: bool = False,
    ) -> bool:
        """As calculate_and_set_hb_timeouts, for the sections named (None: all), and for the time out of them."""
        calc = self._calc()
        calc.maybe_bump_oos_time()
        calc.synchronize_all()
        if not self._ready(calc.can_get_section_timeouts(selected_sections, calc_out_of_section), skip_if_not_ready):
            return False
        self._use(None, calc.get_section_timeouts(selected_sections, calc_out_of_section, self.section_timeouts))
        return True

    def state_dict(self) -> Dict[str, Any]:
        """The calculated timeouts, for a checkpoint: JSON-safe, and the same on all ranks."""
        told: Dict[str, Any] = {}
        beats = self.hb_timeouts or self.loaded_hb_timeouts
        sections = self.section_timeouts or self.loaded_section_timeouts
        if beats and beats.were_calculated and beats.are_valid:
            told["heartbeat"] = dataclasses.asdict(beats)
        if sections and (sections.calculated_sections or sections.is_out_of_section_calculated):
            told["section"] = {**dataclasses.asdict(sections), "calculated_sections": sorted(sections.calculated_sections)}
        return {self.CURRENT_TIMEOUTS_STATE_KEY: told}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Timeouts that an earlier run calculated; before or after init."""
        told = state.get(self.CURRENT_TIMEOUTS_STATE_KEY, {})
        if "heartbeat" in told:
            self.loaded_hb_timeouts = _from_dict(HeartbeatTimeouts, told["heartbeat"])
        if "section" in told:
            self.loaded_section_timeouts = _from_dict(SectionTimeouts, told["section"])
        if self.is_initialized:
            self._use(self.loaded_hb_timeouts, self.loaded_section_timeouts)

    def send_workload_control_request(self, req: WorkloadControlRequest) -> None:
        """What shall be done with the job from the next start on."""
        if why := ft.tell(notes.write_control, _ACTIONS[req.action], str(req.description)):
            self.logger.warning("%s was not passed to ftrun: %s", req, why)

    def _calc(self) -> TimeoutsCalc:
        if not self.is_initialized or self.timeouts_calc is None:
            raise RankMonitorClientError("RankMonitorClient is not initialized")
        return self.timeouts_calc

    def _ready(self, ready: bool, skip_if_not_ready: bool) -> bool:
        if not ready and not skip_if_not_ready:
            raise RankMonitorClientError("Not enough data to compute timeouts.")
        return ready

    def _use(self, beats: Optional[HeartbeatTimeouts], sections: Optional[SectionTimeouts]) -> None:
        """They hold from now on, and ftrun is told; None: what held before."""
        self.hb_timeouts = beats or self.hb_timeouts
        self.section_timeouts = sections or self.section_timeouts
        path = ft.notes_path()
        if not path or not (beats or sections):
            return
        told, inside = beats or HeartbeatTimeouts(), sections or SectionTimeouts()
        known = (told.initial, told.subsequent, inside.out_of_section, *inside.section.values())
        kind = (bool(beats), bool(sections))
        before = self._told.get(kind, ())
        if len(known) == len(before) and all(map(_nearly, known, before)):
            return
        self._told[kind] = known
        why = notes.limits(path, told.initial, told.subsequent, inside.out_of_section, inside.section)
        if why:
            self.logger.warning("the calculated timeouts were not passed to ftrun: %s", why)

    def _tell_iteration(self) -> None:
        """Megatron-LM keeps the number of the step where everybody can read it."""
        args = getattr(sys.modules.get(_MEGATRON), "_GLOBAL_ARGS", None)
        iteration = getattr(args, "curr_iteration", getattr(args, "iteration", None))
        if iteration is not None:
            ft.progress(iteration)


def _refused(error: TimeoutsCalcError) -> RankMonitorClientError:
    return RankMonitorClientError(f"RankMonitorClient could not send section update. Exception: {error}")


def _nearly(one: Optional[float], other: Optional[float]) -> bool:
    """Within 1 %: what is calculated with every checkpoint of a long job ends in steps that are not worth a note."""
    return one == other or (one is not None and other is not None and abs(one - other) <= 0.01 * other)


def _from_dict(kind: Any, told: Mapping[str, Any]) -> Any:
    """Members that are not known here (a newer version wrote them) are passed over."""
    known = {field.name for field in dataclasses.fields(kind)}
    return kind(**{name: value for name, value in told.items() if name in known})


def _end_on_exception(kind: Any, error: Any, trace: Any) -> None:
    """For `install_exception_hook`: a process whose other threads do not end would hang at its exit."""
    sys.__excepthook__(kind, error, trace)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(1)


# --- of the monitor, which ftrun has none of


class InvalidStateTransitionException(Exception):
    """Never raised here."""


class RankMonitorState(Enum):
    UNINITIALIZED = auto()
    INITIALIZE = auto()
    HANDLING_START = auto()
    HANDLING_PROCESSING = auto()
    HANDLING_COMPLETED = auto()
    FINALIZED = auto()
    ABORTED = auto()


def _refuse(*_: Any, **__: Any) -> None:
    raise RuntimeError("a rank's monitor belongs to ft_launcher; under ftrun the ranks are watched already, so leave it out")


class RankMonitorServer:
    """Raises: RuntimeError when made or run."""

    RANK_MONITOR_INIT_TIMEOUT = 180.0
    run = run_in_subprocess = staticmethod(_refuse)

    def __init__(self, *_: Any, **__: Any) -> None:
        _refuse()


class RankMonitorStateMachine(RankMonitorServer):
    """Raises: RuntimeError when made."""
