"""Where in a script a call of ftrun stands, and so what a failure of its step means there. Pure: text in, a reading out.

A failure is an answer where the script looks at the status and goes on either way: the condition of `if`, `elif`, `while` or
`until`; `!`; the left of `||` whose right side does not leave the script; a look at `$?` that decides. It is none where the
script ends with it or does not care: `|| exit`, `|| return 1`, `&&`, `; echo END`, `| tee`, `& wait`.

The status is followed from the call upwards through what encloses it, as bash(1) hands it on, until something looks at it, drops
it, or ends the script with it. tree-sitter-bash parses the script, with what is wrong in it as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ftslurm.launchers import script_tree as sh
from ftslurm.model.job import Call, Reading
from ftslurm.model.text import cut
from ftslurm.model.values import Value, replace
from ftslurm.system.processes import SHELLS

if TYPE_CHECKING:
    from tree_sitter import Node

MAX_BYTES = 1_000_000  # of a script; a longer one was made by a program
_SHOWN = 60  # characters of the call, for people


class CallPlace(Value):
    """What called ftrun, or called what did. text: of a script; None for another program. offset: directly behind the top-level
    command that its shell runs; None if the shell does not tell. name: for people."""

    text: bytes | None
    offset: int | None = None
    name: str = ""


def read_calls(places: Iterable[CallPlace], programs: Iterable[str], argv: Sequence[str]) -> Call:
    """How a failure is taken. places: the nearest first; the next one counts where the one before ends with our status.

    programs: the names under which ftrun may be called. argv: what was called, which tells several calls of a script apart.
    """
    names = frozenset(programs)
    read, before = Call(), None
    for place in places:
        if before is not None and (place.text, place.name) == (before.text, before.name):
            continue  # one is a subshell of the other, and the status was followed through the whole script
        before = place
        read = _read(place, names, argv)
        if read.reading is not Reading.FAILURE or not read.ends:
            return read
        names, argv = frozenset({place.name.removesuffix(" -c")}), ()
    return read


def _read(place: CallPlace, programs: frozenset[str], argv: Sequence[str]) -> Call:
    if place.text is None:
        return Call(Reading.DOUBT, f"{place.name} called ftrun, and may look at the status")
    script = _Script(sh.parse_script(place.text[:MAX_BYTES]), programs, place.offset)
    found = script.calls(argv)
    if not found:
        return _without_a_call(script, place)
    fates = [script.fate(call) for call in found]
    call, fate = found[-1], fates[-1]
    where = _where(call, place)
    if script.root.has_error or len({fate.reading for fate in fates}) > 1:
        return Call(Reading.DOUBT, f"{where}, is one of several that it may be", script.is_last(call))
    return Call(fate.reading, f"{where}: {fate.why}", script.is_last(call), fate.ends)


def _without_a_call(script: _Script, place: CallPlace) -> Call:
    """The command that runs names no ftrun: a variable, an alias, a function of a file that the script reads."""
    if script.at is None or script.root.has_error:
        return Call(Reading.DOUBT, f"the call is not found in {place.name or 'the script'}")
    fate, where, last = script.fate(script.at), _where(script.at, place), script.is_last(script.at)
    if fate.reading is Reading.ANSWER or not sh.is_expanded(script.at):
        return Call(Reading.DOUBT, f"{where}, does not show the call", last)
    return Call(fate.reading, f"{where}: {fate.why}", last, fate.ends)


def _where(node: Node, place: CallPlace) -> str:
    line = f"line {node.start_point[0] + 1}, `{cut(' '.join(sh.text_of(node).split()), _SHOWN)}`"
    return f"{place.name}, {line}" if place.name else line


class _Fate(Value):
    """What becomes of a status. ends: the script ends with it."""

    reading: Reading
    why: str
    ends: bool = False


class _At(Value):
    """Whose status it is by now, and whether the shell has negated it."""

    node: Node
    negated: bool = False


_NOBODY = _Fate(Reading.FAILURE, "nothing looks at its status")
_ENDS = _Fate(Reading.FAILURE, "the script ends with it", ends=True)


def _answer(why: str) -> _Fate:
    return _Fate(Reading.ANSWER, why)


class _Script:
    """root: of its tree. at: the top-level command that runs, None if that is not known."""

    def __init__(self, root: Node, programs: frozenset[str], offset: int | None) -> None:
        self.root = root
        self._programs = programs
        self._functions = sh.functions(root)
        self.at = sh.statement_before(root, offset)
        self._running = self._with_functions(self._here()) if self.at is not None else [root]

    def _here(self) -> list[Node]:
        """What may run now: the line of `at`, which bash reads as one, and what the script has left in the background."""
        at = self.at
        assert at is not None
        line = [
            node
            for node in self.root.named_children
            if node.end_point[0] >= at.start_point[0] and node.start_byte <= at.start_byte
        ]
        behind = [node for node in sh.subtree(self.root) if sh.in_background(node) and node.start_byte < at.start_byte]
        return [*line, *behind]

    def _with_functions(self, nodes: Sequence[Node]) -> list[Node]:
        """And the functions that are called there, and by those, in turn."""
        found, waiting, known = list(nodes), list(nodes), set[str]()
        while waiting:
            called = {word for node in sh.commands(waiting.pop()) for word in sh.command_words(node)[:2] if word}
            new = [self._functions[name] for name in called & self._functions.keys() - known]
            known |= called
            found += new
            waiting += new
        return found

    def _commands(self, wanted: frozenset[str]) -> list[Node]:
        """Of all that may run now, those that name one of `wanted`; each once, in order."""
        found = {
            each.id: each
            for node in self._running
            for each in sh.commands(node)
            if any(word and sh.base_name(word) in wanted for word in sh.command_words(each))
        }
        return sorted(found.values(), key=lambda node: node.start_byte)

    def calls(self, argv: Sequence[str]) -> list[Node]:
        """Those of which every word that needs no expansion is among those of `argv`, in order; all if none is alike."""
        found = self._commands(self._programs)
        return [call for call in found if sh.may_be(call, self._programs, argv)] or found or self._in_texts()

    def _in_texts(self) -> list[Node]:
        """`bash -c "..."` with the call in the text: bash becomes the last command of it, and is no caller."""
        name = re.compile(rf"\b(?:{'|'.join(map(re.escape, self._programs))})\b")
        texts = [
            each
            for each in self._commands(SHELLS)
            if any(re.fullmatch("-[a-z]*c", word or "") for word in sh.command_words(each))
        ]
        return [each for each in texts if name.search(sh.text_of(each))]

    def is_last(self, node: Node) -> bool:
        """Is there no command behind it?"""
        return not any(each.start_byte >= node.end_byte for each in sh.statements(self.root))

    # --- following a status

    def fate(self, node: Node, seen: frozenset[int] = frozenset()) -> _Fate:
        """What becomes of the status of `node`. seen: functions on the way."""
        at: _At | _Fate = _At(node)
        while isinstance(at, _At):
            parent = at.node.parent
            at = _NOBODY if parent is None else self._hand_on(at, parent, seen)
        return at

    def _hand_on(self, at: _At, parent: Node, seen: frozenset[int]) -> _At | _Fate:
        kind, node = parent.type, at.node
        if sh.in_background(node):
            return self._waited_for(node)
        if kind == "negated_command":
            return _At(parent, not at.negated)
        if kind == "list" and node.id == parent.children[0].id:
            return self._joined(at, parent, parent.children[1].type, parent.children[-1], seen)
        if kind == "redirected_statement" and (behind := sh.behind_heredoc(parent)):
            return self._joined(at, parent, behind[0].type, behind[1], seen)
        if kind in ("if_statement", "elif_clause", "while_statement") and sh.is_condition(node, parent):
            return self._condition(at, parent, seen)
        if kind == "function_definition":
            return self._returned(parent, seen)
        if kind in sh.BODIES:
            return self._in_a_body(at, parent, seen)
        # The status of `$(...)` among the words of a command is lost, but what it has printed may decide.
        return _At(parent, at.negated and kind != "command")

    def _joined(self, at: _At, parent: Node, sign: str, right: Node, seen: frozenset[int]) -> _At | _Fate:
        """Left of `&&` or `||`."""
        runs = (sign == "||") is not at.negated  # the right side, after the failure
        if not runs:
            return _At(parent, sign == "||")
        return self._after(right, f"`{sign}` goes on with `{cut(' '.join(sh.text_of(right).split()), 30)}`", seen)

    def _condition(self, at: _At, parent: Node, seen: frozenset[int]) -> _Fate:
        word = parent.children[0].type
        why = f"it is the condition of `{word}`"
        if parent.type == "while_statement":
            return _answer(why)
        return self._after(sh.then(parent) if at.negated else sh.otherwise(parent), why, seen)

    def _after(self, branch: Sequence[Node] | Node, why: str, seen: frozenset[int]) -> _Fate:
        """branch: what runs after the failure. why: it is an answer if the script goes on."""
        last = sh.leaving_command(branch)
        if last is None:
            return _answer(why)
        function = sh.enclosing(last, "function_definition")
        returns = sh.command_name(last) == "return" and function is not None
        return self._returned(function, seen) if returns and function is not None else _ENDS

    def _returned(self, function: Node, seen: frozenset[int]) -> _Fate:
        """The most that a caller of the function makes of its status."""
        name = function.child_by_field_name("name")
        if name is None or function.id in seen:
            return _NOBODY
        called = self._commands(frozenset({sh.text_of(name)}))
        return _most([self.fate(call, seen | {function.id}) for call in called])

    def _waited_for(self, node: Node) -> _Fate:
        """In the background: what the script makes of it when it waits for one process."""
        waits = [
            each for each in sh.commands(self.root) if sh.command_words(each)[:1] == ["wait"] and len(each.named_children) > 1
        ]
        return replace(_most([self.fate(each) for each in waits if each.start_byte > node.start_byte]), ends=False)

    def _in_a_body(self, at: _At, parent: Node, seen: frozenset[int]) -> _At | _Fate:
        """A statement among others: the next one may look at `$?`; the status of the last one is that of the whole."""
        if at.negated:
            return _answer("`!` makes a failure no failure")
        following = sh.statements_behind(at.node, parent)
        if following:
            return self._looked_at(following[0]) or replace(_NOBODY, ends=sh.stops_on_errors(self.root))
        return _ENDS if parent.type == "program" else _At(parent)

    def _looked_at(self, first: Node) -> _Fate | None:
        """What the statement behind a call, and those that use what it keeps, make of the status; None: nothing."""
        if not sh.mentions_status(first):
            return None
        if (fate := _decided_in(first)) is not None:
            return fate
        if sh.command_name(first) in ("exit", "return"):
            return _ENDS
        later = [node for node in sh.subtree(self.root) if node.end_byte > first.end_byte]
        uses = [node for name in sh.kept_status(first) for node in later if sh.is_about(node, name)]
        return next((fate for node in uses if (fate := _decided_in(node)) is not None), None)


def _most(fates: Sequence[_Fate]) -> _Fate:
    order = sorted(fates, key=lambda fate: (fate.reading is Reading.ANSWER, fate.ends))
    return order[-1] if order else _NOBODY


def _decided_in(statement: Node) -> _Fate | None:
    """What a statement that looks at the status decides; None where it only says something."""
    branches = sh.branches(statement)
    if any(sh.leaving_command(branch) for branch in branches):
        return _ENDS
    if all(sh.only_says(branch) for branch in branches):
        return None
    return _answer(f"line {statement.start_point[0] + 1}, `{cut(' '.join(sh.text_of(statement).split()), 40)}`, looks at it")
