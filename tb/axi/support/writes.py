"""Packets of AxiWritePort as the benches offer them: commands, words, errors and answers."""

import functools
import random

from golden.axi.format import RESP_DECERR, RESP_OKAY, RESP_SLVERR
from golden.axi.reference import bursts, command_words
from golden.words import join
from tb.bench import config

WORD = config.word_bytes
RESP_EXOKAY = 0b01  # nobody requested it: it counts as OKAY


def command(address: int, count: int, more: int) -> int:
    return join((address, config.address_bits), (count, config.length_bits), (more, 1))


def commands_of(packets) -> list[tuple[int, int, int]]:
    return [
        (address, count, int(n != len(packet) - 1))
        for packet in packets
        for n, (address, count) in enumerate(packet)
    ]


def begins(packet) -> list[tuple[int, int]]:
    """Commands with the addresses that count: a continuation's low bits do not."""
    found, is_begun = [], False
    for address, count in packet:
        found.append((address - address % WORD if is_begun and count else address, count))
        is_begun |= count > 0
    return found


def requests(packets) -> list[tuple[str, int, int]]:
    """Golden's bursts as Ram notes them."""
    return [
        ("aw", where % (1 << config.address_bits), beats)
        for packet in packets
        for address, count in begins(packet)
        for where, beats in bursts(
            address, command_words(address, count, WORD), WORD, config.burst_beats
        )
    ]


def errors_of_256(chance: int, salt: str = ""):
    @functools.cache
    def errors(address: int) -> int:
        rng = random.Random(f"{salt}{address}")
        some = [RESP_EXOKAY, RESP_SLVERR, RESP_DECERR]
        return rng.choice(some) if rng.randrange(256) < chance else RESP_OKAY

    return errors


no_errors = errors_of_256(0)


def answers(packets, errors) -> list[int]:
    """The worst response of each command's words; EXOKAY is none."""
    top = 1 << config.address_bits
    found = []
    for packet in packets:
        for address, count in begins(packet):
            words = command_words(address, count, WORD)
            resps = [errors((address // WORD + n) * WORD % top) for n in range(words)]
            found.append(max([resp for resp in resps if resp >= RESP_SLVERR], default=RESP_OKAY))
    return found


def random_words(rng, packet) -> list[int]:
    """Draws as many words as the packet's commands need."""
    total = sum(count for _, count in packet)
    return [rng.getrandbits(config.data_bits) for _ in range(-(-total // WORD))]


def i_words(contents) -> list[int]:
    return [
        join((data, config.data_bits), (n == len(words) - 1, 1))
        for words in contents
        for n, data in enumerate(words)
    ]
