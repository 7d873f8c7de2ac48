"""The facts of a model that a host needs to serve it, as bytes. Pure Python.

``host_image`` makes the one file that ``senbazuru/host`` reads: sizes, thresholds of the pages, and
the programs of steps. Words have 32 bits, little-endian:

    word       contents
    0          MAGIC
    1          VERSION
    2          bytes of the image
    3          CRC-32 of the bytes after this word
    4..9       vocabulary, context, places of the batch, sequences, ``top``, pages of an engine
    10         layers
    11         first row of the data memory without data: programs go there
    12         programs
    13         1 if sequences may share pages, else 0: FORK wants as many tokens in every layer of
               the cache, so the model must have as many layers
    14, 15     0
    16 and on  thresholds: for K and V of each layer two words of two FP16 words each
    then       most pages of a sequence of 0, 1, ..., context tokens
    then       an entry for each program: tokens in 0..15 and choosing places in 16..31; its first
               byte in the image; its bytes; cycles of its products in the lanes
    then       the programs, as golden.kllm.fetch has them
"""

import math
import struct
import zlib
from collections.abc import Sequence

from golden.config import ConfigError
from golden.kllm.assembler import AssemblyError
from golden.kllm.bounds import product_cycles
from golden.kllm.fetch import program_image
from golden.kllm.isa import ROW_BYTES
from golden.kllm.model.layout import ModelLayout
from golden.kllm.model.program import step_program

MAGIC = 0x49485A53  # "SZHI" in memory
VERSION = 1
HEADER_WORDS = 16


class StepPrograms:
    """The words of the programs of a model's steps; each is made once."""

    def __init__(self, layout: ModelLayout) -> None:
        self.layout = layout
        self._words: dict[tuple[int, int], list[int]] = {}

    def words(self, tokens: int, choosing: int) -> list[int]:
        """ConfigError, AssemblyError: the machine has no room for such a step."""
        key = tokens, choosing
        if key not in self._words:
            self._words[key] = step_program(self.layout, tokens, choosing).words
        return self._words[key]

    def pairs(self, most: int | None = None) -> list[tuple[int, int]]:
        """Tokens and choosing places of every step that the machine has room for.

        most: choosing places; None: as many as tokens.
        """
        found = []
        for tokens in range(1, min(self.layout.config.batch, self.layout.shape.context) + 1):
            for choosing in range(min(tokens, tokens if most is None else most) + 1):
                try:
                    self.words(tokens, choosing)
                except (ConfigError, AssemblyError):
                    continue
                found.append((tokens, choosing))
        return found


def pages_most(layout: ModelLayout, tokens: int) -> int:
    """Most pages of an engine that a sequence of so many tokens has, every element an outlier."""
    cache = layout.config.cache_part
    streams = [cache.kv.kind(slot) for slot in range(cache.kv.slots)]
    vector = sum(-(-tokens * kind.most // cache.page_bytes) for kind in streams)
    return 2 * layout.shape.layers * vector


def host_image(
    programs: StepPrograms, thresholds: Sequence[Sequence[Sequence[int]]], most: int | None = None
) -> bytes:
    """The bytes; thresholds: (layers, 2, 4) FP16 words; most: choosing places, as in ``pairs``.

    A host refuses an image without a step of one token that chooses, and one that does not.
    """
    layout = programs.layout
    shape, config = layout.shape, layout.config
    images = {pair: program_image(programs.words(*pair), config) for pair in programs.pairs(most)}
    head = [
        word
        for sides in thresholds
        for first, second, third, fourth in sides
        for word in (first | second << 16, third | fourth << 16)
    ]
    head += [pages_most(layout, tokens) for tokens in range(shape.context + 1)]
    at = 4 * (HEADER_WORDS + len(head) + 4 * len(images))
    at += -at % ROW_BYTES
    first, entries = at, []
    for (tokens, choosing), image in images.items():
        cycles = math.ceil(product_cycles(programs.words(tokens, choosing), config))
        entries += [tokens | choosing << 16, at, len(image), cycles]
        at += len(image)
    forks = config.cache.forks and shape.layers == config.cache.layers
    facts = [shape.vocabulary, shape.context, config.batch, config.cache.sequences, config.top,
             config.cache.pages, shape.layers, layout.rows, len(images),
             forks, 0, 0]  # fmt: skip
    words = [*facts, *head, *entries]
    body = struct.pack(f"<{len(words)}I", *words)
    body = body.ljust(first - 16, b"\0") + b"".join(images.values())
    return struct.pack("<4I", MAGIC, VERSION, at, zlib.crc32(body)) + body
