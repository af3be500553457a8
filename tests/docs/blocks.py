"""The fenced blocks and the commands of the documents, and the commands that the code tells people to type.

A block says what it is behind its fence: ```sh (commands to type), ```bash NAME (a script), ```python NAME, ```yaml NAME,
```ini NAME, ```json, ```text (what is printed), or a directive of the site's in braces.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Container, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>.*)\n(?P<text>(?:.*\n)*?)(?P=indent)```$", re.MULTILINE)
CODE = re.compile(r"(?<!`)`([^`\n]+(?:\n[^`\n]+)?)`(?!`)")
NESTED = re.compile(r"\$\(([^()]+)\)")
# What begins a command of ours in a sentence.
OURS = re.compile(r"(ftrun|ftslurm|ft_launcher|make|tools/slurm-cluster)($| )|eval ")
# In a text of the code: a command that stands as code, or is all there is, or all behind a colon.
QUOTED = re.compile(r"(ftrun|ftslurm|ft_launcher)($| )")
BARE = re.compile(r"(?:^|: )((?:sudo )?ftslurm (?P<verb>[a-z-]+)(?: \S+)*|ftrun --\S+(?: \S+)*)$")
# Between two commands of one line.
BETWEEN = frozenset({"|", "||", "&&", ";", "{", "}", "&", ";;", "(", ")"})
REDIRECTIONS = frozenset({">", ">>", "<", ">&", "2>"})


@dataclass(frozen=True)
class Block:
    """place: `docs/nodes.md:53`. name: of the file that it is, empty for none."""

    document: Path
    place: str
    language: str
    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """words: without redirections. place: as of a block."""

    place: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.place} {shlex.join(self.words)}"


def blocks(document: Path) -> Iterator[Block]:
    whole = document.read_text()
    for found in FENCE.finditer(whole):
        language, _, name = found["info"].strip().partition(" ")
        line = whole.count("\n", 0, found.start()) + 1
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        yield Block(document, f"{document.relative_to(ROOT)}:{line}", language, name, text)


def all_blocks(*languages: str) -> list[Block]:
    return [block for document in DOCUMENTS for block in blocks(document) if not languages or block.language in languages]


def commands(block: Block) -> Iterator[Command]:
    for line in block.text.replace("\\\n", " ").splitlines():
        yield from commands_of(block.place, line)


def commands_of(place: str, line: str) -> Iterator[Command]:
    """Those of one line, and those in `$(...)` within it."""
    for nested in NESTED.findall(line):
        yield from commands_of(place, nested)
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = iter(lexer)
    for token in tokens:
        if token in BETWEEN:
            yield from _command(place, words)
            words = []
        elif token in REDIRECTIONS:
            if words and words[-1] == "2":
                words.pop()
            next(tokens)
        else:
            words.append(token)
    yield from _command(place, words)


def _command(place: str, words: list[str]) -> Iterator[Command]:
    while words and re.fullmatch(r"[A-Za-z_]+=.*|do|then|sudo|exec|if|env", words[0]):
        words = words[1:]
    if words:
        yield Command(place, tuple(words))


def in_the_text(document: Path) -> Iterator[Command]:
    """Commands of ours that stand in a sentence, as code."""
    text = FENCE.sub("", document.read_text())
    for code in CODE.findall(text):
        words = " ".join(code.split())
        if OURS.match(words):
            yield from commands_of(str(document.relative_to(ROOT)), words)


def in_the_code(module: Path, verbs: Container[str]) -> Iterator[Command]:
    """Commands of ours in its texts: messages, hints, helps, docstrings. verbs: of ftslurm."""
    whole = module.read_text()
    for number, text in texts(ast.parse(whole)) if module.suffix == ".py" else lines_for_the_shell(whole):
        told = [words for code in CODE.findall(text) if QUOTED.match(words := " ".join(code.split()))]
        if (bare := BARE.search(text)) and (bare["verb"] is None or bare["verb"] in verbs):
            told.append(bare[1])
        for words in told:
            yield from commands_of(f"{module.relative_to(ROOT)}:{number}", words)


def lines_for_the_shell(catalogue: str) -> Iterator[tuple[int, str]]:
    """Those of site-checks.yaml."""
    for number, line in enumerate(catalogue.splitlines(), 1):
        yield from ((number, text) for text in re.findall(r'shell: ([^"]*)"', line))


def texts(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """(line, text) of each, its holes filled in: by either word of a choice, else by 1 behind an option and by JOB elsewhere."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    pieces = {id(piece) for node in found for piece in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in pieces:
            yield node.lineno, node.value
    for node in found:
        for filled in product(*map(_pieces, node.values)):
            yield node.lineno, re.sub(r"(--[\w-]+[ =])\0", r"\g<1>1", "".join(filled)).replace("\0", "JOB")


def _pieces(piece: ast.expr) -> tuple[str, ...]:
    match piece:
        case ast.Constant(str(text)):
            return (text,)
        case ast.FormattedValue(ast.IfExp(body=ast.Constant(str(one)), orelse=ast.Constant(str(other)))):
            return one, other
    return ("\0",)
