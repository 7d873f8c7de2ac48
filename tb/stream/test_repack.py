"""StreamRepack in Verilator against golden.stream.reference.repack.

Shown to fail:

- ``first`` not counted;
- ``end`` above the word's bytes;
- bytes from ``end`` on;
- the error of words that are gone, or of words without bytes;
- an error forgotten while bytes stay;
- a word taken without room;
- a bit of the error, or the error of the newest byte for the one before it;
- a packet that begins before the one before has left or a cycle too late;
- ``bytes`` of a packet's last word.
"""

import pytest

from golden.stream.reference import repack
from golden.stream.repack_cycles import completes_first, model_cycles
from golden.stream.vectors import pack, repack_words, rng
from hdl.stream.repack import StreamRepack, StreamRepackConfig
from tb.stream.support.bank import Case, check

COUNT = 120
SIZES = ((1, 1), (1, 3), (3, 1), (4, 4), (5, 3), (3, 5), (16, 12), (8, 33), (33, 32), (7, 6))
ERROR_BITS = {(7, 6): 2, (3, 5): 3}


def taken_before_stall(words, size, out):
    """Words of i taken while o stalls: two words of o go to the skid buffer."""
    i_cycles, o_cycles = model_cycles(words, size, out)
    # A word is taken as long as at most two words have been given before or in its cycle.
    if len(o_cycles) < 3:
        return len(words)
    third = o_cycles[2] - 1  # the cycle in which it would leave the byte buffer
    return sum(cycle < third for cycle in i_cycles)


def test_repack(seed):
    cases = []
    for size, out in SIZES:
        error_bits = ERROR_BITS.get((size, out), 1)
        config = StreamRepackConfig(in_bytes=size, out_bytes=out, error_bits=error_bits)
        words = repack_words(rng(seed, "repack", size, out), size, COUNT, error_bits)
        golden = repack(words, size, out)
        i_cycles, o_cycles = model_cycles(words, size, out)
        assert len(o_cycles) == len(golden)
        cases.append(
            Case(
                block=StreamRepack,
                config=config,
                sources={"i": pack(config.i_layout, words)},
                sinks={"o": pack(config.o_layout, golden)},
                cycles={"i": i_cycles, "o": o_cycles},
                capacity=taken_before_stall(words[:40], size, out),
                cause=completes_first(words, size, out),
                paced=False,
            )
        )
    check(cases, seed)


@pytest.mark.parametrize(("size", "out"), [(64, 12), (64, 16), (16, 64), (65, 64), (4, 4)])
def test_rate(size, out):
    """Long packets of full words: the longer side moves a word in every cycle."""
    words = [(n, 0, size, 0, int(n == 199)) for n in range(200)]
    i_cycles, o_cycles = model_cycles(words, size, out)
    cycles = i_cycles if size <= out else o_cycles
    assert cycles[-1] - cycles[0] == len(cycles) - 1
