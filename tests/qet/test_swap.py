"""golden.qet.swap against lists of pairs, written from the text of the paper, and its inverse.

Shown to fail with:

- equal words exchanged; a map that is inverted; -0 equal to +0; a sign in another bit
- L before S; the parts S of all, then the parts L
- in the inverse: the first level undone first, left and right exchanged
- words of maps: pairs before parts, or without the order of networks
- ``order_of`` with the parts in reverse order of levels
"""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from golden.qet.config import LEVELS_MAX, swap_bits
from golden.qet.swap import keys, maps_of_words, order_of, swap, unswap, words_of_maps
from hdl.qet.layouts import places

LEVELS = range(LEVELS_MAX + 1)


def ascending(bits: int) -> list[int]:
    """Every word: negative ones from the largest magnitude down to -0, then from +0 up."""
    sign = 1 << bits - 1
    return [*range((1 << bits) - 1, sign - 1, -1), *range(sign)]


RANK = {word: rank for rank, word in enumerate(ascending(16))}


def partitioned(columns: list[int]) -> tuple[list[int], list[int], list[int]]:
    """S, L and the indicator map of neighbouring pairs (section 3.2, Step 1).

    "the smaller value is placed into matrix S and the larger into matrix" L. "a 0 denotes that the
    smaller element is on the left and a 1 denotes it is on the right". Of equal words the left one
    goes to S.
    """
    small, large, found = [], [], []
    for at in range(0, len(columns), 2):
        # sorted() leaves equal words as they are
        pair = sorted(enumerate(columns[at : at + 2]), key=lambda each: RANK[each[1]])
        small.append(pair[0][1])
        large.append(pair[1][1])
        found.append(pair[0][0])
    return small, large, found


def sorted_rows(columns: list[int], levels: int) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Parts in the order S of the first part, L of the first, S of the second; maps by level."""
    parts, maps = [columns], []
    for _ in range(levels):
        found = [partitioned(part) for part in parts]
        parts = [half for small, large, _ in found for half in (small, large)]
        maps.append([each for _, _, each in found])
    return parts, maps


def cases():
    """(levels, row) of few distinct words, so that many are equal; the ends of all classes."""
    corners = (0, 1, 0x3FF, 0x400, 0x3C00, 0x7BFF, 0x7C00, 0x7C01, 0x7E00, 0x7FFF)
    word = st.sampled_from([*corners, *(each | 0x8000 for each in corners)])
    word |= st.integers(0, 0xFFFF)
    return st.integers(0, LEVELS_MAX).flatmap(
        lambda levels: st.tuples(
            st.just(levels),
            st.lists(word, min_size=1, max_size=4).flatmap(
                lambda few: st.integers(1, 3).flatmap(
                    lambda networks: st.lists(
                        st.sampled_from(few),
                        min_size=networks << levels,
                        max_size=networks << levels,
                    )
                )
            ),
        )
    )


def test_order_of_every_word():
    """A strict order of all words, that of the numbers, with -0 below +0 and NaN at the ends."""
    order = np.array(ascending(16))
    assert keys(torch.tensor(order), 16).diff().eq(1).all()
    numbers = order.astype(np.uint16).view(np.float16)
    inner = numbers[~np.isnan(numbers)].astype(float)
    assert (np.diff(inner) >= 0).all()
    assert np.isnan(numbers[:1023]).all()
    assert np.isnan(numbers[-1023:]).all()
    zeros = np.flatnonzero(numbers == 0)
    assert order[zeros].tolist() == [0x8000, 0]
    assert zeros[1] - zeros[0] == 1


def test_order_of_fp32():
    words = np.random.default_rng(220).integers(0, 1 << 32, 20_000)
    words = np.concatenate([words, words ^ 1, words ^ 1 << 31, [0, 1 << 31]])
    found = keys(torch.tensor(words), 32).numpy()
    assert len(set(found.tolist())) == len(set(words.tolist()))
    numbers = words.astype(np.uint32).view(np.float32)
    order = [at for at in np.argsort(found) if not np.isnan(numbers[at])]
    assert (np.diff(numbers[order].astype(float)) >= 0).all()
    by_word = dict(zip(words.tolist(), found.tolist(), strict=True))
    assert by_word[0] - by_word[1 << 31] == 1


@settings(deadline=None)
@given(cases())
def test_parts_and_maps_of_the_paper(case):
    levels, row = case
    parts, maps = sorted_rows(row, levels)
    given_parts, given_maps = swap(torch.tensor([row]), levels, 16)
    assert given_parts[0].tolist() == parts
    assert [each[0].int().tolist() for each in given_maps] == maps


@settings(deadline=None)
@given(cases())
def test_unswap_restores_every_word(case):
    """Through the words of the maps, which hold them in the order that their text says."""
    levels, row = case
    words = torch.tensor([row, row[::-1]])
    parts, maps = swap(words, levels, 16)
    packed = words_of_maps(maps, 2, len(row))
    assert packed.shape == (2, len(row) >> levels, swap_bits(levels))
    for number, network in itertools.product(range(2), range(len(row) >> levels)):
        columns = words[number].tolist()[network << levels : network + 1 << levels]
        _, own = sorted_rows(columns, levels)
        bits = [bit for level in own for part in level for bit in part]
        assert packed[number, network].int().tolist() == bits
    again = maps_of_words(packed, levels)
    assert all(torch.equal(a, b) for a, b in zip(again, maps, strict=True))
    assert torch.equal(unswap(parts, again), words)


@pytest.mark.parametrize("levels", LEVELS)
def test_any_maps_are_undone(levels):
    """Values that no level has sorted, as a codebook gives them: a column's own part has it."""
    generator = torch.Generator().manual_seed(220 + levels)
    count = 3 << levels
    bits = torch.randint(0, 2, (5, 3, swap_bits(levels)), generator=generator).bool()
    maps = maps_of_words(bits, levels)
    parts = torch.arange(5 * count).reshape(5, 1 << levels, 3)
    columns = unswap(parts, maps)
    assert torch.equal(columns.flatten().sort().values, parts.flatten())
    for row in range(5):
        for column in range(count):
            part, at = 0, column
            for exchanged in maps:
                is_large = at % 2 ^ int(exchanged[row, part, at // 2])
                part, at = 2 * part + is_large, at // 2
            assert columns[row, column] == parts[row, part, at]
    straight = unswap(parts, [torch.zeros_like(each) for each in maps])
    for column in range(count):
        assert straight[0, column] == parts[(0, *order_of(levels, column))]


@pytest.mark.parametrize("levels", LEVELS)
def test_places_of_hdl_are_the_parts_of_golden(levels):
    """A network of its own: where each level puts a pair, followed from column to part."""
    at = list(range(1 << levels))  # column that is in each place
    for level in range(levels):
        moved = at.copy()
        for pair in range(len(at) // 2):
            small, large = places(levels, level, pair)
            moved[small], moved[large] = at[2 * pair], at[2 * pair + 1]
        at = moved
    assert [order_of(levels, column) for column in at] == [(place, 0) for place in range(len(at))]


def test_maps_of_another_size_are_refused():
    with pytest.raises(ValueError, match="maps must have 12 bits, not 11"):
        maps_of_words(torch.zeros(1, 1, 11), 3)
