"""KllmCache against golden.kllm.machine: every request, row, status, with a model of its users.

The model has the ports of oaken_attention and the vector memory. It gives what golden's cache
answers. In half of the scripts that is the cache itself. In the others it is drawn, so that every
status comes.

Shown to fail:

- a place without a token that appends, or attends;
- zeros left out, or written by APPEND;
- ``void`` words that are written;
- ``last`` only in the final place of the command, or in each attend;
- one past the last token forgotten;
- an APPEND that is complete before its status, or an ATTEND before ``attended``;
- a status that takes the place of those before it;
- a status that stays for the next command;
- ``result`` unseen, or in the place of a bus error;
- the queries of a head in the order of memory;
- a range check of src, dst, tokens, place, layer, heads or window that is left out or off by one;
- a window that does not reach the attend;
- a cap that does not; has_sinks that is ignored;
- a check of has_sinks that is left out, or of the end of sinks that is off by one;
- the sinks of the first job for all; those of the token before read on;
- the place of the first token left out, in ``index`` or in ``present``;
- an APPEND of the host that reaches the cache;
- a status of the host that counts for a command.
"""

import dataclasses

import numpy as np
import pytest
import torch

from golden.attention.format import cap_operand
from golden.fp16.format import FP16
from golden.fp16.ops import bits_from_float
from golden.kllm.cache import CacheUnit, Part, Place, first_fault
from golden.kllm.config import MACHINES, MachineConfig, VectorShape
from golden.kllm.isa import CommandStatus, Opcode, encode
from golden.kllm.machine import Machine
from golden.oaken.config import CacheConfig, KvShape
from golden.oaken.kv_engine import Answer, Request
from golden.paging.format import Kv, Op, Status
from golden.words import join, layout_word
from hdl.kllm.batch import entry_layout
from hdl.kllm.cache.config import KllmCacheConfig
from hdl.kllm.cache.engine import KllmCache
from hdl.kllm.room import BLOCKS
from hdl.oaken.attention_config import attend_layout_of, attended_layout
from hdl.oaken.layouts import KV_REQUEST_LAYOUT
from hdl.paging.layouts import STATUS_LAYOUT
from tb.kllm.support.commands import command_payload, row_of
from tb.simulate.run import simulate

THRESHOLDS = bits_from_float(torch.tensor([-2.0, -0.02, 0.02, 2.0])).tolist()
NAN = FP16.canonical_nan
RULES = {"window": 0, "cap": 0, "sinks": 0, "has_sinks": 0}  # of an ATTEND, by default


def shaped(
    rows: int, places: int, queries: int, lanes: int, rules: tuple[str, ...] = (),
    engines: int = 1, **kv: int,
) -> KllmCacheConfig:  # fmt: skip
    cache = CacheConfig(
        kv=KvShape(order="token", **kv), sequences=4, layers=3, pages=256, page_bytes=1024,
        max_tokens=24, **dict.fromkeys(rules, True),
    )  # fmt: skip
    return KllmCacheConfig(
        vectors=VectorShape(rows=rows), places=places, cache=cache, queries=queries, lanes=lanes,
        engines=engines,
    )  # fmt: skip


ALL_RULES = ("windows", "caps", "sinks")


CONFIGS = {
    "small": BLOCKS["kllm_cache"].configs["small"],
    "one_beat": shaped(300, 5, 3, 32, heads=2, head_dim=32, block=32),
    "two_beats": shaped(301, 4, 2, 32, heads=3, head_dim=64, block=32),
    "one_head": shaped(65536, 64, 1, 16, heads=1, head_dim=16, block=16),
    "windows": shaped(300, 5, 2, 16, ("windows",), heads=2, head_dim=32, block=32),
    "caps": shaped(300, 4, 2, 16, ("caps",), heads=2, head_dim=32, block=32),
    "sinks": shaped(300, 4, 3, 16, ("sinks",), heads=2, head_dim=32, block=32),
    "two_jobs": shaped(300, 5, 3, 16, ALL_RULES, engines=2, heads=2, head_dim=32, block=32),
    "many_sinks": shaped(520, 3, 5, 16, ALL_RULES, heads=8, head_dim=16, block=16, groups=2),
    "one_place": shaped(128, 1, 8, 16, heads=1, head_dim=48, block=16),
}


