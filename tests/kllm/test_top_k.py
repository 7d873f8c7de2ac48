"""TOP_K: the best elements of pieces, hash and table of a draw, and how often what is drawn.

Shown to fail:

- of equal logits the last one, or the one of a later piece;
- NaN as the largest number, -0 below +0;
- a round of the hash less, or one rotation exchanged with another;
- a weight of an interpolated table without its last step, or twice the inverse temperature;
- the position left out of the counter, or the seed out of the key;
- a draw from all elements instead of the k best;
- the best element drawn where a place has no sampling, but k of the place before.
"""

import itertools
import math
import random
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from golden.fp16.ops import bits_from_float, float_from_bits
from golden.kllm.cache import Place
from golden.kllm.config import MACHINES, MachineConfig
from golden.kllm.engines import Sampling
from golden.kllm.format import FURTHEST, POWER_BITS, POWERS
from golden.kllm.isa import COMMANDS, NOBODY, CommandStatus, Opcode, encode
from golden.kllm.machine import Machine
from golden.kllm.top_k import chosen, draw, fold, ids, keys, threefry, values, weights

NONE = torch.zeros(0, dtype=torch.int64)
SMALL = MACHINES["small_cache"]


# The best elements.


def real_best(pieces, k: int) -> tuple[list[int], bool]:
    """(ids, whether one is NaN) of pieces (first, real numbers), by Python's floats."""
    ranked, found = [], False
    for first, numbers in pieces:
        for n, number in enumerate(numbers):
            if math.isnan(number):
                found = True
            else:
                ranked.append((-number, first + n))
    return [each for _, each in sorted(ranked)[:k]], found


def test_best_of_pieces() -> None:
    """All words near each other, zeros of both signs, infinities and NaN, pieces in any order."""
    rng = random.Random(3)
    few = [0x0000, 0x8000, 0x0001, 0x8001, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x3C00, 0x7BFF, 0xFBFF]
    seen = set()
    for _ in range(400):
        some = [few, few[:2], [0x7C01, 0xFFFF], range(1 << 16)][rng.randrange(4)]
        firsts = rng.sample(range(0, 1 << 24, 100), rng.randint(1, 4))
        given = [(f, [rng.choice(some) for _ in range(rng.randint(1, 60))]) for f in firsts]
        held, is_nan, k = NONE, False, rng.choice([1, 1, 2, 7, 64])
        for first, words in given:
            held, found = fold(torch.tensor(words), first, k, held)
            is_nan |= found
        real = [(f, float_from_bits(torch.tensor(words)).tolist()) for f, words in given]
        assert (ids(held).tolist(), is_nan) == real_best(real, k)
        seen.add((len(held), is_nan))
    assert {(0, True), (1, False), (7, True), (64, False)} <= seen


def test_keys_have_the_order_of_the_numbers() -> None:
    words = torch.arange(1 << 16)
    words = words[~float_from_bits(words).isnan()]
    order = torch.argsort(float_from_bits(words))
    real, key = float_from_bits(words)[order], keys(words)[order]
    assert torch.equal(key.diff() > 0, real[1:] > real[:-1])
    assert (key.diff() >= 0).all()


def ranked(words: Tensor) -> Tensor:
    """Ranks of (..., n) words with ids 0, 1, ..., the best first."""
    ranks = (keys(words) + (1 << 15) << 25) + (1 << 25) - 1 - torch.arange(words.shape[-1])
    return ranks.sort(-1, descending=True).values


def test_values_of_ranks() -> None:
    words = torch.arange(1 << 16)
    real = float_from_bits(words)
    finite = words[real.isfinite()]
    ranks = ranked(finite[:, None])[:, 0]
    assert torch.equal(values(ranks).double() * 2.0**-24, float_from_bits(finite).double())
    infinite = ranked(torch.tensor([[0x7C00], [0xFC00]]))[:, 0]
    assert values(infinite).tolist() == [1 << 40, -(1 << 40)]


# Draws.


