"""A stand-in for npu-smi on machines without NPUs: it prints what the true tool prints, of chips kept in files.

`bin/npu-smi` is the tool, `bin/npu-sim` moves its chips: inject faults, lose chips, make the tool itself sick.

    FTSLURM_NPU_SIM          folder of the state files, one JSON file a node; not set: as on a machine without driver
    FTSLURM_NPU_SIM_CHIPS    chips of a node that has no file yet (default 2, all healthy)
    FTSLURM_NPU_SIM_CARDS    their cards, where the ids have gaps: `2,5,6` (default 0, 1, …)
    FTSLURM_NPU_SIM_LAYOUT   a2 (one chip a card, the default), a3 (two dies a card), 310p or 950
    FTSLURM_NPU_SIM_RESET_S  how long a reset takes, seconds (default 0.1)
    FTSLURM_NPU_SIM_BOOT_S   how long a chip boots after it, seconds (default 0); only the driver's library shows that
    FTSLURM_NPU_SIM_NET_S    how long its network port takes, as well
    SLURMD_NODENAME, FTSLURM_NODE   the node, else `node`

Beside each state file lies the same for the stand-in of the driver's library (dcmi/libdcmi.c), as NODE.dcmi.

Words, layouts and exit statuses follow the open npu-smi sources of 2026. Faults are times on the wall clock, not
timers: whether one is there is worked out whenever the tool is asked. Python's standard library only, and little of it:
a probe calls the tool every few seconds on every node, so it has to start in a blink.
"""

# pathlib and contextlib would double the time to load.

import os
import sys
import time

TYPE_CHECKING = False  # typing's constant takes 5 ms to import
if TYPE_CHECKING:
    from argparse import Namespace

SEVERITIES = {"hint": "OK", "minor": "Warning", "major": "Alarm", "critical": "Critical"}
# What the driver attaches to some codes; every other one is taken for major.
KNOWN_SEVERITIES = {
    "80E01801": "critical",
    "40F84E00": "critical",
    "80C98002": "minor",
    "80CB8002": "minor",
    "8C084E00": "minor",
    "81078603": "minor",
    "80E18006": "hint",
}
RESETS = ("ok", "fail", "refused", "keeps", "loses", "others")  # and slow:SECONDS
TOOL_MOODS = ("ok", "hang", "fail", "garble", "occupied")
DCMI_MOODS = ("ok", "hang", "fail", "occupied", "deaf", "crash")
NAMES = {"a2": "910B3", "a3": "Ascend910", "310p": "310P3", "950": "Ascend950PR"}
HBM_MB = {"a2": 65536, "a3": 65536, "310p": 21525, "950": 114688}
NODES = {0x64: "AI Core", 0x65: "AI Vector", 0x70: "HBM", 0x5C: "PCIe", 0x83: "Port"}
SENSORS = {0x0C: "Memory", 0x27: "Heartbeat", 0xC0: "RAS State", 0xC3: "Safety State"}

# The tool ends with its own error numbers, of which a shell sees the low byte.
DCMI_INNER, DCMI_OCCUPIED, INVALID, NOT_PERMITTED, INNER, ABORTED = -8005, -8020, -9001, -9002, -9005, -9016
FOR_EVER = 9e18


class Trouble(Exception):
    """A state file or request that makes no sense; for the people who steer the stand-in."""


def place_of(device: str) -> tuple[int, int]:
    """Card and chip of `card.chip`; no chip has the place of what is no such name."""
    card, _, chip = device.partition(".")
    return (int(card), int(chip)) if card.isdecimal() and chip.isdecimal() else (-1, -1)


class Fault:
    """One code on one chip. It comes `times` times: `again_after` seconds after each healing, by itself or by reset."""

    def __init__(
        self,
        code: str,
        severity: str = "",
        since: float = 0.0,
        heals_after: float | None = None,
        again_after: float = 10.0,
        times: int = 1,
        resets: list[str] | None = None,
    ) -> None:
        self.code = code.upper().removeprefix("0X")
        self.severity = severity or KNOWN_SEVERITIES.get(self.code, "major")
        self.since = since
        self.heals_after = heals_after
        self.again_after = again_after
        self.times = times
        self.resets = resets or ["ok"]  # what each reset does, the last one for ever

    def settle(self, now: float) -> None:
        """Take account of the healings by itself that have happened until `now`."""
        while self.heals_after is not None and self.times > 0 and now >= self.since + self.heals_after:
            self.heal(self.since + self.heals_after)

    def heal(self, at: float) -> None:
        self.times -= 1
        self.since = at + self.again_after

    def active(self, now: float) -> bool:
        return self.times > 0 and now >= self.since

    def windows(self) -> list[tuple[float, float]]:
        """From when to when the fault is there, past and to come, as things stand."""
        found, at = [], self.since
        for _ in range(self.times):
            until = FOR_EVER if self.heals_after is None else at + self.heals_after
            found.append((at, until))
            at = until + self.again_after
        return found


