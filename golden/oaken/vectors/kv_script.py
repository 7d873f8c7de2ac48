"""Requests to the KV cache with what golden answers, for the benches of oaken_kv_engine.

A script is a list of phases. The requests of a phase are offered one after the other. The next
phase starts when all their statuses have come. The results of a phase must not depend on the order
in which its requests of different kinds are carried out.
"""

import random

import numpy as np

from golden.oaken.format import DENSE_BITS, SCALE_BYTES, sparse_slot
from golden.oaken.kv_engine import Answer, KvEngine, Request
from golden.paging.format import Op, PageOp, Status
from golden.paging.pages import PageCommand
from golden.words import layout_field, layout_word


def fp16(values) -> list[int]:
    """FP16 words of real numbers, rounded to nearest even."""
    return np.asarray(values, dtype=np.float16).view(np.uint16).astype(int).tolist()


PHASE_REQUESTS = 8  # of random_script: the most draws of a phase, each an APPEND per vector at most
THRESHOLDS = fp16([-3.0, -0.25, 0.25, 3.5])


def some_thresholds(rng: random.Random) -> list[int]:
    """Four words in order, around those of THRESHOLDS."""
    return fp16([-rng.uniform(1, 5), -rng.uniform(0, 0.5), rng.uniform(0, 0.5), rng.uniform(1, 5)])


def vector(rng: random.Random, elements: int) -> list[int]:
    """A vector with some of each group; some vectors of one group, of few values, or extreme."""
    kind = rng.choice(["mixed"] * 6 + ["middle", "inner", "outer", "words", "zero", "huge"])
    if kind == "mixed":
        scale = rng.choice([0.5, 1.0, 2.0])
        return fp16([rng.gauss(0, scale) for _ in range(elements)])
    if kind == "middle":
        return fp16([rng.choice([-1, 1]) * rng.uniform(0.3, 2.9) for _ in range(elements)])
    if kind == "inner":
        return fp16([rng.uniform(-0.25, 0.25) for _ in range(elements)])
    if kind == "outer":
        return fp16([rng.choice([-1, 1]) * rng.uniform(4, 60) for _ in range(elements)])
    if kind == "zero":
        return [rng.choice([0, 0x8000]) for _ in range(elements)]
    if kind == "huge":
        return [rng.choice([0x7BFF, 0xFBFF, 0x7800, 1, 0x8001]) for _ in range(elements)]
    return [
        word if word & 0x7C00 != 0x7C00 else word & 0xBFFF
        for word in (rng.getrandbits(16) for _ in range(elements))
    ]


