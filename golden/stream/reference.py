"""Stream blocks as functions from sequences of words to sequences of words.

A word is ``(data, last)``; time does not exist here. Pure Python integers.
"""

import functools
import operator
from collections.abc import Sequence

Word = tuple[int, int]  # data, last
Beat = tuple[int, int, int]  # data, count, last


def identity(words: Sequence[Word]) -> list[Word]:
    """Register, skid buffer and FIFO: the same words in the same order."""
    return list(words)


def fork(words: Sequence[Word], outputs: int) -> list[list[Word]]:
    """Every output gets every word once."""
    return [list(words) for _ in range(outputs)]


def join(inputs: Sequence[Sequence[Word]], width: int) -> list[tuple[int, int, int]]:
    """``(data, last, mismatch)`` of word n of every input, input 0 in the low bits."""
    joined = []
    for words in zip(*inputs, strict=True):
        lasts = [last for _, last in words]
        value = sum(word << (k * width) for k, (word, _) in enumerate(words))
        joined.append((value, int(any(lasts)), int(any(lasts) and not all(lasts))))
    return joined


def widen(words: Sequence[Word], width: int, ratio: int) -> list[Beat]:
    """Beats of ``ratio`` words, first word in the low bits; ``last`` ends a beat early.

    Words after the final complete beat that have no ``last`` are still being gathered.
    """
    beats: list[Beat] = []
    value = count = 0
    for word, last in words:
        value |= word << (count * width)
        count += 1
        if last or count == ratio:
            beats.append((value, count, last))
            value = count = 0
    return beats


def narrow(beats: Sequence[Beat], width: int, ratio: int) -> list[Word]:
    """The words of every beat; a count outside 1..ratio is taken as ratio."""
    words: list[Word] = []
    for value, count, last in beats:
        if not 1 <= count <= ratio:
            count = ratio
        for k in range(count):
            word = (value >> (k * width)) & ((1 << width) - 1)
            words.append((word, last if k == count - 1 else 0))
    return words


def check_arbitration(
    inputs: Sequence[Sequence[Word]], output: Sequence[tuple[int, int, int]]
) -> None:
    """AssertionError unless ``output``, of (data, source, last), is a legal merge of all inputs.

    Legal: the words with source k are exactly those of input k in their order, and no packet is
    interrupted by another source.
    """
    sorted_back: list[list[Word]] = [[] for _ in inputs]
    owner = None
    for n, (word, source, last) in enumerate(output):
        assert source < len(inputs), f"word {n}: no input {source}"
        assert owner in (None, source), f"word {n}: a packet of {owner} interrupted by {source}"
        owner = None if last else source
        sorted_back[source].append((word, last))
    for k, words in enumerate(inputs):
        assert sorted_back[k] == list(words), f"words of input {k} lost, repeated or out of order"


def arbitrate(inputs: Sequence[Sequence[Word]], policy: str) -> list[tuple[int, int, int]]:
    """(data, source, last) of ``o`` where every input offers its words from reset without a pause.

    ``round_robin``: whole packets of the inputs in turn, those that are empty left out.
    ``priority``: all packets of input 0, then those of input 1, and so on.
    """
    left = [list(words) for words in inputs]
    output: list[tuple[int, int, int]] = []
    source = len(left) - 1
    while any(left):
        order = [(source + 1 + n) % len(left) for n in range(len(left))]
        source = next(k for k in (order if policy == "round_robin" else sorted(order)) if left[k])
        last = 0
        while left[source] and not last:
            word, last = left[source].pop(0)
            output.append((word, source, last))
    return output


def repack(
    words: Sequence[tuple[int, int, int, int, int]], in_bytes: int, out_bytes: int
) -> list[tuple[int, int, int, int]]:
    """(data, bytes, error, last) from words (data, first, end, error, last) of ``in_bytes``.

    Bytes first..end - 1 of each word are joined per packet and cut into words of ``out_bytes``. A
    word is given as soon as it is full. So a packet that then has no more bytes ends in a word
    without any. The error of a word is the union of those of its bytes. Bytes of a packet that has
    no ``last`` yet wait.
    """
    found = []
    waiting: list[tuple[int, int]] = []  # byte, error

    def give(last: int) -> None:
        part, waiting[:] = waiting[:out_bytes], waiting[out_bytes:]
        value = sum(byte << 8 * k for k, (byte, _) in enumerate(part))
        error = functools.reduce(operator.or_, (error for _, error in part), 0)
        found.append((value, len(part), error, last))

    for value, first, end, error, last in words:
        content = value.to_bytes(in_bytes, "little")
        waiting += [(byte, error) for byte in content[first:end]]
        while len(waiting) > out_bytes or (len(waiting) == out_bytes and not last):
            give(0)
        if last:
            give(1)
    return found
