"""The weight image: where the port memories store a matmul's weights, and how lanes receive them.

Layout: golden.kllm.format. numpy only, so that a testbench needs no torch.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from golden.kllm.format import (
    WeightLayout,
    beats,
    groups,
    weight_beat_bits,
    weight_port_words,
)

Bytes = npt.NDArray[np.uint8]
Word = TypeVar("Word")


def weight_image(index: npt.ArrayLike, scale: npt.ArrayLike, layout: WeightLayout) -> list[Bytes]:
    """``image[port]``: the bytes of the image in the memory of each port, words little-endian.

    index: (K, N) weight indices; scale: (N,) FP16 words. Port word i of a port is its bytes
    i * layout.port_bits / 8 and on. ValueError: an index or a scale that does not fit, shapes that
    differ, ``port_bits`` that is not a multiple of 8.
    """
    lanes, columns, elements = layout.lanes, layout.columns, layout.elements
    bits_b, ports, word_bytes = layout.bits_b, layout.ports, _word_bytes(layout)
    weights = np.asarray(index)
    scales = np.asarray(scale, dtype=np.int64)
    if weights.ndim != 2 or scales.shape != weights.shape[1:] or not weights.size:
        raise ValueError(f"(K, N) indices and (N,) scales needed, not {weights.shape}")
    if not 0 <= int(weights.min()) <= int(weights.max()) < 1 << bits_b:
        raise ValueError(f"indices must be 0..{(1 << bits_b) - 1}")
    if not 0 <= int(scales.min()) <= int(scales.max()) < 1 << 16:
        raise ValueError("scales must be FP16 words, 0..65535")
    length, outputs = weights.shape
    count, width = beats(length, elements), layout.group_outputs
    lane_bytes = layout.lane_words * word_bytes
    group_count = groups(outputs, width)
    beat_count = count + layout.scale_beats
    image = np.zeros((group_count, beat_count, lanes, lane_bytes), dtype=np.uint8)
    for group in range(group_count):
        n = slice(group * width, min((group + 1) * width, outputs))
        block = np.zeros((count * elements, width), dtype=np.uint8)
        block[:length, : n.stop - n.start] = weights[:, n]
        # To (beat, lane, column, element): column-major within a lane's beat.
        ordered = block.reshape(count, elements, lanes, columns).transpose(0, 2, 3, 1)
        bits = np.unpackbits(ordered[..., None], axis=-1, count=bits_b, bitorder="little")
        packed = np.packbits(bits.reshape(count, lanes, -1), axis=-1, bitorder="little")
        image[group, :count, :, : packed.shape[-1]] = packed
        words = np.zeros(width, dtype="<u2")
        words[: n.stop - n.start] = scales[n]
        ends = np.zeros((lanes, layout.scale_beats * lane_bytes), dtype=np.uint8)
        ends[:, : 2 * columns] = words.view(np.uint8).reshape(lanes, 2 * columns)
        image[group, count:] = ends.reshape(lanes, -1, lane_bytes).swapaxes(0, 1)
    numbered = image.reshape(-1, word_bytes)
    return [numbered[port::ports].reshape(-1) for port in range(ports)]


def weights_of_image(
    image: list[Bytes], length: int, outputs: int, layout: WeightLayout
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint16]]:
    """Inverse of ``weight_image``: ((length, outputs) indices, (outputs,) FP16 words).

    ValueError: a port with another number of bytes than the layout says.
    """
    lanes, columns, elements = layout.lanes, layout.columns, layout.elements
    bits_b = layout.bits_b
    array = _lane_bytes(image, length, outputs, layout)
    count = beats(length, elements)
    index_bits = np.unpackbits(
        array[:, :count], axis=-1, count=columns * elements * bits_b, bitorder="little"
    ).reshape(len(array), count, lanes, columns, elements, bits_b)
    index = np.packbits(index_bits, axis=-1, bitorder="little")[..., 0]
    index = index.transpose(1, 4, 0, 2, 3).reshape(count * elements, -1)
    scale = _scales_of(array[:, count:], columns).reshape(-1)
    return index[:length, :outputs], scale[:outputs].astype(np.uint16)


def _scales_of(ends: Bytes, columns: int) -> npt.NDArray[np.uint16]:
    """(groups, lanes, columns) FP16 words of (groups, scale beats, lanes, bytes)."""
    by_lane = ends.swapaxes(1, 2).reshape(ends.shape[0], ends.shape[2], -1)
    return np.ascontiguousarray(by_lane[..., : 2 * columns]).view("<u2")


def stripe(held: Sequence[Sequence[Word]], slots: int) -> list[list[Word]]:
    """Port words to slots: the image's words ``held[port]`` as the words of each slot, in order."""
    ports, total = len(held), sum(map(len, held))
    return [
        [held[i % ports][i // ports] for i in range(slot, total, slots)] for slot in range(slots)
    ]


def fold_scales(scale: npt.ArrayLike, rms: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """``rne16(scale * rms)``: FP16 words times FP32 words, rounded once; NaN is 0x7E00.

    The exact product has 35 significant bits, so float64 holds it.
    """
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        a = np.asarray(scale).astype(np.uint16).view(np.float16).astype(np.float64)
        b = np.asarray(rms).astype(np.uint32).view(np.float32).astype(np.float64)
        product = a * b
        words = product.astype(np.float16).view(np.uint16)
    return np.where(np.isnan(product), 0x7E00, words).astype(np.uint16)


def replay(
    group_beats: Sequence[Sequence[int]],
    scale: npt.ArrayLike,
    tokens: int,
    rms: npt.ArrayLike | None = None,
) -> tuple[list[tuple[int, bool]], npt.NDArray[np.uint16]]:
    """Returns what a lane is given: ``(beat, last)`` of each weight beat, and the scales.

    group_beats: weight beats of each group
    scale: (groups, columns) FP16 words
    rms: (tokens,) FP32 words or None

    Each token of each group gets the group's beats, ``last`` with the final one, and ``columns``
    words. The words are ``fold_scales`` of the group's with the token's ``rms`` if given.
    """
    scales = np.asarray(scale, dtype=np.uint16)
    if rms is None:
        folded = np.repeat(scales[:, None], tokens, axis=1)
    else:
        folded = fold_scales(scales[:, None], np.asarray(rms)[None, :tokens, None])
    words = [
        (beat, at == len(held) - 1)
        for held in group_beats
        for _ in range(tokens)
        for at, beat in enumerate(held)
    ]
    return words, folded.reshape(-1)


def supply(
    image: list[Bytes],
    length: int,
    outputs: int,
    layout: WeightLayout,
    tokens: int = 1,
    rms: npt.ArrayLike | None = None,
) -> list[tuple[list[tuple[int, bool]], npt.NDArray[np.uint16]]]:
    """``replay`` of each lane, from what the ports hold."""
    array = _lane_bytes(image, length, outputs, layout)
    columns, count = layout.columns, beats(length, layout.elements)
    mask = (1 << weight_beat_bits(columns, layout.elements, layout.bits_b)) - 1
    given = []
    for lane in range(layout.lanes):
        own = np.ascontiguousarray(array[:, :count, lane])
        group_beats = [
            [int.from_bytes(beat.tobytes(), "little") & mask for beat in group] for group in own
        ]
        scale = _scales_of(array[:, count:], columns)[:, lane]
        given.append(replay(group_beats, scale, tokens, rms))
    return given


def _lane_bytes(image: list[Bytes], length: int, outputs: int, layout: WeightLayout) -> Bytes:
    """(groups, array beats of a group, lanes, bytes of a lane beat), from what the ports hold."""
    word_bytes = _word_bytes(layout)
    if len(image) != layout.ports:
        raise ValueError(f"{layout.ports} ports needed, not {len(image)}")
    group_count = groups(outputs, layout.group_outputs)
    array_beats = group_count * (beats(length, layout.elements) + layout.scale_beats)
    slots = layout.lanes * layout.lane_words
    numbered = np.zeros((array_beats * slots, word_bytes), dtype=np.uint8)
    for port, held in enumerate(image):
        expected = weight_port_words(array_beats, slots, layout.ports, port) * word_bytes
        if len(held) != expected:
            raise ValueError(f"port {port} must hold {expected} bytes, not {len(held)}")
        numbered[port :: layout.ports] = np.reshape(held, (-1, word_bytes))
    return numbered.reshape(group_count, -1, layout.lanes, layout.lane_words * word_bytes)


def _word_bytes(layout: WeightLayout) -> int:
    if layout.port_bits < 8 or layout.port_bits % 8:
        raise ValueError(f"port_bits must be a multiple of 8, not {layout.port_bits}")
    return layout.port_bits // 8
