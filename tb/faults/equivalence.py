"""Does a fault of a netlist show at all? Proofs on an and-inverter graph, judged by ABC.

``judge(...)`` returns "equivalent", "differs" or "undecided". A fault is equivalent if no output
differs, from the second cycle on, for any inputs and any state that both halves start with. In the
first cycle ``rst`` is high. Without such an input the first cycle counts too. A register without a
reset keeps the value that it started with: any value, the same in both halves.

The netlist has the fault on a select input, so both halves of a comparison share what the fault
cannot reach. Three proofs are tried, and each is sound by itself:

    proof       registers                                   what must be equal
    local       those that the fault does not reach are     every output
                free inputs at every time
    pipeline    those that load together are the function   the first registers, enables and
                of the words before them, or hold what      outputs that the fault reaches
                they started with
    sequential  all, from the same state                    every output

"differs" is a counterexample of ``sequential`` in a netlist that is whole. The graphs of the others
allow more than the netlist does.

A memory is cut where possible: its read data is a free input, its addresses, enables and write data
are outputs. Equal inputs of a memory give equal outputs at all later times. So do those of a black
box. These are compared in the first cycle too.
"""

import dataclasses
import json
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from synth.yosys import YosysError, run

SELECT = "mutant_select"
RESET = "rst"
FREE = "memory_cut"  # prefix of the ports that replace a memory
BOX = "__box__"  # in the names of the ports that replace a black box
LEVELS = 6  # registers after the fault at which the pipeline is compared, at most
CYCLES = 4  # registers without an enable that a pipeline is looked through, at most
LARGEST = 100_000  # nodes of one graph
_DATA = re.compile(r"_t(data|last)$")


class Unsuited(ValueError):
    """The proof does not apply to this netlist."""


class Aig:
    """Literals are 2 * node + negated; node 0 is the constant false."""

    def __init__(self) -> None:
        self.kinds: list[tuple] = [("constant",)]
        self.latches: list[int] = []
        self.next: dict[int, int] = {}
        self._known: dict[tuple[int, int], int] = {}

    def _node(self, kind: tuple) -> int:
        if len(self.kinds) > LARGEST:
            raise Unsuited("too large")
        self.kinds.append(kind)
        return 2 * (len(self.kinds) - 1)

    def free(self) -> int:
        return self._node(("input",))

    def latch(self) -> int:
        """A register that starts at zero; ``next`` holds its next value."""
        literal = self._node(("latch",))
        self.latches.append(literal)
        return literal

    def both(self, a: int, b: int) -> int:
        a, b = min(a, b), max(a, b)
        if a == 0 or a == b ^ 1:
            return 0
        if a in (1, b):
            return b
        if (a, b) not in self._known:
            self._known[a, b] = self._node(("and", a, b))
        return self._known[a, b]

    def either(self, a: int, b: int) -> int:
        return self.both(a ^ 1, b ^ 1) ^ 1

    def differ(self, a: int, b: int) -> int:
        return self.either(self.both(a, b ^ 1), self.both(a ^ 1, b))

    def choose(self, select: int, one: int, zero: int) -> int:
        return self.either(self.both(select, one), self.both(select ^ 1, zero))

    def encode(self, output: int) -> bytes:
        """Binary AIGER of what ``output`` depends on, with this one output."""
        order: list[int] = []
        found = {0}
        stack = [output >> 1]
        while stack:
            node = stack[-1]
            if node in found:
                stack.pop()
                continue
            kind = self.kinds[node]
            before = [lit >> 1 for lit in kind[1:]] if kind[0] == "and" else []
            missing = [each for each in before if each not in found]
            if missing:
                stack.extend(missing)
                continue
            found.add(node)
            order.append(node)
            stack.pop()
            if kind[0] == "latch":
                stack.insert(0, self.next[2 * node] >> 1)
        parts = {name: [node for node in order if self.kinds[node][0] == name]
                 for name in ("input", "latch", "and")}  # fmt: skip
        number = {0: 0}
        for node in (*parts["input"], *parts["latch"], *parts["and"]):
            number[node] = len(number)

        def literal(lit: int) -> int:
            return 2 * number[lit >> 1] + (lit & 1)

        sizes = [len(part) for part in parts.values()]
        text = [f"aig {sum(sizes)} {sizes[0]} {sizes[1]} 1 {sizes[2]}"]
        text += [str(literal(self.next[2 * node])) for node in parts["latch"]]
        text.append(str(literal(output)))
        body = bytearray("".join(line + "\n" for line in text).encode())
        for node in parts["and"]:
            high, low = sorted((literal(lit) for lit in self.kinds[node][1:]), reverse=True)
            for delta in (2 * number[node] - high, high - low):
                while delta > 127:
                    body.append(delta & 127 | 128)
                    delta >>= 7
                body.append(delta)
        return bytes(body)


