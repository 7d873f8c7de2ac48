"""MillionVerdict against golden.million.verdicts: results, statuses, and their cycles.

Shown to fail:

- a wrong code of V unseen, or one that spoils a single query;
- masks without those of the queries, the scores or the weights;
- a result without ``value_end``, before ``begun``, or that is not taken;
- BAD_CODE before NONFINITE, no OVERFLOW of scores;
- what a group or a read that waits would say;
- one read per group, reads of groups without codes, ends of reads that nobody requested;
- a status before the last read or output, one that stays, the latest or the highest one;
- a refused ATTEND that waits, an ATTEND that ends with its first group;
- ``attended`` while ``status`` stalls; a ``given`` lost in the cycle of a result;
- a number of outputs that are not given yet without its bit 5;
- a number of groups, or of reads that have not ended, without its bit 8 (``default`` alone).
"""

import numpy as np
import pytest

from golden.million.config import NAMED, HeadShape, MillionConfig, PqShape, RateShape
from golden.million.format import Op, Status
from golden.million.verdicts import Part, attend_status, part_bad
from golden.paging.format import Status as PagingStatus
from golden.words import alternating, layout_word
from hdl.million.layouts import STATUS_LAYOUT
from hdl.million.verdict import BEGUN_LAYOUT, MillionVerdict, MillionVerdictConfig
from hdl.paging.layouts import STATUS_LAYOUT as PAGING_STATUS_LAYOUT
from tb.simulate.run import simulate

SMALL = PqShape(head_dim=16, subspaces=4, bits=4)


def verdict(queries, pq=SMALL, **cache):
    return MillionVerdictConfig(
        cache=MillionConfig(pq=pq, **cache), rate=RateShape(queries=queries)
    )


CONFIGS = {
    "default": MillionVerdictConfig(),
    "smollm2": verdict(3, NAMED["4b_64"], head=HeadShape(heads=3, group=3), layers=3),
    "small": verdict(2, max_tokens=100),
    "one": verdict(1, max_tokens=1),
    "eight": verdict(8, layers=1),
}
MOST_WAITING, MOST_GROUPS = 341, (1 << 10) - 1
OK = PagingStatus.OK
# (refused, tokens in codes, what each group suffers, statuses of its reads). "-": nothing, n: NaN,
# k and v: a code of K or V, s: a score, w: the weights, x: all of these.
BY_HAND = [
    (0, 1, "-", [OK, OK]),
    (0, 0, "-", []),
    (Status.EMPTY, 0, "", []),
    (Status.NO_CODEBOOK, 0, "", []),
    (0, 1, "-w-", [OK] * 6),
    (0, 1, "k", [OK, OK]),
    (0, 1, "v-", [OK] * 4),
    (0, 1, "nkvsw", [OK] * 10),
    (0, 1, "s", [PagingStatus.SLAVE_ERROR, OK]),
    (0, 1, "--", [OK, OK, OK, PagingStatus.DECODE_ERROR]),
    (0, 1, "-k", [OK, PagingStatus.DECODE_ERROR, PagingStatus.SLAVE_ERROR, OK]),
    (0, 1, "n", [PagingStatus.BEYOND_LENGTH, OK]),
    (0, 1, "s", [OK, OK]),
    (0, 1, "n", [OK, OK]),
    (0, 1, "x", [OK, OK]),
    (0, 0, "w-n-", []),
    (0, 1, "-", [OK, OK]),
]


def random_attend(rng):
    groups = int(rng.integers(1, 5))
    kinds = "".join(rng.choice(list("----nkvswx"), groups))
    codes = int(rng.random() < 0.7)
    weights = [0.8, *[0.2 / 15] * 15]
    reads = rng.choice(16, 2 * groups * codes, p=weights).tolist()
    return (0, codes, kinds, reads)


def part_of(kind, rng, queries):
    """One group; whatever else it suffers, ``kind`` is the first that applies."""
    mask = [int(rng.integers(1, 1 << queries)) for _ in range(3)]
    later = {"n": "kvsw", "k": "sw", "v": "sw"}.get(kind, "")
    suffers = {kind, *(each for each in later if rng.random() < 0.5)}
    suffers |= set("nkvsw") if kind == "x" else set()
    return Part(
        nonfinite=mask[0] * ("n" in suffers),
        codes=("k" in suffers, "v" in suffers),
        scoreless=mask[1] * ("s" in suffers),
        weightless=mask[2] * ("w" in suffers),
    )


