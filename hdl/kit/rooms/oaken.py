"""Kits of Oaken, and scripts of requests to the KV cache."""

import itertools

import numpy as np

from golden.oaken.vectors.attention import random_script as random_attends
from golden.oaken.vectors.dequant_engine import mixed as dequant_jobs
from golden.oaken.vectors.kv_script import Script, random_script, some_thresholds
from golden.oaken.vectors.quant_engine import engine_vectors, random_jobs
from golden.paging.format import Op, Status
from golden.words import unpack_ints
from hdl.kit.episodes import Episode, Fault, Memory, Vectors
from hdl.kit.words import SEED, Kit, plain, rows


def _job(make, covers: str, names: tuple[str, ...], count: int):
    def vectors_of(config) -> Vectors:
        vectors = make(config, np.random.default_rng([SEED, 43]), count).vectors("mixed")
        words = {name: unpack_ints(vectors[f"mixed.{name}"]) for name in names}
        mask = vectors.get("mixed.mask")
        masks = {} if mask is None else {"o": unpack_ints(mask)}
        return Vectors(episodes=[plain(covers, words, masks=masks)])

    return vectors_of


def _quant_engine(config) -> Vectors:
    jobs = random_jobs(np.random.default_rng([SEED, 68]), config, 40, longest=4)
    vectors = engine_vectors(config, jobs)
    covers = "vectors of every kind; fault: thresholds, lengths and elements that are refused"
    return Vectors(episodes=[plain(covers, rows(vectors, *sorted(vectors.keys() - {"counts"})))])


# -- the KV cache -------------------------------------------------------------------------------
_BASE = 0x40_0000  # byte address of page 0
_WHOLE = (0, 1 << 40)  # addresses of a fault of the whole memory


def _phase(config, phase: dict, covers: str, reset: bool) -> list[Episode]:
    """Requests of one kind after another: statuses of one kind come in order."""
    episodes: list[Episode] = []
    faults = {}
    if phase["faults"]:
        ((low, high, response),) = phase["faults"]
        faults["axi"] = Fault(low=low, high=high, response=response)
    for op, group in itertools.groupby(phase["requests"], key=lambda request: request["op"]):
        requests = list(group)
        masks = []
        for request in requests:
            masks += [-1 if request["exact"] else _named(config.o_layout)] * len(request["o"])
        words = {
            "request": [request["payload"] for request in requests],
            "kv": [beat for request in requests for beat in request["kv"]],
            "status": [request["status"] for request in requests],
            "o": [word for request in requests for word in request["o"]],
        }
        name = Op(op).name if op in set(Op) else "unknown"
        fields = {"ports": {"base": _BASE}, "masks": {"o": masks}, "faults": faults}
        first = reset and not episodes
        episodes.append(plain(f"{covers}: {name}", words, reset=first, **fields))
    if episodes:
        last = episodes.pop()
        outputs = {"free_pages": phase["free_pages"]}
        episodes.append(Episode(**{**vars(last), "outputs": outputs}))
    return episodes


def _named(layout) -> int:
    """The bits of a beat that hold where memory failed: its tag, and its end."""
    masks = [(1 << layout[name].width) - 1 << layout[name].offset for name in ("tag", "last")]
    return masks[0] | masks[1]


def _failing_memory(config) -> list[dict]:
    """APPEND and READ with SLVERR and DECERR; the same again when memory is sound."""
    script = Script(config, SEED, _BASE)
    for layer, side in itertools.product(range(config.cache.layers), range(2)):
        script.set_thresholds(layer, side, some_thresholds(script.rng))
    script.wait()
    sequence, tokens = script.open(), 0
    script.wait()
    for response, status in ((2, Status.SLAVE_ERROR), (3, Status.DECODE_ERROR)):
        for _ in range(2):
            script.append(sequence, 0, 0, tokens)
            tokens += 1
        script.wait()
        script.fault(*_WHOLE, response)
        script.append(sequence, 0, 0, tokens, memory=status)
        script.wait()
        script.fault(*_WHOLE, response)
        script.read(sequence, 0, 0, tokens, memory=status)
        script.wait()
        script.read(sequence, 0, 0, tokens)
        script.wait()
    script.free(sequence)
    return script.done()


def _kv_engine(config) -> Vectors:
    scripts = (
        ("requests, right and wrong", random_script(config, SEED, 12, _BASE)),
        ("fault: memory that answers with errors", _failing_memory(config)),
    )
    episodes: list[Episode] = []
    for covers, phases in scripts:
        for n, phase in enumerate(phases):
            episodes += _phase(config, phase, covers, reset=n == 0)
    return Vectors(episodes=episodes, memories=[_memory(config)])


def _memory(config) -> Memory:
    """The pages of a KV engine."""
    cache, word_bytes = config.cache, config.mmu.data_bits // 8
    return Memory(bus="axi", low=_BASE, words=cache.pages * cache.page_bytes // word_bytes)


def _attention(config) -> Vectors:
    """Requests of a phase, and then its attends, in runs."""
    covers = "attends, right and wrong, beside requests"
    episodes: list[Episode] = []
    for phase in random_attends(config, SEED, 8, _BASE):
        episodes += _phase(config.engine, phase, covers, reset=not episodes)
        attends, ends = phase["attends"], phase["ends"]
        words = {
            "attend": [attend["payload"] for attend in attends],
            "q": [word for attend in attends for word in attend["q"]],
            "o": [word for end in ends for word in end["o"]],
            "attended": [end["attended"] for end in ends],
        }
        if attends:
            episodes.append(plain(f"{covers}: attends", words, ports={"base": _BASE}))
    return Vectors(episodes=episodes, memories=[_memory(config.engine)])


_DEQUANT = "heads of tokens; fault: damaged records, scales that no encoder writes, bus errors"

KITS = {
    "oaken_dequant_engine": Kit(
        vectors=_job(
            dequant_jobs, _DEQUANT, ("request", "scale", "dense", "sparse", "o", "status"), 20
        ),
        shown="small",
    ),
    "oaken_quant_engine": Kit(vectors=_quant_engine, shown="small"),
    "oaken_kv_engine": Kit(vectors=_kv_engine, shown="small"),
    "oaken_attention": Kit(vectors=_attention, shown="small"),
}