@dataclasses.dataclass
class Register:
    d: int
    enable: int | None
    q: int


class Netlist:
    """Bits of a flat netlist of AND, NOT and flip-flops, read from Yosys' JSON."""

    def __init__(self, module: dict):
        self.gates: dict[int, tuple] = {}
        self.registers: dict[int, Register] = {}
        self.outputs: dict[tuple[str, int], int] = {}
        self.reset: int | None = None  # input that is high in the first cycle
        readers = defaultdict(list)
        for cell in module["cells"].values():
            pins = {name: bits[0] for name, bits in cell["connections"].items()}
            match cell["type"]:
                case "$_AND_":
                    self.gates[pins["Y"]] = (pins["A"], pins["B"])
                case "$_NOT_" | "$_BUF_":
                    self.gates[pins["Y"]] = (pins["A"],) + (None,) * (cell["type"] == "$_NOT_")
                case "$_DFF_P_" | "$_DFFE_PP_":
                    self.registers[pins["Q"]] = Register(pins["D"], pins.get("E"), pins["Q"])
                case "$scopeinfo":
                    continue
                case kind:
                    raise Unsuited(f"cell {kind}")
        for bit, operands in self.gates.items():
            for each in operands:
                if each is not None:
                    readers[each].append(bit)
        for register in self.registers.values():
            for each in (register.d, register.enable):
                readers[each].append(register.q)
        for name, port in module["ports"].items():
            for k, bit in enumerate(port["bits"]):
                if port["direction"] == "output":
                    self.outputs[name, k] = bit
                elif name == SELECT:
                    self.select = bit
                elif name == RESET:
                    self.reset = bit
        self.hit: set[int] = set()
        stack = [self.select]
        while stack:
            bit = stack.pop()
            if bit not in self.hit:
                self.hit.add(bit)
                stack.extend(readers[bit])
        self._readers = readers

    def levels(self, most: int) -> dict[int, int]:
        """Bit that the fault reaches -> registers passed, up to ``most``."""
        level = {self.select: 0}
        edge = [self.select]
        while edge:
            later = []
            for bit in edge:
                for reader in self._readers[bit]:
                    steps = level[bit] + (reader in self.registers)
                    if steps <= most and level.get(reader, most + 1) > steps:
                        level[reader] = steps
                        later.append(reader)
            edge = later
        return level

    def build(self, aig: Aig, bits, leaf, fault: int, known: dict[int, int]) -> list[int]:
        """Literals of ``bits``; ``leaf(bit)`` gives those of inputs and registers."""
        for constant in ("0", "x", "z"):
            known[constant] = 0
        known["1"], known[self.select] = 1, fault
        stack = list(bits)
        while stack:
            bit = stack[-1]
            if bit in known:
                stack.pop()
            elif bit in self.gates:
                operands = self.gates[bit]
                missing = [each for each in operands if each is not None and each not in known]
                if missing:
                    stack.extend(missing)
                    continue
                first = known[operands[0]]
                if len(operands) == 1:
                    known[bit] = first
                elif operands[1] is None:
                    known[bit] = first ^ 1
                else:
                    known[bit] = aig.both(first, known[operands[1]])
                stack.pop()
            else:
                known[bit] = leaf(bit)
                stack.pop()
        return [known[bit] for bit in bits]

    def sources(self, bits) -> set[int]:
        """Inputs and registers that ``bits`` depend on within one cycle."""
        found, seen, stack = set(), set(), list(bits)
        while stack:
            bit = stack.pop()
            if bit in seen or isinstance(bit, str):
                continue
            seen.add(bit)
            if bit in self.gates:
                stack.extend(each for each in self.gates[bit] if each is not None)
            elif bit != self.select:
                found.add(bit)
        return found

    def is_excused(self, name: str) -> bool:
        """Does output ``name`` not count in the first cycle? Those of a memory or box do."""
        return self.reset is not None and not name.startswith(FREE) and BOX not in name

    def mask(self, name: str, k: int) -> list[int]:
        """Bits of which one must be high while this bit of an output counts; [] for always."""
        if BOX in name:
            return []  # what a box reads is not known
        valid = _DATA.sub("_tvalid", name.replace("__payload", "__valid"))
        if valid != name and (valid, 0) in self.outputs:
            return [self.outputs[valid, 0]]
        found = re.fullmatch(rf"({FREE}_\d+_\d+_(?:RD|WR))_(ADDR|DATA)", name)
        if found is None:
            return []
        enables = {n: bit for (other, n), bit in self.outputs.items() if other == f"{found[1]}_EN"}
        return [enables[k]] if found[2] == "DATA" else list(enables.values())