class Chip:
    """lost: fallen off the bus. processes: (pid, name, MB). network: DCMI's number for the health of its port."""

    def __init__(
        self,
        lost: bool = False,
        faults: list[dict] | None = None,
        processes: list[list] | None = None,
        aicore: int = 0,
        network: int = 0,
    ) -> None:
        self.lost = lost
        self.faults = [Fault(**fault) for fault in faults or []]
        self.processes = processes or []
        self.aicore = aicore
        self.network = network

    def active(self, now: float) -> list[Fault]:
        return [fault for fault in self.faults if fault.active(now)]

    def word(self, now: float) -> str:
        order = list(SEVERITIES)
        worst = max((order.index(fault.severity) for fault in self.active(now)), default=0)
        return SEVERITIES[order[worst]]


class Node:
    """All chips of a node, by (card, chip), and the state of the tool and of the library there.

    booted_at, network_at: when the chips are in service and on the network again. once: events that are over as soon as
    they have come, each (time, card, chip, code, severity).
    """

    def __init__(
        self,
        layout: str,
        chips: dict[str, dict],
        tool: str = "ok",
        resetting_until: float = 0.0,
        dcmi: str = "ok",
        booted_at: float = 0.0,
        network_at: float = 0.0,
        once: list[list] | None = None,
    ) -> None:
        self.layout = layout
        self.tool = tool
        self.resetting_until = resetting_until
        self.dcmi = dcmi
        self.booted_at = booted_at
        self.network_at = network_at
        self.once = once or []
        self.chips = {place_of(name): Chip(**chip) for name, chip in chips.items()}

    def listed(self) -> dict[tuple[int, int], Chip]:
        return {place: chip for place, chip in sorted(self.chips.items()) if not chip.lost}

    def cards(self) -> list[int]:
        return sorted({card for card, _ in self.listed()})

    def word(self, place: tuple[int, int], now: float) -> str:
        return "UNKNOWN" if now < self.resetting_until else self.chips[place].word(now)

    def settle(self, now: float) -> None:
        for chip in self.chips.values():
            for fault in chip.faults:
                fault.settle(now)
            chip.faults = [fault for fault in chip.faults if fault.times > 0]

    def as_data(self) -> dict:
        chips = {
            f"{card}.{number}": {**vars(chip), "faults": [vars(fault) for fault in chip.faults]}
            for (card, number), chip in sorted(self.chips.items())
        }
        return {**vars(self), "chips": chips}

    def as_lines(self) -> str:
        """For the stand-in of the library: words that scanf can read, times as Unix seconds."""
        lines = [f"node {self.layout} {self.dcmi} {self.resetting_until:.6f} {self.booted_at:.6f} {self.network_at:.6f}"]
        for (card, number), chip in sorted(self.chips.items()):
            used = memory_used(chip) * 100 // HBM_MB[self.layout]
            tenths = 900 + 10 * card
            at = f"{card} {number}"
            lines.append(
                f"chip {at} {int(chip.lost)} {chip.network} {chip.aicore} {used} {tenths} {logic_id(self, (card, number))}"
            )
            lines += [f"process {at} {pid}" for pid, _, _ in chip.processes]
            for fault in chip.faults:
                grade = list(SEVERITIES).index(fault.severity)
                lines += [f"fault {at} {fault.code} {grade} {since:.6f} {until:.6f}" for since, until in fault.windows()]
        lines += [f"once {at:.6f} {card} {chip} {code} {grade}" for at, card, chip, code, grade in self.once]
        return "\n".join(lines) + "\n"


# ---- state files


def node_name(env: dict[str, str]) -> str:
    return env.get("SLURMD_NODENAME") or env.get("FTSLURM_NODE") or "node"


