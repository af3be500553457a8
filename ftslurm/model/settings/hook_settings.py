"""What the scripts that Slurm runs on the nodes may be told by the site, in one small file of root's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ftslurm.errors import PolicyError
from ftslurm.model.settings.kinds import (
    Leaf,
    count,
    duration,
    lasting,
    leaf,
    leaves_of,
    suggestion,
    switch,
    text,
    value_of,
    words_of,
)
from ftslurm.model.values import Value


def argv(value: Any) -> tuple[str, ...]:
    """A program by its full path, with its arguments: a list, or one word."""
    words = tuple(str(word) for word in (value if isinstance(value, list) else [value] if value else ()))
    if words and not words[0].startswith("/"):
        raise ValueError(f"`{words[0]}` must be an absolute path (runs as root, without PATH)")
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
            raise ValueError(f"`{place}` must be an absolute path, from / or from {{home}}")
    return found


def counts(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("not a table; write {ascend: 8}")
    number = count(1, 1024)
    return {str(kind): number(many) for kind, many in value.items()}


def _variables(value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping):
        raise ValueError("not a table of names and values")
    return {str(name): str(one) for name, one in value.items()}


class HookSettings(Value):
    """Durations in seconds; 0 for `never`."""

    health_command: tuple[str, ...] = leaf(argv, ())
    health_timeout_s: float = leaf(lasting, 10.0)
    devices: Mapping[str, int] = leaf(counts, {})
    device_timeout_s: float = leaf(lasting, 10.0)
    kernel_log: str = leaf(text, "/dev/kmsg")
    limit_s: float = leaf(lasting, 20.0)
    leftovers: bool = leaf(switch, True)
    kill_grace_s: float = leaf(lasting, 2.0)
    kill_wait_s: float = leaf(lasting, 10.0)
    leftovers_limit_s: float = leaf(lasting, 120.0)
    reset_wait_s: float = leaf(duration, 0.0)
    cleanup: tuple[tuple[str, ...], ...] = leaf(argvs, ())
    cleanup_limit_s: float = leaf(lasting, 600.0)
    cleanup_grace_of_job: bool = leaf(switch, False)
    # 1000: where Debian and Red Hat begin to number people (login.defs(5), UID_MIN).
    first_user_id: int = leaf(count(1, 2**31), 1000)
    ledgers: tuple[str, ...] = leaf(places, ("{home}/.ftslurm",))
    finish_requeues: bool = leaf(switch, True)
    finish_after_s: float = leaf(lasting, 3.0)
    start_in_s: float = leaf(lasting, 4.0)
    slurm_timeout_s: float = leaf(lasting, 10.0)
    state: str = leaf(text, "/var/lib/ftslurm")
    catalogs: tuple[str, ...] = leaf(words_of(), ())
    environment: Mapping[str, str] = leaf(_variables, {})


LEAVES: Mapping[str, Leaf] = {leaf.name: leaf for leaf in leaves_of(HookSettings)}


def hook_settings(tree: Mapping[str, Any], place: str) -> HookSettings:
    """A parsed file, checked. Raises: PolicyError naming `place`, the setting and what is wrong."""
    values = {}
    for name, raw in tree.items():
        if name not in LEAVES:
            raise PolicyError(f"{place}: there is no setting `{name}`{suggestion(str(name), LEAVES)}", hint="correct it there")
        leaf = LEAVES[name]
        values[leaf.path[0]] = value_of(leaf.kind, raw, f"{place}: {name}")
    return HookSettings(**values)
