#!/usr/bin/env python3
"""Draws the pictures of docs/concepts.md as SVG files in docs/pictures. What they say of times and rungs is the code's.

tools/pictures.py           writes them
tools/pictures.py --check   ends with status 1 if a committed picture is not what would be drawn
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ftslurm.config.catalog_files import load_glossary  # noqa: E402
from ftslurm.model.rungs import Rung  # noqa: E402
from ftslurm.model.settings.tree import BEATS, Settings, is_on  # noqa: E402
from ftslurm.policies.judge.judge import NEXT, Phase  # noqa: E402

FOLDER = ROOT / "docs/pictures"
FONT = "system-ui, 'DejaVu Sans', Arial, sans-serif"
INK, SOFT, DIM, LINE = "#1f2933", "#52606d", "#52606e", "#7b8794"
# What a colour stands for: Slurm's own, ours, the user's, trouble, neutral.
FILL = {"slurm": "#dceefb", "ours": "#e3f8e0", "user": "#fff3c4", "bad": "#ffe0e0", "plain": "#f5f7fa"}
SIZE, SMALL, LEADING = 14, 12, 17
# Of a letter of DejaVu Sans, on average, in its size.
LETTER = 0.6


@dataclass
class Picture:
    """width, height: in pixels. parts: what is drawn, in order."""

    title: str
    width: int
    height: int
    parts: list[str] = field(default_factory=list)

    def text(
        self, x: float, y: float, words: str, size: int = SIZE, colour: str = INK, anchor: str = "start", bold: bool = False
    ) -> None:
        """With a white edge, so that it can be read across a line."""
        edge = ' stroke="#ffffff" stroke-width="4" paint-order="stroke"' if colour == SOFT else ""
        weight = ' font-weight="600"' if bold else ""
        style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}{edge}'
        self.parts.append(f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>')

    def box(
        self, x: float, y: float, width: float, height: float, lines: Sequence[str] = (), kind: str = "plain", top: bool = False
    ) -> None:
        """lines: the first is the title. top: of a box that holds others, its text stands at its upper edge."""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{FILL[kind]}" stroke="{LINE}"/>'
        )
        first = y + 20 if top else y + height / 2 - (len(lines) - 1) * LEADING / 2 + 5
        for number, line in enumerate(lines):
            size = SMALL if number else SIZE
            assert len(line) * size * LETTER < width, f"{self.title}: `{line}` does not fit"
            self.text(x + width / 2, first + number * LEADING, line, size, DIM if number else INK, "middle", not number)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, arrow: bool = True, dashed: bool = False, colour: str = INK
    ) -> None:
        more = (' marker-end="url(#tip)"' if arrow else "") + (' stroke-dasharray="5 4"' if dashed else "")
        self.parts.append(f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{colour}" stroke-width="1.5"{more}/>')

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            f'height="{self.height}" font-family="{FONT}" role="img">\n<title>{escape(self.title)}</title>\n'
            '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
            f'<path d="M0 0 L10 5 L0 10 z" fill="{INK}"/></marker></defs>\n'
            f'<rect width="{self.width}" height="{self.height}" rx="8" fill="#ffffff"/>\n'
        )
        return head + "\n".join(self.parts) + "\n</svg>\n"


# --- the ladder


def ladder() -> Picture:
    """A row for each rung, as `ftslurm explain` has them."""
    rungs, height = load_glossary().rungs, 58
    made = Picture("The ladder: the cheapest remedy that fits is taken", 860, 60 + height * len(rungs))
    made.text(24, 32, "A failure goes down the rungs from the top. ftrun takes the first that fits.", SIZE, INK, bold=True)
    for number, (rung, words) in enumerate(rungs.items()):
        y, name, on = 48 + number * height, str(rung), is_on(Settings(), rung)
        lines = _wrapped(words.trigger, 86)
        kind = "bad" if rung is Rung.FAIL else "ours" if on else "plain"
        made.box(24, y, 206, 42, [name, *([] if on else ["off unless requested"])], kind)
        for row, line in enumerate(lines):
            made.text(248, y + 17 + row * 15, line, SMALL)
        if words.price:
            made.text(248, y + 17 + 15 * len(lines), f"costs {words.price}", SMALL, SOFT)
        if number + 1 < len(rungs):
            made.line(127, y + 42, 127, y + height)
    return made


def _wrapped(text: str, letters: int) -> list[str]:
    lines = [""]
    for word in text.split():
        lines = [*lines[:-1], f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < letters else [*lines, word]
    return lines


# --- shim and agent


def processes() -> Picture:
    made = Picture("The processes of a job: ftrun, one shim for each rank, one agent for each node", 900, 430)
    made.box(20, 20, 250, 390, ["batch node"], "plain", top=True)
    made.box(50, 56, 190, 42, ["batch script"], "user")
    made.box(50, 128, 190, 106, ["ftrun", "one loop: events in,", "decisions out"], "ours")
    made.line(145, 98, 145, 128)
    made.box(50, 276, 80, 46, ["ledger"], "plain")
    made.line(90, 234, 90, 276)
    made.box(140, 344, 100, 46, ["srun"], "slurm")
    made.line(190, 234, 190, 344)
    for number, node in enumerate(("n1", "n2")):
        y = 20 + number * 200
        made.box(440, y, 440, 190, [f"node {node}"], "plain", top=True)
        made.box(460, y + 142, 266, 36, ["slurmstepd"], "slurm")
        for rank in range(2):
            x = 460 + rank * 140
            made.box(x, y + 88, 126, 34, [f"shim {2 * number + rank}"], "ours")
            made.box(x, y + 34, 126, 34, [f"rank {2 * number + rank}"], "user")
            made.line(x + 63, y + 142, x + 63, y + 122)
            made.line(x + 63, y + 88, x + 63, y + 68)
        made.box(744, y + 34, 120, 88, ["agent", "devices, IO,", "progress"], "ours")
        made.line(460, y + 105, 240, 170 + 22 * number, colour=SOFT)
        made.line(240, 367, 460, y + 160, dashed=True)
    made.text(290, 100, "signed connections", SMALL, SOFT)
    made.text(290, 115, "of shims and agents", SMALL, SOFT)
    made.text(290, 396, "launches the step", SMALL, SOFT)
    made.text(98, 262, "writes first", SMALL, SOFT)
    return made


# --- leases


def lease() -> Picture:
    """On a scale of time, by the defaults."""
    st = Settings()
    beat = st.nodes.silence_s / BEATS
    width, left, scale = 900, 190, 8.6
    made = Picture("A lease: a node that is cut off ends its ranks before they start elsewhere", width, 300)

    def at(seconds: float) -> float:
        return left + seconds * scale

    for y, words in ((70, "ftrun"), (150, "cut-off node"), (230, "other nodes")):
        made.text(16, y + 5, words, SIZE, bold=True)
        made.line(left, y, width - 20, y, arrow=False, colour=LINE)
    made.text(at(0), 28, "connection is cut", SMALL, SOFT, "middle")
    made.line(at(0), 36, at(0), 270, arrow=False, dashed=True, colour="#ba2525")
    made.line(at(-beat), 70, at(-beat), 148)
    made.text(at(-beat) - 4, 112, "last renewal", SMALL, SOFT, "end")
    made.box(
        at(-beat), 138, st.lease.time_s * scale, 24, [f"ranks run on: lease.time, {st.lease.time_s:g} s from the renewal"], "user"
    )
    end = st.lease.time_s - beat
    made.box(at(end), 138, 44, 24, [], "bad")
    made.text(at(end) + 22, 154, "killed", SMALL, INK, "middle")
    made.line(at(0), 70, at(st.nodes.silence_s), 70, arrow=False, colour="#ba2525")
    made.text(at(0) + 6, 60, f"nodes.silence, {st.nodes.silence_s:g} s", SMALL, SOFT)
    made.box(at(st.nodes.silence_s), 56, 12 * scale, 28, ["ask Slurm"], "slurm")
    unreachable = f"no answer in {st.nodes.probe_timeout_s:g} s: unreachable. Wait for the end of the lease"
    made.text(at(st.nodes.silence_s + 12) + 8, 60, unreachable, SMALL, SOFT)
    start = end + st.lease.margin_s
    made.line(at(end), 162, at(end), 214, arrow=False, dashed=True)
    made.line(at(start), 84, at(start), 216, dashed=True)
    made.text(at(end) - 8, 200, f"lease.margin, {st.lease.margin_s:g} s", SMALL, SOFT, "end")
    made.box(at(start), 216, width - 24 - at(start), 28, ["ranks start"], "ours")
    made.text(left, 282, "Clocks are each node's own; nothing is started before the ranks must have ended.", SMALL, SOFT)
    return made


# --- sequences


def sequence(title: str, actors: Mapping[str, str], steps: Iterable[tuple[str, ...]], gap: int = 210) -> Picture:
    """actors: name -> kind. steps: (from, to, words) is a message, (actor, words) something it does, (words,) a moment."""
    names, row, made = list(actors), 34, Picture(title, 0, 0)
    steps = list(steps)
    made.width, made.height = 40 + gap * len(names), 90 + row * len(steps)
    x = {name: 20 + gap / 2 + gap * number for number, name in enumerate(names)}
    for name, kind in actors.items():
        made.line(x[name], 60, x[name], made.height - 16, arrow=False, dashed=True, colour=LINE)
        made.box(x[name] - gap / 2 + 14, 20, gap - 28, 40, [name], kind)
    for number, step in enumerate(steps):
        y = 94 + number * row
        if len(step) == 1:
            made.parts.append(f'<rect x="10" y="{y - 18}" width="{made.width - 20}" height="24" rx="4" fill="{FILL["plain"]}"/>')
            made.text(made.width / 2, y - 1, step[0], SMALL, INK, "middle", bold=True)
        elif len(step) == 2:
            wide = len(step[1]) * SMALL * LETTER + 16
            at = min(max(x[step[0]] - wide / 2, 10), made.width - wide - 10)
            made.box(at, y - 16, wide, 24, [], actors[step[0]])
            made.text(at + wide / 2, y, step[1], SMALL, INK, "middle")
        else:
            start, end = x[step[0]], x[step[1]]
            made.text((start + end) / 2, y - 5, step[2], SMALL, INK, "middle")
            made.line(start, y, end, y)
    return made


def requeue() -> Picture:
    actors = {"ftrun": "ours", "requeue step": "ours", "slurmctld": "slurm", "nodes": "slurm"}
    return sequence(
        "The recipe of a requeue",
        actors,
        (
            ("ftrun", "decides, and writes it to the ledger"),
            ("ftrun", "requeue step", "starts it (ignores SIGTERM)"),
            ("requeue step", "slurmctld", "scontrol requeuehold JOB"),
            ("slurmctld", "nodes", "SIGTERM to the batch script"),
            ("The job is pending and held: only now does Slurm accept changes",),
            ("requeue step", "slurmctld", "update ExcNodeList=n2"),
            ("requeue step", "slurmctld", "update StartTime=now+N"),
            ("requeue step", "slurmctld", "scontrol release JOB"),
            ("nodes", "clean up: Epilog, processes"),
            ("nodes", "slurmctld", "all clean"),
            ("The start time lies ahead still, so Slurm keeps it. Had it passed, Slurm would wait for 121 s",),
            ("slurmctld", "nodes", "starts the job without n2"),
        ),
    )


def take_over() -> Picture:
    st = Settings()
    last_s = st.lease.time_s + 2 * st.nodes.silence_s + st.lease.margin_s
    return sequence(
        "Take-over: the batch node dies and an agent requeues the job",
        {"batch node (ftrun)": "ours", "agent on n2": "ours", "agent on n3": "ours", "slurmctld": "slurm"},
        (
            ("batch node (ftrun)", "agent on n2", "renews the leases"),
            ("The batch node loses its power",),
            ("agent on n2", "ftrun is silent: wait"),
            ("agent on n3", "ftrun is silent: wait"),
            (f"{st.lease.time_s:g} s: the leases run out, every rank has ended",),
            (f"{last_s:g} s: the agent on n2 has its turn",),
            ("agent on n2", "slurmctld", "is the batch node down?"),
            ("slurmctld", "agent on n2", "down, or its slurmd is silent"),
            ("agent on n2", "writes the decision to the ledger"),
            ("agent on n2", "slurmctld", "requeue without the batch node"),
            ("30 s later the agent on n3 has its turn, and acts only if n2 is dead as well",),
        ),
    )


# --- the phases of the judge

# Where each stands: column, row. What it is, in words.
PHASES: Mapping[Phase, tuple[float, float, str]] = {
    Phase.NEW: (0, 0, "before the first event"),
    Phase.LAUNCHING: (0, 1.4, "the step comes up"),
    Phase.RUNNING: (0, 4, "ranks run"),
    Phase.REPLACING: (1, 0, "other nodes are sought"),
    Phase.SETTLING: (0.9, 1.7, "stop, find out, decide"),
    Phase.HEALING: (1, 3.6, "devices heal"),
    Phase.ENDING: (1.9, 1, "the step is let go"),
    Phase.REQUEUEING: (2.35, 2.5, "the job is given back"),
    Phase.FINISHED: (1.9, 4, "ftrun ends"),
}


def phases() -> Picture:
    """Every way that a row of the judge's table names. A way there and back is one line with two tips."""
    made = Picture("The phases of the judge, and where its table leads from each", 1000, 560)
    wide, high = 200, 48
    at = {phase: (40 + column * 310, 30 + row * 112) for phase, (column, row, _) in PHASES.items()}
    ways = {(of, to) for of in Phase for to in NEXT[of]}
    for of, to in sorted(ways, key=lambda way: (way[0].value, way[1].value)):
        if (to, of) in ways and of.value > to.value:
            continue
        (x1, y1), (x2, y2) = _edge(at[of], at[to], wide, high), _edge(at[to], at[of], wide, high)
        made.line(x1, y1, x2, y2)
        if (to, of) in ways:
            made.line(x2, y2, x1, y1)
    for phase, (x, y) in at.items():
        kind = "bad" if phase is Phase.SETTLING else "ours" if phase is Phase.RUNNING else "plain"
        made.box(x, y, wide, high, [phase.value, PHASES[phase][2]], kind)
    return made


def _edge(box: tuple[float, float], other: tuple[float, float], wide: float, high: float) -> tuple[float, float]:
    """Where the line from the middle of `box` to that of `other` leaves it."""
    dx, dy = other[0] - box[0], other[1] - box[1]
    part = min(wide / 2 / abs(dx) if dx else 9.0, high / 2 / abs(dy) if dy else 9.0)
    return round(box[0] + wide / 2 + dx * part, 1), round(box[1] + high / 2 + dy * part, 1)


PICTURES: Mapping[str, Callable[[], Picture]] = {
    "ladder": ladder, "processes": processes, "lease": lease, "requeue": requeue, "take-over": take_over,
    "phases": phases,
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    stale = [name for name, draw in PICTURES.items() if _text(FOLDER / f"{name}.svg") != draw().svg()]
    if "--check" in argv:
        print(*(f"{name}.svg is not what tools/pictures.py draws" for name in stale), sep="\n", end="\n" if stale else "")
        return bool(stale)
    for name in stale:
        (FOLDER / f"{name}.svg").write_text(PICTURES[name]().svg())
    return 0


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