def fresh_node(layout: str, count: int, cards: str = "") -> Node:
    per_card = 2 if layout == "a3" else 1
    ids = [int(card) for card in cards.split(",")] if cards else list(range(-(-count // per_card)))
    places = [f"{card}.{chip}" for card in ids for chip in range(per_card)]
    return Node(layout, {place: {} for place in (places if cards else places[:count])})


def default_node(env: dict[str, str]) -> Node:
    layout = env.get("FTSLURM_NPU_SIM_LAYOUT", "a2")
    if layout not in NAMES:
        raise Trouble(f"FTSLURM_NPU_SIM_LAYOUT is {layout!r}, it can be {', '.join(NAMES)}")
    return fresh_node(layout, int(env.get("FTSLURM_NPU_SIM_CHIPS", "2")), env.get("FTSLURM_NPU_SIM_CARDS", ""))


def state_path(folder: str, node: str, ending: str = "json") -> str:
    return os.path.join(folder, f"{node.replace('/', '_')}.{ending}")


def load(folder: str, node: str, env: dict[str, str]) -> Node:
    """As the file says, a default node without one. Needs no lock: files are replaced whole."""
    try:
        with open(state_path(folder, node), encoding="utf-8") as file:
            text = file.read()
    except FileNotFoundError:
        return default_node(env)
    loaded = Node(**parsed(text))
    loaded.settle(time.time())
    return loaded


def parsed(text: str) -> dict:
    """JSON without the json package, which takes 8 ms to load for its regular expressions."""
    try:
        from _json import make_scanner
    except ImportError:
        import json

        return json.loads(text)

    class Context:
        strict, object_hook, object_pairs_hook = True, None, None
        parse_float, parse_int, parse_constant = float, int, float

    return make_scanner(Context())(text, 0)[0]  # type: ignore[arg-type]


def save(folder: str, node: str, state: Node) -> None:
    import json

    replace(state_path(folder, node), json.dumps(state.as_data(), indent=1))
    replace(state_path(folder, node, "dcmi"), state.as_lines())


def replace(path: str, text: str) -> None:
    draft = f"{path}.{os.getpid()}"
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
        open_to_all(draft, 0o666)
        os.rename(draft, path)
    except OSError as error:
        raise Trouble(f"the state folder cannot be used: {error}") from None


def open_to_all(path: str, mode: int) -> None:
    # The test may write as root and the job's user reset a chip, or the other way round.
    try:
        os.chmod(path, mode)
    except PermissionError:
        pass


class Locked:
    """Held while a node's file is changed."""

    def __init__(self, folder: str, node: str) -> None:
        self._path = state_path(folder, node, "lock")
        self._fd = -1

    def __enter__(self) -> None:
        import fcntl

        try:
            self._fd = os.open(self._path, os.O_RDWR)
        except FileNotFoundError:
            self._fd = self._create()
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def _create(self) -> int:
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError as error:
            raise Trouble(f"the state folder cannot be used: {error}") from None
        open_to_all(self._path, 0o666)
        return fd

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


# ---- npu-smi info

# The boxes of the four generations, from the open sources: widths of the three columns, heading of the second row.
BOXES = {"a2": (27, 15, 52), "a3": (27, 15, 52), "310p": (31, 17, 54), "950": (27, 15, 53)}
SECOND_HEADINGS = {
    "a2": "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
    "a3": "| Chip  Phy-ID              | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
    "310p": "| Chip    Device                | Bus-Id          | AICore(%)    Memory-Usage(MB)                        |",
    "950": "|        |                  | Bus-Id        | NPU Util(%) Memory-Usage(MB)  HBM-Usage(MB)         |",
}
ONE_CHIP = "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|"
HEADINGS = {
    "a2": ONE_CHIP,
    "a3": ONE_CHIP,
    "310p": "| NPU     Name                  | Health          | Power(W)     Temp(C)           Hugepages-Usage(page) |",
    "950": "| NPU ID | Name             | Health        | Power(W)    Temp(C)           Hugepages-Usage(page) |",
}
ON_CHIPS = "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |"
PROCESS_HEADINGS = {
    "a2": ON_CHIPS,
    "a3": ON_CHIPS,
    "310p": "| NPU     Chip                  | Process id      | Process name             | Process memory(MB)        |",
    "950": "| NPU ID                    | Process id    | Process name             | Process memory(MB)       |",
}


def info(node: Node, now: float) -> str:
    layout, widths = node.layout, BOXES[node.layout]
    top = "+" + "-" * (sum(widths) + 2) + "+"
    rule = "+" + "+".join("-" * width for width in widths) + "+"
    double = rule.replace("-", "=")
    lines = [top, boxed(" npu-smi 24.1.0                   Version: 24.1.0", layout), rule]
    lines += [HEADINGS[layout], SECOND_HEADINGS[layout], double]
    for card in node.cards():
        places = [place for place in node.listed() if place[0] == card]
        for place in places:
            lines += chip_rows(node, place, now)
            lines.append(double if place == places[-1] else top)
    lines += [rule, PROCESS_HEADINGS[layout], double]
    for card in node.cards():
        lines += [*process_rows(node, card), double]
    return "\n".join(lines) + "\n"


def boxed(text: str, layout: str) -> str:
    return f"|{text:<{sum(BOXES[layout]) + 2}}|"


def chip_rows(node: Node, place: tuple[int, int], now: float) -> list[str]:
    card, chip = place
    state, word, heat = node.chips[place], node.word(place, now), 40 + card
    used, total, name = memory_used(state), HBM_MB[node.layout], NAMES[node.layout]
    if node.layout == "310p":
        return [
            f"| {card:<7} {name:<22}| {word:<15} | {'NA':<12} {heat:<17} {0:<6}/ {0:<13} |",
            f"| {chip:<7} {logic_id(node, place):<22}| {bus_id(node, place):<15} | {state.aicore:<12} {used:<5}/ {total:<32} |",
        ]
    if node.layout == "950":
        return [
            f"| {card:<7}| {name:<17}| {word:<13} | {200 + card:<11.1f} {heat:<17} {0:<6}/ {0:<13} |",
            f"|{'':<8}|{'':<18}| {bus_id(node, place):<13} | {state.aicore:<11} {0:<5}/ {0:<10} {used:<6}/ {total:<13} |",
        ]
    power = "-" if chip else f"{90 + card:.1f}"
    ids = f"{chip:<6}{logic_id(node, place):<20}" if node.layout == "a3" else f"{chip:<26}"
    return [
        f"| {card:<6}{name:<20}| {word:<14}| {power:<12}{heat:<18}{0:<5}/ {0:<14}|",
        f"| {ids}| {bus_id(node, place):<14}| {state.aicore:<12}{0:<5}/ {0:<11}{used:<5}/ {total:<14}|",
    ]


def memory_used(chip: Chip) -> int:
    return 3161 + sum(megabytes for _, _, megabytes in chip.processes)


def process_rows(node: Node, card: int) -> list[str]:
    left, middle, right = BOXES[node.layout]
    rows = []
    for (of, chip), state in node.listed().items():
        for pid, name, megabytes in state.processes if of == card else ():
            ids = str(card) if node.layout == "950" else f"{card:<8}{chip}"
            rows.append(f"| {ids:<{left - 1}}| {pid:<{middle - 1}}| {name:<25}| {megabytes:<{right - 28}}|")
    return rows or [boxed(f" No running processes found in NPU {card}", node.layout)]


def logic_id(node: Node, place: tuple[int, int]) -> int:
    """In the order of the places, without gaps; the 950 has one id for everything."""
    return place[0] if node.layout == "950" else sorted(node.chips).index(place)


def bus_id(node: Node, place: tuple[int, int]) -> str:
    return f"0000:{0x81 + logic_id(node, place):02X}:00.0"


def field(label: str, value: object) -> str:
    return f"\t{label:<30} : {value}\n"


def info_list(node: Node) -> str:
    text = field("Total Count", len(node.cards())) + "\n"
    for card in node.cards():
        text += field("NPU ID", card) + field("Chip Count", chips_on(node, card)) + "\n"
    return text


def chips_on(node: Node, card: int) -> int:
    return sum(1 for of, _ in node.listed() if of == card)


# ---- npu-smi info -t TYPE


def info_type(node: Node, kind: str, card: int, chip: int | None, now: float) -> tuple[str, int]:
    """Text and exit status. Without a chip the true tool prints a heading, then each chip and after it its id."""
    if card not in node.cards() or (chip is not None and (card, chip) not in node.listed()):
        return "Invalid card id.\n", INVALID
    if chip is not None:
        return CHIP_FIELDS[kind](node, (card, chip), now), 0
    if node.layout == "950":
        text = CHIP_FIELDS[kind](node, (card, 0), now)
        return field("NPU ID", card) + text.replace("Health Status                  :", "Health                         :"), 0
    text = field("NPU ID", card) + field("Chip Count", chips_on(node, card)) + "\n"
    for place in node.listed():
        if place[0] == card:
            # Of the health this form prints the word alone, no codes.
            word = field("Health", node.word(place, now))
            text += word if kind == "health" else CHIP_FIELDS[kind](node, place, now)
            text += field("Chip ID", place[1]) + "\n"
    board = field("Health", "OK") + field("Chip Name", "MCU") + "\n" if kind == "health" else ""
    return text + board, 0


def health(node: Node, place: tuple[int, int], now: float) -> str:
    faults = [] if now < node.resetting_until else node.chips[place].active(now)
    text = field("Health Status", node.word(place, now))
    if not faults:
        return text + field("Error Code", "NA") + field("Error Information", "NA")
    text += field("Error Code", " ".join(fault.code for fault in faults))
    first, *others = [event_words(fault.code) for fault in faults]
    return text + field("Error Information", first) + "".join("\n" + field(" ", words) for words in others)


def event_words(code: str) -> str:
    bits = int(code, 16)
    node, sensor, state = bits >> 17 & 0x7FF, bits >> 9 & 0xFF, bits & 0x1FF
    part, kind = NODES.get(node, hex(node)), SENSORS.get(sensor, hex(sensor))
    return f"node type={part}, sensor type={kind}, event state={state:#x}"


def usages(node: Node, place: tuple[int, int], _now: float) -> str:
    chip = node.chips[place]
    used = memory_used(chip)
    return (
        field("HBM Capacity(MB)", HBM_MB[node.layout])
        + field("HBM Usage Rate(%)", used * 100 // HBM_MB[node.layout])
        + field("Aicore Usage Rate(%)", chip.aicore)
        + field("Aivector Usage Rate(%)", 0)
        + field("Aicpu Usage Rate(%)", 0)
        + field("Ctrlcpu Usage Rate(%)", 1)
        + field("HBM Bandwidth Usage Rate(%)", chip.aicore // 2)
    )


def common(node: Node, place: tuple[int, int], now: float) -> str:
    return (
        field("Memory Usage Rate(%)", 0)
        + usages(node, place, now).split("\n", 1)[1].split("\n", 1)[0]
        + "\n"
        + field("Aicore Usage Rate(%)", node.chips[place].aicore)
        + field("Aicore Freq(MHZ)", 1800)
        + field("Aicore curFreq(MHZ)", 1800)
        + field("Temperature(C)", 40 + place[0])
        + field("NPU Real-time Power(W)", f"{90 + place[0]:.1f}")
    )


def proc_mem(node: Node, place: tuple[int, int], _now: float) -> str:
    rows = [
        f"\tProcess id:{pid:<7} Process name:{name:<17} Process memory(MB):{megabytes}\n"
        for pid, name, megabytes in node.chips[place].processes
    ]
    return "".join(rows) or "\tNo process in device.\n"


CHIP_FIELDS = {
    "health": health,
    "usages": usages,
    "common": common,
    "proc-mem": proc_mem,
}


# ---- npu-smi set -t reset


class Reset:
    """One reset, as the tool goes about it: rights, questions, the work, the outcome."""

    def __init__(self, folder: str, name: str, env: dict[str, str], place: tuple[int, int], inband: bool) -> None:
        self.folder, self.name, self.env, self.place, self.inband = folder, name, env, place, inband

    def run(self) -> int:
        with Locked(self.folder, self.name):
            node = load(self.folder, self.name, self.env)
            if self.place not in node.listed():
                return say("Invalid card id.\n", INVALID)
            how = take_turn(node.chips[self.place], time.time())
            save(self.folder, self.name, node)
        if how == "refused":
            return say("This command can be executed only by the root user.\n", NOT_PERMITTED)
        # Chips linked by HCCS are reset together, and the tool asks once more.
        linked = len(node.listed()) > 1 and node.layout in ("a2", "a3")
        if not confirmed(node.layout, linked):
            way = "inband" if self.inband else "outband"
            return self.outcome(linked, f"User aborts reset {kind_of(linked)} by {way}.", ABORTED)
        return self.work(how, linked)

    def work(self, how: str, linked: bool) -> int:
        if how == "others":
            say("Another user is resetting the NPU(s). Please try again later.\n", 0)
            return self.outcome(linked, f"Failed to reset {kind_of(linked)}", INNER)
        usual = self.env.get("FTSLURM_NPU_SIM_RESET_S", "0.1")
        seconds = float(how[5:] if how.startswith("slow:") else usual)
        with Locked(self.folder, self.name):
            node = load(self.folder, self.name, self.env)
            if time.time() < node.resetting_until:
                say("Another user is resetting the NPU(s). Please try again later.\n", 0)
                return self.outcome(linked, f"Failed to reset {kind_of(linked)}", INNER)
            node.resetting_until = time.time() + seconds
            save(self.folder, self.name, node)
        say(field("Message", "resetting (about 150 seconds) ..." if linked else "resetting ..."), 0)
        time.sleep(seconds)
        return self.finish(how, linked)

    def finish(self, how: str, linked: bool) -> int:
        with Locked(self.folder, self.name):
            node = load(self.folder, self.name, self.env)
            now, taken = time.time(), {place: chip for place, chip in node.listed().items() if linked or place == self.place}
            node.resetting_until = 0.0
            node.booted_at = now + float(self.env.get("FTSLURM_NPU_SIM_BOOT_S", "0"))
            node.network_at = now + float(self.env.get("FTSLURM_NPU_SIM_NET_S", "0"))
            fails = how == "fail" or any(chip.processes for chip in taken.values())
            if not fails and how != "keeps":
                heal_all(taken, now)
            if not fails and how == "loses":
                node.chips[self.place].lost = True
            save(self.folder, self.name, node)
        if fails:
            return self.outcome(linked, f"Failed to reset {kind_of(linked)}", INNER)
        return self.outcome(linked, f"Reset {kind_of(linked)} successfully.", 0)

    def outcome(self, linked: bool, message: str, status: int) -> int:
        return say(field("Status", "Fail" if status else "OK") + field("Message", message), status)


def kind_of(linked: bool) -> str:
    return "server" if linked else "chip"


def take_turn(chip: Chip, now: float) -> str:
    """What this reset will do, by the first fault of the chip; the next one may do something else."""
    faults = chip.active(now)
    if not faults:
        return "ok"
    resets = faults[0].resets
    return resets.pop(0) if len(resets) > 1 else resets[0]


def heal_all(chips: dict[tuple[int, int], Chip], now: float) -> None:
    for chip in chips.values():
        for fault in chip.active(now):
            fault.heal(now)


def confirmed(layout: str, linked: bool) -> bool:
    """Ask as the tool does, each question answered by the next word on stdin."""
    say(
        "Resetting the standard PCIe card or NPU chip may cause a system hang or abnormal reset during service running."
        "\n"
        "Are you sure you want to continue resetting?(Y/N)\n",
        0,
    )
    words = sys.stdin.read().split()
    if not words or words[0] not in ("Y", "y"):
        return False
    if not linked:
        return True
    mode = "" if layout == "a3" else "It's AMP mode, but hccs is on, "
    question = f"{mode}it will reboot all devices, do you want to continue reboot? [y/n]\n"
    say(question[0].upper() + question[1:], 0)
    return len(words) > 1 and words[1] in ("Y", "y")


# ---- the two programs


def say(text: str, status: int) -> int:
    sys.stdout.write(text)
    sys.stdout.flush()
    return status & 0xFF


def options(words: list[str]) -> dict[str, str]:
    """`-t health -i 0` -> {"-t": "health", "-i": "0"}; a flag without a value has an empty one."""
    found: dict[str, str] = {}
    for index, word in enumerate(words):
        if word.startswith("-"):
            follower = words[index + 1] if index + 1 < len(words) else ""
            found[word] = "" if follower.startswith("-") else follower
    return found


def npu_smi(words: list[str], env: dict[str, str]) -> int:
    """The tool. Returns its exit status."""
    folder = env.get("FTSLURM_NPU_SIM")
    if not folder:
        return say(f"dcmi module initialize failed. ret is {DCMI_INNER}\n", DCMI_INNER)
    name = node_name(env)
    node = load(folder, name, env)
    while node.tool == "hang":
        time.sleep(0.5)  # until it is told to work again
        node = load(folder, name, env)
    if node.tool == "occupied":
        words = "dcmi model initialized failed, because the device is used."
        return say(f"{words} ret is {DCMI_OCCUPIED}\n", DCMI_OCCUPIED)
    if node.tool == "fail":
        return say(f"dcmi module initialize failed. ret is {DCMI_INNER}\n", DCMI_INNER)
    if node.tool == "garble":
        return garble(info(node, time.time()))
    if words[:1] == ["info"]:
        return query(node, options(words[1:]))
    if words[:1] == ["set"] and options(words).get("-t") == "reset":
        return reset(folder, name, env, options(words), node.layout)
    return say("Command or option is not found.\n", INNER)


def query(node: Node, wanted: dict[str, str]) -> int:
    now = time.time()
    if not wanted:
        return say(info(node, now), 0)
    if "-l" in wanted:
        return say(info_list(node), 0)
    if node.layout == "950" and "-c" in wanted:
        return say("This device does not support input parameter of -c.\n", INVALID)
    card, chip = wanted.get("-i", ""), wanted.get("-c")
    if wanted.get("-t") not in CHIP_FIELDS or not card.isdecimal() or (chip is not None and not chip.isdecimal()):
        return say("The parameter is invalid.\n", INVALID)
    return say(*info_type(node, wanted["-t"], int(card), None if chip is None else int(chip), now))


def reset(folder: str, name: str, env: dict[str, str], wanted: dict[str, str], layout: str) -> int:
    if layout == "950" and "-c" in wanted:
        return say("This device does not support input parameter of -c.\n", INVALID)
    card, chip = wanted.get("-i", ""), wanted.get("-c", "0" if layout == "950" else "")
    if not (card.isdecimal() and chip.isdecimal()):
        return say("The parameter is invalid.\n", INVALID)
    return Reset(folder, name, env, (int(card), int(chip)), wanted.get("-m") == "1").run()


def garble(text: str) -> int:
    """A tool whose output was cut, mixed up and is no text at all in places."""
    sys.stdout.flush()
    torn = text[::3] + "\n" + text[:300].replace("|", "!")
    sys.stdout.buffer.write(b"| 0 |\x00| OK | 9 \xff\xfe\n" + torn.encode())
    sys.stdout.buffer.flush()
    return 0


def npu_sim(words: list[str], env: dict[str, str]) -> int:
    """The control verbs. Returns the exit status."""
    import argparse

    parser = argparse.ArgumentParser(prog="npu-sim", description="Moves the chips of the npu-smi stand-in.")
    parser.add_argument("--dir", default=env.get("FTSLURM_NPU_SIM"), help="state folder (else FTSLURM_NPU_SIM)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, text in VERB_HELP.items():
        sub = verbs.add_parser(verb, help=text)
        sub.add_argument("--node", default=node_name(env))
        for flag, how in VERB_FLAGS[verb].items():
            sub.add_argument(flag, **how)
    asked = parser.parse_args(words)
    if not asked.dir:
        parser.error("--dir or FTSLURM_NPU_SIM has to name a folder")
    if not os.path.isdir(asked.dir):
        os.makedirs(asked.dir)
        open_to_all(asked.dir, 0o777)
    try:
        return steer(asked, env)
    except Trouble as trouble:
        sys.stderr.write(f"npu-sim: {trouble}\n")
        return 2


RESET_HELP = (
    "ok, fail, refused, keeps (done, but the code stays), loses (the chip does not come back), others (somebody else is "
    "resetting), slow:SECONDS; one a try, the last for all others"
)
DEVICE = {"--device": {"required": True, "metavar": "CARD.CHIP"}}
VERB_HELP = {
    "inject": "a fault code appears on a chip",
    "clear": "heal everything: one chip, or the node and its tool",
    "show": "print the node's state",
    "tool": "make the tool itself hang, fail or print nonsense",
    "dcmi": "make the library hang, fail, crash or hear no events",
    "event": "something that is over at once, which only the library hears of",
    "network": "health of a chip's network port, as the library numbers it",
    "lose-chip": "a chip is not listed any more",
    "process": "a process uses the chip (pid 0: none does)",
    "load": "AI Core use in percent",
}
VERB_FLAGS: dict[str, dict[str, dict]] = {
    "inject": {
        **DEVICE,
        "--code": {"required": True},
        "--severity": {"choices": list(SEVERITIES), "default": ""},
        "--heals-after": {"type": float, "metavar": "SECONDS", "help": "heals by itself (else never)"},
        "--reset": {"default": "ok", "metavar": "HOW[,HOW...]", "help": RESET_HELP},
        "--times": {"type": int, "default": 1, "help": "how often the fault comes back, this one included"},
        "--again-after": {"type": float, "default": 10.0, "metavar": "SECONDS", "help": "from healing to coming back"},
    },
    "clear": {
        "--device": {"metavar": "CARD.CHIP"},
        "--layout": {"choices": list(NAMES), "help": "of the whole node (else as it is)"},
        "--chips": {"type": int, "help": "how many (else as many as there are)"},
        "--cards": {"default": "", "metavar": "N,N…", "help": "ids of the cards, where they have gaps"},
    },
    "show": {},
    "tool": {"mood": {"choices": TOOL_MOODS}},
    "dcmi": {"mood": {"choices": DCMI_MOODS}},
    "event": {**DEVICE, "--code": {"required": True}, "--severity": {"choices": list(SEVERITIES), "default": ""}},
    "network": {**DEVICE, "--health": {"type": int, "required": True}},
    "lose-chip": DEVICE,
    "process": {
        **DEVICE,
        "--pid": {"type": int, "required": True},
        "--name": {"default": "python3"},
        "--mb": {"type": int, "default": 1024},
    },
    "load": {**DEVICE, "--percent": {"type": int, "required": True}},
}


def steer(asked: "Namespace", env: dict[str, str]) -> int:
    with Locked(asked.dir, asked.node):
        node = load(asked.dir, asked.node, env)
        if asked.verb == "show":
            return show(node)
        if asked.verb == "clear" and asked.device is None:
            same = asked.layout is None and asked.chips is None
            cards = asked.cards or (",".join(str(card) for card in sorted({card for card, _ in node.chips})) if same else "")
            node = fresh_node(asked.layout or node.layout, asked.chips or len(node.chips), cards)
        elif asked.verb == "tool":
            node.tool = asked.mood
        elif asked.verb == "dcmi":
            node.dcmi = asked.mood
        else:
            change_chip(node, asked)
        save(asked.dir, asked.node, node)
    return 0


def change_chip(node: Node, asked: "Namespace") -> None:
    place = place_of(asked.device)
    if place not in node.chips:
        known = " ".join(f"{card}.{chip}" for card, chip in sorted(node.chips))
        raise Trouble(f"{asked.node} has no chip {asked.device}, only {known}")
    chip = node.chips[place]
    if asked.verb == "inject":
        chip.faults = [fault for fault in chip.faults if fault.code != asked.code] + [new_fault(asked)]
    elif asked.verb == "lose-chip":
        chip.lost = True
    elif asked.verb == "process":
        chip.processes = [[asked.pid, asked.name, asked.mb]] if asked.pid else []
    elif asked.verb == "load":
        chip.aicore = asked.percent
    elif asked.verb == "network":
        chip.network = asked.health
    elif asked.verb == "event":
        fault = new_fault(asked)
        node.once.append([fault.since, *place, fault.code, list(SEVERITIES).index(fault.severity)])
    else:
        node.chips[place] = Chip()


def new_fault(asked: "Namespace") -> Fault:
    code = asked.code.upper().removeprefix("0X")
    if not code or len(code) > 8 or code.strip("0123456789ABCDEF"):
        raise Trouble(f"{asked.code!r} is no fault code: eight hexadecimal digits")
    if asked.verb == "event":
        return Fault(code, asked.severity, time.time())
    resets = asked.reset.split(",")
    for how in resets:
        if how not in RESETS and not (how.startswith("slow:") and how[5:].replace(".", "", 1).isdecimal()):
            raise Trouble(f"a reset cannot be {how!r}: {', '.join(RESETS)} or slow:SECONDS")
    return Fault(code, asked.severity, time.time(), asked.heals_after, asked.again_after, asked.times, resets)


def show(node: Node) -> int:
    import json

    data = node.as_data()
    for name, chip in data["chips"].items():
        chip["health"] = node.word(place_of(name), time.time())
    return say(json.dumps(data, indent=1) + "\n", 0)


def main(program: str) -> int:
    run = npu_sim if program == "npu-sim" else npu_smi
    try:
        return run(sys.argv[1:], dict(os.environ))
    except Trouble as trouble:
        sys.stderr.write(f"{program} (stand-in): {trouble}\n")
        return 2
