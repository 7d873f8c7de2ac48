"""Runs inside the simulator, started by test_cache.py: the unit, the memory, and its engine.

``params``: "scripts" and "ends", each with "steps" (the words of every stream, by command, the
batch, and the first place) and "rows" (the memory before). The engine gives the status
of an APPEND when it has the request and the vector. It gives ``o`` of an attend when it has the
queries of the next one too, as K of the next one comes before V. The last attend of a run needs
its own queries alone.
"""

from itertools import accumulate

import cocotb

from golden.kllm.format import NO_OP
from golden.paging.format import Op
from hdl.kllm.cache.engine import AHEAD
from hdl.oaken.layouts import KV_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT
from tb.bench import config, params
from tb.contract import Followed, block_timing
from tb.simulate.ports import Signal

SERVED = ("row_row", "ended", "o", "attended")
SINKS = ("row_request", "write", "request", "kv", "attend", "q", "status")
SLOWEST = 7  # cycles from a request to its answer, at most
FAR = 60  # the same of a far memory, always
REFUSED = block_timing().delay("from a command out of range to its status")
QUERIES = config.attended_rows + config.jobs * config.job_sinks  # rows of q of a token
ENDS = block_timing().delay("from the last word of ended or attended to status")


def field(layout, name: str, word: int) -> int:
    part = layout[name]
    return word >> part.offset & (1 << part.width) - 1


class Engine:
    """The memory and the engine in a run of ``steps``: a queue of answers for each stream."""

    def __init__(self, steps, rows, rng, slow: bool) -> None:
        self.steps, self.rows, self.rng, self.slow = steps, dict(rows), rng, slow
        self.far = False  # the memory takes FAR cycles
        self.most = 0  # rows that were requested and had no answer
        self.words = {name: [] for name in SERVED}
        self.due: list[tuple[int, str, list[int]]] = []
        self.cycle = 0
        self.ended = [word for step in steps for word in step["ended"]]
        self.o = [words for step in steps for words in step["o"]]
        self.attended = [word for step in steps for word in step["attended"]]
        self.is_last = [
            n == len(step["attend"]) - 1 for step in steps for n in range(len(step["attend"]))
        ]
        self.taken = dict.fromkeys((*SINKS, "o", "row_row", "vectors"), 0)
        self.given = dict.fromkeys(SERVED, 0)
        self.host: list[int] = []  # what the host's requests were answered

    def batch(self) -> list[int]:
        """The batch of the command at hand."""
        return self.steps[min(self.taken["status"], len(self.steps) - 1)]["batch"]

    def answer(self, name: str, words: list[int]) -> None:
        wait = self.rng.randint(1, SLOWEST) if self.slow else 1
        if self.far and name == "row_row":
            wait = FAR
        # In order: none overtakes those of its stream.
        last = max((when for when, stream, _ in self.due if stream == name), default=0)
        self.due.append((max(self.cycle + wait, last), name, words))
        self.given[name] += 1

    def see(self, moved) -> None:
        """The transfers of a cycle, (stream, word) each."""
        moved = list(moved)
        for name, word in moved:
            if name in self.taken:
                self.taken[name] += 1
            if name == "row_request":
                self.answer("row_row", [self.rows[word]])
            elif name == "kv":
                self.taken["vectors"] += word >> config.kv_layout["last"].offset
            elif name == "request" and field(KV_REQUEST_LAYOUT, "op", word) != Op.APPEND:
                self.taken["request"] -= 1
                self.serve_host(word)
        for name, word in moved:
            if name == "write":
                self.rows[word & 0xFFFF] = word >> 16
        self.most = max(self.most, self.taken["row_request"] - self.taken["row_row"])
        self.release()
        ready = [each for each in self.due if each[0] <= self.cycle + 1]
        self.due = [each for each in self.due if each[0] > self.cycle + 1]
        for _, name, words in ready:
            self.words[name] += words
        self.cycle += 1

    def serve_host(self, word: int) -> None:
        fields = {name: field(KV_REQUEST_LAYOUT, name, word) for name in ("tag", "op")}
        fields |= {"status": self.rng.randrange(16), "sequence": self.rng.randrange(256)}
        self.host.append(STATUS_LAYOUT.const(fields).as_bits())
        self.answer("ended", [self.host[-1]])
        self.given["ended"] -= 1

    def release(self) -> None:
        """Answers all that has what it needs."""
        taken, given, size = self.taken, self.given, config.attended_rows
        while given["ended"] < min(taken["request"], taken["vectors"]):
            self.answer("ended", [self.ended[given["ended"]]])
        while given["o"] < taken["attend"]:
            n = given["o"]
            needed = n + 1 if self.is_last[n] else n + 2
            # One that is refused needs no queries, and takes them all the same.
            is_void = self.o[n][0] >> config.o_layout["void"].offset & 1
            if taken["attend"] < needed or (taken["q"] < QUERIES * needed and not is_void):
                break
            self.answer("o", self.o[n])
        while given["attended"] < taken["o"] // size:
            self.answer("attended", [self.attended[given["attended"]]])


