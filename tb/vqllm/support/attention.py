"""Requests for attention, their memory, and what golden says. Before the simulation."""

import dataclasses

import numpy as np
import torch

from golden.million.attention import Codebook
from golden.million.format import Status
from golden.vqllm.attention import attend, book_image, code_image
from golden.words import layout_word


@dataclasses.dataclass
class Head:
    """Codebooks and codes of a KV head; books are (M, entries, size) words."""

    books: list  # of K, of V
    exponents: list[int]
    codes: list  # (n, M) of K, of V
    q: np.ndarray  # (L, d) words

    @classmethod
    def of(cls, books, codes, q) -> "Head":
        """Makes a head of golden's codebooks and tensors."""
        return cls(
            [book.words.numpy() for book in books], [book.exponent for book in books],
            [each.numpy() for each in codes], q.numpy(),
        )  # fmt: skip


def random_books(rng, shape, entries: int) -> np.ndarray:
    size = (shape.pq.subspaces, entries, shape.pq.sub)
    values = np.clip(rng.normal(0, 0.3, size), -1, 1)
    return values.astype(np.float16).view(np.uint16).astype(np.int64)


def random_head(rng, shape, tokens: int, queries=None, entries=None, width=1.0) -> Head:
    queries = shape.queries if queries is None else queries
    entries = shape.pq.entries if entries is None else entries
    q = rng.normal(0, width, (queries, shape.pq.head_dim)).astype(np.float16)
    return Head(
        [random_books(rng, shape, entries) for _ in range(2)],
        [int(each) for each in rng.integers(-2, 3, 2)],
        [rng.integers(0, entries, (tokens, shape.pq.subspaces)) for _ in range(2)],
        q.view(np.uint16).astype(np.int64),
    )


class Script:
    """Books and requests in their order; addresses are given out as they come."""

    def __init__(self, rng, config, base: int = 0x10_0000):
        self.rng, self.config, self.at = rng, config, base
        self.memory: list[tuple[int, str]] = []
        self.faults: list[tuple[int, int, int]] = []
        self.steps: list[dict] = []

    def _place(self, content: bytes) -> int:
        """An address of ``content``, at times at the end of a page."""
        word = self.config.shape.data_bits // 8
        at = self.at + int(self.rng.integers(0, 3)) * word
        self.memory.append((at, content.hex()))
        self.at = -(-(at + len(content)) // word) * word
        return at

    def _codes(self, codes) -> tuple[int, int]:
        """(address, stride) of the codes of K or V; junk lies between the passes."""
        shape = self.config.shape
        image = code_image(torch.tensor(codes), shape).numpy()
        word = shape.data_bits // 8
        size = image.shape[1]
        stride = size + self.room * word
        room = self.rng.integers(0, 256, (len(image), self.room * word), dtype=np.uint8)
        content = np.concatenate([image, room], 1).tobytes()
        return self._place(content), stride

    def book(self, place: int, books, exponents, entries=None) -> list:
        """Both codebooks in memory, and a ``book``."""
        shape, spans = self.config.shape, []
        for words in books:
            content = book_image(torch.tensor(words), shape).numpy().tobytes()
            at = self._place(content)
            spans.append((at, at + len(content)))
        word = layout_word(
            self.config.book_layout, place=place,
            entries=books[0].shape[1] if entries is None else entries,
            exponent_k=exponents[0], exponent_v=exponents[1],
            books_k=spans[0][0], books_v=spans[1][0],
        )  # fmt: skip
        self.steps.append({"book": word})
        return spans

    def refuse(self, first: int, last: int, response: int) -> None:
        """Memory refuses a word in first..last - 1."""
        word = self.config.shape.data_bits // 8
        at = first + int(self.rng.integers((last - first) // word)) * word
        self.faults.append((at, at + word, response))

    def request(self, head: Head, place: int, *, response: int = 0, side: str = "") -> None:
        """A request whose outputs golden knows.

        response: that of a word of codes of ``side``, or of the codebooks if there is no side
        """
        shape = self.config.shape
        self.room = int(self.rng.integers(0, 3))
        k, stride = self._codes(head.codes[0])
        v, _ = self._codes(head.codes[1])
        books = [Codebook(torch.tensor(b), e)
                 for b, e in zip(head.books, head.exponents, strict=True)]  # fmt: skip
        if side:
            first = {"k": k, "v": v}[side] + int(self.rng.integers(shape.passes)) * stride
            size = shape.code_words(len(head.codes[0])) * shape.data_bits // 8
            self.refuse(first, first + size, response)
        status, words = attend(
            torch.tensor(head.q), torch.tensor(head.codes[0]), torch.tensor(head.codes[1]), *books,
            response=response,
        )  # fmt: skip
        self._add(
            head.q, status, words.numpy(), place=place, tokens=len(head.codes[0]), codes_k=k,
            codes_v=v, stride=stride,
        )  # fmt: skip

    def refused(self, status: Status, queries: int, **fields) -> None:
        """A request without outputs; it may have queries."""
        q = self.rng.integers(0, 1 << 16, (queries, self.config.shape.pq.head_dim))
        junk = {name: int(self.rng.integers(1 << 30)) for name in self.config.codes_parts}
        self._add(q, status, q[:0], **{**junk, "queries": queries, **fields})

    def _add(self, q, status: Status, words, **fields) -> None:
        config, tag = self.config, int(self.rng.integers(256))
        beats = q.reshape(-1, config.sums.macs)
        layout = config.output_layout
        o = words.reshape(-1, config.rate.lanes)
        last = np.arange(len(o)) == len(o) - 1
        self.steps.append(
            {
                "request": layout_word(
                    config.request_layout, tag=tag, **{"queries": len(q), **fields}
                ),
                "q": [
                    layout_word(config.q_layout, word=beat, last=int(self.rng.integers(2)))
                    for beat in beats.tolist()
                ],
                "o": [layout_word(layout, word=beat, last=int(end))
                      for beat, end in zip(o.tolist(), last, strict=True)],
                "status": layout_word(config.status_layout, tag=tag, status=int(status)),
            }
        )  # fmt: skip

    def params(self) -> dict:
        """The params of tb_attention: books before the requests that use them, in phases."""
        phases: list[dict] = []
        for step in self.steps:
            if not phases or ("book" in step and phases[-1]["requests"]):
                phases.append({"books": [], "requests": []})
            if "book" in step:
                phases[-1]["books"].append(step["book"])
            else:
                phases[-1]["requests"].append(step)
        return {"memory": self.memory, "faults": self.faults, "phases": phases}