class Recorded(CacheUnit):
    """golden's cache, and what each engine answered to the commands; or drawn answers.

    rng: None: the cache itself answers; else it has an engine for each KV head.
    """

    def __init__(self, config: CacheConfig, places: int, rng=None) -> None:
        super().__init__(config, places, 1 if rng is None else config.kv.heads)
        self.rng = rng
        self.is_sound = False  # drawn answers to ATTENDs are words
        self.appends: list[Status] = []
        self.attends: list[Part] = []

    def _request(self, number, op, token, place, layer, kv, vector=()) -> Answer:
        if self.rng is None:
            answer = super()._request(number, op, token, place, layer, kv, vector)
        else:
            answer = Answer(self._status(0.5))
        if op == Op.APPEND:
            self.appends.append(answer.status)
        return answer

    def _attend_part(self, number, place, queries, layer, rules) -> Part:
        if self.rng is None:
            part = super()._attend_part(number, place, queries, layer, rules)
        else:
            part = self._drawn(queries)  # no words of a READ, so no attention either
        self.attends.append(part)
        return part

    def _status(self, chance: float) -> Status:
        """OK, or one that such a request has; ``chance``: that some engine has one."""
        if self.rng.random() > chance / len(self.engines):
            return Status.OK
        each = list(_MEANING)
        return each[int(self.rng.integers(len(each)))]

    def _drawn(self, queries) -> Part:
        status = Status.OK if self.is_sound else self._status(0.5)
        if status:
            is_read = status >= Status.SLAVE_ERROR
            return Part(torch.full_like(queries, NAN) if is_read else None, status)
        words = torch.from_numpy(self.rng.integers(0, 1 << 16, queries.shape))
        return Part(words, Status.OK, self.rng.random() < 0.4 / len(self.engines))


# Written again here: golden and RTL share one table.
_MEANING = {
    Status.BAD_REQUEST: CommandStatus.RANGE,
    Status.SEQUENCE_UNKNOWN: CommandStatus.SLOT_MISMATCH,
    Status.THRESHOLDS: CommandStatus.CODEBOOK_MISSING,
    Status.TOKEN_ORDER: CommandStatus.SLOT_MISMATCH,
    Status.LENGTH_LIMIT: CommandStatus.CAPACITY,
    Status.BEYOND_LENGTH: CommandStatus.SLOT_MISMATCH,
    Status.EMPTY: CommandStatus.SLOT_MISMATCH,
    Status.NONFINITE: CommandStatus.NONFINITE,
    Status.OUT_OF_PAGES: CommandStatus.CAPACITY,
    Status.SLAVE_ERROR: CommandStatus.BUS_ERROR,
    Status.DECODE_ERROR: CommandStatus.BUS_ERROR,
    Status.MALFORMED: CommandStatus.BUS_ERROR,
}


def meaning(status: Status) -> CommandStatus:
    return _MEANING[status] if status else CommandStatus(0)


