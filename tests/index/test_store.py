"""golden.index.store against nested lists."""

import pytest
import torch

from golden.index.format import CodebookFault
from golden.index.store import load_fault, store_addresses, store_words

BOOKS, SUBSPACES, ENTRIES, SUB = 2, 6, 3, 2


@pytest.mark.parametrize("macs", [1, 2, 4, 12])
def test_words_lie_where_the_address_says(macs):
    codebook = torch.arange(BOOKS * SUBSPACES * ENTRIES * SUB)
    codebook = codebook.reshape(BOOKS, SUBSPACES, ENTRIES, SUB)
    parts, entries_max = SUBSPACES * SUB // macs, 5
    words = store_words(codebook, macs).tolist()
    addresses = store_addresses(BOOKS, ENTRIES, entries_max, parts).tolist()
    memory = dict(zip(addresses, words, strict=True))
    assert len(memory) == BOOKS * ENTRIES * parts
    for book in range(BOOKS):
        for j in range(ENTRIES):
            row = [int(codebook[book, m, j, i]) for m in range(SUBSPACES) for i in range(SUB)]
            for part in range(parts):
                at = book * entries_max * parts + j * parts + part
                assert memory[at] == row[part * macs : (part + 1) * macs]


def test_a_word_beyond_a_row_is_refused():
    with pytest.raises(ValueError, match="macs must divide 12"):
        store_words(torch.zeros(BOOKS, SUBSPACES, ENTRIES, SUB, dtype=torch.int64), 8)


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        (0x3C00, 0),
        (0xBC00, 0),
        (0x8000, 0),
        (0x3C01, CodebookFault.MAGNITUDE),
        (0xFBFF, CodebookFault.MAGNITUDE),
        (0x7C00, CodebookFault.NONFINITE),
        (0xFC00, CodebookFault.NONFINITE),
        (0x7E00, CodebookFault.NONFINITE),
    ],
)
def test_load_fault(word, fault):
    words = torch.zeros(4, 2, dtype=torch.int64)
    words[2, 1] = word
    assert load_fault(words, 4) == fault
    assert load_fault(words, 5) == fault | CodebookFault.SHAPE
