"""Kits of MILLION."""

import numpy as np

from golden.million.vectors.decode_keys import key_vectors
from golden.million.vectors.output import vectors as output_words
from golden.million.vectors.score_engine import engine_vectors
from golden.million.vectors.script import Script, spoilt
from golden.million.vectors.words import NAN
from hdl.kit.episodes import Episode, Fault, Memory, Vectors
from hdl.kit.words import SEED, Kit, plain, rows, sliced


def _jobs(make, covers: str):
    """``make(config, seed)``: vectors of the streams, and what a bench knows of the jobs."""

    def vectors_of(config) -> Vectors:
        vectors, _ = make(config, SEED)
        return Vectors(episodes=[plain(covers, rows(vectors, *vectors))])

    return vectors_of


def _output(config) -> Vectors:
    words, params = output_words(config, np.random.default_rng([SEED, 85]))
    covers = "groups of queries; fault: queries whose sums are bad"
    return Vectors(episodes=[plain(covers, sliced(words, params["ends"], 20))])


# -- the whole attention ------------------------------------------------------------------------
_BASE = 0x40_0000  # byte address of page 0
_ENTRIES = 16  # of the codebooks that a LOAD brings; with more, Icarus takes hours


class _InTurn(Script):
    """A script whose phases hold requests of one kind: their statuses come in order."""

    def turn(self, kind: str, count: int, step) -> None:
        """``count`` times ``step()``, requests of one kind, in a phase of their own."""
        self.wait()
        for _ in range(count):
            step()
        self.phases[-1]["kind"] = kind

    def failing(self, kind: str, step) -> None:
        """``step()`` while the whole memory answers SLVERR."""
        self.wait()
        self.fault(2)
        step()
        self.phases[-1]["kind"] = f"fault: {kind} while memory refuses"
        self.wait()


def _attention_script(config) -> list[dict]:
    """Tokens of two sequences, exact and as codes; requests that are refused.

    A configuration of more entries loads fewer and repeats less. Only its first sequence appends
    until tokens become codes.
    """
    script = _InTurn(config, SEED, _BASE)
    cache, window = config.cache, config.cache.window
    script.turn("OPEN", cache.sequences + 1, script.open)
    script.turn("fault: ATTEND without tokens", 1, lambda: script.attend(0, 0))
    entries = min(cache.pq.entries, _ENTRIES)
    is_large = entries < cache.pq.entries
    books = script.books(entries, -2, 3)
    nan = {3: NAN}
    script.turn("fault: LOAD with a NaN", 1, lambda: script.load(0, books, nan))
    script.turn("LOAD", 1, lambda: script.load(0, books))
    for sequence in range(2):
        script.turn("PREFILL", window.sinks, lambda s=sequence: script.prefill(s, 0))
        appends = 1 if is_large and sequence else window.recent + 1
        restore = lambda s=sequence: script.restore(s, 0, script.codes(entries))  # noqa: E731
        script.turn("RESTORE", 3 - sequence, restore)
        script.turn("APPEND", appends, lambda s=sequence: script.append(s, 0))
        script.turn("ATTEND", 1 if is_large else 3, lambda s=sequence: script.attend(s, 0))
    bad = spoilt(script, script.queries())
    script.turn("fault: ATTEND with NaN or infinity", 1, lambda: script.attend(0, 0, bad))
    words = spoilt(script, script.vectors())
    script.turn("fault: APPEND with NaN or infinity", 1, lambda: script.append(0, 0, words))
    script.failing("ATTEND", lambda: script.attend(1, 0))
    script.turn("ATTEND", 1 if is_large else 2, lambda: script.attend(1, 0))
    script.turn("fault: unknown request", 1, lambda: script.unknown(15))
    script.turn("FREE", 1, lambda: script.free(0))
    script.turn("fault: FREE again", 1, lambda: script.free(0))
    return script.done()


def _attention(config) -> Vectors:
    episodes: list[Episode] = []
    for phase in _attention_script(config):
        streams = ("kv", "query", "codebook", "restored", "o")
        words = {name: phase[name] for name in streams}
        words["request"] = [request["payload"] for request in phase["requests"]]
        words["status"] = [request["status"] for request in phase["requests"]]
        faults = {}
        if phase["faults"]:
            ((low, high, response),) = phase["faults"]
            faults["axi"] = Fault(low=low, high=high, response=response)
        outputs = {"idle": 1, "free_pages": phase["free_pages"]}
        fields = {"ports": {"base": _BASE}, "outputs": outputs, "faults": faults}
        episodes.append(plain(phase["kind"], words, **fields))
    cache = config.cache
    words = cache.pages * cache.page_bytes // (config.data_bits // 8)
    return Vectors(episodes=episodes, memories=[Memory(bus="axi", low=_BASE, words=words)])


_SCORES = "jobs of any number of keys; fault: codes beyond the table, NaN and infinities"
_DECODE = "jobs with new codebooks and without; fault: codes beyond the codebook, NaN, infinities"

KITS = {
    "million_attention": Kit(vectors=_attention, shown="small"),
    "million_score_engine": Kit(vectors=_jobs(engine_vectors, _SCORES), shown="small"),
    "million_decode_keys": Kit(vectors=_jobs(key_vectors, _DECODE), shown="small"),
    "million_output": Kit(vectors=_output, shown="small"),
}