def sequential(netlist: Netlist, *, local: bool) -> tuple[Aig, int]:
    """(graph, output that is high when an output differs).

    Both halves start with the same values. These are inputs that the first cycle alone reads.
    """
    aig = Aig()
    started = aig.latch()  # low in the first cycle
    aig.next[started] = 1
    initial: dict[int, int] = defaultdict(aig.free)
    shared: dict[int, int] = {}
    faulty: dict[int, int] = {}
    waiting: list[tuple[int, bool, int]] = []

    def state(bit: int, half: bool) -> int:
        if bit == netlist.reset:
            return aig.either(started ^ 1, aig.free())
        if bit not in netlist.registers or (local and bit not in netlist.hit):
            return aig.free()
        latch = aig.latch()
        waiting.append((bit, half, latch))
        return aig.choose(started, latch, initial[bit])

    def values(bits, half: bool) -> list[int]:
        if not half:
            return netlist.build(aig, bits, lambda bit: state(bit, False), 0, shared)
        clean = [bit for bit in netlist.sources(bits) if bit not in netlist.hit]
        values(clean, False)
        faulty.update({bit: shared[bit] for bit in clean})
        return netlist.build(aig, bits, lambda bit: state(bit, True), 1, faulty)

    wrong = 0
    for (name, k), bit in netlist.outputs.items():
        if bit not in netlist.hit:
            continue
        mask = netlist.mask(name, k)
        pair = []
        for half in (False, True):
            value, *gates = values([bit, *mask], half)
            gate = int(not mask)
            for each in gates:
                gate = aig.either(gate, each)
            pair.append(aig.both(value, gate))
        counts = started if netlist.is_excused(name) else 1
        wrong = aig.either(wrong, aig.both(counts, aig.differ(*pair)))
    while waiting:
        bit, half, latch = waiting.pop()
        register = netlist.registers[bit]
        literal = (faulty if half else shared)[bit]
        (following,) = values([register.d], half)
        if register.enable is not None:
            (enable,) = values([register.enable], half)
            following = aig.choose(enable, following, literal)
        aig.next[latch] = following
    return aig, wrong


def pipeline(netlist: Netlist, most: int, cycles: int = 0) -> tuple[Aig, int]:
    """(graph without registers, output that is high where a register would load another value).

    Registers of one enable that hold words load together. So their word is the function of what
    they loaded, or what they started with. What they loaded is again a word of registers that load
    together. Every other bit is free, and free once more for each word that it went into. Registers
    without an enable load in every cycle: those of the last ``cycles`` cycles are looked through.

    It is an induction over time. A register holds equal values in both halves if its data and its
    enable are equal at all earlier times. Any other register is looked through. Where that ends its
    two values are independent.
    """
    level = netlist.levels(most)
    groups: dict[int | None, list[int]] = defaultdict(list)
    for register in netlist.registers.values():
        always = register.enable is None
        if cycles if always else register.enable not in netlist.hit:
            groups[register.enable].append(register.q)
    group_of = {q: enable for enable, members in groups.items() for q in members}
    # (bit, mask, does it not count in the first cycle)
    points: set[tuple[int, tuple[int, ...], bool]] = set()
    for (name, k), bit in netlist.outputs.items():
        if bit in level:
            points.add((bit, tuple(netlist.mask(name, k)), netlist.is_excused(name)))
    unequal: set[int] = set()
    for q, register in netlist.registers.items():
        if register.enable in level:
            points.add((register.enable, (), False))
        # A register that is compared need not be looked through.
        if register.d in level and (level[register.d] == most or q not in group_of):
            points.add((register.d, (), False))
        elif register.d in level:
            unequal.add(q)
    aig = Aig()

    def loads_in_reset(enable: int | None) -> bool:
        known = {} if netlist.reset is None else {netlist.reset: 1}
        return enable is None or netlist.build(aig, [enable], lambda _: aig.free(), 0, known) == [1]

    in_reset = {enable: loads_in_reset(enable) for enable in groups}

    def pair(bits, path: tuple, first: int) -> tuple[list[int], list[int]]:
        """Literals without and with the fault, of one moment; ``first``: is it the first cycle?"""
        sound: dict[int, int] = {}
        wrong: dict[int, int] = {}
        wanted: dict[int | None, list[int]] = defaultdict(list)
        for bit in netlist.sources(bits):
            enable = group_of.get(bit)
            if bit in group_of and path.count(enable) < (cycles if enable is None else 1):
                wanted[enable].append(bit)
            else:
                sound[bit] = aig.free()
                if bit == netlist.reset:
                    sound[bit] = aig.either(first, sound[bit])
                wrong[bit] = aig.free() if bit in unequal else sound[bit]
        for enable, members in wanted.items():
            loaded = aig.both(first ^ 1, 1 if in_reset[enable] else aig.free())
            data = [netlist.registers[q].d for q in members]
            before = pair(data, (*path, enable), aig.free())
            for q, *words in zip(members, *before, strict=True):
                initial = aig.free()
                sound[q], wrong[q] = (aig.choose(loaded, word, initial) for word in words)
        return (
            netlist.build(aig, bits, sound.__getitem__, 0, sound),
            netlist.build(aig, bits, wrong.__getitem__, 1, wrong),
        )

    ordered = sorted(points, key=repr)  # a mask may be a constant, which is text
    bits = [each for bit, mask, _ in ordered for each in (bit, *mask)]
    first = aig.free()
    halves = pair(bits, (), first)
    wrong, place = 0, 0
    for _, mask, is_excused in ordered:
        shown = []
        for half in halves:
            gate = int(not mask)
            for each in half[place + 1 : place + 1 + len(mask)]:
                gate = aig.either(gate, each)
            shown.append(aig.both(half[place], gate))
        counts = first ^ 1 if is_excused else 1
        wrong = aig.either(wrong, aig.both(counts, aig.differ(*shown)))
        place += 1 + len(mask)
    return aig, wrong


