"""Payloads of which only some fields are specified, as pairs of a mask and a word."""

__all__ = ["cared"]


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
