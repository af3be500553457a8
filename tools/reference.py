"""The reference that is made from the code: Markdown, put into the pages of docs/reference when the site is built.

    tools/reference.py PART      prints one part: settings, records, ...; without PART their names

A page of docs/reference holds a directive, ```{reference} PART; docs/conf.py puts the text of `parts()[PART]()` in its place. So
nothing that is generated is committed, and what a reader sees is of the very release that the site was built from.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import schemas

from ftslurm import errors
from ftslurm.cli.ft_launcher import options as ft_launcher_options
from ftslurm.config import catalog_files
from ftslurm.config.settings_files import profile_layers
from ftslurm.model.devices import Severity
from ftslurm.model.record import KINDS
from ftslurm.model.settings import hook_settings, kinds
from ftslurm.model.settings import tree as settings

GLOSSARY = catalog_files.load_glossary()
PROFILES = ("modelarts", "aimaster-sync", "aimaster-async", "ft-launcher")
GROUPS = {
    "": "The job",
    "rungs": "Rungs",
    "retry": "Retries",
    "hang": "Hangs",
    "sdk": "Program interface",
    "stop": "Stopping ranks",
    "requeue": "Requeue",
    "isolation": "Excluded and suspect nodes",
    "blame": "Blame",
    "warning": "Warnings by Slurm",
    "checkpoint": "Checkpoints",
    "lease": "Leases",
    "nodes": "Nodes",
    "devices": "Devices",
    "logs": "Output",
    "notify": "Notices",
    "metrics": "Metrics and traces",
    "slurm": "Slurm",
}
FIRST = (
    "max_restarts", "rungs.hang-restart.enabled", "hang.stall", "rungs.in-place-restart.crash_restarts", "nodes.spares",
    "nodes.min", "stop.grace", "time_limit.resume", "notify.file", "metrics.dir",
)  # fmt: skip


def code(text: object) -> str:
    return f"`{text}`" if "`" not in f"{text}" else f"`` {text} ``"


def plain(text: str) -> str:
    """Text as it stands: nothing in it is markup, but for pieces of code."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        pieces = [text.replace("`", "'")]
    return "`".join(piece if number % 2 else _escaped(piece) for number, piece in enumerate(pieces))


def _escaped(text: str) -> str:
    return "".join(f"\\{char}" if char in "\\*_[]{}<>#|$~^" else char for char in re.sub(r"\s+", " ", text))


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    names = tuple(head)
    lines = [names, ("---",) * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, row))} |" for row in lines)


def _cell(text: str) -> str:
    # Also within a piece of code a bar would end the cell.
    return text.replace("|", "\\|") if "`" in text else text


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n\n".join(f"{term}\n: {text}" for term, text in pairs)


# --- settings


def tables_part() -> str:
    first = table(("setting", "default", "what it does"), ([_link(name), _set_to(name), _effect_of(name)] for name in FIRST))
    every = table(("setting", "default", "takes"), ([_link(name), _set_to(name), _kind_of(name)] for name in settings.LEAVES))
    return "\n\n".join(("**The ten that people need first**", first, "**All, to scan**", every))


def settings_part() -> str:
    groups: dict[str, list[str]] = {}
    for name in settings.LEAVES:
        head = name.partition(".")[0] if "." in name else ""
        groups.setdefault(head if head in GROUPS else "", []).append(name)
    assert set(groups) == set(GROUPS), set(groups) ^ set(GROUPS)
    details = (f"## {title}\n\n" + "\n\n".join(map(_setting, groups[head])) for head, title in GROUPS.items())
    return "\n\n".join(details)


def _link(name: str) -> str:
    return f"[{code(name)}](#set-{name})"


def _set_to(name: str) -> str:
    return code(kinds.value_in_words(settings.LEAVES[name], settings.LEAVES[name].default))


def _kind_of(name: str) -> str:
    return plain(kinds.takes(settings.LEAVES[name].kind))


def _effect_of(name: str) -> str:
    return _sentence(GLOSSARY.settings[name])


def _setting(name: str) -> str:
    """With a label, so that every page can link to it."""
    text = f"{_effect_of(name)} Takes {_kind_of(name)}. Variable {code(settings.env_name(name))}."
    return f"(set-{name})=\n\n{definitions([(f'{code(name)} = {_set_to(name)}', text)])}"


def _sentence(text: str) -> str:
    first = text.split()[0]
    return plain(text if re.search(r"[_.:`]|\d", first) else text[:1].upper() + text[1:]) + "."


