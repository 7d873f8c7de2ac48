"""golden.vqllm.exchange against brute force over assignments, and the example of the paper.

Shown to fail with:

- a step left out; a partner by sum instead of xor
- mini-groups at different offsets accepted, or pieces in another order
- threads of Figure 12 by another column
- an order of x with lanes before vectors, or in which a short beat has fewer words
"""

import itertools
import random

import pytest

from golden.config import ConfigError
from golden.vqllm.config import ExchangeShape
from golden.vqllm.exchange import (
    Layout,
    column_layout,
    exchange_of,
    exchanged,
    lane_order,
    mma_layout,
    thread_mapping,
)

SHAPES = [(2, 1, 4), (4, 1, 8), (8, 2, 32), (16, 4, 4), (16, 1, 32), (12, 3, 8), (8, 4, 16)]


def check(layout: Layout):
    """Each lane ends with all elements that it owns, and with no other, in every round."""
    found = exchange_of(layout)
    for vectors in found.vector:
        held = [[[(v, k) for k in piece] for piece in found.pieces] for v in vectors]
        words = found.run(held)
        for group in found.groups:
            for i, lane in enumerate(group):
                for k, other in enumerate(group):
                    due = [(vectors[other], element) for element in found.pieces[i]]
                    assert words[lane][k] == due
                    assert all(layout.owner[v][element] == lane for v, element in due)
    placed = sorted(vector for vectors in found.vector for vector in vectors)
    assert placed == list(range(len(layout.owner)))
    assert found.steps == len(found.pieces) - 1
    return found


def test_example_of_the_paper():
    """Threads 0, 1, 16 and 17 have the same owners; threads 2 and 3 take over for 16 and 17."""
    mapping = thread_mapping(mma_layout(8))
    assert mapping[0, 1, 2, 3] == [0, 1, 16, 17]
    found = check(mma_layout(8))
    assert found.vector[0][:4] == (0, 1, 16, 17)
    assert found.steps == 3
    assert found.offsets == (1, 2, 3)


@pytest.mark.parametrize(("size", "columns", "steps"), [(2, 16, 0), (4, 16, 1), (16, 32, 3)])
def test_fragments_of_other_vectors(size, columns, steps):
    assert check(mma_layout(size, columns)).steps == steps


@pytest.mark.parametrize(("size", "need", "lanes"), SHAPES)
def test_columns(size, need, lanes):
    shape = ExchangeShape(size=size, need=need, lanes=lanes)
    for passes, rounds in itertools.product((1, 2), (1, 3)):
        layout = column_layout(shape, shape.pieces * rounds, lanes * need * passes)
        found = check(layout)
        assert found.steps == shape.steps
        assert len(found.vector) == rounds * passes


@pytest.mark.parametrize(("size", "need", "lanes"), SHAPES)
def test_beats(size, need, lanes):
    vectors = [[(v, k) for k in range(size)] for v in range(lanes)]
    pieces = size // need
    for k, beat in enumerate(exchanged(vectors, need)):
        for lane, words in enumerate(beat):
            group, i = divmod(lane, pieces)
            assert words == vectors[group * pieces + k][i * need : (i + 1) * need]


def subgroups(lanes: int, count: int):
    for offsets in itertools.combinations(range(1, lanes), count - 1):
        members = {0, *offsets}
        if all(a ^ b in members for a in members for b in members):
            yield offsets


def swapped(members, order, offsets):
    """Swaps by hand: place s of a lane is for lane ``order[s]``. All words after the steps."""
    words = {lane: [(lane, s) for s in range(len(order))] for lane in members}
    for offset in offsets:
        before = {lane: list(held) for lane, held in words.items()}
        for lane in members:
            mine, theirs = order.index(lane ^ offset), order.index(lane)
            words[lane][mine] = before[lane ^ offset][theirs]
    return words


def reaches(layout: Layout, vectors, offsets) -> bool:
    """Whether steps of ``offsets`` give each lane its elements, in some order of each group."""
    for first in {min(lane ^ each for each in (0, *offsets)) for lane in range(layout.lanes)}:
        members = [first ^ each for each in (0, *offsets)]
        if not any(
            all(
                layout.owner[vectors[source]][element] == lane
                for lane, held in swapped(members, order, offsets).items()
                for source, element in held
            )
            for order in itertools.permutations(members)
        ):
            return False
    return True


def accepts(layout: Layout) -> bool:
    """Whether the algorithm takes the layout; then its steps are right."""
    try:
        exchange_of(layout)
    except ConfigError:
        return False
    check(layout)
    return True


