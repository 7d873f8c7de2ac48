"""Payloads that blocks of VQ-LLM have in common."""

from amaranth.lib import data

from golden.fp16.format import FP16
from hdl.ports import Payload
from hdl.stream.payload import LAST


def vectors_layout(vectors: int, size: int) -> data.StructLayout:
    """A beat of vectors side by side, element 0 of vector 0 in the low bits."""
    words = data.ArrayLayout(data.ArrayLayout(FP16.bits, size), vectors)
    return Payload(word=(words, "elements, vector by vector", FP16), last=LAST)
