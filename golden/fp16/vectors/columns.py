"""Test vectors of the floating-point blocks: corners crossed, ties and their neighbours, random.

Every function returns a dict of equally long numpy arrays. Operands have their payload field name,
results of golden.fp16.ops the name of the result field. Words are unsigned integers
(uint16 of binary16, uint32 of binary32). The same seed gives the same vectors.

``read_testfloat`` reads the published vectors of Berkeley TestFloat instead.
"""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from golden.fp16 import functions, ops
from golden.fp16.format import FP16, FP32, FloatFormat

CLASSES = tuple(
    f"{sign}{kind}"
    for sign in ("+", "-")
    for kind in ("zero", "subnormal", "normal", "infinity", "nan")
)


def class_of(words, format: FloatFormat = FP16) -> np.ndarray:
    """Index into CLASSES of each word."""
    words = np.asarray(words).astype(np.int64)
    magnitude = words & (format.sign_bit - 1)
    smallest_normal = 1 << format.frac_bits
    kind = (
        (magnitude > 0).astype(np.int64)
        + (magnitude >= smallest_normal)
        + (magnitude >= format.infinity)
        + (magnitude > format.infinity)
    )
    return kind + 5 * (words >> (format.bits - 1))


def corner_words(format: FloatFormat = FP16) -> np.ndarray:
    """Every class at its ends and some values where carries run, both signs: 42 words."""
    one = format.bias << format.frac_bits
    normal = 1 << format.frac_bits
    positive = [
        0,
        1,
        2,
        normal // 2,
        normal - 1,
        normal,
        normal + 1,
        2 * normal - 1,
        2 * normal,
        one - normal,
        one - 1,
        one,
        one + 1,
        one + normal // 2,
        one + format.precision * normal,
        format.infinity - normal,
        format.infinity - 1,
        format.infinity,
        format.infinity + 1,  # signalling
        format.canonical_nan,
        format.sign_bit - 1,
    ]
    return np.array(positive + [word | format.sign_bit for word in positive], dtype=np.int64)


def random_words(rng: np.random.Generator, count: int, format: FloatFormat = FP16) -> np.ndarray:
    """Random words: three quarters uniform, one quarter with fractions near 0 and 1."""
    words = rng.integers(0, 1 << format.bits, count)
    fraction_mask = (1 << format.frac_bits) - 1
    sparse = 1 << rng.integers(0, format.frac_bits, count)
    near = np.where(rng.random(count) < 0.5, sparse, fraction_mask ^ sparse)
    return np.where(rng.random(count) < 0.25, (words & ~fraction_mask) | near, words)


def _near_one(rng: np.random.Generator, count: int, format: FloatFormat) -> np.ndarray:
    """Random signs and fractions, exponents within 4 of the bias: results rarely overflow."""
    exponent = format.bias + rng.integers(-4, 5, count)
    sign = rng.integers(0, 2, count) << (format.bits - 1)
    return sign | (exponent << format.frac_bits) | rng.integers(0, 1 << format.frac_bits, count)


def _subnormals(
    rng: np.random.Generator, count: int, format: FloatFormat
) -> tuple[np.ndarray, np.ndarray]:
    """(words, weights of their leading bits): each leading bit as likely, both signs."""
    leading = rng.integers(0, format.frac_bits, count)
    words = rng.integers(1 << leading, 2 << leading)
    sign = rng.integers(0, 2, count) << (format.bits - 1)
    return words | sign, format.grid_exponent + leading


def _of_weight(rng: np.random.Generator, weight: np.ndarray, format: FloatFormat) -> np.ndarray:
    """Normal words with leading bits of ``weight``, or at the ends of the range; both signs."""
    biased = np.clip(weight + format.bias, 1, format.exp_max - 1)
    sign = rng.integers(0, 2, weight.size) << (format.bits - 1)
    return sign | biased << format.frac_bits | rng.integers(0, 1 << format.frac_bits, weight.size)


