"""A shell script as tree-sitter-bash parses it: commands and their words, statements, bodies, branches. Pure; knows no ftrun."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node, Tree

# What holds statements one after the other.
BODIES = frozenset({
    "program", "compound_statement", "subshell", "do_group", "if_statement", "elif_clause", "else_clause", "case_item",
    "while_statement", "command_substitution", "process_substitution",
})  # fmt: skip
_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
_CLAUSES = ("elif_clause", "else_clause")
# Commands that only say something, or wait.
_SAYING = frozenset({"echo", "printf", "logger", "date", "sleep", "true", ":", "cat", "tee", "wait", "set", "trap"})
# After these the job begins anew, by the script's own hand.
_BEGINS_ANEW = frozenset({"sbatch", "scontrol"})
# Ends of a script in the words of its own functions.
_LEAVING = frozenset({"exit", "return", "die", "fatal", "abort"})


@cache
def _parser() -> Callable[[bytes], Node]:
    import tree_sitter

    parser = tree_sitter.Parser(tree_sitter.Language(_bash()))
    trees: list[Tree] = []  # a node does not keep its tree

    def parse_one(script: bytes) -> Node:
        trees.append(parser.parse(script))
        return trees[-1].root_node

    return parse_one


def _bash() -> object:
    """tree_sitter_bash.language() without the package's own module, which never runs: it loads shutil and tempfile,
    4 ms of a step, for a file that nobody asks for here."""
    package = find_spec("tree_sitter_bash")
    assert package is not None
    sys.modules.setdefault(package.name, module_from_spec(package))
    return import_module("tree_sitter_bash._binding").language()


def parse_script(script: bytes) -> Node:
    """The root, of type `program`."""
    return _parser()(script)


def text_of(node: Node) -> str:
    return (node.text or b"").decode(errors="replace")


def subtree(node: Node) -> Iterator[Node]:
    """The node and all below it, in order."""
    waiting = [node]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += reversed(each.children)


def enclosing(node: Node, kind: str) -> Node | None:
    above: Node | None = node
    while above is not None and above.type != kind:
        above = above.parent
    return above


# --- commands


def commands(node: Node) -> Iterator[Node]:
    return (each for each in subtree(node) if each.type == "command")


def base_name(word: str) -> str:
    return word.rpartition("/")[2]


def command_words(command: Node) -> list[str | None]:
    """None for one that the shell has yet to expand. Without the assignments before it and its redirections."""
    return [_word(child) for child in command.named_children if child.type not in ("variable_assignment", *_REDIRECTIONS)]


def _word(node: Node) -> str | None:
    if node.type == "command_name" and node.named_child_count == 1:
        return _word(node.named_children[0])
    if node.type == "string" and all(child.type == "string_content" for child in node.named_children):
        return text_of(node)[1:-1]
    if node.type == "raw_string":
        return text_of(node)[1:-1]
    return text_of(node).replace("\\", "") if node.type in ("word", "number", "command_name") else None


def command_name(node: Node) -> str:
    """As written; empty for what is no command."""
    name = node.child_by_field_name("name") if node.type == "command" else None
    return text_of(name) if name is not None else ""


def is_expanded(node: Node) -> bool:
    """Does the shell learn only from a variable which command it is (`$LAUNCH python train.py`)?"""
    return command_name(node).startswith(("$", '"$')) or command_name(node) == "eval"


def may_be(command: Node, programs: Collection[str], argv: Sequence[str]) -> bool:
    """Are the command's words behind the program, those that need no expansion, among `argv`, in order?"""
    found = command_words(command)
    at = next(place for place, word in enumerate(found) if word and base_name(word) in programs)
    came = iter(argv)
    plain = [word for word in found[at + 1 :] if word is not None and not any(sign in word for sign in "*?[{~")]
    return all(any(word == other for other in came) for word in plain)


def functions(root: Node) -> dict[str, Node]:
    defined = [node for node in subtree(root) if node.type == "function_definition"]
    return {text_of(name): node for node in defined if (name := node.child_by_field_name("name")) is not None}


# --- statements


def statements(body: Node) -> list[Node]:
    return [child for child in body.named_children if child.type != "comment"]


def statement_before(root: Node, offset: int | None) -> Node | None:
    """The top-level statement that ends at `offset`, or the last before it; None where no offset is known."""
    before = [node for node in statements(root) if offset is not None and node.start_byte < offset]
    return before[-1] if before else None


def statements_behind(node: Node, parent: Node) -> list[Node]:
    ends = [child.start_byte for child in parent.children if child.type in (*_CLAUSES, "fi", "done", "esac")]
    before = min((end for end in ends if end >= node.end_byte), default=parent.end_byte)
    return [child for child in statements(parent) if node.end_byte <= child.start_byte < before]


