"""Sums over many contexts from few of them: between two samples the cost is a line."""

import itertools


def sampled(count: int, most: int) -> list[tuple[float, int]]:
    """Picks at most ``most`` of the numbers 0..count - 1, evenly, with the weights of a trapezoid.

    The weights add up to ``count``. All numbers with weight 1 where they are few.
    """
    if count <= most:
        return [(1.0, n) for n in range(count)]
    last = count - 1
    chosen = sorted({round(n * last / (most - 1)) for n in range(most)})
    weight = dict.fromkeys(chosen, 0.0)
    for low, high in itertools.pairwise(chosen):
        weight[low] += (high - low) / 2
        weight[high] += (high - low) / 2
    weight[0] += 0.5  # a trapezoid counts its ends by half
    weight[last] += 0.5
    return [(amount, n) for n, amount in weight.items()]
