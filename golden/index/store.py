"""Codebooks as the store keeps them: order of the words, addresses, and what makes a load bad."""

import torch
from torch import Tensor

from golden.index.format import CodebookFault

_ONE, _INFINITY = 0x3C00, 0x7C00


def store_words(codebook: Tensor, macs: int) -> Tensor:
    """Words of a load, book after book: (books * entries * parts, macs) FP16 words.

    codebook: (books, subspaces, entries, sub) FP16 words. Word ``j * parts + part`` of a book holds
    elements ``part * macs ..`` of row j; element ``m * sub + i`` of a row is ``codebook[m][j][i]``.
    ValueError unless ``macs`` divides a row.
    """
    rows = codebook.long().permute(0, 2, 1, 3).flatten(2)
    if rows.shape[2] % macs:
        raise ValueError(f"macs must divide {rows.shape[2]}, not {macs}")
    return rows.reshape(-1, macs)


def store_addresses(books: int, entries: int, entries_max: int, parts: int) -> Tensor:
    """The addresses of the words of ``store_words``.

    Word ``part`` of entry j is at ``book * entries_max * parts + j * parts + part``.
    """
    first = torch.arange(books)[:, None] * entries_max * parts
    return (first + torch.arange(entries * parts)[None]).flatten()


def load_fault(words: Tensor, expected: int) -> CodebookFault:
    """Why a load of ``words`` (n, macs) is refused; 0: it is not. expected: words that fit it."""
    magnitude = words.long() & 0x7FFF
    fault = CodebookFault(0)
    if bool((magnitude >= _INFINITY).any()):
        fault |= CodebookFault.NONFINITE
    if bool(((magnitude > _ONE) & (magnitude < _INFINITY)).any()):
        fault |= CodebookFault.MAGNITUDE
    if len(words) != expected:
        fault |= CodebookFault.SHAPE
    return fault