def verdict_vectors(block, seed):
    config = block.config
    queries = config.rate.queries
    rng = np.random.default_rng([seed, 146])
    # Among the first ones, which every flow has. In ``late_ready`` all of them wait for outputs.
    many = MOST_WAITING if config == CONFIGS["default"] else 40
    attends = [*BY_HAND[:5], (0, 1, "-" * many, [OK] * 2 * many), *BY_HAND[5:]]
    attends += [(0, 1, "-", [status, OK]) for status in range(16)]
    attends += [(0, 1, "-", [OK, status]) for status in range(16)]
    attends += [random_attend(rng) for _ in range(12)]
    if config == CONFIGS["default"]:  # their reads wait at full rate
        attends += [(0, 1, "-" * groups, [OK] * 2 * groups) for groups in alternating(MOST_GROUPS)]
    ports = ("group", "score_end", "value_end", "total", "result")
    layouts = {name: getattr(block, name).p.shape() for name in ports}
    names = (*ports, "begun", "read_end", "status")
    words = {name: [] for name in names}
    packets = {name: [] for name in names}
    sum_bits = layouts["total"]["sum"].width // queries
    for refused, codes, kinds, reads in attends:
        parts = [part_of(kind, rng, queries) for kind in kinds]
        head = {"tag": int(rng.integers(256)), "sequence": int(rng.integers(256))}
        words["begun"].append(layout_word(BEGUN_LAYOUT, **head, refused=int(refused)))
        for n, part in enumerate(parts):
            sums = [int(rng.choice([0, 1, (1 << sum_bits) - 1, rng.integers(1 << sum_bits)]))
                    for _ in range(queries)]  # fmt: skip
            plain = {
                "queries": int(rng.integers(1, queries + 1)), "exponent": int(rng.integers(-8, 16))
            }  # fmt: skip
            fields = {
                "group": {**plain, "bad": part.nonfinite, "has_codes": codes,
                          "last": int(n == len(parts) - 1)},
                "score_end": {"bad_code": int(part.codes[0]), "bad": part.scoreless},
                "value_end": {"bad_code": int(part.codes[1])},
                "total": {"sum": sums, "bad": part.weightless},
                "result": {**plain, "sum": sums, "bad": part_bad(part, queries)},
            }  # fmt: skip
            for name, values in fields.items():
                words[name].append(layout_word(layouts[name], **values))
        for status in reads:
            junk = {name: int(rng.integers(256)) for name in ("tag", "sequence")}
            words["read_end"].append(
                layout_word(PAGING_STATUS_LAYOUT, **junk, op=int(rng.integers(16)), status=status)
            )
        status = attend_status(Status(refused), parts, reads)
        words["status"].append(layout_word(STATUS_LAYOUT, **head, op=Op.ATTEND, status=status))
        for name in names:
            packets[name].append(len(words[name]))
    vectors = {
        name: np.array([list(word.to_bytes(128, "little")) for word in found], dtype=np.uint8)
        for name, found in words.items()
    }
    return vectors, {"packets": packets, "cycles": cycles(block.timing, attends)}


def cycles(timing, attends):
    """A group per cycle; a read's end per cycle from the cycle after; then the status."""
    names = ("begun", "group", "score_end", "value_end", "total", "result", "read_end", "status")
    found = {name: [] for name in names}
    at = 0
    for refused, _, kinds, reads in attends:
        found["begun"].append(at)
        if refused:
            at += timing.delay("from begun to the status of a refused ATTEND")
        else:
            first = at + timing.delay("from begun to the first result")
            joined = list(range(first, first + len(kinds)))
            for name in names[1:6]:
                found[name] += [cycle + timing.latency * (name == "result") for cycle in joined]
            ended = list(range(first + 1, first + 1 + len(reads)))
            found["read_end"] += ended
            given = joined[-1] + 1
            last = max([given, *ended])
            at = last + timing.delay("from the last of given and read_end to status")
        found["status"].append(at)
        at += 1
    return found


@pytest.mark.parametrize("name", CONFIGS)
def test_verdict(name, seed):
    block = MillionVerdict(CONFIGS[name])
    vectors, params = verdict_vectors(block, seed)
    simulate(block, "tb.million.tb_verdict", vectors=vectors, params=params, seed=seed)
