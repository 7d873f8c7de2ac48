"""Timing of the attention blocks."""

from golden.timing import Timing


def softmax() -> Timing:
    """Beats of a row: each packet moves one per cycle, the row in three passes."""
    return Timing(
        latency=3,
        start="the last score",
        end="maximum",
        unit="beat of each packet",
        delays=(
            ("from row to the first score", 1),
            ("from maximum to the first difference", 1),
            ("from the last difference to total", 19),
            ("from total to the first weight", 2),
            ("from the last weight to row", 1),
        ),
    )


def weights() -> Timing:
    """Cycles of a row: collected at the pace of its scores, then given beat by beat."""
    return Timing(
        latency=11,
        start="the last score",
        end="the first weight",
        unit="beat of each packet",
        delays=(
            ("from row to the first score", 1),
            ("from the last score to row", 3),
            ("from the last weight to total", 1),
        ),
    )