def profiles_part() -> str:
    resolved = {name: settings.resolve(profile_layers(name, "reference")) for name in PROFILES}
    rows = []
    for name, leaf in settings.LEAVES.items():
        cells = [
            code(kinds.value_in_words(leaf, leaf.of(each.settings))) if each.places[name] != "default" else ""
            for each in resolved.values()
        ]
        if any(cells):
            rows.append([code(name), code(kinds.value_in_words(leaf, leaf.default)), *cells])
    return table(("setting", "default", *PROFILES), rows)


def hooks_part() -> str:
    return definitions(_hook(leaf, GLOSSARY.hooks[leaf.name]) for leaf in hook_settings.LEAVES.values())


def _hook(leaf: Any, what: str) -> tuple[str, str]:
    default = leaf.default
    seconds = leaf.kind in (kinds.lasting, kinds.duration)
    shown = f"{default:g}s" if seconds else str(default).lower() if isinstance(default, bool) else _listed(default)
    if leaf.kind is kinds.duration and not default:
        shown = "never"
    return f"{code(leaf.name)}: {code(shown)}", _sentence(what)


def _listed(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(repr(word) for word in value)}]"
    return "{}" if value == {} else str(value)


# --- exit statuses, environment


def statuses_part() -> str:
    return table(("status", "meaning"), ([str(status), plain(what)] for status, what in sorted(errors.own_statuses().items())))


