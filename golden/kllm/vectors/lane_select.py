"""Beats of looked-up rows for KllmLaneSelect."""

import numpy as np

from golden.kllm.select import look_up_rows
from golden.words import layout_words


def beats_of(config, packets: list, table, digits: int) -> np.ndarray:
    """The beats of ``i``: the rows that a look-up in ``table`` gives."""
    words = []
    for value, index, inlier in packets:
        beats = len(value) // config.elements
        rows = [
            look_up_rows(table, of_beat.tolist(), counts.tolist(), digits)
            for of_beat, counts in zip(
                value.reshape(beats, -1), inlier.reshape(beats, -1), strict=True
            )
        ]
        by_column = index.reshape(beats, config.elements, config.columns).transpose(0, 2, 1)
        fields = {"digit": np.tile(np.arange(digits), beats)} if "digit" in _fields(config) else {}
        words.append(
            layout_words(
                config.selected_layout,
                row=np.array(rows).reshape(beats * digits, config.elements, -1),
                index=np.repeat(by_column, digits, axis=0),
                last=np.arange(beats * digits) == beats * digits - 1,
                **fields,
            )
        )
    return np.concatenate(words)


def _fields(config):
    return config.selected_layout.members