class Script:
    """Phases of requests and what must come of them; golden runs along."""

    def __init__(self, config, seed: int, base: int = 0):
        self.config, self.base = config, base
        self.rng = random.Random(f"kv {seed}")
        self.golden = KvEngine(config.cache, config.scale_tokens)
        self.phases: list[dict] = []
        self.statuses: set[Status] = set()
        self.bytes_read = 0
        self.wait()

    def wait(self) -> None:
        """Begins a phase: it starts when all before is complete, and memory is sound again."""
        if self.phases and not self.phases[-1]["requests"]:
            return
        if self.phases:
            self.phases[-1]["free_pages"] = self.golden.free_pages
        self.phases.append({"requests": [], "pokes": [], "faults": [], "free_pages": 0})

    def done(self) -> list[dict]:
        self.wait()
        return self.phases[:-1]

    def poke(self, address: int, byte: int) -> None:
        """Puts ``byte`` into memory at ``address`` when the phase starts."""
        self.phases[-1]["pokes"].append((address, byte))

    def fault(self, low: int, high: int, response: int) -> None:
        """Lets beats at low <= address < high be answered ``response`` in this phase."""
        self.phases[-1]["faults"].append((low, high, response))

    def place(self, sequence: int, layer: int, kv: int, slot: int, token: int) -> int:
        """Address of the first byte that READ requests in a slot."""
        command = PageCommand(PageOp.READ, sequence, layer, kv, slot, token)
        answer = self.golden.table.command(command)
        assert answer.status == Status.OK
        return self.base + answer.page * self.config.cache.page_bytes + answer.offset

    def count_place(self, sequence: int, layer: int, kv: int, part: int, token: int) -> int:
        """Address of the first count byte that READ requests of a part."""
        shape = self.config.cache.kv
        if shape.is_by_token:
            at = self.place(sequence, layer, kv, part, token)
            return at + SCALE_BYTES + shape.block * DENSE_BITS // 8
        return self.place(sequence, layer, kv, sparse_slot(part), token)

    def request(self, op: Op, **fields) -> Answer:
        """Append a request to the phase; golden's answer."""
        config = self.config
        request = Request(op, **fields)
        answer = self.golden.request(request)
        self.statuses.add(answer.status)
        self.bytes_read += answer.bytes_read
        tag = self.rng.getrandbits(8)
        known = ("sequence", "layer", "kv", "head", "heads", "token", "thresholds")
        layout = config.request_layout
        payload = self.rng.getrandbits(layout.size)  # unused fields are junk
        for name, value in {**{name: fields[name] for name in known if name in fields},
                            "op": int(op), "tag": tag}.items():  # fmt: skip
            field = layout[name]
            payload &= ~(((1 << field.width) - 1) << field.offset)
            payload |= layout_word(layout, **{name: value})
        lanes = config.lanes
        beats = [list(request.vector[n : n + lanes]) for n in range(0, len(request.vector), lanes)]
        sequence = answer.sequence
        if op != Op.OPEN and "sequence" not in fields:
            sequence = layout_field(layout, payload, "sequence")
        is_exact = request.memory == Status.OK
        o = self._o(answer, tag)
        self.phases[-1]["requests"].append(
            {
                "op": int(op),
                "payload": payload,
                "kv": [
                    layout_word(config.kv_layout, x=beat, last=n == len(beats) - 1)
                    for n, beat in enumerate(beats)
                ],
                "status": layout_word(
                    config.status_layout,
                    tag=tag,
                    op=int(op),
                    status=answer.status,
                    sequence=sequence,
                ),
                "o": o,
                "exact": is_exact,
            }
        )
        return answer

    def _o(self, answer: Answer, tag: int) -> list[int]:
        """Words of ``o`` of a READ."""
        lanes, o = self.config.lanes, []
        for head in answer.words:
            words = [word for token in head for word in token]
            for n in range(0, len(words), lanes):
                last = n + lanes == len(words)
                o.append(
                    layout_word(self.config.o_layout, x=words[n : n + lanes], tag=tag, last=last)
                )
        return o

    def race(self, read: dict, lead: int, op: Op, **fields) -> None:
        """A phase: ``lead`` times the READ, ``op``, and the READ once more.

        The last READ may see the state before ``op`` or after it.
        """
        for _ in range(lead):
            self.request(Op.READ, **read)
        before = self.golden.request(Request(Op.READ, **read))
        self.request(op, **fields)
        after = self.request(Op.READ, **read)
        tag = self.phases[-1]["requests"][-1]["payload"]
        tag = layout_field(self.config.request_layout, tag, "tag")
        self.phases[-1]["either"] = [
            (
                layout_word(
                    self.config.status_layout, tag=tag, op=int(Op.READ), status=answer.status,
                    sequence=read["sequence"],
                ),
                self._o(answer, tag),
            )
            for answer in (before, after)
        ]  # fmt: skip
        self.wait()

    # Whole requests by name; a vector where none is given.
    def open(self) -> int:
        answer = self.request(Op.OPEN)
        return answer.sequence

    def set_thresholds(self, layer: int, kv: int, words=THRESHOLDS) -> Status:
        return self.request(Op.THRESHOLDS, layer=layer, kv=kv, thresholds=words).status

    def append(self, sequence: int, layer: int, kv: int, token: int, words=None, **more) -> Status:
        elements = self.config.cache.kv.elements
        words = vector(self.rng, elements) if words is None else words
        return self.request(
            Op.APPEND, sequence=sequence, layer=layer, kv=kv, token=token, vector=words, **more
        ).status

    def read(self, sequence, layer, kv, token, head=0, heads=None, **more) -> Status:
        heads = self.config.cache.kv.heads - head if heads is None else heads
        return self.request(
            Op.READ,
            sequence=sequence,
            layer=layer,
            kv=kv,
            token=token,
            head=head,
            heads=heads,
            **more,
        ).status

    def trim(self, sequence: int, token: int) -> Status:
        return self.request(Op.TRIM, sequence=sequence, token=token).status

    def fork(self, sequence: int, token: int, **more) -> Answer:
        return self.request(Op.FORK, sequence=sequence, token=token, **more)

    def free(self, sequence: int) -> Status:
        return self.request(Op.FREE, sequence=sequence).status