def cut_memories(text: str, keep: str) -> str:
    """RTLIL in which each memory that is written is ports; the cell ``keep`` stays whole."""
    count = 0

    def replace(found: re.Match) -> str:
        nonlocal count
        if found["name"] == keep or "INIT" not in found["body"]:
            return found[0]
        fields = dict(re.findall(r"parameter (?:signed )?\\(\w+) (\S+)", found["body"]))
        if int(fields["WR_PORTS"]) == 0:
            return found[0]  # a table of constants
        pins = dict(re.findall(r"connect \\(\w+) (.*)", found["body"]))
        if any(pins[f"RD_{name}RST"].split("'")[-1].strip("0x") for name in "AS"):
            return found[0]  # a reset of the read data is not among the outputs below
        width, abits = int(fields["WIDTH"]), int(fields["ABITS"])
        lines = []
        for kind in ("RD", "WR"):
            ports = int(fields[f"{kind}_PORTS"])
            for port in range(ports):
                enables = width if kind == "WR" else 1
                for pin, size in (("EN", enables), ("ADDR", abits), ("DATA", width)):
                    name = f"\\{FREE}_{count}_{port}_{kind}_{pin}"
                    is_input = kind == "RD" and pin == "DATA"
                    direction = "input" if is_input else "output"
                    lines.append(f"  wire width {size} {direction} {9000 + len(lines)} {name}")
                    low = port * size
                    part = f"{pins[f'{kind}_{pin}']} [{low + size - 1}:{low}]"
                    if int(ports) == 1:
                        part = pins[f"{kind}_{pin}"]
                    sides = (part, name) if is_input else (name, part)
                    lines.append(f"  connect {sides[0]} {sides[1]}")
        count += 1
        return "\n".join(lines) + "\n"

    pattern = (
        r"(?:^  attribute .*\n)*^  cell \$mem_v2 (?P<name>\S+)\n(?P<body>(?:^    .*\n)*)^  end\n"
    )
    return re.sub(pattern, replace, text, flags=re.M)