class Unit(Followed):
    """Commands of a script; the host's requests come in a test of their own."""

    slow = False

    def __init__(self, script) -> None:
        self.script = script
        steps = self.steps = script["steps"]
        words = {name: [word for step in steps for word in step[name]] for name in SINKS}
        packets = {name: list(accumulate(len(step[name]) for step in steps)) for name in SINKS}
        words["command"] = [word for step in steps for word in step["command"]]
        packets["command"] = list(range(1, len(steps) + 1))
        for name in (*SERVED, "host_request", "host_status"):
            words[name], packets[name] = [], [0] * len(steps)
        super().__init__(words, packets=packets, check=self.in_order, cuts=range(2, 120, 9))

    def begin(self, bench) -> None:
        self.dut = bench.dut
        self.index, self.entry = Signal(self.dut.index), Signal(self.dut.entry)
        self.present = Signal(self.dut.present)
        self.engine = Engine(self.steps, self.script["rows"], bench.rng("engine"), self.slow)

    def sample(self, bench) -> None:
        self.engine.see(bench.transfers((*SINKS, *SERVED)))

    def drive(self, bench) -> None:
        batch, place = self.engine.batch(), self.index.get()
        self.present.put(sum(1 << k for k, entry in enumerate(batch) if entry))
        self.entry.put(batch[place] if place < len(batch) else 0)

    def offers(self, counts):
        return super().offers(counts) | self.engine.words

    async def replay(self, bench, packets=None, **flow):
        self.engine.slow = bool(flow)
        return await super().replay(bench, packets, **flow)

    async def interrupt(self, bench, cut, **flow) -> None:
        self.begin(bench)  # the commands come from the first on, and so do their batches
        self.engine.slow = True
        await super().interrupt(bench, cut, **flow)

    def in_order(self, flow, counts) -> None:
        """A status comes after everything that its command does."""
        ends = dict.fromkeys(("write", "ended", "attended", "row_row"), 0)
        for n, step in enumerate(self.steps[: counts["command"]]):
            ends["write"] += len(step["write"])
            ends["ended"] += len(step["ended"])
            ends["attended"] += len(step["attended"])
            ends["row_row"] += len(step["row_request"])
            status = flow.cycles["status"][n]
            for name, end in ends.items():
                assert not end or flow.cycles[name][end - 1] < status, f"command {n}: {name}"

    def check_timing(self, flow, packets=None) -> None:
        """The first row; refused commands; the statuses after the last answer."""
        cycles, latency = flow.cycles, block_timing().latency
        rows, answers, queries = 0, {"ended": 0, "attended": 0}, 0
        begin = 0
        for n, step in enumerate(self.steps[:packets]):
            if step["row_request"]:
                assert cycles["row_request"][rows] >= begin + latency
                if step["batch"][step["place"]]:
                    assert cycles["row_request"][rows] == begin + latency, f"command {n}"
            rows += len(step["row_request"])
            queries += len(step["q"])
            status = cycles["status"][n]
            asks = step["attend"] or step["request"]
            for name in answers:
                answers[name] += len(step[name])
                if step[name] and not (step["write"] and name == "ended"):
                    late = cycles[name][answers[name] - 1] + ENDS
                    if step["q"]:  # what is refused may end before its queries and sinks are read
                        late = max(late, cycles["q"][queries - 1] + ENDS)
                    # Zeros of the last places may come after it, and the walk over these places.
                    may_be_later = step["write"] or step["ends_empty"]
                    assert status == late or (may_be_later and status > late), f"command {n}"
            if not asks and not step["write"] and step["status"][0]:
                assert status == begin + REFUSED, f"command {n}"
            begin = status + 1


golden, drawn = (Unit(script) for script in params["scripts"])
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = golden.tests()


