"""Parts of rows for VqReduce, and their sums."""

import numpy as np

from golden.words import alternating, layout_words

MANY_ROWS = 700


def jobs_of(config, rng) -> list[tuple[int, int, int]]:
    """(rows, rows of a stripe, log2 of the split)."""
    splits = list(range(config.cores.bit_length()))
    found = [(1, 1, split) for split in splits] + [(12, 5, split) for split in splits]
    for _ in range(6):
        rows = int(rng.integers(1, 25))
        found.append((rows, int(rng.integers(1, rows + 4)), int(rng.choice(splits))))
    low, high = alternating(MANY_ROWS)
    found += [(high, low, splits[0]), (low, high, splits[-1])]
    return found


def reduce_vectors(config, seed) -> tuple[dict, dict]:
    """(vectors, params): parts of rows in the cores, and the sums of the rows."""
    rng = np.random.default_rng([seed, 166])
    sums = config.sums
    batch, most = sums.batch, 1 << (sums.sum_bits - 1)
    names = (*(f"part_{k}" for k in range(config.cores)), "sum")
    fields: dict[str, list[dict]] = {name: [] for name in names}
    jobs = jobs_of(config, rng)
    packets: dict[str, list[int]] = {each: [] for each in (*fields, "job")}
    causes: list[list[tuple[str, int]]] = []
    steps: list[int] = []
    for number, (rows, stripe, split) in enumerate(jobs):
        size = 1 << split
        for n in range(rows):
            first = n % stripe % (config.cores // size) * size
            total, bad = np.zeros(batch, dtype=object), 0
            causes.append([])
            steps.append(max(1, size // config.lanes))
            for core in range(first, first + size):
                part = [int(rng.integers(-(1 << 60), 1 << 60)) * (most >> 65) for _ in range(batch)]
                if number % 3 == 0:  # the largest of one sign
                    part = [(most - 1) // size if n % 2 else -(most // size)] * batch
                flags = int(rng.integers(1 << batch)) if rng.random() < 0.3 else 0
                total, bad = total + np.array(part, dtype=object), bad | flags
                words = fields[f"part_{core}"]
                causes[-1].append((f"part_{core}", len(words)))
                words.append({"value": part, "bad": flags, "last": int(rng.integers(2))})
            fields["sum"].append({"value": total.tolist(), "bad": bad, "last": n == rows - 1})
        for each, ends in packets.items():
            ends.append(number + 1 if each == "job" else len(fields[each]))
    layout = sums.sum_layout
    vectors = {
        each: layout_words(layout, **{
            key: np.array([row[key] for row in rows], dtype=object) for key, _ in layout
        })
        for each, rows in fields.items()
    }  # fmt: skip
    columns = map(np.array, zip(*jobs, strict=True))
    given = dict(zip(("rows", "stripe", "split"), columns, strict=True))
    vectors["job"] = layout_words(config.job_layout, **given)
    return vectors, {"packets": packets, "causes": causes, "steps": steps}