# With rendezvous=torch; a value that the user has set stays.
TORCH = (
    "MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK",
    "GROUP_WORLD_SIZE", "ROLE_NAME", "ROLE_RANK", "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip
# Of ft_launcher: with sdk.provide=nvrx, the last two where records of the cycles and files of the ranks are wanted.
NVRX = (
    "FT_RANK_MONITOR_IPC_SOCKET", "FT_LAUNCHER_IPC_SOCKET", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "OMP_NUM_THREADS",
    "NVRX_CURRENT_CYCLE_INFO", "TORCHELASTIC_ERROR_FILE",
)  # fmt: skip


def variables_part() -> str:
    words = GLOSSARY.words

    def listed(kind: str) -> str:
        return definitions((code(name), _sentence(what)) for name, what in words[kind].items())

    return "\n\n".join((
        f"## What ftrun reads\n\nEach setting has a variable as well: {code('stop.grace')} is {code('FTRUN_STOP_GRACE')}.",
        listed("variable that ftrun reads"),
        "## What each rank and the batch script get\n\nIn the batch script after `eval \"$(ftslurm env)\"`, or by itself where"
        " the site has installed the TaskProlog.",
        listed("variable of each rank and of the batch script"),
        f"## What each rank gets besides\n\n{listed('variable of each rank')}",
        "## With `--ft-rendezvous torch`\n\nSet anew for every start; a variable that you have set yourself stays. "
        + ", ".join(map(code, TORCH)) + ".",
        "## Under `ft_launcher`\n\nAs there, besides: " + ", ".join(map(code, NVRX)) + ". The sockets are names alone;"
        " OMP_NUM_THREADS is 1 where several ranks share a node; the record of the cycle comes with `--ft-cycle-info-dir`, the"
        " error's file with `--log-dir`.",
        f"## What a program that is told a notice gets\n\n{listed('variable of a program that is notified')}",
    ))  # fmt: skip


# --- ledger


def records_part() -> str:
    return "\n\n".join(map(_record, KINDS.values()))


def _record(kind: Any) -> str:
    names, meanings = [field.name for field in fields(kind)], _meanings(kind)
    rows = (
        [
            code(field.name),
            code(str(field.type).replace("tuple[tuple[str, str], ...]", "pairs of str")),
            _default(field),
            plain(meanings.get(field.name, "")),
        ]
        for field in fields(kind)
    )
    head = " ".join((inspect.getdoc(kind) or "").split())
    for name in sorted(names, key=len, reverse=True):
        head = head.replace(f" {name}: ", f" `{name}`: ")
    return f"## {kind.__name__}\n\n{plain(head)}\n\n{table(('field', 'type', 'if missing', 'meaning'), rows)}"


def _meanings(kind: type) -> dict[str, str]:
    """Field -> the comment behind it or above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(kind).splitlines():
        if comment := re.match(r"    # (.*)", line):
            above.append(comment[1])
            continue
        if field := re.match(r"    (\w+): .*?(?:  # (.*))?$", line):
            found[field[1]] = " ".join([*above, *([field[2]] if field[2] else [])])
        above = []
    return found


def _default(field: Any) -> str:
    if field.default is not MISSING:
        return code(repr(field.default)) if field.default != "" else "empty"
    return "required" if field.default_factory is MISSING else "empty"


# --- catalogues


def patterns_part() -> str:
    book = catalog_files.load_pattern_book()
    shipped = [pattern for pattern in book.patterns if pattern.pattern]
    rows = (
        [
            code(each.id), plain(each.name), each.error_class.value, each.retriable.value, each.blame.value, each.role.value,
            each.remedy.value,
        ]
        for each in shipped
    )  # fmt: skip
    head = ("id", "meaning", "class", "retriable", "blames the node", "role", "remedy")
    return f"{len(shipped)} patterns.\n\n{table(head, rows)}"


def exits_part() -> str:
    book = catalog_files.load_pattern_book()
    rows = (
        [str(status), plain(each.meaning), each.error_class.value, each.retriable.value, each.remedy.value]
        for status, each in sorted(book.exits.items())
    )
    return table(("status", "meaning", "class", "retriable", "remedy"), rows)


def codes_part() -> str:
    book = catalog_files.load_code_book()
    parts = []
    for kind, catalog in book.catalogs.items():
        rows = []
        for name in sorted(catalog.entries, key=_by_number):
            meant = book.meaning(kind, name, Severity.UNKNOWN)
            by_program = "yes" if meant.user_induced else ""
            rows.append([code(name), plain(meant.name), meant.fault_class.value, meant.remedy.value, by_program])
        parts.append(
            f"## {catalog.vendor}\n\n{len(rows)} codes.\n\n" + table(("code", "meaning", "fault", "remedy", "program"), rows)
        )
    return "\n\n".join(parts)


def _by_number(name: str) -> tuple[str, int, str]:
    head, _, tail = name.rpartition(" ")
    return (head, int(tail), "") if tail.isdecimal() else (name, 0, name)


# --- checks of ftslurm doctor


def checks_part() -> str:
    checks = catalog_files.load_site_checks()
    every = {**checks.machine, **checks.slurm}
    rows = ([plain(name), ", ".join(map(code, each.keys)) or "", plain(each.source)] for name, each in every.items())
    return f"{len(every)} checks.\n\n{table(('check', 'asks for', 'source'), rows)}"


class _Narrow(argparse.RawDescriptionHelpFormatter):
    """Fits a page. An option with ten spellings takes several lines and tells its value once, as in Python 3.13."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings:
            return super()._format_action_invocation(action)
        value = "" if action.nargs == 0 else self._format_args(action, self._get_default_metavar_for_optional(action))
        text = f"{', '.join(action.option_strings)} {value}".rstrip()
        return textwrap.fill(text, 84, subsequent_indent=" " * 4, break_on_hyphens=False, break_long_words=False)


def ft_launcher_part() -> str:
    """argparse's own help, 88 columns wide, whatever the terminal of who builds the site."""
    made = ft_launcher_options.parser({})
    made.formatter_class = partial(_Narrow, width=88)  # type: ignore[assignment]
    return f"```text\n{made.format_help()}```"


def simulation_part() -> str:
    """What the job of a trace may say."""
    from ftslurm.simulation.trace import plan_words

    return table(
        ("name", "default", "meaning"), ((code(name), code(default), plain(what)) for name, default, what in plan_words())
    )


def json_part() -> str:
    return "\n\n".join(
        f"## {code(call)}\n\n{plain(told)}\n\n{table(('field', 'type'), ([code(name), plain(kind)] for name, kind in found))}"
        for call, told, found in schemas.tables()
    )


def parts() -> Mapping[str, Callable[[], str]]:
    return {
        "tables": tables_part, "settings": settings_part, "profiles": profiles_part, "hooks": hooks_part,
        "statuses": statuses_part, "variables": variables_part, "records": records_part, "patterns": patterns_part,
        "exits": exits_part, "codes": codes_part, "ft_launcher": ft_launcher_part, "checks": checks_part,
        "simulation": simulation_part, "json": json_part,
    }  # fmt: skip


def names() -> Iterator[str]:
    yield from parts()


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in parts():
        print(parts()[sys.argv[1]]())
    else:
        sys.exit(f"reference: one of {', '.join(names())} is wanted")
