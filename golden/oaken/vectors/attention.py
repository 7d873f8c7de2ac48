"""Scripts of requests and attends with what golden answers, for the bench of oaken_attention.

Phases are those of golden.oaken.vectors.kv_script, with ``attends`` and ``ends``: words and ends of
attends, those of earlier phases among them. The results of a phase must not depend on
the order in which its requests and its attends are carried out. After a phase that is ``held`` some
attend is under way.
"""

import dataclasses

import numpy as np
import torch

from golden.attention.stream import NO_SINK
from golden.attention.vectors.stream import draw_cap, draw_sinks, sink_beats
from golden.fp16.format import FP16
from golden.oaken.attention import SOUND, Attended, Attention, Begun, Rules
from golden.oaken.vectors.kv_script import Script, fp16, some_thresholds, vector
from golden.paging.format import Kv, Status
from golden.words import layout_word

LARGEST = 0x7BFF
TOKEN_BITS = 21


@dataclasses.dataclass
class Pending:
    """An attend of a script whose last V is not read."""

    begun: Begun
    tag: int


class AttentionScript(Script):
    """Phases of requests and attends; golden runs along."""

    golden: Attention

    def __init__(self, config, seed: int, base: int = 0):
        super().__init__(config.engine, seed, base)
        self.whole = config
        self.golden = Attention(config.cache)
        self.results: set = set()
        self.words = np.random.default_rng([seed, 51])

    def wait(self) -> None:
        if self.phases and (self.phases[-1]["attends"] or self.phases[-1]["ends"]):
            self.phases[-1]["free_pages"] = self.golden.free_pages
            self.phases.append({"requests": [], "pokes": [], "faults": [], "free_pages": 0})
        else:
            super().wait()
        self.phases[-1].setdefault("attends", [])
        self.phases[-1].setdefault("ends", [])

    def queries(self) -> torch.Tensor:
        """(KV heads, L, head_dim) words, mostly ordinary."""
        kv, rng = self.config.cache.kv, self.words
        shape = kv.heads, self.whole.queries, kv.head_dim
        kind = rng.choice(["usual"] * 6 + ["wide", "any", "subnormal", "largest", "special"])
        usual = rng.normal(0, kv.head_dim**-0.5, shape).astype(np.float16)
        words: np.ndarray = usual.view(np.uint16).astype(int)
        if kind == "wide":
            words = rng.normal(0, 30, shape).astype(np.float16).view(np.uint16).astype(int)
        elif kind == "any":
            words = rng.integers(0, 1 << 16, shape)
            words = np.where(words & FP16.infinity == FP16.infinity, words ^ 0x4000, words)
        elif kind == "subnormal":
            words = rng.integers(0, 0x400, shape) | rng.integers(0, 2, shape) << 15
        elif kind == "largest":
            words[rng.integers(0, shape[0]), rng.integers(0, shape[1])] = LARGEST
        elif kind == "special":
            place = tuple(int(rng.integers(0, size)) for size in shape)
            words[place] = rng.choice([FP16.infinity, 0xFC00, 0x7E00, 0xFFFF, 0x7C01])
        return torch.as_tensor(words)

    def attend(self, sequence: int, layer: int, token: int, **more) -> Attended:
        return self.finish(self.begin(sequence, layer, token, **more))

    def begin(
        self, sequence, layer, token, *, last=True, memory=SOUND, q=None, window=None
    ) -> Pending:
        """Adds an attend to the phase; ``finish`` adds its end to a later phase, or to the same.

        window: None: one at random, where the cache has windows. Where it has caps or sinks, those
        of queries drawn here are at random; queries that are given have none.
        """
        config, cache = self.whole, self.whole.cache
        window = self.window(token) if window is None else window
        own = {"window": window} if cache.windows else {}
        cap = draw_cap(self.words) if cache.caps and q is None else 0
        own |= {"cap": cap} if cache.caps else {}
        sinks = None
        if cache.sinks:
            sinks = np.full((cache.kv.heads, config.queries), NO_SINK)
            if q is None:
                sinks = draw_sinks(self.words, *sinks.shape)
        q = self.queries() if q is None else q
        tag = self.rng.getrandbits(8)
        payload = layout_word(
            config.attend_layout, tag=tag, sequence=sequence, layer=layer, token=token, last=last,
            **own,
        )  # fmt: skip
        beats = _query_beats(config, q, sinks, rest=0 if sinks is None else int(sinks[0, 0]) ^ 1)
        words = [layout_word(config.q_layout, word=beat) for beat in beats]
        self.phases[-1]["attends"].append({"payload": payload, "q": words})
        given = None if sinks is None else torch.tensor(sinks)
        rules = Rules(window, cap, given)
        begun = self.golden.begin(q, sequence, layer, token, memory, rules)
        return Pending(begun, tag)

    def window(self, token: int) -> int:
        """0, a window that begins among the tokens, or one that is longer."""
        if not self.whole.cache.windows:
            return 0
        most = (1 << TOKEN_BITS) - 1
        some = [0, 1, 2, max(1, token - 1), max(1, token), min(token + 1, most), most]
        return self.rng.choice([*some, self.rng.randrange(1, max(2, min(token, 1 << 15)))])

    def finish(self, pending: Pending) -> Attended:
        config = self.whole
        found = self.golden.finish(pending.begun)
        self.statuses.add(found.status)
        self.results.add(found.result)
        beats = _beats(config, found.words)
        void = found.void.repeat_interleave(len(beats) // config.groups).tolist()
        o = [
            layout_word(config.o_layout, word=beat, void=void[n], last=n == len(beats) - 1)
            for n, beat in enumerate(beats)
        ]
        end = {"tag": pending.tag, "status": int(found.status), "result": int(found.result)}
        attended = layout_word(config.attended_layout, **end)
        self.phases[-1]["ends"].append({"o": o, "attended": attended})
        return found


def _beats(config, words: torch.Tensor) -> list[list[int]]:
    """Beats of q or of o: group by group; of a head, for each beat of a row, for each query."""
    shape = config.stream
    by_beat = words.numpy().reshape(-1, config.queries, shape.steps, shape.lanes)
    return by_beat.transpose(0, 2, 1, 3).reshape(-1, config.width).tolist()


def _query_beats(config, q: torch.Tensor, sinks, rest: int) -> list[list[int]]:
    """Beats of q: those of each group begin with its sinks."""
    beats = _beats(config, q)
    if sinks is None:
        return beats
    size, heads = len(beats) // config.groups, config.cache.kv.part_heads
    made = []
    for group in range(config.groups):
        made += sink_beats(config, sinks[group * heads : (group + 1) * heads], rest)
        made += beats[group * size : (group + 1) * size]
    return made


def open_all(script: AttentionScript, lengths: dict[int, int]) -> None:
    """Thresholds of all layers, and sequences with so many tokens in every K and V."""
    cache, rng = script.config.cache, script.rng
    for layer in range(cache.layers):
        for side in Kv:
            script.set_thresholds(layer, side, some_thresholds(rng))
    script.wait()
    for sequence in range(max(lengths) + 1):
        assert script.open() == sequence
        script.wait()
    for sequence, tokens in lengths.items():
        append_tokens(script, sequence, range(tokens))


def append_tokens(script: AttentionScript, sequence: int, tokens: range, layers=None) -> None:
    """K and V of some layers, or of all."""
    for token in tokens:
        for layer in range(script.config.cache.layers) if layers is None else layers:
            for side in Kv:
                words = mild_vector(script)
                assert script.append(sequence, layer, side, token, words) == Status.OK
        script.wait()


def mild_vector(script: AttentionScript) -> list[int]:
    """A vector whose scores mostly stay in FP16."""
    elements, rng = script.config.cache.kv.elements, script.rng
    if rng.random() < 0.15:
        return vector(rng, elements)
    return fp16([rng.gauss(0, 1) for _ in range(elements)])


def random_script(
    config, seed: int, phases: int, base: int = 0, make: type[AttentionScript] = AttentionScript
) -> list[dict]:
    """Runs of attends during APPENDs to other vectors, between TRIMs and FREEs; some are wrong."""
    script = make(config, seed, base)
    rng, cache = script.rng, script.config.cache
    lengths = dict.fromkeys(range(cache.sequences), 0)
    for sequence in lengths:
        lengths[sequence] = rng.choice([1, 2, rng.randrange(1, min(12, cache.max_tokens))])
    open_all(script, lengths)
    starts = dict.fromkeys(lengths, 0)
    for _ in range(phases):
        attends = rng.randrange(1, 6)
        grows = rng.choice(list(lengths))
        for n in range(attends):
            sequence = rng.choice(list(lengths))
            layer = rng.randrange(cache.layers)
            # APPENDs of the phase may come before or after the READs, but not below ``token``.
            token = (
                lengths[sequence] if rng.random() < 0.6 else rng.randrange(lengths[sequence] + 1)
            )
            if rng.random() < 0.12:
                sequence, layer, token = rng.choice(
                    [(sequence, layer, token + 9), (sequence, layer, starts[sequence]),
                     (cache.sequences, layer, token), (sequence, cache.layers, token)]
                )  # fmt: skip
            script.attend(sequence, layer, token, last=n == attends - 1 or rng.random() < 0.4)
        if lengths[grows] < cache.max_tokens and rng.random() < 0.6:
            for layer in range(cache.layers):
                for side in Kv:
                    words = mild_vector(script)
                    script.append(grows, layer, side, lengths[grows], words)
            lengths[grows] += 1
        if rng.random() < 0.3:
            assert script.read(0, 0, 0, 1) == Status.BAD_REQUEST
        script.wait()
        if rng.random() < 0.2:
            sequence = rng.choice(list(lengths))
            starts[sequence] = max(starts[sequence], rng.randrange(lengths[sequence] + 1))
            script.trim(sequence, starts[sequence])
            script.wait()
        if rng.random() < 0.1 or script.golden.free_pages < 4 * cache.layers * cache.kv.groups:
            sequence = rng.choice(list(lengths))
            script.free(sequence)
            script.wait()
            assert script.open() == sequence
            script.wait()
            starts[sequence] = 0
            lengths[sequence] = rng.randrange(1, 5)
            append_tokens(script, sequence, range(lengths[sequence]))
    return script.done()
