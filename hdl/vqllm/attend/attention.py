"""Decode attention on CQ codes, one codebook per lane at a time (docs/blocks/vq_attention.md)."""

from fractions import Fraction
from typing import ClassVar

from amaranth import Module
from amaranth.lib import stream

from golden.timing import Timing
from golden.vqllm import timing
from golden.vqllm.config import ATTEND, AttendShape
from hdl.block import Block
from hdl.children import add
from hdl.million.output import MillionOutput
from hdl.ports import In, Out
from hdl.stream.link import link
from hdl.stream.queue import queue
from hdl.vqllm.attend.config import SMALL_PQ, VqAttentionConfig
from hdl.vqllm.attend.control import VqAttendControl
from hdl.vqllm.attend.core import VqAttendCore
from hdl.vqllm.attend.fetch import VqAttendFetch
from hdl.vqllm.attend.query_gate import VqQueryGate
from hdl.vqllm.attend.verdict import VqAttendVerdict

__all__ = ["VqAttention", "VqAttentionConfig"]


class VqAttention(Block):
    """Outputs of the queries of a KV head over ``tokens`` tokens, from codes of K and V.

        s = rne16(2**e_k * sum over channels of q * c)
        m = max s over tokens;  w = exp(rne16(s - m));  S = rne32(sum w);  r = rne32(1 / S)
        o = rne16(rne32(2**e_v * sum over tokens of w * c) * r)

    All sums are exact. A head has a codebook per channel group, of K and of V. A lane holds one of
    them, and loads the next one meanwhile. A pass takes the codes of ``groups`` channel groups for
    all tokens. For K it adds to the sums of all tokens. For V it gives the sums of its channels.

    ``book`` says where the codebooks of a KV head are, and ``request`` where its codes are
    (golden.vqllm.attention: book_image, code_image). The low bits of an address, below a memory
    word, are 0. A request takes ``queries`` vectors of q, and gives as many of o, query 0 first.
    A request sees the books that came before it, and has one ``status``, after its last output.

        status         when
        BAD_REQUEST    queries are not 1..queries; an entry is finite and above 1 in magnitude
        NO_CODEBOOK    the place has no book, or one with entries or exponents out of range
        LENGTH_LIMIT   tokens are above max_tokens
        EMPTY          there are no tokens
        DECODE_ERROR   some word was answered DECERR
        SLAVE_ERROR    some word was answered SLVERR
        NONFINITE      a NaN or an infinity in a query, or in an entry
        BAD_CODE       a code lies beyond the entries of its codebook
        OVERFLOW       a score is +infinity, or all are -infinity

    With NO_CODEBOOK, LENGTH_LIMIT, EMPTY, or wrong queries, the request has no output, and its
    queries are discarded. Else all outputs are NaN (0x7E00), or those of the query alone where a
    query or its scores are the reason. The next request is right.

    A token per cycle and pass. golden.vqllm.timing.attend_bound has the cycles of a head. The
    only combinational path leads from ``book.valid`` to ``request.ready``.
    Source: VQ-LLM, section VI-A, Figure 11, Table III. Golden: golden.vqllm.attention.attend.
    """

    golden = "golden.vqllm.attention:attend"
    reference = "tests/vqllm/test_attention.py: test_attend"
    default = VqAttentionConfig()
    configs: ClassVar = {
        **{name: VqAttentionConfig(shape=ATTEND[name]) for name in ("cq2", "cq4_64", "cq2_64")},
        "small": VqAttentionConfig(
            shape=AttendShape(pq=SMALL_PQ, groups=4, queries=2, data_bits=64, max_tokens=40),
            books=3,
            burst_beats=4,
            words=16,
        ),
    }
    checked = "small"

    def __init__(self, config: VqAttentionConfig):
        super().__init__(
            config,
            {
                "book": In(stream.Signature(config.book_layout), "Codebooks of a KV head."),
                "request": In(stream.Signature(config.request_layout), "Requests."),
                "q": In(stream.Signature(config.q_layout), "Their queries."),
                "o": Out(
                    stream.Signature(config.output_layout),
                    "Outputs; last ends those of a request.",
                ),
                "status": Out(stream.Signature(config.status_layout), "How requests ended."),
                "axi": Out(config.port.read_signature, "AXI4 manager: codebooks and codes."),
            },
        )

    @property
    def timing(self) -> Timing:
        shape = self.config.shape
        cycles = timing.attend_bound(shape, shape.max_tokens, shape.pq.entries)
        return Timing(
            latency=1,
            interval=Fraction(cycles),
            start="the last o of a request",
            end="its status",
            unit="KV head of max_tokens tokens",
        )

    def elaborate(self, platform) -> Module:
        m, config = Module(), self.config
        control = add(m, "control", VqAttendControl(config))
        gate = add(m, "gate", VqQueryGate(config))
        fetch = add(m, "fetch", VqAttendFetch(config))
        core = add(m, "core", VqAttendCore(config))
        output = add(m, "output", MillionOutput(config.output))
        verdict = add(m, "verdict", VqAttendVerdict(config))
        link(m, self.book, control.book)
        link(m, self.request, control.request)
        link(m, self.q, gate.q)
        for name, source, sink in (
            ("gates", control.gate, gate.job),
            ("works", control.work, core.work),
        ):
            waiting = queue(m, name, source.payload.shape(), 2)
            link(m, source, waiting.i)
            link(m, waiting.o, sink)
        link(m, control.fetch, fetch.job)
        link(m, fetch.axi.ar, self.axi.ar)
        link(m, self.axi.r, fetch.axi.r)
        link(m, gate.x, core.x)
        link(m, fetch.book, core.book)
        link(m, fetch.code, core.code)
        link(m, core.sum, output.past)
        link(m, core.total, verdict.total)
        link(m, core.end, verdict.end)
        link(m, gate.special, verdict.special)
        link(m, verdict.result, output.total)
        link(m, output.o, self.o)
        link(m, verdict.status, self.status)
        m.d.comb += verdict.given.eq(self.o.valid & self.o.ready & self.o.p.last)
        return m