class Script:
    """Commands on a golden machine, and the words of every stream for each."""

    def __init__(self, config: KllmCacheConfig, rng, is_drawn: bool) -> None:
        self.config, self.rng = config, rng
        machine: MachineConfig = dataclasses.replace(
            MACHINES["small"], vectors=config.vectors, batch=config.places, cache=config.cache,
            queries=config.queries, engines=config.engines,
        )  # fmt: skip
        self.machine = Machine(machine)
        self.cache = Recorded(config.cache, config.places, rng if is_drawn else None)
        self.machine.cache = self.cache
        self.is_drawn = is_drawn
        self.steps: list[dict] = []
        rows = config.vectors.rows
        words = rng.normal(0, 1, (rows, 16)).astype(np.float16).view(np.uint16).astype(np.int64)
        self.machine.vector[:] = torch.from_numpy(words)
        self.initial = self.machine.vector.clone()
        self.lengths: dict[int, dict] = {}  # of each open sequence: (layer, kv) -> tokens
        if not is_drawn:
            # Layer 2 has no thresholds of V.
            for layer in range(config.cache.layers):
                for kv in Kv:
                    if (layer, kv) == (2, Kv.V):
                        continue
                    made = Request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=THRESHOLDS)
                    assert self.cache.request(made).status == Status.OK
            for _ in range(config.cache.sequences - 1):
                assert self.cache.request(Request(Op.OPEN)).status == Status.OK

    def batch(self, chance: float = 0.7) -> None:
        """Places with tokens and without: positions near those that come next, or any."""
        rng, config = self.rng, self.config
        for place in range(config.places):
            sequence = int(rng.integers(config.cache.sequences + (rng.random() < 0.1)))
            position = int(rng.integers(1 << 21)) if rng.random() < 0.05 else int(rng.integers(4))
            self.cache.batch[place] = (
                Place(sequence, min(position, (1 << 21) - 2)) if rng.random() < chance else None
            )

    def command(self, opcode: Opcode, **operands: int) -> CommandStatus:
        """Runs a command, and keeps the words of its streams."""
        machine, cache = self.machine, self.cache
        cache.appends, cache.attends = [], []
        rules = {} if opcode == Opcode.APPEND else RULES
        operands = {"place": 0} | rules | operands
        before = machine.vector.clone()
        words = encode(opcode, 0, {}, operands)
        status = machine.step(words).status
        places = self._places(operands)
        step = self._empty() | {
            "place": operands["place"], "ends_empty": bool(places) and places[-1] is None,
        }  # fmt: skip
        step["command"] = [command_payload(words)]
        step["status"] = [int(status)]
        if status != CommandStatus.RANGE or cache.appends or cache.attends:
            make = self._append if opcode == Opcode.APPEND else self._attend
            assert make(step, operands, before) == status
        self.steps.append(step)
        return status

    def _places(self, operands: dict) -> list[Place | None]:
        """Those of the command's tokens."""
        return self.cache.batch[operands["place"] :][: operands["tokens"]]

    def _empty(self) -> dict:
        names = ("command", "status", "row_request", "write", "request", "kv", "attend", "q")
        batch = [
            0 if each is None
            else layout_word(entry_layout, valid=1, sequence=each.sequence, position=each.position)
            for each in self.cache.batch
        ]  # fmt: skip
        return {name: [] for name in names} | {
            "batch": batch, "ended": [], "o": [], "attended": [],
        }  # fmt: skip

    def _append(self, step: dict, operands: dict, vector: torch.Tensor) -> CommandStatus:
        """Words of the streams; the bits of all tokens' statuses."""
        config, bits = self.config, CommandStatus(0)
        answers = iter(self.cache.appends)
        for t, place in enumerate(self._places(operands)):
            if place is None:
                continue
            first = operands["src"] + t * operands["stride"]
            rows = range(first, first + config.cached_rows)
            fields = {
                "op": int(Op.APPEND), "tag": t, "sequence": place.sequence,
                "layer": operands["layer"], "kv": operands["kv"], "token": place.position,
            }  # fmt: skip
            step["request"].append(layout_word(KV_REQUEST_LAYOUT, **fields))
            found = first_fault([next(answers) for _ in self.cache.engines])
            bits |= meaning(found)
            status = {"tag": t, "op": int(Op.APPEND), "sequence": place.sequence}
            status["status"] = int(found)
            step["ended"].append(layout_word(STATUS_LAYOUT, **status))
            step["row_request"] += rows
            beats = vector[list(rows)].reshape(-1, config.lanes).tolist()
            step["kv"] += [
                layout_word(config.kv_layout, x=beat, last=n == len(beats) - 1)
                for n, beat in enumerate(beats)
            ]
        return bits

    def _order(self, first: int) -> list[int]:
        """Rows of the queries of a token in the order of q."""
        config = self.config
        shape = (config.cache.kv.heads, config.queries, config.steps, config.beat_rows)
        rows = np.arange(config.attended_rows).reshape(shape).transpose(0, 2, 1, 3)
        return (first + rows.reshape(-1)).tolist()

    def _attend(self, step: dict, operands: dict, vector: torch.Tensor) -> CommandStatus:
        """Words of the streams; the bits of all tokens' statuses."""
        rng, bits = self.rng, CommandStatus(0)
        answers = iter(self.cache.attends)
        places = self._places(operands)
        present = [t for t, place in enumerate(places) if place is not None]
        for t, place in enumerate(places):
            to = self._order(operands["dst"] + t * operands["dst_stride"])
            if place is None:
                step["write"] += [join((row, 16), (0, 256)) for row in to]
                continue
            step["attend"].append(
                layout_word(
                    attend_layout_of(self.config.cache), tag=t, sequence=place.sequence,
                    layer=operands["layer"], token=place.position + 1, last=t == present[-1],
                    **({"window": operands["window"]} if self.config.cache.windows else {}),
                    **({"cap": operands["cap"]} if self.config.cache.caps else {}),
                )
            )  # fmt: skip
            source = self._order(operands["src"] + t * operands["stride"])
            self._queries(step, operands, source, vector)
            parts = [next(answers) for _ in self.cache.engines]
            step["o"].append(self._o(step, to, parts))
            status = first_fault([part.status for part in parts])
            bits |= meaning(status)
            result = int(rng.integers(0, 5)) if status else 0
            if not status and any(part.is_nonfinite for part in parts):
                result = int(rng.integers(1, 5))
                bits |= CommandStatus.NONFINITE
            step["attended"].append(
                layout_word(attended_layout, tag=t, status=int(status), result=result)
            )
        return bits

    def _queries(self, step: dict, operands: dict, source: list[int], vector) -> None:
        """Rows of ``source`` that are read for ``q``: those of each job after its sinks."""
        config = self.config
        size, sinks = len(source) // config.jobs, config.job_sinks
        for job in range(config.jobs):
            rows = source[job * size : (job + 1) * size]
            if operands["has_sinks"]:
                first = operands["sinks"] + job * sinks
                rows = [*range(first, first + sinks), *rows]
                step["q"] += [row_of(vector[row].tolist()) for row in rows]
            else:
                step["q"] += [row_of([0xFC00] * 16)] * sinks
                step["q"] += [row_of(vector[row].tolist()) for row in rows]
                rows = [*rows[:1] * sinks, *rows]  # a row that is dropped, for each of sinks
            step["row_request"] += rows

    def _o(self, step: dict, to: list[int], parts: list[Part]) -> list[int]:
        """Words of ``o`` for the rows ``to``; those of sound parts are written."""
        size = self.config.attended_rows // len(parts)
        words = []
        for n, (row, at) in enumerate(zip(to, self._order(0), strict=True)):
            made = parts[at // size].words
            if made is None:
                beat = self.rng.integers(0, 1 << 16, 16).tolist()
            else:
                beat = made.reshape(-1, 16)[at % size].tolist()
                step["write"].append(join((row, 16), (row_of(beat), 256)))
            fields = {"word": beat, "void": made is None, "last": n == len(to) - 1}
            words.append(layout_word(self.config.o_layout, **fields))
        return words

    def draw(self) -> None:
        """A command with operands in range, mostly."""
        rng, config = self.rng, self.config
        tokens = int(rng.integers(1, min(config.places, 6) + 1))
        place = int(rng.integers(config.places - tokens + 1))
        rows = config.vectors.rows
        if rng.random() < 0.6:
            self.batch()
        if not self.is_drawn:
            kinds = [Status.OK] * 6 + [Status.SLAVE_ERROR, Status.DECODE_ERROR, Status.MALFORMED]
            memory = kinds[int(rng.integers(len(kinds)))]
        opcode = Opcode.APPEND if rng.random() < 0.6 else Opcode.ATTEND
        if not self.is_drawn:
            # An APPEND reads no record.
            is_read = memory != Status.MALFORMED or opcode == Opcode.ATTEND
            self.cache.memory = [memory if is_read else Status.OK]
        size = config.cached_rows if opcode == Opcode.APPEND else config.attended_rows
        # Sources in the lower half, destinations in the upper one.
        most = (rows // 2 - size) // max(tokens - 1, 1)
        stride = min(size + int(rng.integers(0, 3)), most)
        free = rows // 2 - size - (tokens - 1) * stride
        operands = {
            "src": int(rng.integers(0, free + 1)), "stride": stride, "tokens": tokens,
            "layer": int(rng.integers(config.cache.layers)), "place": place,
        }  # fmt: skip
        if opcode == Opcode.APPEND:
            self.command(opcode, **operands, kv=int(rng.integers(2)))
            return
        dst = rows // 2 + int(rng.integers(0, free + 1))
        if stride < size:  # else tokens of the destination overlap
            operands["tokens"] = 1
        if config.cache.windows:
            windows = (0, 1, 2, 3, 4, 24, (1 << 16) - 1)
            operands["window"] = windows[int(rng.integers(len(windows)))]
        if config.cache.caps:
            operands["cap"] = int(rng.choice([0, cap_operand(2.0), int(rng.integers(1 << 32))]))
        if config.cache.sinks:
            most = rows // 2 - config.jobs * config.job_sinks  # before the destination
            operands |= {"sinks": int(rng.integers(most + 1)), "has_sinks": int(rng.integers(2))}
        self.command(opcode, **operands, dst=dst, dst_stride=stride, heads=config.heads)

    def ends(self) -> None:
        """Each operand at the ends of its range, and just beyond."""
        config = self.config
        rows, places, layers = config.vectors.rows, config.places, config.cache.layers
        for opcode in (Opcode.APPEND, Opcode.ATTEND):
            size = config.cached_rows if opcode == Opcode.APPEND else config.attended_rows
            few = min(2, places)
            right = {"src": 1, "stride": size, "tokens": few, "layer": 0}
            if opcode == Opcode.APPEND:
                right["kv"] = 1
            else:
                right |= {"dst": rows // 2, "dst_stride": size, "heads": config.heads}
            cases = [
                {"tokens": 0}, {"tokens": 0, "stride": 0}, {"tokens": places + 1}, {"tokens": 255},
                {"layer": layers - 1}, {"layer": layers}, {"layer": 255},
                {"place": places - few}, {"place": places - few + 1}, {"place": places},
                {"place": places - 1, "tokens": 1}, {"place": 255, "tokens": 1},
                {"place": 255, "tokens": 255}, {"place": 1, "tokens": places},
                {"tokens": 1, "src": rows - size},
                {"tokens": 1, "src": rows - size + 1},
            ]  # fmt: skip
            if rows < 1 << 16:
                cases += [{"tokens": 1, "src": rows}, {"tokens": 1, "src": 65535}]
            far = 3 if places >= 3 else 1
            cases += [
                {"tokens": far, "stride": 5, "src": rows - size - 5 * (far - 1) + beyond}
                for beyond in (0, 1)
            ]
            if places > 1:
                cases += [{"tokens": places, "stride": 65535}, {"tokens": 2, "stride": rows}]
            if opcode == Opcode.ATTEND:
                cases = [each | {"dst": 0} if "src" in each else each for each in cases]
                cases.append({"tokens": 0, "stride": 0, "dst_stride": 0})
                cases += [
                    {"heads": 0}, {"heads": config.heads - 1}, {"heads": config.heads + 1},
                    {"heads": 255}, {"heads": config.cache.kv.heads * (config.queries + 1)},
                    {"tokens": 1, "src": 0, "dst": rows - size},
                    {"tokens": 1, "src": 0, "dst": rows - size + 1},
                    *({"tokens": far, "stride": size, "dst_stride": size, "src": 0,
                       "dst": rows - size * far + beyond} for beyond in (0, 1)
                      if size * far * 2 <= rows),
                ]  # fmt: skip
                cases += [{"window": 1}, {"window": (1 << 16) - 1}]
                cases += [{"cap": 1}, {"cap": 1 << 31}, {"has_sinks": 1}, {"sinks": rows - 1}]
                end = rows - config.jobs * config.job_sinks
                cases += [{"has_sinks": 1, "sinks": end + beyond} for beyond in (0, 1)]
                cases += [{"has_sinks": 1, "sinks": 65535}, {"has_sinks": 0, "sinks": 65535}]
                if places > 1:
                    cases.append({"tokens": places, "dst_stride": 65535})
            for case in cases:
                self.batch(0.8)
                if max((1, *(case[name] for name in case if name != "cap"))) < 1 << 16:
                    self.command(opcode, **(right | case))

    def placed(self) -> None:
        """Every pattern of three places with and without tokens; no token at all.

        They are the first places, or the last.
        """
        config = self.config
        most = min(3, config.places)
        size = config.attended_rows
        for pattern in range(2 << most):
            first = config.places - most if pattern >> most else 0
            for place in range(config.places):
                # Tokens before and after those of the command are none of it.
                t = place - first
                is_here = not 0 <= t < most or pattern >> t & 1
                self.cache.batch[place] = Place(place % 3, 0) if is_here else None
            operands = {"src": 0, "stride": 1, "tokens": most, "layer": 0, "place": first}
            self.command(Opcode.APPEND, **operands, kv=pattern & 1)
            self.command(
                Opcode.ATTEND, **operands, dst=config.vectors.rows - size * most, dst_stride=size,
                heads=config.heads,
            )  # fmt: skip

    def full(self) -> None:
        """A token in every place, the most that a command takes."""
        config = self.config
        size = config.attended_rows
        self.cache.is_sound = True
        for place in range(config.places):
            self.cache.batch[place] = Place(place % 3, place // 3)
        operands = {"src": 3, "stride": 1, "tokens": config.places, "layer": 1}
        for kv in Kv:
            self.command(Opcode.APPEND, **operands, kv=int(kv))
        self.command(
            Opcode.ATTEND, **operands, dst=config.vectors.rows - size * config.places,
            dst_stride=size, heads=config.heads,
        )  # fmt: skip

    def params(self) -> dict:
        """The commands, and the rows of the memory before the first of them."""
        wanted = {row for step in self.steps for row in step["row_request"]}
        return {
            "steps": self.steps,
            "rows": {row: row_of(self.initial[row].tolist()) for row in wanted},
        }


def scripts(config: KllmCacheConfig, seed: int) -> list[dict]:
    """Scripts with golden's cache and with drawn answers."""
    made = []
    for is_drawn in (False, True):
        script = Script(config, np.random.default_rng([seed, 51, is_drawn]), is_drawn)
        script.placed()
        for _ in range(24):
            script.draw()
        made.append(script.params())
    return made


@pytest.mark.telling("small", "two_beats", "windows", "two_jobs", "many_sinks")
@pytest.mark.parametrize("name", CONFIGS)
def test_cache(name, seed):
    config = CONFIGS[name]
    ends = Script(config, np.random.default_rng([seed, 52]), True)
    ends.ends()
    ends.full()
    params = {"scripts": scripts(config, seed), "ends": ends.params()}
    seen = {step["status"][0] for each in params["scripts"] for step in each["steps"]}
    assert 0 in seen
    simulate(KllmCache(config), "tb.kllm.tb_cache", params=params, seed=seed)