@cocotb.test()
@cocotb.parametrize(p_stall=[0.0, 0.5])
async def every_status(dut, p_stall):
    """Drawn answers: each status alone and together with others, whatever stalls."""
    flow = {"p_stall": p_stall, "p_idle": p_stall} if p_stall else {}
    await drawn.replay(await drawn.started(dut), **flow)


@cocotb.test()
@cocotb.parametrize(p_stall=[0.0, 0.4])
async def ends_of_ranges(dut, p_stall):
    """Operands at their ends and just beyond, and a token in every place."""
    ends = Unit(params["ends"])
    flow = {"p_stall": p_stall} if p_stall else {}
    result = await ends.replay(await ends.started(dut), **flow)
    if not p_stall:
        ends.check_timing(result)


@cocotb.test()
async def far_memory(dut):
    """The unit has ``AHEAD`` reads without an answer, and never more."""
    bench = await golden.started(dut)
    golden.engine.far = True
    await golden.replay(bench)
    assert golden.engine.most <= AHEAD
    if config.attended_rows > AHEAD:
        assert golden.engine.most == AHEAD


@cocotb.test()
async def rows_at_full_rate(dut):
    """A row per cycle from the first one on: of vectors, of queries, and of what is written."""
    last = {"steps": params["ends"]["steps"][-3:], "rows": {}}
    rows = {row for step in last["steps"] for row in step["row_request"]}
    last["rows"] = dict.fromkeys(rows, 0)
    unit = Unit(last)
    unit.words["kv"] = [0] * len(unit.words["kv"])  # of a memory of zeros
    bench = await unit.started(dut)
    counts = {name: len(words) for name, words in unit.words.items()}
    flow = await bench.run(unit.offers(counts), {name: counts[name] for name in unit.sinks})
    ends = list(accumulate(len(step["row_request"]) for step in last["steps"]))
    for first, end in zip([0, *ends], ends, strict=False):
        cycles = flow.cycles["row_request"][first:end]
        assert cycles == list(range(cycles[0], cycles[0] + end - first))
    size = config.attended_rows
    for first in range(0, len(flow.cycles["o"]), size):
        cycles = flow.cycles["o"][first : first + size]
        assert cycles == list(range(cycles[0], cycles[0] + size))
    assert flow.cycles["write"]
    assert set(flow.cycles["write"]) <= set(flow.cycles["o"])  # none is written later


@cocotb.test()
@cocotb.parametrize(p_stall=[0.0, 0.6])
async def requests_of_the_host(dut, p_stall):
    """They pass among those of commands, in order, and no command sees how they end."""
    bench = await golden.started(dut)
    golden.engine.slow = bool(p_stall)
    rng = bench.rng("host")
    given = []
    for _ in range(150):
        fields = {
            name: rng.getrandbits(KV_REQUEST_LAYOUT[name].width)
            for name in ("tag", "sequence", "layer", "kv", "head", "heads", "token")
        }
        fields["op"] = rng.choice([*Op, Op.APPEND, Op.READ, 9])
        fields["thresholds"] = [rng.getrandbits(16) for _ in range(4)]
        given.append(KV_REQUEST_LAYOUT.const(fields).as_bits())
    counts = {name: len(words) for name, words in golden.words.items()}
    offers = golden.offers(counts) | {"host_request": given}
    takes = {name: counts[name] for name in golden.sinks}
    takes |= {"request": counts["request"] + len(given), "host_status": len(given)}
    idle = {"host_request": 0.5} | dict.fromkeys(set(golden.sources) - {"host_request"}, 0.0)
    flow = await bench.run(offers, takes, p_idle=idle, p_stall=p_stall)
    ops = [field(KV_REQUEST_LAYOUT, "op", word) for word in flow.words["request"]]
    own = [word for op, word in zip(ops, flow.words["request"], strict=True) if op == Op.APPEND]
    assert own == golden.words["request"]
    passed = [word for op, word in zip(ops, flow.words["request"], strict=True) if op != Op.APPEND]
    part = KV_REQUEST_LAYOUT["op"]
    assert part.offset == 0
    for got, word in zip(passed, given, strict=True):
        op = field(KV_REQUEST_LAYOUT, "op", word)
        wanted = NO_OP if op in (Op.APPEND, Op.READ) else op
        assert got == word & -(1 << part.width) | wanted
    assert flow.words["host_status"] == golden.engine.host
    for name in set(golden.sinks) - {"request", "host_status"}:
        flow.check(name, golden.words[name])
