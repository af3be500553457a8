"""A job as people watch it: its ledger and what ftrun tells of it now, as lines and tables of a terminal. Pure.

Whatever stands in a ledger or comes from a rank is made safe here; who shows it adds colours alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ftslurm.model import record as rec
from ftslurm.model.folds.summary import JobSummary
from ftslurm.model.messages import DeviceLive, Live, NodeLive, RankLive, TaskLive
from ftslurm.model.nodes import fold_nodes, named_nodes
from ftslurm.model.text import counted, cut, fold_numbers, visible
from ftslurm.model.values import Value, field, replace
from ftslurm.report.jobs import columns, state_words, title_of
from ftslurm.report.moments import hang_words, happened
from ftslurm.report.view import Status
from ftslurm.report.words import age, budgets, clock, span

# A node that was not heard of for so long is not well: its shims and its agent beat three times in silence_s (15 s).
UNHEARD_S = 10.0
# What was told so many times too late is old, and some seconds for a slow file system.
OLD_TIMES, OLD_S = 3.0, 5.0
# For ftrun's first word after somebody has begun to watch.
FIRST_S = 8.0
UNKNOWN = "-"


class Seen(Value):
    """now: Unix seconds. live: what ftrun told last, None if it told nothing; told_s: seconds since that was seen to be new.
    watched_s: for how long we watch. told_to: could we ask for it?
    """

    now: float
    status: Status
    records: tuple[rec.Record, ...]
    live: Live | None = None
    told_s: float = 0.0
    watched_s: float = 0.0
    told_to: bool = True

    @property
    def summary(self) -> JobSummary:
        return self.status.summary

    @property
    def fresh(self) -> Live | None:
        """Of the ftrun that runs now, and not too old."""
        live = self.live
        if live is None or self.summary.over or self.told_s > OLD_TIMES * live.every_s + OLD_S:
            return None
        run = next((record.run for record in reversed(self.records) if isinstance(record, rec.RunBegan)), "")
        return live if live.run == run else None

    @property
    def complete(self) -> bool:
        """Every agent has told twice, so that rates are known."""
        live = self.fresh
        return live is not None and live.number > 3 and all(node.told_s is not None for node in live.nodes)


class _Line(Value):
    """weight: `title`, `bad`, `done`, `dim` or ``. tally: it tells how the ranks do."""

    text: str
    weight: str = ""
    tally: bool = False


class Row(Value):
    """key: what a table goes on pointing at when it is shown anew. node, rank: that a key of the keyboard then means."""

    key: str
    cells: tuple[str, ...]
    weight: str = ""
    node: str = ""
    rank: int | None = None


class Sheet(Value):
    """A table. heading: names of the columns."""

    heading: tuple[str, ...]
    rows: tuple[Row, ...]


# --- above the tables


def head(seen: Seen, width: int) -> list[_Line]:
    """At most eight lines, none longer than width."""
    job, status = seen.summary, seen.status
    without = f", without {fold_nodes(status.excluded)}" if status.excluded else ""
    found = [
        _Line(title_of(job), "title"),
        _Line(f"state    {state_words(job, seen.now)}", weight_of(job) if status.stuck is None else "bad"),
        *(_Line(f"next     {each.helps}") for each in (status.stuck, status.wait) if each is not None and each.helps),
        _Line(f"attempt  {_age(seen)}"),
        _tally(seen),
        _Line(f"nodes    {job.nodes}{without}"),
        *([_Line(f"budgets  {budgets(status.left)}")] if status.left else ()),
        *([_Line(f"hangs    {hang_words(status.hang)}", "bad")] if status.hang is not None and job.state == "hanging" else ()),
    ]
    return [replace(line, text=cut(visible(line.text), width)) for line in found]


def _age(seen: Seen) -> str:
    """Of the attempt, or of a job that is over."""
    job = seen.summary
    if job.over:
        least = "at least " if job.state == "gone" else ""  # nobody has seen its end
        return f"{job.attempt}, the job lasted {least}{span(job.at - job.began)}"
    began = max((one.at for one in seen.records if isinstance(one, rec.AttemptBegan)), default=job.began)
    whole = f" ({span(seen.now - job.began)} in all)" if job.attempt > 1 else ""
    return f"{job.attempt}, for {span(seen.now - began)}{whole}"


def weight_of(job: JobSummary) -> str:
    """bad: somebody should look; wait: it goes on by itself; done: it went well."""
    if job.state in ("failed", "hanging", "held", "gone", "timeout"):
        return "bad"
    if job.state == "completed":
        return "done"
    return "dim" if job.over else "" if job.state == "running" else "wait"


def _tally(seen: Seen) -> _Line:
    """How all ranks do, in a line; else why that is not known."""
    live = seen.fresh
    if live is None:
        return _Line(f"ranks    {_why_not_known(seen)}", "dim", tally=True)
    states = Counter(_state(task) for task in live.tasks)
    parts = [", ".join(f"{count} {state}" for state, count in states.most_common()) or "none has begun"]
    tasks = {task.rank for task in live.tasks}
    ranks = [rank for node in live.nodes for rank in node.ranks if rank.task in tasks]
    if steps := [rank.step for rank in ranks if rank.step is not None]:
        parts.append(f"step {max(steps)}" if min(steps) == max(steps) else f"step {min(steps)} to {max(steps)}")
    if rates := [rank.steps_per_s for rank in ranks if rank.steps_per_s is not None]:
        least, most = _rate(min(rates)), _rate(max(rates))
        parts.append(f"{least} steps/s" if least == most else f"{least} to {most} steps/s")
    bad = [device for node in live.nodes for device in node.devices if device.health != "good"]
    if bad:
        parts.append(f"{counted(len(bad), 'device')} unhealthy")
    return _Line(f"ranks    {'; '.join(parts)}", "bad" if bad else "", tally=True)


_NONE_RUN = ("pending", "held", "requeued")


def _why_not_known(seen: Seen) -> str:
    if seen.summary.over:
        return "the job is over"
    if seen.summary.state in (*_NONE_RUN, "suspended", "completing"):
        return "none run now"
    if not seen.told_to:
        return "unknown: no ftrun runs that could be asked"
    if seen.watched_s < FIRST_S:
        return "ftrun is asked"
    ago = f", {span(seen.told_s)} ago the last time" if seen.live is not None else ""
    return f"unknown: ftrun does not answer{ago}"


# --- tables


def ranks_sheet(seen: Seen, node: str = "") -> Sheet:
    """node: only those of this one."""
    live, told = seen.fresh, dict[int, list[RankLive]]()
    by_node = {each.node: each for each in live.nodes} if live is not None else {}
    for rank in (rank for each in by_node.values() for rank in each.ranks):
        told.setdefault(rank.task, []).append(rank)
    rows = [
        _rank_row(rank, task, by_node.get(task.node), seen)
        for task in (live.tasks if live is not None else ())
        for rank in told.get(task.rank, [RankLive(task.rank, task.rank)])
    ]
    found = sorted((row for row in rows if node in ("", row.node)), key=lambda row: row.rank or 0)
    return Sheet(("RANK", "NODE", "STATE", "BEAT", "STEP", "STEPS/S", "CPU", "DOING"), tuple(found))


def _unheard(node: NodeLive) -> bool:
    return node.heard_s is not None and node.heard_s > UNHEARD_S


def _stuck(seen: Seen, rank: int) -> str:
    """What holds the others up, if it is this rank."""
    stuck = seen.status.stuck
    return f"{stuck.cause}, {stuck.so_far(seen.now)}" if stuck is not None and rank in stuck.ranks else ""


def _rank_row(rank: RankLive, task: TaskLive, node: NodeLive | None, seen: Seen) -> Row:
    old_s, stuck = _old_s(node, seen), _stuck(seen, rank.rank)
    state = "stuck?" if stuck and _state(task) == "running" else _state(task)
    unheard = node is not None and _unheard(node)
    cells = (
        str(rank.rank), task.node, "silent" if unheard else state, _ago(rank.beat_s, old_s), _number(rank.step),
        _rate(rank.steps_per_s), _number(rank.cores, "{:.1f}"), stuck or _doing(rank, old_s),
    )  # fmt: skip
    bad = unheard or state not in ("running", "starting", "stopped", "done")
    return Row(f"{rank.task}.{rank.rank}", tuple(map(visible, cells)), "bad" if bad else "", visible(task.node), rank.rank)


def _doing(rank: RankLive, old_s: float) -> str:
    """What is known best: the collective it is in, the section it has opened, what it has done last."""
    if rank.inside:
        return f"in {rank.inside}{f' {_ago(rank.inside_s, old_s)}' if (rank.inside_s or 0) >= 1 else ''}"
    if rank.sections:
        return f"in section {', '.join(rank.sections)}"
    if rank.step_s is not None and rank.step_s >= UNHEARD_S:
        return f"last step {span(rank.step_s + old_s)} ago"
    return f"{rank.collectives} collectives" if rank.collectives is not None else ""


def nodes_sheet(seen: Seen) -> Sheet:
    heading = ("NODE", "HEARD", "RANKS", "STEP", "STEPS/S", "CPU", "DEVICES")
    live = seen.fresh
    by_node: dict[str, list[TaskLive]] = {}
    for task in live.tasks if live is not None else ():
        by_node.setdefault(task.node, []).append(task)
    nodes = live.nodes if live is not None else ()
    if live is None and not (seen.summary.over or seen.summary.state in _NONE_RUN):  # those of the ledger, where something runs
        nodes = tuple(NodeLive(name, None, None) for name in named_nodes(seen.summary.nodes))
    return Sheet(heading, tuple(_node_row(node, by_node.get(node.node, [])) for node in nodes))


def _node_row(node: NodeLive, tasks: Sequence[TaskLive]) -> Row:
    steps = [rank.step for rank in node.ranks if rank.step is not None]
    rates = [rank.steps_per_s for rank in node.ranks if rank.steps_per_s is not None]
    cores = [rank.cores for rank in node.ranks if rank.cores is not None]
    running = sum(_state(task) == "running" for task in tasks)
    heard, unheard = node.heard_s is not None, _unheard(node)
    unwell = any(device.health != "good" for device in node.devices)
    cells = (
        node.node, _ago(node.heard_s), f"{running}/{len(tasks)}" if heard or tasks else UNKNOWN,
        _number(min(steps, default=None)), _rate(min(rates, default=None)),
        f"{sum(cores):.1f}" if cores else UNKNOWN, _devices_in_short(node.devices),
    )  # fmt: skip
    bad = unheard or unwell or running < len(tasks)
    return Row(node.node, tuple(map(visible, cells)), "bad" if bad else "" if heard else "dim", visible(node.node))


def _devices_in_short(found: Sequence[DeviceLive]) -> str:
    """`8 npu, 97 %, 2 faulty`."""
    if not found:
        return UNKNOWN
    parts = [f"{count} {kind}" for kind, count in Counter(device.kind for device in found).items()]
    used = [device.percent for device in found if device.percent is not None]
    parts += [f"{sum(used) / len(used):.0f} %"] if used else []
    parts += [f"{count} {health}" for health, count in Counter(device.health for device in found).items() if health != "good"]
    return ", ".join(parts)


def devices_sheet(seen: Seen, node: str = "") -> Sheet:
    heading = ("NODE", "DEVICE", "KIND", "HEALTH", "USE", "MEM", "WATT", "CODES")
    live = seen.fresh
    rows = [
        Row(
            f"{each.node}.{device.kind}.{device.device}",
            tuple(map(visible, (
                each.node, device.device, device.kind, device.health,
                _number(device.percent, "{:.0f}%"), _number(device.memory_percent, "{:.0f}%"),
                _number(device.power_w, "{:.0f}"), ", ".join(device.codes),
            ))),
            "bad" if device.health != "good" else "", visible(each.node),
        )
        for each in (live.nodes if live is not None else ()) if node in ("", each.node)
        for device in each.devices
    ]  # fmt: skip
    return Sheet(heading, tuple(rows))


def fitted(sheet: Sheet, width: int) -> Sheet:
    """Without the columns for which there is no room; the last one is cut."""
    kept = list(range(len(sheet.heading)))
    widths = [max([len(name), *(len(row.cells[at]) for row in sheet.rows)]) for at, name in enumerate(sheet.heading)]
    widths[-1] = min(widths[-1], max(12, len(sheet.heading[-1])))

    def taken() -> int:
        return sum(widths[at] + 2 for at in kept) - 2

    for name in _FIRST_TO_GO:
        if taken() > width and name in sheet.heading:
            kept.remove(sheet.heading.index(name))
    room = max(width - taken() + widths[kept[-1]], 4) if kept else 0
    rows = tuple(replace(row, cells=(*(row.cells[at] for at in kept[:-1]), cut(row.cells[kept[-1]], room))) for row in sheet.rows)
    return replace(sheet, heading=tuple(sheet.heading[at] for at in kept), rows=rows)


# What a narrow terminal does without.
_FIRST_TO_GO = ("NAME", "CPU", "KIND", "WATT", "MEM", "DOING", "BEAT", "HEARD", "LAST", "ATTEMPT", "STEP", "CODES")


# --- words


def _state(task: TaskLive) -> str:
    if not task.connected and task.state in ("running", "starting"):
        return "no contact"
    return _SHORT.get(task.state, task.state.removeprefix("was killed by ").replace("exited with status", "exit"))


_SHORT: Mapping[str, str] = {"exited with status 0": "done"}


def _old_s(node: NodeLive | None, seen: Seen) -> float:
    """Seconds to add to what a node has told: nothing while it tells in time."""
    told_s, every_s = (node.told_s or 0.0) if node is not None else 0.0, seen.live.every_s if seen.live is not None else 0.0
    return told_s if told_s > 2 * every_s + 1 else 0.0


def _ago(seconds: float | None, old_s: float = 0.0) -> str:
    return UNKNOWN if seconds is None else age(seconds + old_s)


def _number(value: float | None, form: str = "{}") -> str:
    return UNKNOWN if value is None else form.format(value)


def _rate(value: float | None) -> str:
    """Three digits that tell something."""
    if value is None:
        return UNKNOWN
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 3
    return f"{value:.{digits}f}"


# --- as text


def screen(seen: Seen, width: int, height: int) -> list[str]:
    """All of it as one page of text, as it is printed once or where a terminal can do nothing else."""
    found = [line.text for line in head(seen, width)]
    sheet = ranks_sheet(seen)
    if not 0 < len(sheet.rows) <= height // 2:
        sheet = nodes_sheet(seen)
    room = max(3, (height - len(found) - 4) // 2)
    found += ["", *sheet_lines(fitted(sheet, width), width, room)]
    last = happened(seen.records)[-max(3, height - len(found) - 2) :]
    return [*found, "", *(timed(each.at, each.what, width) for each in last)]


def sheet_lines(sheet: Sheet, width: int, most: int) -> list[str]:
    """Columns side by side; what has no room is counted in a last line."""
    rows, left = [sheet.heading, *(row.cells for row in sheet.rows[:most])], len(sheet.rows) - most
    lines = columns(rows, width, width)
    return [*lines, f"and {left} more"] if left > 0 else lines


def timed(at: float, what: str, width: int = 0) -> str:
    """width 0: as long as it is."""
    line = f"{clock(at)}  {what}"
    return cut(line, width) if width else line


# --- what has changed

# From one line about progress to the next, where nothing else happens.
PROGRESS_S = 30.0


class Marks(Value):
    """What was told of a job so far. records: how many. progress_at: when that was told, Unix seconds."""

    records: int = 0
    state: str = ""
    ranks: Mapping[int, str] | None = None
    known: Mapping[str, str] = field(default_factory=dict)  # device or node -> how it is
    progress_at: float = 0.0


def changes(seen: Seen, before: Marks | None) -> tuple[list[str], Marks]:
    """A line for each change, and what is told with them. before: None for the first time, which tells where it stands."""
    job, live = seen.summary, seen.fresh
    lines: list[str] = []
    if before is None:
        told = [line.text for line in head(seen, 1000) if not line.tally]
        lines = [timed(seen.now, " ".join(text.split())) for text in told]
        before = Marks(len(seen.records), job.state, progress_at=seen.now)
    began_anew = len(seen.records) < before.records
    lines += [timed(each.at, each.what) for each in happened(seen.records[0 if began_anew else before.records :])]
    now: list[str] = []
    by_ledger = isinstance(seen.records[-1], rec.Finished) and job.over
    if job.state != before.state and not by_ledger and (job.state in _BY_SLURM or job.over):
        now.append(f"now {job.words}")
    states = {task.rank: _state(task) for task in live.tasks} if live is not None else before.ranks
    now += _changed_ranks(before.ranks, states)
    known = {f"device {row.key}": f"is {row.cells[3]}" for row in devices_sheet(seen).rows}
    for node in live.nodes if live is not None else ():
        if node.heard_s is not None:
            known[node.node] = "is silent" if _unheard(node) else "is heard again"
    now += [f"{name} {word}" for name, word in known.items() if word != before.known.get(name, word if word in _USUAL else "")]
    progress_at = before.progress_at
    if live is not None and seen.now - progress_at >= PROGRESS_S:
        progress_at = seen.now
        now.append(" ".join(_tally(seen).text.split()))
    lines += [timed(seen.now, visible(text)) for text in now]
    return lines, Marks(len(seen.records), job.state, states, {**before.known, **known}, progress_at)


_USUAL = frozenset({"is good", "is heard again"})
_BY_SLURM = frozenset({"pending", "held", "suspended"})


def _changed_ranks(before: Mapping[int, str] | None, now: Mapping[int, str] | None) -> Iterable[str]:
    """`ranks 0-7: running`, one line a state."""
    by_state: dict[str, list[int]] = {}
    for rank, state in (now or {}).items():
        if (before or {}).get(rank) != state:
            by_state.setdefault(state, []).append(rank)
    for state, found in by_state.items():
        yield f"{'ranks' if len(found) > 1 else 'rank'} {fold_numbers(found)}: {state}"


def job_changes(jobs: Iterable[JobSummary], now: float, before: Mapping[str, str] | None) -> tuple[list[str], dict[str, str]]:
    """A line for each job that stands otherwise than before (None: the first time, one for each), and how all stand."""
    stand = {f"{job.cluster}.{job.job}": _stands(job) for job in jobs}
    was = before or {}
    told = {**{key: how for key, how in stand.items() if was.get(key) != how}, **{key: "over" for key in was if key not in stand}}
    return [timed(now, visible(f"job {key.partition('.')[2]}: {how}")) for key, how in told.items()], stand


def _stands(job: JobSummary) -> str:
    what = f": {job.what}" if job.what else ""
    return f"{job.state}, attempt {job.attempt} on {job.nodes or 'no node yet'}{what}"