_NETLIST = """read_rtlil {base}
{fault}
{boxes}
select -set hit w:{select} %co*
delete -port o:* @hit %d o:*valid %d o:{free}_*_EN %d
opt_clean
memory_map
opt_dff -simple-dffe
opt_clean
techmap
dfflegalize -cell $_DFF_P_ x -cell $_DFFE_PP_ x
opt_expr
opt_merge
aigmap
opt_clean
write_json {stem}.json
"""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A design without faults, and how its faults are judged."""

    directory: Path  # that holds base.il
    top: str
    abc: str  # the program
    limit: int  # seconds of the longest proof
    boxes: bool = False  # the netlist has black boxes


def _netlist(setting: Setting, command: str, stem: str, cut: bool) -> Netlist:
    directory = setting.directory
    base = "base.il"
    if cut:
        cell = re.search(r"-cell (\S+)", command)
        base = f"{stem}.il"
        text = cut_memories((directory / "base.il").read_text(), cell[1] if cell else "")
        (directory / base).write_text(text)
    fault = command.replace("mutate ", f"mutate -ctrl {SELECT} 1 1 ", 1)
    evert = f"expose -sep {BOX} -evert c:* t:$* %d" if setting.boxes else ""
    script = _NETLIST.format(
        base=base, fault=fault, boxes=evert, stem=stem, select=SELECT, free=FREE
    )
    try:
        run(script, directory, stem=stem, timeout=6 * setting.limit)
        modules = json.loads((directory / f"{stem}.json").read_text())["modules"]
    finally:
        for suffix in ("json", "il"):
            (directory / f"{stem}.{suffix}").unlink(missing_ok=True)
    return Netlist(modules[setting.top])


def _is_constant(path: Path) -> bool | None:
    """The value of the output that an AIGER file gives to a graph without nodes, else None."""
    header, output, *_ = path.read_bytes().split(b"\n")
    _, _, _, latches, _, nodes = header.split()[:6]
    if int(latches) or int(nodes) or int(output) > 1:
        return None
    return bool(int(output))


def _prove(abc: str, graph: bytes, path: Path, limit: int) -> str:
    """The verdict on an AIGER graph of which the output must never be high."""
    _, _, _, latches, *_ = graph.split(b"\n")[0].split()
    path.write_bytes(graph)
    reduced = path.with_suffix(".reduced.aig")
    reduced.unlink(missing_ok=True)
    # PDR calls an output undecided that scorr has already made constant. So that is read apart.
    steps = f"scorr; write_aiger {reduced.name}; pdr -T {limit}" if int(latches) else "iprove"
    try:
        done = subprocess.run(
            [abc, "-c", f"read_aiger {path.name}; strash; {steps}"],
            cwd=path.parent, capture_output=True, text=True, timeout=2 * limit,
        )  # fmt: skip
        text = done.stdout
    except subprocess.TimeoutExpired as error:
        text = (error.stdout or b"").decode()
    path.with_suffix(".abc.log").write_text(text)
    value = _is_constant(reduced) if reduced.exists() else None
    for each in (path, reduced):
        each.unlink(missing_ok=True)
    if value is False or "Property proved" in text or "UNSATISFIABLE" in text:
        return "equivalent"
    is_seen = value or "was asserted in frame" in text or "SATISFIABLE" in text
    return "differs" if is_seen else "undecided"


def proofs(netlist: Netlist, *, is_cut: bool):
    """(name, part of the time limit, function that returns (graph, output)); the last is exact."""
    yield "local", 4, lambda: sequential(netlist, local=True)
    if is_cut:  # in the whole netlist only what is stored is known better
        for cycles in (0, CYCLES):
            for most in range(LEVELS):
                yield (
                    f"pipeline {most} {cycles}",
                    4,
                    lambda most=most, cycles=cycles: pipeline(netlist, most, cycles),
                )
    yield "sequential", 1, lambda: sequential(netlist, local=False)


def settle(netlist: Netlist, setting: Setting, stem: str, *, is_cut: bool, say) -> str:
    """The verdict on ``netlist``: "differs" is a counterexample of ``sequential`` alone."""
    judged: dict[bytes, str] = {}
    for name, share, build in proofs(netlist, is_cut=is_cut):
        is_last = name == "sequential"
        try:
            aig, wrong = build()
        except Unsuited as error:
            say(f"{name}: {error}")
            continue
        graph = aig.encode(wrong)
        found = judged.get(graph, "")
        if not found or (is_last and found == "undecided"):
            limit = max(setting.limit // share, 1)
            found = "differs" if wrong == 1 else "equivalent" if wrong == 0 else _prove(
                setting.abc, graph, setting.directory / f"{stem}.aig", limit
            )  # fmt: skip
            say(f"{name}: {len(aig.kinds)} nodes: {found}")
            judged[graph] = found
        if found == "equivalent" or (is_last and found == "differs"):
            return found
    return "undecided"


def judge(setting: Setting, command: str, stem: str, *, trace=None) -> str:
    """The verdict on the fault of Yosys' ``command``; ``trace`` is called with a line per proof."""
    say = trace or (lambda text: None)
    for cut in (True, False):
        try:
            netlist = _netlist(setting, command, f"{stem}_{'cut' if cut else 'whole'}", cut)
        except (YosysError, Unsuited) as error:
            say(f"cut {cut}: {str(error)[:200]}")
            continue
        found = settle(netlist, setting, stem, is_cut=cut, say=say)
        if found == "equivalent":
            return found
        memory = [bit for (name, _), bit in netlist.outputs.items() if name.startswith(FREE)]
        if not memory and not setting.boxes:
            return found
        if not netlist.hit.intersection(memory):
            break
    return "undecided"
