"""What others wrote rules no terminal: the function, and that every door uses it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ftslurm.model.text import visible

PACKAGE = Path(__file__).parents[2] / "ftslurm"


@pytest.mark.parametrize(("text", "shown"), [
    ("a node", "a node"),
    ("\x1b]0;owned\x07\x1b[2J", "?]0;owned??[2J"),
    ("\x9b31m", "?31m"),  # one byte for two, in terminals of eight bits
    ("one\nftrun: two\ttabs", "one ftrun: two tabs"),
    ("rank\r ok", "rank? ok"),
    ("gnp.\u202etxt", "gnp.?txt"),  # writes backwards
    ("\u2066a\u2069\u200b", "?a??"),
    ("\udcff\udc9b", "??"),  # bytes of an argument that are no text
    ("[red]no markup of ours[/red]", "[red]no markup of ours[/red]"),
    ("größe 数", "größe 数"),
    (ValueError("\x1b[m"), "?[m"),
])  # fmt: skip
def test_one_line(text: object, shown: str) -> None:
    assert visible(text) == shown


def test_several_lines() -> None:
    assert visible("a\tb\r\n\x1b[31mc\n", lines=True) == "a\tb\n?[31mc\n"


@given(st.text(), st.booleans())
def test_nothing_gets_through(text: str, lines: bool) -> None:
    shown = visible(text, lines)
    assert shown.replace("\n", "").replace("\t", "").isprintable() if lines else shown.isprintable()
    shown.encode()


# --- every door

# Where a call shows text, and what may stand in it without `visible`: our own words, and numbers of ours.
_SHOWS = {
    "print", "click.echo", "sys.exit", "syslog.syslog",
    *(f"sys.{stream}{way}.{verb}" for stream in ("stdout", "stderr") for way in ("", ".buffer") for verb in ("write", "writelines")),
}  # fmt: skip
_OURS = {
    ("cli/ftrun.py", "print(help_text())"), ("cli/ftrun.py", "print(f'ftslurm {ftslurm.__version__}')"),
    ("hooks/hook_inputs.py", "syslog.syslog(sentence)"), ("hooks/hook_inputs.py", "print(f'ftslurm: {sentence}', file=sys.stderr)"),  # one_line
    # For programs: JSON, or lines that a shell evaluates.
    ("wrapper/node_check.py", "print(_check(asked, dict(os.environ)).text())"),
    ("wrapper/script_look.py", "print(CheckAnswer(*_look(int(sys.argv[1]), os.environ), {}).text())"),
    ("cli/output.py", "click.echo(as_json(value))"),
    ("cli/ftslurm.py", "click.echo(export_lines(store(), os.environ), nl=False)"),
    ("wrapper/all_ledgers.py", "sys.stdout.buffer.write(piece)"), ("wrapper/all_ledgers.py", "sys.stdout.buffer.write(WHOLE)"),
    ("cli/jobs/logs.py", "sys.stdout.buffer.write(piece)"),  # not to a terminal, or asked for
    ("launchers/local_step.py", "os.write(2, f'{visible(text)}\\n'.encode())"),
    *((f"wrapper/shim/{name}.py", "os.write(2, f'{text}\\n'.encode(errors='replace'))") for name in ("output", "_shim")),  # cleaned there
    ("hooks/task_prolog.py", "sys.stdout.write(lines(os.environ))"),
    ("cli/jobs/explain.py", "sys.exit(STATUS[found.verdict.retriable])"),
    ("cli/jobs/explain.py", "click.echo(json.dumps(for_programs(found), indent=2, sort_keys=True))"),
    ("wrapper/controller/people.py", "print('\\n'.join((f'{SPEAKER}{visible(text)}' for text in texts)), file=self._err, flush=True)"),
    ("cli/ft_launcher/command.py", "print(ABOUT)"),
    ("cli/ftslurm.py", "click.echo(made(command, {}, name, f'_{name.upper()}_COMPLETE').source())"),
    ("cli/ftslurm.py", "print(f'ftslurm: the output cannot be written: {error.strerror}', file=sys.stderr)"),
    ("cli/site.py", "click.echo(json.dumps([asdict(node) for node in known], indent=2, sort_keys=True))"),
}  # fmt: skip


def doors() -> Iterator[tuple[str, ast.Call]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and (ast.unparse(node.func) in _SHOWS or _writes_to_a_stream(node)):
                yield str(path.relative_to(PACKAGE)), node


def _writes_to_a_stream(call: ast.Call) -> bool:
    """By its descriptor."""
    number = call.args[0] if call.args and ast.unparse(call.func) == "os.write" else None
    return isinstance(number, ast.Constant) and number.value in (1, 2)


def shown(call: ast.Call) -> Iterator[ast.expr]:
    """What of a call is not ours: everything but constants, statuses, and what `visible` was asked about."""
    for argument in call.args:
        for part in argument.values if isinstance(argument, ast.JoinedStr) else [argument]:
            value = part.value if isinstance(part, ast.FormattedValue) else part
            if not (isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and ast.unparse(value.func) == "visible")):
                yield value


def test_every_door_of_the_package_asks() -> None:
    """sdk: its programs run in the user's, whose terminal it is; statuses of sys.exit are numbers."""
    numbers = {"status", "error.exit_status", "failed", "0 if fit else BAD_NODE_STATUS", "node", "self._node", "rank"}
    open_doors = [
        f"{place}: {ast.unparse(call)}"
        for place, call in doors()
        if not place.startswith("sdk/") and (place, ast.unparse(call)) not in _OURS
        and any(ast.unparse(value) not in numbers for value in shown(call))
    ]  # fmt: skip
    assert open_doors == []


def test_rich_is_given_text_and_never_strings() -> None:
    """A string may hold markup: a link, a colour, or what ends in an error."""
    for path in sorted((PACKAGE / "report").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("print", "add_row"):
                for argument in node.args:
                    made = ast.unparse(argument)
                    assert made.startswith(("safe_text(", "Text(", "*map(safe_text,", "Padding(grid", "table")), (
                        f"{path.name}: {made}"
                    )
