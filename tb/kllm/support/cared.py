"""Payloads of which only some fields are specified, as pairs of a mask and a word."""

from itertools import accumulate


def cared(layout, fields: dict) -> tuple[int, int]:
    """(mask of the bits of ``fields``, word with these fields) of a payload; nested as dicts."""

    def ones(shape, given):
        return {
            name: ones(shape[name].shape, value)
            if isinstance(value, dict)
            else (1 << shape[name].width) - 1
            for name, value in given.items()
        }

    return layout.const(ones(layout, fields)).as_bits(), layout.const(fields).as_bits()


def gathered(tokens, names) -> dict[str, list]:
    """Words of each stream of ``names``, those of all tokens in order."""
    return {name: [word for token in tokens for word in token[name]] for name in names}


def check_cared(name: str, words, expected) -> None:
    """AssertionError unless the words are as many as the pairs, and equal where these specify."""
    for n, (got, (care, word)) in enumerate(zip(words, expected, strict=True)):
        assert got & care == word & care, f"{name} {n}: {got:#x}, golden {word:#x}"


def masked(tokens, sources, sinks) -> tuple[dict, dict, dict]:
    """(words, packets, masks) of a tb.contract.Contract: each token is a packet."""
    words, masks = gathered(tokens, (*sources, *sinks)), {}
    for name in sinks:
        masks[name], words[name] = ([pair[k] for pair in words[name]] for k in range(2))
    packets = {name: list(accumulate(len(token[name]) for token in tokens)) for name in words}
    return words, packets, masks
