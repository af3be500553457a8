"""What the scripts that Slurm runs on the nodes may be told by the site, in one small file of root's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings import count, duration, lasting, suggestion, switch, text, words_of
from ftslurm.model.values import dataclass


def argv(value: Any) -> tuple[str, ...]:
    """A program by its full path, with its arguments: a list, or one word."""
    words = tuple(str(word) for word in (value if isinstance(value, list) else [value] if value else ()))
    if words and not words[0].startswith("/"):
        raise ValueError(f"`{words[0]}` is no full path; it runs as root, so no PATH is searched")
    return words


def argvs(value: Any) -> tuple[tuple[str, ...], ...]:
    if not isinstance(value, list):
        raise ValueError("not a list of commands; write [[/path/to/program, argument], ...]")
    return tuple(argv(each) for each in value)


def places(value: Any) -> tuple[str, ...]:
    """Full paths, in which `{home}` and `{user}` stand for the job's user."""
    found = words_of()(value)
    for place in found:
        if not place.startswith(("/", "{home}")) or ".." in place.split("/"):
            raise ValueError(f"`{place}` is no full path; write it from / or from {{home}}")
    return found


def counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("not a table; write {ascend: 8}")
    number = count(1, 1024)
    return {words_of("ascend", "nvidia", "amd")(str(kind))[0]: number(many) for kind, many in value.items()}


def variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("not a table of names and values")
    return {str(name): str(one) for name, one in value.items()}


def _leaf(name: str, kind: Callable[[Any], Any], default: Any) -> Any:
    metadata = {"name": name, "kind": kind}
    return field(default_factory=dict, metadata=metadata) if default == {} else field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class HookSettings:
    """Durations in seconds. `{node}` in state and kernel_log stands for the node's name.

    health_command: as root, exit status 0: the node is well, 1 to 125: it is not (the last line of output says why), anything
    else: the command is not. devices: kind -> how many there must be. kernel_log: empty: not read. ledgers: state folders of
    users. limit_s: for all that the Prolog or the health check looks at. cleanup: commands of the site's Epilog.
    cleanup_grace_of_job: may a job say that its clean-up is not waited for to the end? leftovers_limit_s: for all about them.
    reset_wait_s: 0: no chip is reset. start_in_s: the least time to a start where nobody watches the nodes until they are clean.
    """

    health_command: tuple[str, ...] = _leaf("health_command", argv, ())
    health_timeout_s: float = _leaf("health_timeout", lasting, 10.0)
    devices: Mapping[str, int] = _leaf("devices", counts, {})
    device_timeout_s: float = _leaf("device_timeout", lasting, 10.0)
    kernel_log: str = _leaf("kernel_log", text, "/dev/kmsg")
    limit_s: float = _leaf("limit", lasting, 20.0)
    leftovers: bool = _leaf("leftovers", switch, True)
    kill_grace_s: float = _leaf("kill_grace", lasting, 2.0)
    kill_wait_s: float = _leaf("kill_wait", lasting, 10.0)
    leftovers_limit_s: float = _leaf("leftovers_limit", lasting, 120.0)
    reset_wait_s: float = _leaf("reset_wait", duration, 0.0)
    cleanup: tuple[tuple[str, ...], ...] = _leaf("cleanup", argvs, ())
    cleanup_limit_s: float = _leaf("cleanup_limit", lasting, 600.0)
    cleanup_grace_of_job: bool = _leaf("cleanup_grace_of_job", switch, False)
    # 1000: where Debian and Red Hat begin to number people (login.defs(5), UID_MIN).
    first_user_id: int = _leaf("first_user_id", count(1, 2**31), 1000)
    ledgers: tuple[str, ...] = _leaf("ledgers", places, ("{home}/.ftslurm",))
    finish_requeues: bool = _leaf("finish_requeues", switch, True)
    finish_after_s: float = _leaf("finish_after", lasting, 3.0)
    start_in_s: float = _leaf("start_in", lasting, 4.0)
    slurm_timeout_s: float = _leaf("slurm_timeout", lasting, 10.0)
    state: str = _leaf("state", text, "/var/lib/ftslurm")
    catalogs: tuple[str, ...] = _leaf("catalogs", words_of(), ())
    environment: Mapping[str, str] = _leaf("environment", variables, {})


LEAVES: Mapping[str, Any] = {leaf.metadata["name"]: leaf for leaf in fields(HookSettings)}


def hook_settings(tree: Mapping[str, Any], place: str) -> HookSettings:
    """A parsed file, checked. Raises: PolicyError naming `place`, the setting and what is wrong."""
    values = {}
    for name, raw in tree.items():
        if name not in LEAVES:
            raise PolicyError(f"{place}: there is no setting `{name}`{suggestion(str(name), LEAVES)}", hint="correct it there")
        leaf = LEAVES[name]
        try:
            values[leaf.name] = leaf.metadata["kind"](raw)
        except (ValueError, TypeError) as error:
            raise PolicyError(f"{place}: {name}: {error}", hint="correct the value there") from None
    return HookSettings(**values)
