"""Tables as the transfers of a stream ``entry``, and codebooks as words of a memory."""

import numpy as np

from golden.million.config import PqShape, RateShape
from golden.words import layout_words, pack


def entry_words(config, tables, junk):
    """(payload words, transfers of each packet) of ``tables``: pairs of words and bad queries.

    words: (L, M, entries); bad: (L,) booleans; ``junk(n)`` gives ``bad`` of transfers but the last.
    """
    group, queries = config.rate.macs // config.pq.sub, config.rate.queries
    words, flags, counts = [], [], []
    for table, bad in tables:
        table = np.asarray(table)
        entries = table.shape[-1]
        rows = table.reshape(queries, -1, group, entries).transpose(1, 3, 0, 2).reshape(-1, group)
        place = np.arange(len(rows))
        last = place == len(rows) - 1
        end = place % (entries * queries) == entries * queries - 1
        flag = int((np.asarray(bad) << np.arange(queries)).sum())
        words.append(rows)
        flags.append((end, last, np.where(last, flag, junk(len(rows)))))
        counts.append(len(rows))
    end, last, bad = (np.concatenate(each) for each in zip(*flags, strict=True))
    layout = config.entry_layout
    return layout_words(layout, word=np.concatenate(words), end=end, last=last, bad=bad), counts


def codebook_words(pq: PqShape, rate: RateShape, books) -> np.ndarray:
    """Words (book * entries + row) * parts + part, of (books, M, entries, sub) FP16 words."""
    rows = np.asarray(books).transpose(0, 2, 1, 3).reshape(-1, rate.macs)
    return pack((rows, 16))