def in_background(node: Node) -> bool:
    following = node.next_sibling
    return following is not None and following.type == "&"


def is_condition(node: Node, parent: Node) -> bool:
    """Does it stand before `then` or `do`?"""
    ends = [child.start_byte for child in parent.children if child.type in ("then", "do_group")]
    return not ends or node.start_byte < ends[0]


def behind_heredoc(statement: Node) -> list[Node]:
    """`x <<EOF || y`: the grammar has the sign and what is behind it within the redirection."""
    children = [child for each in statement.children if each.type == "heredoc_redirect" for child in each.children]
    return next((children[at : at + 2] for at, child in enumerate(children) if child.type in ("&&", "||")), [])


def stops_on_errors(root: Node) -> bool:
    """`set -e` in one of its spellings."""
    set_ = [command_words(node) for node in commands(root) if command_name(node) == "set"]
    return any(
        word == "errexit" or (word[:1] == "-" and word[:2] != "--" and "e" in word) for line in set_ for word in line[1:] if word
    )


# --- branches


def then(statement: Node) -> list[Node]:
    """The statements between `then` and what follows."""
    begins = next((child.end_byte for child in statement.children if child.type == "then"), statement.end_byte)
    ends = next((child.start_byte for child in statement.children if child.type in (*_CLAUSES, "fi")), statement.end_byte)
    return [child for child in statements(statement) if begins <= child.start_byte < ends]


def otherwise(statement: Node) -> list[Node]:
    """What runs if the condition of an `if` or `elif` fails; empty where that is another condition."""
    holder = statement if statement.type == "if_statement" else statement.parent
    clauses = [child for child in holder.children if child.type in _CLAUSES] if holder is not None else []
    behind = [clause for clause in clauses if clause.start_byte > statement.start_byte]
    return statements(behind[0]) if behind and behind[0].type == "else_clause" else []


def branches(statement: Node) -> list[list[Node]]:
    """What a statement that looks at a status may do then; empty for one that decides nothing."""
    if statement.type == "if_statement":
        clauses = [child for child in statement.children if child.type in _CLAUSES]
        return [then(statement), *(then(each) if each.type == "elif_clause" else statements(each) for each in clauses)]
    if statement.type == "list":
        return [[part] for part in (statement.children[0], statement.children[-1]) if not _is_test(part)]
    if statement.type == "case_statement":
        return [statements(each)[1:] for each in statement.named_children if each.type == "case_item"]
    return [[statement]] if statement.type == "while_statement" else []


def leaving_command(branch: Sequence[Node] | Node) -> Node | None:
    """The command by which the branch leaves the script with a failure, or the function; None if it goes on, or begins the job
    anew."""
    found = list(branch) if isinstance(branch, Sequence) else [branch]
    if not found or any(command_name(each) in _BEGINS_ANEW for node in found for each in commands(node)):
        return None
    last = found[-1]
    if last.type in ("compound_statement", "list", "subshell", "redirected_statement"):
        inner = [child for child in statements(last) if child.type not in _REDIRECTIONS]
        return leaving_command(inner[-1:]) if inner else None
    return last if command_name(last) in _LEAVING and command_words(last)[1:] != ["0"] else None


def only_says(branch: Sequence[Node]) -> bool:
    return all(_says(each) for each in branch)


def _says(node: Node) -> bool:
    if node.type in ("compound_statement", "list", "redirected_statement", "pipeline"):
        return _is_test(node) or all(_says(child) for child in statements(node) if child.type not in _REDIRECTIONS)
    return node.type == "test_command" or command_name(node) in _SAYING


def _is_test(node: Node) -> bool:
    return node.type == "test_command" or (node.type == "compound_statement" and text_of(node).startswith("(("))


# --- `$?`


def mentions_status(node: Node) -> bool:
    return any(sign in text_of(node) for sign in ("$?", "${?}", "PIPESTATUS", "pipestatus"))


def kept_status(statement: Node) -> list[str]:
    """The variables into which the statement puts what it knows of the status."""
    kept = [each for each in subtree(statement) if each.type == "variable_assignment" and mentions_status(each)]
    return [text_of(each.named_children[0]) for each in kept]


def is_about(statement: Node, variable: str) -> bool:
    """Does the statement decide by it?"""
    if statement.type == "list":
        parts = statement.children[:1]
    elif statement.type == "case_statement":
        parts = statement.named_children[:1]
    elif statement.type in ("if_statement", "while_statement"):
        parts = [child for child in statement.children if child.is_named and is_condition(child, statement)]
    else:
        return False
    return any(each.type == "variable_name" and text_of(each) == variable for part in parts for each in subtree(part))