def random_script(config, seed: int, phases: int, base: int = 0) -> list[dict]:
    """Appends, reads, trims and frees of several sequences side by side, wrong ones among them."""
    script = Script(config, seed, base)
    rng, cache = script.rng, config.cache
    kv = cache.kv
    vectors = [(layer, side) for layer in range(cache.layers) for side in range(2)]
    # Sometimes one (layer, K or V) stays without thresholds; no token can be trimmed then.
    bare = rng.choice([rng.choice(vectors), None, None])
    for layer, side in vectors:
        if (layer, side) != bare:
            script.set_thresholds(layer, side, some_thresholds(rng))
    script.wait()
    opened: list[int] = []
    tokens: dict[tuple[int, int, int], int] = {}

    def wrong(sequence: int, layer: int, side: int) -> None:
        token = tokens.get((sequence, layer, side), 0)
        words = vector(rng, kv.elements)
        kind = rng.randrange(7)
        if kind == 0:
            words[rng.randrange(kv.elements)] = rng.choice([0x7C00, 0xFC00, 0x7E00, 0xFFFF])
            script.append(sequence, layer, side, token, words)
        elif kind == 1:
            beats = rng.choice(
                [1, kv.elements // config.lanes - 1, kv.elements // config.lanes + 2]
            )
            words = (words * 3)[: max(1, beats) * config.lanes]
            if len(words) != kv.elements:
                script.append(sequence, layer, side, token, words)
        elif kind == 2:
            script.append(sequence, layer, side, token + rng.randrange(1, 9))
        elif kind == 3:
            script.append(sequence, cache.layers + rng.randrange(0, 3), side, token)
        elif kind == 4:
            script.append(cache.sequences + rng.randrange(0, 3), layer, side, token)
        elif kind == 5:
            # APPENDs of the phase may pass the READ: they must not complete what it lacks.
            if rng.random() < 0.5:
                script.read(sequence, layer, side, token + PHASE_REQUESTS + rng.randrange(1, 6))
            else:
                script.wait()
                script.read(sequence, layer, side, token + 1 + rng.randrange(5))
                script.wait()
        else:
            script.read(
                sequence, layer, side, token, head=rng.randrange(kv.heads), heads=kv.heads + 1
            )

    for _ in range(phases):
        if not opened or (len(opened) < cache.sequences and rng.random() < 0.25):
            opened.append(script.open())
            script.wait()
        complete = dict(tokens)
        used = []
        for _ in range(rng.randrange(2, PHASE_REQUESTS + 1)):
            sequence = rng.choice(opened)
            layer, side = rng.choice(vectors)
            where = (sequence, layer, side)
            used.append(sequence)
            draw = rng.random()
            if draw < 0.12:
                wrong(*where)
            elif draw < 0.2:  # a whole token, as a model gives it
                for layer, side in vectors:
                    where = (sequence, layer, side)
                    if script.append(*where, tokens.get(where, 0)) == Status.OK:
                        tokens[where] = tokens.get(where, 0) + 1
            elif draw < 0.55:
                if script.append(*where, tokens.get(where, 0)) == Status.OK:
                    tokens[where] = tokens.get(where, 0) + 1
            elif complete:
                where = rng.choice(list(complete))
                part, size = rng.randrange(kv.parts), kv.part_heads
                token = (
                    complete[where] if rng.random() < 0.7 else rng.randrange(complete[where] + 1)
                )
                parts = rng.randrange(1, kv.parts - part + 1)
                script.read(*where, token, part * size, parts * size)
        plenty = script.golden.free_pages > cache.pages // 3
        if not plenty:
            script.wait()
        if rng.random() < 0.2:
            sequence = rng.choice(opened)
            least = min(tokens.get((sequence, layer, side), 0) for layer, side in vectors)
            script.trim(sequence, rng.choice([least, least // 2, least + 1]))
        if rng.random() < (0.08 if plenty else 0.6):
            sequence = rng.choice(opened)
            assert script.free(sequence) == Status.OK
            opened.remove(sequence)
            tokens = {where: count for where, count in tokens.items() if where[0] != sequence}
        script.wait()
    for sequence in opened:
        script.free(sequence)
    script.wait()
    return script.done()
