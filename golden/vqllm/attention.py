"""Decode attention on CQ codes of K and V, bit for bit (docs/blocks/vq_attention.md).

A head of d elements has d / size channel groups, each with a codebook of K and one of V. Words are
int64 tensors of FP16 bit patterns, any device. Every sum is exact, so the order of passes, tokens
and channels never matters. Rounding points, each to nearest even:

    s = rne16(2**e_k * sum over channels of q * c)        one rounding per score
    m = max s over tokens;  w = exp(rne16(s - m))          two roundings per weight
    S = rne32(sum w);  r = rne32(1 / S)
    o = rne16(rne32(2**e_v * sum over tokens of w * c) * r)

No table is built, so no entry of a table is rounded: MILLION's engines round each of them too.
"""

import torch
from torch import Tensor

from golden.attention.softmax import partial
from golden.axi.format import RESP_DECERR, RESP_OKAY, RESP_SLVERR
from golden.config import ConfigError
from golden.fp16.format import FP16
from golden.fp16.ops import is_special
from golden.million.attention import Codebook
from golden.million.decode import decode_scores, decode_sums
from golden.million.format import Status
from golden.million.output import outputs
from golden.vqllm.cache import large_or_nonfinite
from golden.vqllm.config import AttendShape


def attend(
    q: Tensor,
    codes_k: Tensor,
    codes_v: Tensor,
    book_k: Codebook,
    book_v: Codebook,
    response: int = RESP_OKAY,
) -> tuple[Status, Tensor]:
    """(status, (L, d) words) of (L, d) queries times 1/sqrt(d) and (n, M) codes, n >= 1.

    response: the worst answer of memory to a read of codes or codebooks

        what                                           status, and outputs that are NaN (0x7E00)
        memory answered DECERR                         DECODE_ERROR, all
        memory answered SLVERR                         SLAVE_ERROR, all
        an entry is finite and above 1 in magnitude    BAD_REQUEST, all
        an entry is NaN or infinite                    NONFINITE, all
        a query is NaN or infinite                     NONFINITE, its own
        a code beyond the entries                      BAD_CODE, all
        a score is +infinity, or all are -infinity     OVERFLOW, those of the query

    The status is the first that applies, in the order of this table.
    """
    if not len(codes_k) or codes_k.shape != codes_v.shape:
        raise ConfigError(
            f"codes must be of K and V of 1 token or more, not {tuple(codes_k.shape)} and "
            f"{tuple(codes_v.shape)}"
        )
    faults = [large_or_nonfinite(book.words) for book in (book_k, book_v)]
    large, nonfinite = (any(bool(fault[n].any()) for fault in faults) for n in range(2))
    slope = torch.zeros(len(q), dtype=torch.int64, device=q.device)
    scores = decode_scores(
        q, book_k.words, book_k.exponent, codes_k, slope, distance=len(codes_k) - 1
    )
    part = partial(scores.T)
    weight = torch.where(part.bad[:, None], 0, part.weight)
    sums = decode_sums(weight.T, book_v.words, codes_v)
    special = is_special(q.long()).any(-1)
    entries = ((codes_k, book_k), (codes_v, book_v))
    beyond = any(bool((code >= book.words.shape[1]).any()) for code, book in entries)
    is_refused = response >= RESP_SLVERR
    failed = part.bad | special | beyond | large | nonfinite | is_refused
    window = torch.zeros_like(sums.low)
    words = outputs(sums, book_v.exponent, window, part.total, failed)
    status = Status.OK
    for applies, name in (
        (response == RESP_DECERR, Status.DECODE_ERROR),
        (is_refused, Status.SLAVE_ERROR),
        (large, Status.BAD_REQUEST),
        (nonfinite or bool(special.any()), Status.NONFINITE),
        (beyond, Status.BAD_CODE),
        (bool(part.bad.any()), Status.OVERFLOW),
    ):
        if applies and status == Status.OK:
            status = name
    return status, torch.where(failed[:, None], FP16.canonical_nan, words)


def code_image(codes: Tensor, shape: AttendShape) -> Tensor:
    """(passes, bytes) of (n, M) codes as memory has them: uint8.

    Group-major: a pass has the codes of its ``groups`` groups, token after token. Each token takes
    ``groups * bits`` bits, group 0 in the low ones. A pass begins with a memory word, and zeros
    fill its last word. Passes lie ``stride`` bytes apart, which leaves room for further tokens.
    """
    bits = shape.pq.bits
    tokens, groups = codes.shape
    if groups != shape.pq.subspaces:
        raise ConfigError(f"codes must have {shape.pq.subspaces} groups, not {groups}")
    each = codes.unflatten(1, (shape.passes, shape.groups)).transpose(0, 1)  # (passes, n, groups)
    places = torch.arange(bits, device=codes.device)
    stream = (each[..., None] >> places & 1).flatten(1)
    size = shape.code_words(tokens) * shape.data_bits
    stream = torch.nn.functional.pad(stream, (0, size - stream.shape[1]))
    weights = 1 << torch.arange(8, device=codes.device)
    return (stream.unflatten(1, (-1, 8)) * weights).sum(-1).to(torch.uint8)


def book_image(words: Tensor, shape: AttendShape) -> Tensor:
    """Bytes of (M, entries, size) codebooks as memory has them: uint8.

    Pass after pass: entry 0 of the pass's ``groups`` groups, then entry 1, and so on. The elements
    are FP16 words, the low byte first. A memory word holds whole entries, and no word is padded.
    """
    groups, _, size = words.shape
    if (groups, size) != (shape.pq.subspaces, shape.pq.sub):
        raise ConfigError(
            f"codebooks must be {shape.pq.subspaces} of {shape.pq.sub} elements, not {groups} of "
            f"{size}"
        )
    rows = words.unflatten(0, (shape.passes, shape.groups)).transpose(1, 2).flatten()
    return torch.stack([rows & 0xFF, rows >> 8], -1).flatten().to(torch.uint8)
