"""One linear layer and the attention of KLLM, bit-true, many tokens at a time.

Each function below is the sequence of commands that it names, without memories. Linear layers are
those of the programs of golden.kllm.layer. The attention is the paper's, of lanes on indices of K
and V: a program could have these commands, but none has. Words are FP16 bit patterns, int64.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from golden.attention.softmax import softmax
from golden.fp16.format import FP16, FP32
from golden.fp16.ops import bits_from_float, mul
from golden.index.codebook import check_codebook
from golden.kllm.config import outlier_count
from golden.kllm.flow import SCORES, attention_steps, follow
from golden.kllm.format import NO_OUTPUT, Status
from golden.kllm.functional import binary
from golden.kllm.isa import Binary, Norm, OutlierMode, Outliers, Statistics
from golden.kllm.matmul import MatmulResult, integer_matmul, matmul
from golden.kllm.products import integer_words
from golden.kllm.quantize import QuantizedWeight
from golden.kllm.quantizer import SlotTokens, quantize_command, quantize_integer_command
from golden.kllm.records import ONE, Codebooks, Packet, Tokens, Weight

_MINUS_INFINITY = FP16.sign_bit | FP16.infinity


def quantize(
    x: Tensor,
    codebook: Tensor,
    share: float = 0.0,
    thresholds: tuple[int, int] | None = None,
    epsilon: float | None = None,
) -> SlotTokens:
    """QUANTIZE of (T, K) words: ``share`` of outliers on each side, or beyond two words (OFFLINE).

    epsilon: with the statistics of RMSNorm. ArithmeticError: a token has no result.
    """
    if thresholds is None:
        k = outlier_count(x.shape[1], share) if share else 0
        outliers = Outliers(k, k)
    else:
        outliers = Outliers(0, 0, OutlierMode.OFFLINE, *thresholds)
    statistics = Statistics()
    if epsilon is not None:
        word = int(bits_from_float(torch.tensor(epsilon).double(), FP32))
        statistics = Statistics(Norm.RMS, word)
    made = quantize_command(x, codebook, outliers, x.shape[1], statistics)
    return _quantized("QUANTIZE", made)


def _quantized(command: str, made: SlotTokens) -> SlotTokens:
    if made.command_status:
        raise ArithmeticError(f"{command}: {made.command_status!r}")
    return made


def _multiplied(made: MatmulResult) -> MatmulResult:
    """Infinities that follow IEEE 754 pass; a row without outputs does not."""
    if not bool(made.has_output.all()):
        status = Status(int(made.status[~made.has_output][0])) & NO_OUTPUT
        raise ArithmeticError(f"MATMUL: {status!r}")
    return made


def linear(
    tokens: SlotTokens,
    codebook: Tensor,
    weight: QuantizedWeight,
    product: str = "rounded",
    fold_norm: bool = False,
) -> MatmulResult:
    """MATMUL of tokens that ``quantize`` made; fold_norm as the command.

    ArithmeticError: a token has no result.
    """
    s_b = weight.scale
    if fold_norm:
        s_b = mul(s_b[None, :], tokens.rms_reciprocal[:, None], FP16, FP32, FP16)
    books = Codebooks(codebook, weight.codebook, product)
    return _multiplied(matmul(tokens, Weight(weight.index, s_b), books))


@dataclasses.dataclass(frozen=True)
class AttentionBooks:
    """Codebooks of a layer's cached K and V, and of q where the scores are of quantized q.

    bits_a: bits of the lane's activation indices, and so of a digit of integers.
    """

    k: Tensor
    v: Tensor
    q: Tensor | None = None
    bits_a: int = 4

    @property
    def scores(self) -> str:
        """The switch of golden.kllm.flow."""
        direct, index = SCORES
        return direct if self.q is None else index


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    books: AttentionBooks,
    integer_bits: int = 8,
    product: str = "rounded",
) -> Tensor:
    """Causal attention of one sequence: (heads, T, head_size) words.

    q: (heads, T, head_size) words with 1 / sqrt(head_size) in them, k, v: (kv_heads, T, head_size),
    K rotated. K and V are quantized without outliers. The steps are golden.kllm.flow.ATTENTION;
    q is quantized where ``books.q`` is given. ArithmeticError: a row has no result.
    """
    heads, tokens, size = q.shape
    kv_heads = len(k)
    hidden = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).triu(1)
    mask = torch.where(hidden, _MINUS_INFINITY, 0).repeat(heads // kv_heads, 1)
    steps = list(itertools.chain(*attention_steps(books.scores).values()))
    made = []
    for head, queries in enumerate(q.reshape(kv_heads, -1, size)):
        commands = _Commands(k[head], v[head], mask, books, integer_bits, product)
        made.append(follow(steps, commands.by_name, queries).reshape(-1, tokens, size))
    return torch.cat(made)


class _Commands:
    """The steps of golden.kllm.flow.ATTENTION for one KV head, on words."""

    def __init__(
        self,
        k: Tensor,
        v: Tensor,
        mask: Tensor,
        books: AttentionBooks,
        integer_bits: int,
        product: str,
    ) -> None:
        self.k, self.v, self.mask = quantize(k, books.k), quantize(v, books.v), mask
        self.books, self.integer_bits, self.product = books, integer_bits, product
        self.by_name: dict[str, Callable[[Any], Any]] = {
            "query": self.query,
            "scores": self.scores,
            "mask": lambda scores: binary(Binary.ADD, scores, self.mask),
            "softmax": self.softmax,
            "weight": lambda p: binary(Binary.MULTIPLY, p, self.v.scale.expand_as(p)),
            "integers": lambda p: _quantized(
                "QUANTIZE_INTEGER", quantize_integer_command(p, integer_bits)
            ),
            "values": self.values,
        }

    def query(self, q: Tensor) -> SlotTokens:
        assert self.books.q is not None
        return quantize(q, self.books.q)

    def scores(self, q: Tensor | SlotTokens) -> Tensor:
        """DIRECT for words, by indices for what ``query`` made."""
        cached, b = Weight(self.k.index.t(), self.k.scale), self.books.k
        a = b if self.books.q is None else self.books.q
        tokens = Tokens.direct(q) if isinstance(q, Tensor) else q
        return _multiplied(matmul(tokens, cached, Codebooks(a, b, self.product))).y

    def softmax(self, scores: Tensor) -> Tensor:
        p, bad = softmax(scores)
        if bool(bad.any()):
            raise ArithmeticError("SOFTMAX: a score is NaN or infinite")
        return p

    def values(self, a: Any) -> Tensor:
        size = self.v.index.shape[1]
        cached = Weight(self.v.index, torch.full((size,), ONE, device=self.v.index.device))
        book: Tensor | Packet = self.books.v
        if self.product != "exact":  # an Integer packet of the lane; exact: C_V as it is
            bits_a, bits_b = self.books.bits_a, check_codebook(self.books.v, "codebook_v")
            words = integer_words(self.books.v, bits_a, self.product)
            book = Packet(words, bits_a, bits_b, self.product)
        return _multiplied(integer_matmul(a, cached, book, self.integer_bits)).y