def test_known_answers_of_the_hash() -> None:
    """The vectors that the authors' Random123 publishes for Threefry-2x32 of 20 rounds."""
    largest = 0xFFFFFFFF
    for key, counter, wanted in (
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((largest, largest), (largest, largest), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ):
        assert threefry(*key, *counter) == wanted
        both = threefry(*key, *(torch.tensor([each, each]) for each in counter))
        assert [each.tolist() for each in both] == [[word, word] for word in wanted]


def test_the_hash_is_even() -> None:
    """Successive positions, seeds, and both: each bit, each byte, each bit against each other."""
    many = 1 << 14
    numbers = torch.arange(many)
    streams = {
        "positions": threefry(7, 0, numbers, 0)[0],
        "seeds": threefry(numbers, 0, 5, 0)[0],
        "changes": threefry(7, 0, numbers, 0)[0] ^ threefry(7, 0, numbers + 1, 0)[0],
    }
    for name, words in streams.items():
        bits = (words[:, None] >> torch.arange(32) & 1).double() - 0.5
        pairs = bits.T @ bits * 4 / math.sqrt(many)  # normal, but for the diagonal
        assert (pairs - torch.diag(pairs.diagonal())).abs().max() < 5, name
        assert (bits.sum(0).abs() * 2 / math.sqrt(many)).max() < 4.5, name
        for first in range(0, 32, 8):
            counts = torch.bincount(words >> first & 0xFF, minlength=256)
            assert chi_square(counts, torch.full((256,), many / 256)) < 5, (name, first)


def chi_square(counts: Tensor, wanted: Tensor) -> float:
    """Standard deviations of a normal variable by which counts differ from those wanted.

    Wilson and Hilferty's form; counts of which fewer than 5 are wanted go together.
    """
    rare = wanted < 5
    if rare.any():
        counts = torch.cat((counts[~rare], counts[rare].sum()[None]))
        wanted = torch.cat((wanted[~rare], wanted[rare].sum()[None]))
        counts, wanted = counts[wanted > 0], wanted[wanted > 0]
    freedom = len(counts) - 1
    if not freedom:
        return 0.0
    found = float(((counts - wanted) ** 2 / wanted).sum())
    spread = 2 / (9 * freedom)
    return ((found / freedom) ** (1 / 3) - (1 - spread)) / math.sqrt(spread)


def test_weights_are_powers() -> None:
    """Against exact fractions: within 2**-14 of the power and its last bit, over all of both."""
    rng = random.Random(5)
    assert POWERS[0] == 1 << POWER_BITS
    assert POWERS[-1] == 1 << POWER_BITS - 1
    seen = set()
    for _ in range(3000):
        best, other = sorted(rng.choice((rng.gauss(0, 5), rng.gauss(9, 0.01))) for _ in "ab")
        words = bits_from_float(torch.tensor([other, best], dtype=torch.float64))
        inverse = rng.choice([rng.randrange(0x3000, 0x5000), rng.randrange(0x8000)])
        made = weights(ranked(words[None])[0], inverse)
        assert made[0] == 1 << 31
        exact = [Fraction(float(each)) for each in float_from_bits(words)]
        is_large = inverse >= 0x7C00  # the exponent is as any other
        factor = Fraction(float(float_from_bits(torch.tensor(inverse - 0x400 * is_large))))
        power = abs(exact[1] - exact[0]) * factor * (1 + is_large)
        wanted = 2.0 ** (31 - float(power)) if power < 64 else 0.0
        assert -(2**-14) * wanted - 1 <= float(made[1]) - wanted <= 2**-14 * wanted + 1e-9
        seen.add(min(int(power), 33))
    assert set(range(34)) <= seen
    words = torch.tensor([0x7C00, 0x3C00, 0xFC00])
    assert weights(ranked(words[None])[0], 0x3C00).tolist() == [1 << 31, 0, 0]
    assert weights(ranked(words[None])[0], 0).tolist() == [1 << 31] * 3
    assert weights(ranked(words[None])[0], 0xBC00).tolist() == [1 << 31, 0, 0]  # its sign
    assert weights(torch.cat((ranked(words[None])[0], NONE.new_zeros(2))), 0)[3:].tolist() == [0, 0]


def test_entries_that_are_chosen() -> None:
    """Equality with Python's integers; both ends of the word, weights of 0, 64 of the largest."""
    rng = random.Random(9)
    for _ in range(300):
        weight = [1 << 31] + [rng.choice([0, 1, 1 << 31, rng.randrange(1 << 31)])
                              for _ in range(rng.randrange(64))]  # fmt: skip
        numbers = [0, (1 << 32) - 1, *(rng.randrange(1 << 32) for _ in range(8))]
        made = chosen(torch.tensor([weight] * 10), torch.tensor(numbers)).tolist()
        for number, index in zip(numbers, made, strict=True):
            at = number * sum(weight) >> 32
            sums = list(itertools.accumulate(weight))
            assert sums[index] > at
            assert index == 0 or sums[index - 1] <= at
            assert weight[index]
        assert made[0] == 0


TEMPERATURES = (0.3, 0.7, 1.0, 1.5, 4.0)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_frequencies_are_those_of_softmax(temperature: float) -> None:
    """20,000 draws of each of some random logits, over seeds and over positions."""
    rng = torch.Generator().manual_seed(int(temperature * 10))
    many = 20000
    for k, spread in ((2, 1.0), (5, 3.0), (40, 2.0), (64, 0.5)):
        words = bits_from_float(torch.randn(300, generator=rng, dtype=torch.float64) * spread)
        best, _ = fold(words, 0, k, NONE)
        sampling = Sampling.at(temperature, k, 99)
        weight = weights(best, sampling.inverse_temperature).expand(many, -1)
        real = float_from_bits(words)[ids(best)].double()
        wanted = (real / temperature).softmax(0) * many
        seeds = threefry(torch.arange(many), 0, 3, 0)[0]
        for number in (seeds, threefry(sampling.seed, 0, torch.arange(many), 0)[0]):
            counts = torch.bincount(chosen(weight, number), minlength=k)
            assert chi_square(counts, wanted) < 4, (k, spread)
        other = ((real * 1.3) / temperature).softmax(0) * many  # it would be seen
        assert chi_square(counts, other) > 4 or k != 40
    assert draw(best, sampling, 3) == int(ids(best)[chosen(weight[:1], seeds[99:100])])


def test_draws_of_two_places_are_uncorrelated() -> None:
    """Two seeds at the same positions, and one seed at positions that follow each other."""
    many, k = 40000, 4
    words = bits_from_float(torch.tensor([1.0, 0.5, 0.25, 0.0], dtype=torch.float64))
    best, _ = fold(words, 0, k, NONE)
    weight = weights(best, Sampling.at(1.0, k).inverse_temperature)
    shares = weight.double() / weight.sum()
    positions = torch.arange(many)
    first, second = (
        chosen(weight.expand(many, -1), threefry(seed, 0, positions, 0)[0]) for seed in (1, 2)
    )
    wanted = (shares[:, None] * shares).flatten() * many
    for a, b in ((first, second), (first, first.roll(-1)), (first, first.roll(-64))):
        assert chi_square(torch.bincount(a * k + b, minlength=k * k), wanted) < 4
    assert chi_square(torch.bincount(first * k + first, minlength=k * k), wanted) > 100


def test_temperatures() -> None:
    assert Sampling.at(1.0, 40, 3) == Sampling(40, 0x3DC5, 3)  # log2(e)
    assert Sampling.at(1e-9, 2).inverse_temperature == 0x7BFF
    cold, hot = (
        weights(ranked(torch.tensor([[0x4000, 0x3C00]]))[0], Sampling.at(t, 2).inverse_temperature)
        for t in (0.1, 10.0)
    )
    assert float(cold[1]) / 2**31 == pytest.approx(math.exp(-10), rel=1e-2)
    assert float(hot[1]) / 2**31 == pytest.approx(math.exp(-0.1), rel=1e-3)


# The command.


def taken(operands: dict[str, int], vectors: Tensor, machine=None, batch=(), config=SMALL):
    """(status, words, machine) of TOP_K of vectors (tokens, rows, 16) from row 3 on."""
    machine = machine or Machine(config)
    machine.readback = []
    if batch:
        machine.cache.batch[: len(batch)] = batch
    tokens, rows, _ = vectors.shape
    machine.vector[3 : 3 + tokens * rows] = vectors.reshape(-1, 16)
    wanted = {"src": 3, "stride": rows, "tokens": tokens, "length": 16 * rows, "first": 0}
    wanted |= {"place": 0, "begin": 1, "end": 1}
    command = encode(Opcode.TOP_K, 1, {}, COMMANDS[Opcode.TOP_K].defaults | wanted | operands)
    return machine.step(command).status, machine.readback, machine


def held(machine: Machine) -> list[list[int]]:
    return [ids(each).tolist() for each in machine.best]


def test_tokens_of_a_command() -> None:
    vectors = torch.zeros(3, 2, 16, dtype=torch.int64)
    vectors[0, 1, 3] = vectors[0, 1, 7] = 0x3C00
    vectors[1] = 0x7E00
    vectors[2] = 0xFC00
    status, words, machine = taken({"first": 100, "end": 0}, vectors)
    assert (status, words) == (CommandStatus.NONFINITE, [])
    assert held(machine) == [[119], [], [100]]
    vectors[:] = 0x3C00
    vectors[:, 0, 1] = 0x3C01
    status, words, machine = taken({"first": 90, "begin": 0, "tokens": 2}, vectors, machine)
    assert (status, words) == (CommandStatus(0), [91, 91])
    assert held(machine)[2] == [100]
    vectors[:] = 0x3C00
    status, words, _ = taken({"first": 0, "begin": 0}, vectors, machine)
    assert (status, words) == (CommandStatus(0), [91, 91, 0])


def test_elements_after_the_length_do_not_count() -> None:
    vectors = torch.zeros(1, 2, 16, dtype=torch.int64)
    vectors[0, 1, 5:] = 0x7E00
    vectors[0, 1, 4] = 1
    assert taken({"length": 21}, vectors)[:2] == (CommandStatus(0), [20])
    assert taken({"length": 22}, vectors)[:2] == (CommandStatus.NONFINITE, [20])
    assert taken({"length": 16}, vectors)[:2] == (CommandStatus(0), [0])
    assert taken({"length": 22}, vectors * 0 + 0x7E00)[:2] == (CommandStatus.NONFINITE, [NOBODY])


@pytest.mark.parametrize(
    "wrong",
    [{"length": 0}, {"tokens": 0}, {"tokens": 4}, {"src": 255}, {"stride": 255}, {"place": 2},
     {"place": 255}],
)  # fmt: skip
def test_refused(wrong: dict[str, int]) -> None:
    """Nothing is given, and what was best stays."""
    vectors = torch.zeros(2, 2, 16, dtype=torch.int64)
    _, _, machine = taken({"first": 7}, vectors)
    kept = held(machine)
    assert taken(wrong, vectors, machine)[:2] == (CommandStatus.RANGE, [])
    assert held(machine) == kept


def test_places_choose_as_they_say() -> None:
    """One of three places takes the largest, two draw; position and k count, the others do not."""
    rng = torch.Generator().manual_seed(8)
    vectors = bits_from_float(torch.randn(3, 4, 16, generator=rng, dtype=torch.float64))
    one = [fold(vectors[t].flatten(), 0, 6, NONE)[0] for t in range(3)]
    seen = set()
    for seed in range(40):
        hot = Sampling.at(2.0, 6, seed)
        batch = [Place(0, 5, 1, hot), None, Place(2, FURTHEST + 9, 1, hot)]
        _, words, machine = taken({}, vectors, batch=batch)
        assert words == [
            draw(one[0], hot, 5), int(ids(one[1])[0]), draw(one[2], hot, FURTHEST),
        ]  # fmt: skip
        assert [len(each) for each in held(machine)] == [6, 1, 6]
        _, alone, _ = taken({"place": 2}, vectors[2:], batch=batch)
        assert alone == words[2:]
        seen.add(words[0])
    assert len(seen) > 3
    for k, kept in ((0, 1), (1, 1), (2, 2), (7, 6), (255, 6)):
        hot = Sampling.at(2.0, k, 1)
        _, words, machine = taken({}, vectors, batch=[Place(0, 5, 1, hot), None, None])
        assert len(held(machine)[0]) == kept
        assert words[0] == (draw(one[0][:kept], hot, 5) if kept > 1 else int(ids(one[0])[0]))
    greedy = MachineConfig.parse(SMALL, ["top=1"])
    _, words, _ = taken({}, vectors, batch=[Place(0, 5, 1, hot)] * 3, config=greedy)
    assert words == [int(ids(each)[0]) for each in one]


def test_pieces_of_a_draw() -> None:
    """The draw is that from the whole, in whatever order they come."""
    rng = torch.Generator().manual_seed(9)
    vectors = bits_from_float(torch.randn(1, 9, 16, generator=rng, dtype=torch.float64))
    batch = [Place(0, 5, 1, Sampling.at(3.0, 5, 4))]
    _, whole, _ = taken({}, vectors, batch=batch)
    for order in itertools.permutations(range(3)):
        machine = None
        for n, piece in enumerate(order):
            operands = {"first": 48 * piece, "begin": int(n == 0), "end": int(n == 2)}
            some = vectors[:, 3 * piece : 3 * piece + 3]
            _, words, machine = taken(operands, some, machine, batch)
        assert words == whole