@pytest.mark.parametrize(("size", "need", "lanes"), SHAPES)
@pytest.mark.parametrize("beats", [0.4, 1, 2.3])
def test_each_product_meets_its_element(size, need, lanes, beats):
    """A row of the matrix is the numbers of its columns; so each word of x is that of its beat."""
    columns = max(1, round(beats * lanes)) * size
    shape = ExchangeShape(size=size, need=need, lanes=lanes)
    padded = [k if k < columns else -1 for k in range(-(-columns // (lanes * size)) * lanes * size)]
    vectors = [padded[k : k + size] for k in range(0, len(padded), size)]
    due = []
    for first in range(0, len(vectors), lanes):
        for word in exchanged(vectors[first : first + lanes], need):
            due += [k for lane in word for k in lane]
    assert lane_order(columns, shape) == due


@pytest.mark.parametrize(("count", "trials"), [(2, 150), (4, 60)])
def test_refused_where_no_assignment_exists(count, trials):
    """Four lanes, one element each: all assignments and steps against the algorithm."""
    rng = random.Random(count)
    outcomes = []
    good = [(0, 1), (2, 3)] if count == 2 else [(0, 1, 2, 3)]
    for trial in range(trials):
        relabel = rng.sample(range(4), 4)
        owner = [tuple(relabel[lane] for lane in good[v % len(good)]) for v in range(4)]
        rng.shuffle(owner)
        if trial % 3:
            owner[rng.randrange(4)] = tuple(rng.sample(range(4), count))
        layout = Layout(4, tuple(owner))
        exists = any(
            reaches(layout, vectors, offsets)
            for vectors in itertools.permutations(range(4))
            for offsets in subgroups(4, count)
        )
        assert accepts(layout) == exists, owner
        outcomes.append(exists)
    assert trials // 3 <= sum(outcomes) <= trials * 9 // 10


OWNERS = {
    "skewed": ([(0, 1), (1, 0)], 2, "lane 0 must be in one mini-group, not 2"),
    "three pieces": ([(0, 1, 2)] * 3, 3, "pieces of a vector must be a power of two, not 3"),
    "few vectors": ([(0, 1)], 2, "lanes 0, 1 must have 2 vectors, not 1"),
    "many vectors": ([(0, 1)] * 3, 2, "lanes 0, 1 must have 2 vectors, not 3"),
    "shares": ([(0, 0, 1)] * 2, 2, "vector 0: each owner must have 2 elements, not 1"),
    "idle lane": ([(0, 1)] * 2, 4, "lane 2 must be in one mini-group, not 0"),
    "beyond": ([(0, 2)] * 2, 2, "owner must be 0..1, not 2"),
    "pieces": ([(0, 0, 1, 1), (0, 1, 0, 1)], 2, "vector 1: its pieces must be those of vector 0"),
    "offsets": (
        [(0, 1)] * 2 + [(2, 4)] * 2 + [(3, 5)] * 2 + [(6, 7)] * 2,
        8,
        "lane 2: its mini-group must be at xor 1, not lanes 2, 4",
    ),
    "no subgroup": (
        [(0, 1, 2, 4)] * 4 + [(3, 5, 6, 7)] * 4,
        8,
        "lane 1: its mini-group must be at xor 1, 2, 4, not lanes 0, 1, 2, 4",
    ),
}


@pytest.mark.parametrize("name", OWNERS)
def test_refused_layouts(name):
    owner, lanes, message = OWNERS[name]
    with pytest.raises(ConfigError) as error:
        exchange_of(Layout(lanes, tuple(owner)))
    assert str(error.value) == message


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"need": 8}, "need must be size = 8 divided by a power of two from 2 on, not 8"),
        ({"size": 12}, "need must be size = 12 divided by a power of two from 2 on, not 2"),
        ({"lanes": 6}, "lanes must be a multiple of size / need = 4, not 6"),
    ],
)
def test_refused_shapes(wrong, message):
    with pytest.raises(ConfigError) as error:
        ExchangeShape(**wrong)
    assert str(error.value) == f"ExchangeShape.{message}"


def test_refused_columns():
    with pytest.raises(ConfigError, match="columns must be a multiple of size = 8, not 12"):
        mma_layout(8, 12)
    with pytest.raises(ConfigError, match="columns must be a multiple of size = 8, not 12"):
        column_layout(ExchangeShape(), 4, 12)