def _small_pairs(
    rng: np.random.Generator, count: int, a: FloatFormat, b: FloatFormat, power: int
) -> list[list[np.ndarray]]:
    """Subnormals of a with words of b, and of b with words of a.

    A subnormal times the other word to the ``power`` 1 or -1 is near 1, or as near as words go.
    """
    small_a, weight_a = _subnormals(rng, count // 2, a)
    small_b, weight_b = _subnormals(rng, count // 2, b)
    return [
        [small_a, _of_weight(rng, -power * weight_a, b)],
        [_of_weight(rng, -power * weight_b, a), small_b],
    ]


def _cross(*words: np.ndarray) -> list[np.ndarray]:
    return [axis.ravel() for axis in np.meshgrid(*words, indexing="ij")]


def _encode(magnitude: np.ndarray, exponent: np.ndarray, format: FloatFormat) -> np.ndarray:
    """Words of magnitude * 2**exponent (rounded where they must be)."""
    words = ops.from_fixed(torch.from_numpy(magnitude), torch.from_numpy(exponent), format)
    return words.numpy()


def _with_neighbours(rng: np.random.Generator, columns, formats) -> list[np.ndarray]:
    """Each column as it is, then with up to one unit added to or taken from its words.

    Both copies get random signs.
    """
    result = []
    for column, format in zip(columns, formats, strict=True):
        moved = np.maximum(column + rng.integers(-1, 2, column.size), 0)
        both = np.concatenate([column, moved]) & (format.sign_bit - 1)
        result.append(both | rng.integers(0, 2, both.size) << (format.bits - 1))
    return result


def _pack(columns: dict[str, tuple[np.ndarray, FloatFormat]]) -> dict[str, np.ndarray]:
    return {
        name: words.astype(np.uint16 if format.bits <= 16 else np.uint32)
        for name, (words, format) in columns.items()
    }


def _stack(*parts) -> list[np.ndarray]:
    """Concatenate lists of columns, column by column."""
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


def _tensor(words: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(words.astype(np.int64))


def _add_operands(rng: np.random.Generator, format: FloatFormat, count: int) -> list[np.ndarray]:
    corners = corner_words(format)
    # A random word and half a unit of its last place: ties to even and to odd.
    low = format.precision + 1
    exponent = rng.integers(low, format.exp_max, count)
    word = (exponent << format.frac_bits) | rng.integers(0, 1 << format.frac_bits, count)
    half = (exponent - format.precision) << format.frac_bits
    # Cancellation: the same magnitude but for a few units of the last place.
    base = random_words(rng, count, format)
    near = (base + rng.integers(-3, 4, count)) & ((1 << format.bits) - 1)
    # Operands up to two places beyond the precision apart.
    apart = rng.integers(0, format.precision + 3, count)
    other = np.maximum(exponent - apart, 0) << format.frac_bits
    other |= rng.integers(0, 1 << format.frac_bits, count)
    sign = rng.integers(0, 2, count) << (format.bits - 1)
    # The largest two binades: overflow.
    lowest = format.infinity - (2 << format.frac_bits)
    large = rng.integers(lowest, format.infinity, (2, count // 4))
    return _stack(
        _cross(corners, corners),
        _with_neighbours(rng, list(large), [format, format]),
        _with_neighbours(rng, [word, half], [format, format]),
        [base, near ^ format.sign_bit],
        [word, other | sign],
        [random_words(rng, count, format), random_words(rng, count, format)],
    )


def add_vectors(seed: int, format: FloatFormat = FP16, count: int = 4000) -> dict:
    """a, b, y of ops.add; 1764 + 5.5 * count rows."""
    a, b = _add_operands(np.random.default_rng(seed), format, count)
    y = ops.add(_tensor(a), _tensor(b), format).numpy()
    return _pack({"a": (a, format), "b": (b, format), "y": (y, format)})


def _tie_factors(
    rng: np.random.Generator, count: int, a: FloatFormat, b: FloatFormat, bits: int
) -> list[np.ndarray]:
    """Odd integers whose product has exactly ``bits`` bits (where the formats can hold them)."""
    a_bits = rng.integers(max(1, bits - b.precision), min(a.precision, bits) + 1, count)
    x = rng.integers(1 << (a_bits - 1), 1 << a_bits) | 1
    low = -(-(1 << (bits - 1)) // x)
    high = np.minimum(((1 << bits) - 1) // x, (1 << b.precision) - 1)
    y = np.minimum(rng.integers(low, np.maximum(high, low) + 1) | 1, high)
    return [x, y]


def _mul_ties(
    rng: np.random.Generator, count: int, a: FloatFormat, b: FloatFormat, o: FloatFormat
) -> list[np.ndarray]:
    """Products with one bit more than the precision of o, or that much below its smallest."""
    bits = min(o.precision + 1, a.precision + b.precision)
    x, y = _tie_factors(rng, count, a, b, bits)
    x_exponent = rng.integers(a.grid_exponent, a.grid_exponent + a.exp_max - a.precision, count)
    # Half of them so that the last bit weighs half the smallest subnormal of o.
    subnormal = o.grid_exponent - 1 - x_exponent
    free = rng.integers(b.grid_exponent, b.grid_exponent + b.exp_max - b.precision, count)
    y_exponent = np.where(rng.random(count) < 0.5, subnormal, free)
    return [_encode(x, x_exponent, a), _encode(y, y_exponent, b)]


def mul_vectors(
    seed: int,
    a: FloatFormat = FP16,
    b: FloatFormat = FP16,
    o: FloatFormat = FP16,
    count: int = 4000,
) -> dict:
    """a, b, y of ops.mul; 1764 + 6 * count rows."""
    rng = np.random.default_rng(seed)
    # Products near the ends of the range of o: overflow, and subnormal results.
    wide = random_words(rng, count, a)
    weight = ((wide >> a.frac_bits) & a.exp_max) - a.bias
    end = np.where(rng.random(count) < 0.5, o.bias + 1, o.grid_exponent + o.frac_bits)
    biased = np.clip(end - weight + b.bias + rng.integers(-3, 3, count), 0, b.exp_max - 1)
    sign = rng.integers(0, 2, count) << (b.bits - 1)
    other = sign | (biased << b.frac_bits) | rng.integers(0, 1 << b.frac_bits, count)
    x, y = _stack(
        _cross(corner_words(a), corner_words(b)),
        *_small_pairs(rng, count, a, b, power=1),
        _with_neighbours(rng, _mul_ties(rng, count, a, b, o), [a, b]),
        [wide, other],
        [_near_one(rng, count, a), _near_one(rng, count, b)],
        [random_words(rng, count, a), random_words(rng, count, b)],
    )
    product = ops.mul(_tensor(x), _tensor(y), a, b, o).numpy()
    return _pack({"a": (x, a), "b": (y, b), "y": (product, o)})


def fma_vectors(
    seed: int,
    a: FloatFormat = FP16,
    b: FloatFormat = FP16,
    c: FloatFormat = FP16,
    o: FloatFormat = FP16,
    count: int = 3000,
    corners: int | None = None,
) -> dict:
    """a, b, c, y of ops.fma; all 42**3 corners (or ``corners`` of them at random) + 10 * count."""
    rng = np.random.default_rng(seed)
    cross = _cross(corner_words(a), corner_words(b), corner_words(c))
    if corners is not None:
        chosen = rng.choice(cross[0].size, corners, replace=False)
        cross = [column[chosen] for column in cross]
    # Cancellation: c is the rounded product, negated, or a neighbour of that.
    x, y = _near_one(rng, count, a), _near_one(rng, count, b)
    z = ops.mul(_tensor(x), _tensor(y), a, b, c).numpy() ^ c.sign_bit
    z_near = (z + rng.integers(-2, 3, count)) & ((1 << c.bits) - 1)
    # Ties: a product of half a unit of the last place of c.
    weight = rng.integers(-8, 9, count)  # of the last bit of c, relative to that of 1.0
    exponent = c.bias + weight
    tie_c = (exponent << c.frac_bits) | rng.integers(0, 1 << c.frac_bits, count)
    keep = ~((1 << max(c.precision - o.precision, 0)) - 1)
    tie_c &= keep  # a c of higher precision has bits to spare
    split = rng.integers(-4, 5, count)
    one = np.ones(count, dtype=np.int64)
    half_a = _encode(one, weight - o.frac_bits - 1 - split, a)
    half_b = _encode(one, split, b)
    # Ties of the product alone, with nothing or nearly nothing to add.
    tie_a, tie_b = _mul_ties(rng, count, a, b, o)
    little = rng.integers(0, 3, count) | rng.integers(0, 2, count) << (c.bits - 1)
    # Operands of every distance: exponent of c relative to that of the product.
    u, v = _near_one(rng, count, a), _near_one(rng, count, b)
    apart = rng.integers(-c.precision - 4, a.precision + b.precision + 5, count)
    w = np.clip(c.bias + apart, 0, c.exp_max - 1) << c.frac_bits
    w |= rng.integers(0, 1 << c.frac_bits, count) | rng.integers(0, 2, count) << (c.bits - 1)
    # Cancellation where one factor is subnormal: the product has few bits, the difference of
    # either sign can lie below the last bit of o, and c can have bits below it.
    deep, deep_c = [], []
    for first, second in ((a, b), (b, a)):
        subnormal = rng.integers(1, 1 << second.frac_bits, count)
        subnormal >>= rng.integers(0, second.frac_bits, count)
        subnormal |= 1
        normal = random_words(rng, count, first) & ~first.infinity
        normal |= rng.integers(1, first.exp_max, count) << first.frac_bits
        signs = rng.integers(0, 2, count) << (second.bits - 1)
        factors = [normal, subnormal | signs]
        deep.append(factors if first is a else factors[::-1])
        words_a, words_b = map(_tensor, deep[-1])
        exact = ops.mul(words_a, words_b, a, b, c).numpy() ^ c.sign_bit
        reach = 1 << rng.integers(0, c.frac_bits, count)
        offset = rng.integers(0, 1 << c.frac_bits, count) % reach * rng.choice([-1, 1], count)
        deep_c.append((exact + offset) & ((1 << c.bits) - 1))
    operands = _stack(
        cross,
        *([*factors, z] for factors, z in zip(deep, deep_c, strict=True)),
        _with_neighbours(rng, [half_a, half_b, tie_c], [a, b, c]),
        [tie_a, tie_b, little],
        [x, y, z],
        [x, y, z_near],
        [u, v, w],
        [random_words(rng, count, f) for f in (a, b, c)],
        [random_words(rng, count, a), random_words(rng, count, b), little],
    )
    x, y, z = operands
    value = ops.fma(_tensor(x), _tensor(y), _tensor(z), a, b, c, o).numpy()
    return _pack({"a": (x, a), "b": (y, b), "c": (z, c), "y": (value, o)})


def compare_vectors(seed: int, format: FloatFormat = FP16, count: int = 4000) -> dict:
    """a, b and the six results of FpCompare; the operands of add_vectors."""
    a, b = _add_operands(np.random.default_rng(seed), format, count)
    equal_pairs = random_words(np.random.default_rng(seed + 1), count, format)
    a, b = np.concatenate([a, equal_pairs]), np.concatenate([b, equal_pairs])
    x, y = _tensor(a), _tensor(b)
    flags = {
        name: getattr(ops, name)(x, y, format).numpy().astype(np.uint8)
        for name in ("less", "equal", "unordered", "total_less")
    }
    words = {
        name: (getattr(ops, name)(x, y, format).numpy(), format) for name in ("minimum", "maximum")
    }
    return _pack({"a": (a, format), "b": (b, format)} | words) | flags


def _sparse_words(format: FloatFormat) -> np.ndarray:
    """Powers of two, and each bit of the fraction alone in subnormals and NaN; both signs.

    A detector of zeros, infinities or NaN that misses one bit is wrong for one of these alone.
    """
    powers = np.arange(format.exp_max + 1) << format.frac_bits
    bits = 1 << np.arange(format.frac_bits)
    words = np.concatenate([powers, bits, format.infinity | bits])
    return np.concatenate([words, words | format.sign_bit])


def _operand_words(seed: int, format: FloatFormat, o: FloatFormat | None, count: int):
    """All words where that is 65,536 or less; else corners, sparse words, ties of o, random.

    Ties have their neighbours.
    """
    if format.bits <= 16:
        return np.arange(1 << format.bits)
    rng = np.random.default_rng(seed)
    parts = [corner_words(format), _sparse_words(format), random_words(rng, count, format)]
    if o is not None:
        # Each word of o (those around its subnormals more often), moved by half a unit or so.
        magnitude = np.where(
            rng.random(2 * count) < 0.5,
            rng.integers(0, 4 << o.frac_bits, 2 * count),
            rng.integers(0, o.infinity + 1, 2 * count),
        )
        exact = ops.convert(_tensor(magnitude), o, format).numpy()
        above = ops.convert(_tensor(magnitude + 1), o, format).numpy()
        middle = (exact + above) // 2 + rng.integers(-1, 2, exact.size)
        middle = np.where(above > format.infinity, exact, middle)
        parts.append(middle | rng.integers(0, 2, middle.size) << (format.bits - 1))
    return np.concatenate(parts)


def convert_vectors(
    seed: int, i: FloatFormat = FP32, o: FloatFormat = FP16, count: int = 10000
) -> dict:
    """a, y of ops.convert: all words of a 16-bit format i, else corners, ties and random ones."""
    a = _operand_words(seed, i, o, count)
    return _pack({"a": (a, i), "y": (ops.convert(_tensor(a), i, o).numpy(), o)})


def _hardest(value: np.ndarray, precision: int, count: int) -> np.ndarray:
    """Indices of the ``count`` exact results nearest to a word or to a tie of ``precision`` bits.

    There the last bits of a remainder decide the rounding. ``value`` is positive binary64.
    """
    half_steps = np.ldexp(np.frexp(value)[0], precision + 1)
    return np.argpartition(np.abs(half_steps - np.rint(half_steps)), count)[:count]


def divide_vectors(
    seed: int,
    a: FloatFormat = FP16,
    b: FloatFormat = FP16,
    o: FloatFormat = FP16,
    count: int = 4000,
) -> dict:
    """a, b, y of functions.divide; 1764 + 8.25 * count rows."""
    rng = np.random.default_rng(seed)
    # Quotients next to a tie: an odd number of half steps times the divisor, and neighbours.
    odd = rng.integers(1 << o.frac_bits, 1 << o.precision, count) * 2 + 1
    divisor = rng.integers(1 << b.frac_bits, 1 << b.precision, count)
    near_one = rng.integers(-3, 4, count)
    tie_a = _encode(odd * divisor, near_one - o.precision - b.frac_bits, a)
    tie_b = _encode(divisor, np.full(count, -b.frac_bits), b)
    # Ties below the smallest normal number, and some exact: few bits of quotient and of divisor.
    bits = rng.integers(1, min(o.precision, a.precision), count)
    few = (rng.integers(0, 1 << bits) | 1) << (rng.random(count) < 0.25)
    short = rng.integers(0, 1 << np.minimum(a.precision - bits, b.precision)) | 1
    weight = rng.integers(b.bias - b.precision - 4, b.bias - b.precision + 1, count)
    low_a = _encode(few * short, weight + o.grid_exponent - 1, a)
    low_b = _encode(short, weight, b)
    # Quotients near the ends of the range of o.
    wide = random_words(rng, count, a)
    end = np.where(rng.random(count) < 0.5, o.bias + 1, o.grid_exponent + o.frac_bits)
    a_weight = ((wide >> a.frac_bits) & a.exp_max) - a.bias
    biased = np.clip(a_weight - end + b.bias + rng.integers(-3, 3, count), 0, b.exp_max - 1)
    sign = rng.integers(0, 2, count) << (b.bits - 1)
    other = sign | (biased << b.frac_bits) | rng.integers(0, 1 << b.frac_bits, count)
    # Quotients nearest to a word or a tie of many.
    many_a = rng.integers(1 << a.frac_bits, 1 << a.precision, 64 * count)
    many_b = rng.integers(1 << b.frac_bits, 1 << b.precision, 64 * count)
    hard = _hardest(many_a / many_b, o.precision, count // 4)
    hard_a = _encode(many_a[hard], np.full(hard.size, -a.frac_bits), a)
    hard_b = _encode(many_b[hard], np.full(hard.size, -b.frac_bits), b)
    x, y = _stack(
        _cross(corner_words(a), corner_words(b)),
        *_small_pairs(rng, count, a, b, power=-1),
        _with_neighbours(rng, [tie_a, tie_b], [a, b]),
        _with_neighbours(rng, [low_a, low_b], [a, b]),
        [hard_a, hard_b],
        [wide, other],
        [_near_one(rng, count, a), _near_one(rng, count, b)],
        [random_words(rng, count, a), random_words(rng, count, b)],
    )
    quotient = functions.divide(_tensor(x), _tensor(y), a, b, o).numpy()
    return _pack({"a": (x, a), "b": (y, b), "y": (quotient, o)})


def function_vectors(
    seed: int, name: str, a: FloatFormat = FP16, o: FloatFormat = FP16, count: int = 4000
) -> dict:
    """a, y of ``reciprocal``, ``sqrt``, ``rsqrt`` or ``exp`` (a: binary16) of golden's functions.

    All words of a 16-bit format a, else more than 7.25 * count rows. These have squares and powers
    of two, and their neighbours. The last are those of 256 * count whose result is nearest to a
    tie.
    """
    words = _operand_words(seed, a, o, count)
    if a.bits > 16:
        rng = np.random.default_rng(seed + 1)
        root = rng.integers(1, 2 << o.precision, count) >> rng.integers(0, o.precision, count)
        square = _encode(root * root, rng.integers(-30, 30, count) * 2, a)
        power = rng.integers(0, a.exp_max + 1, count) << a.frac_bits
        words = np.concatenate([words, *_with_neighbours(rng, [square, power], [a, a])])
        exact: dict[str, Callable[[np.ndarray], np.ndarray]] = {
            "reciprocal": np.reciprocal, "sqrt": np.sqrt, "rsqrt": lambda x: x**-0.5,
        }  # fmt: skip
        if name in exact:
            # Values of 1..4: there a root of an even and of an odd exponent begin.
            many = rng.integers(0, 2 << a.frac_bits, 256 * count) + (a.bias << a.frac_bits)
            odd = (many >> a.frac_bits) - a.bias
            value = np.ldexp(many % (1 << a.frac_bits) + (1 << a.frac_bits), odd - a.frac_bits)
            hard = _hardest(exact[name](value), o.precision, count // 4)
            words = np.concatenate([words, many[hard]])
    function = getattr(functions, name)
    y = function(_tensor(words), o) if name == "exp" else function(_tensor(words), a, o)
    return _pack({"a": (words, a), "y": (y.numpy(), o)})


def to_int_vectors(
    seed: int, width: int = 32, signed: bool = True, i: FloatFormat = FP16, count: int = 10000
) -> dict:
    """a, y (int64), saturated, nan of ops.to_int: all words of a 16-bit format."""
    a = _operand_words(seed, i, None, count)
    y, saturated, nan = ops.to_int(_tensor(a), width, signed, i)
    flags = {"saturated": saturated.numpy(), "nan": nan.numpy()}
    return _pack({"a": (a, i)}) | {
        "y": y.numpy(),
        **{name: flag.astype(np.uint8) for name, flag in flags.items()},
    }


def _integers(rng: np.random.Generator, width: int, signed: bool, count: int) -> np.ndarray:
    """Python integers of the range: all of them up to 16 bits, else ends, sparse and random."""
    low, high = (-(1 << (width - 1)), (1 << (width - 1)) - 1) if signed else (0, (1 << width) - 1)
    if width <= 16:
        return np.array(range(low, high + 1), dtype=object)
    values = [low, low + 1, low + 2, high, high - 1, high - 2, 0, 1, 2, 3]
    values += [-1, -2, -3] if signed else []
    for k in range(width - 1):
        values += [1 << k, (1 << k) + 1, (1 << k) - 1]
    bits = rng.integers(0, 2, (count, width)).tolist()
    lengths = rng.integers(1, width + 1, count).tolist()
    kept = rng.integers(1, 28, count).tolist()  # significant bits: ties appear at precision + 1
    negative = rng.integers(0, 2, count).tolist()
    for row, length, significant, minus in zip(bits, lengths, kept, negative, strict=True):
        value = int("".join(map(str, row)), 2) >> (width - length)
        drop = max(length - significant, 0)
        value = value >> drop << drop
        values += [value, -value] if minus and signed else [value, value + 1]
    return np.array([min(max(value, low), high) for value in values], dtype=object)


def _limbs(values: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """(low, high) int64 tensors of high * 2**LIMB_BITS + low."""
    mask = (1 << ops.LIMB_BITS) - 1
    low = torch.tensor([int(value) & mask for value in values])
    return low, torch.tensor([int(value) >> ops.LIMB_BITS for value in values])


def from_int_vectors(
    seed: int, width: int = 32, signed: bool = True, o: FloatFormat = FP16, count: int = 10000
) -> dict:
    """value (int64), y of ops.from_int: all integers of up to 16 bits, else 2 * count and more."""
    values = _integers(np.random.default_rng(seed), width, signed, count).astype(np.int64)
    return {"value": values} | _pack({"y": (ops.from_int(_tensor(values), o).numpy(), o)})


def from_fixed_vectors(
    seed: int,
    width: int = 64,
    grid_exponents: tuple[int, ...] = (0,),
    o: FloatFormat = FP32,
    count: int = 10000,
) -> dict:
    """value (array of Python integers), grid, y of ops.from_fixed; width 2..96."""
    rng = np.random.default_rng(seed)
    values = _integers(rng, width, True, count)
    grid = rng.integers(0, len(grid_exponents), values.size)
    low, high = _limbs(values)
    exponent = torch.from_numpy(np.array(grid_exponents, dtype=np.int64)[grid])
    y = ops.from_fixed(low, exponent, o, high=high).numpy()
    return {"value": values, "grid": grid} | _pack({"y": (y, o)})


# TestFloat function name -> formats of its operand and result columns (None: a flag).
TESTFLOAT: dict[str, tuple[FloatFormat | None, ...]] = {
    "f16_add": (FP16, FP16, FP16),
    "f16_mul": (FP16, FP16, FP16),
    "f16_mulAdd": (FP16, FP16, FP16, FP16),
    "f16_lt_quiet": (FP16, FP16, None),
    "f16_to_f32": (FP16, FP32),
    "f32_to_f16": (FP32, FP16),
}


def read_testfloat(directory: Path) -> dict[str, np.ndarray]:
    """Function name -> int64 array (rows, columns) of each known file FUNCTION.*.gz.

    Exception flags are left out. Results that are NaN are made canonical, as TestFloat's are
    those of another implementation. Files of functions that golden has not are skipped.
    """
    tables = {}
    for path in sorted(Path(directory).glob("*.gz")):
        name = path.name.split(".")[0]
        if name not in TESTFLOAT:
            continue
        with gzip.open(path, "rt") as file:
            rows = [[int(word, 16) for word in line.split()[:-1]] for line in file]
        table = np.array(rows, dtype=np.int64)
        result = TESTFLOAT[name][-1]
        if result is not None:
            nan = class_of(table[:, -1], result) % 5 == 4
            table[nan, -1] = result.canonical_nan
        tables[name] = table
    return tables
