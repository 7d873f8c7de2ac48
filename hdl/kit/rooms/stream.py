"""Kits of the stream room: golden in plain Python, so they need no torch."""

from golden.stream.reference import fork, identity, join, narrow, repack, widen
from golden.stream.vectors import narrow_beats, pack, random_words, repack_words, rng
from hdl.kit.episodes import Vectors
from hdl.kit.words import SEED, Kit, plain

_COUNT = 100


def _words(config, name: str, *more, count: int = _COUNT):
    has_last = getattr(config, "last", True)
    generator = rng(SEED, name, config.width, *more)
    words = random_words(generator, config.width, count)
    return [word[: 1 + has_last] for word in words]


def _identity(config) -> Vectors:
    words = _words(config, "identity")
    sent, golden = pack(config.layout, words), pack(config.layout, identity(words))
    return Vectors(episodes=[plain("packets", {"i": sent, "o": golden})])


def _fork(config) -> Vectors:
    words = _words(config, "fork")
    copies = {f"o_{k}": pack(config.layout, o) for k, o in enumerate(fork(words, config.outputs))}
    return Vectors(episodes=[plain("packets", {"i": pack(config.layout, words), **copies})])


def _join(config) -> Vectors:
    episodes = []
    for name, same in (("packets", True), ("ends of packets that differ", False)):
        words = [_words(config, "join", k) for k in range(config.inputs)]
        if same:
            words = [
                [(word, last) for (word, _), (_, last) in zip(queue, words[0], strict=True)]
                for queue in words
            ]
        golden = [(value, last) for value, last, _ in join(words, config.width)]
        sent = {f"i_{k}": pack(config.i_layout, queue) for k, queue in enumerate(words)}
        episodes.append(plain(name, {**sent, "o": pack(config.o_layout, golden)}))
    return Vectors(episodes=episodes)


def _widen(config) -> Vectors:
    words = random_words(rng(SEED, "widen"), config.width, 2 * _COUNT, p_last=0.1)
    beats = pack(config.o_layout, widen(words, config.width, config.ratio))
    sent = pack(config.i_layout, words)
    return Vectors(episodes=[plain("packets, the last beats partly full", {"i": sent, "o": beats})])


def _narrow(config) -> Vectors:
    beats = narrow_beats(rng(SEED, "narrow"), config, _COUNT)
    good = [beat for beat in beats if 1 <= beat[1] <= config.ratio]
    bad = [beat for beat in beats if beat not in good]
    return Vectors(
        episodes=[
            plain(
                name,
                {
                    "i": pack(config.i_layout, some),
                    "o": pack(config.o_layout, narrow(some, config.width, config.ratio)),
                },
            )
            for name, some in (("packets", good), ("fault: counts out of range", bad))
        ]
    )


def _repack(config) -> Vectors:
    words = repack_words(rng(SEED, "repack"), config.in_bytes, _COUNT, config.error_bits)
    golden = repack(words, config.in_bytes, config.out_bytes)
    sent, made = pack(config.i_layout, words), pack(config.o_layout, golden)
    name = "packets of any bytes; fault: words with errors, ends out of range"
    return Vectors(episodes=[plain(name, {"i": sent, "o": made})])


def _arbiter(config) -> Vectors:
    """One input at a time: among several, the order is the block's choice."""
    episodes = []
    for k in range(config.inputs):
        words = _words(config, "arbiter", k, count=40)
        name = f"packets of input {k}"
        layout = config.o_layout.members
        golden = [
            [value for field, value in (("data", word[0]), ("source", k), ("last", word[-1]))
             if field in layout]
            for word in words
        ]  # fmt: skip
        sent = pack(config.i_layout, words)
        episodes.append(plain(name, {f"i_{k}": sent, "o": pack(config.o_layout, golden)}))
    return Vectors(episodes=episodes)


KITS = {
    "stream_register": Kit(vectors=_identity),
    "stream_skid": Kit(vectors=_identity),
    "stream_fifo": Kit(vectors=_identity),
    "stream_fork": Kit(vectors=_fork),
    "stream_join": Kit(vectors=_join),
    "stream_widen": Kit(vectors=_widen),
    "stream_narrow": Kit(vectors=_narrow),
    "stream_repack": Kit(vectors=_repack),
    "stream_arbiter": Kit(vectors=_arbiter),
}
