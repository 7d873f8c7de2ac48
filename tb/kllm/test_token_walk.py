"""KllmTokenWalk against golden.kllm.quantizer_phases.walk_tokens.

Shown to fail with:

- the stride left out, or kept from the job before
- a token offered twice to one output when another stalls
- requests of a dead token
- ``end`` at the first token
- a job of the trees for an integer token
- a bit of the row's number stuck at 0 (the longest job alone)
- the number of tokens changed where it is above 32
- an output that has no word of the first token after a reset
"""

import numpy as np

from golden.kllm.format import TokenKind
from golden.kllm.quantizer_phases import walk_tokens
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    first_pass_layout,
    quantize_job_layout,
    token_layout,
)
from hdl.kllm.quantize.tokens import KllmTokenWalk
from tb.simulate.run import simulate

JOBS = 120
LONGEST = 60  # the job of as many rows as a token can have
MOST_TOKENS = 30  # the job of as many tokens as a command can have
STREAMS = ("job", "token", "first", "tree", "request")
BLOCK = KllmTokenWalk(KllmQuantizePhaseConfig())
TREE = BLOCK.tree.p.shape()


def test_token_walk(seed):
    rng = np.random.default_rng([seed, 97])
    words = {name: [] for name in STREAMS}
    packets = {name: [] for name in STREAMS}
    jobs = []  # rows of the first pass of each token
    for number in range(JOBS):
        job = {
            name: int(rng.integers(1 << quantize_job_layout[name].width))
            for name in quantize_job_layout.members
        }
        rows, kind = int(rng.integers(1, 7)), TokenKind(job["kind"])
        job |= {"rows": rows, "tokens": int(rng.integers(1, 6)),
                "length": rows * 16 - int(rng.integers(0, 16)),
                "dead": int(rng.random() < 0.2)}  # fmt: skip
        if number == LONGEST:
            rows, kind = 1024, TokenKind.ONLINE
            job |= {"kind": int(kind), "rows": rows, "length": 16 * rows - 1, "tokens": 1,
                    "dead": 0}  # fmt: skip
        if number == 0:  # after every reset: all outputs have a word of the first token
            kind = TokenKind.ONLINE
            job |= {"kind": int(kind), "dead": 0}
        if number == MOST_TOKENS:
            job |= {"tokens": 255}
        words["job"].append(quantize_job_layout.const(job).as_bits())
        online = kind == TokenKind.ONLINE
        reads = not job["dead"] and (online or kind == TokenKind.INTEGER)
        given = {name: job[name] for name in ("src", "stride", "tokens", "slot")}
        walked = walk_tokens(**given, rows=rows)
        for n, (row, slot, requests) in enumerate(walked):
            token = {name: job[name] for name in token_layout.members if name in job}
            token |= {"row": row, "slot": slot, "end": int(n == len(walked) - 1)}
            words["token"].append(token_layout.const(token).as_bits())
            if reads:
                first = {"integer": int(not online), "rows": rows,
                         "tail": (job["length"] - 1) % 16}  # fmt: skip
                words["first"].append(first_pass_layout.const(first).as_bits())
                words["request"] += requests
            if reads and online:
                tree = {name: job[name] for name in ("length", "k_max", "k_min")}
                words["tree"].append(TREE.const(tree).as_bits())
        jobs.append([rows * reads] * len(walked))
        for name, ends in packets.items():
            ends.append(len(words[name]))
    simulate(BLOCK, "tb.kllm.tb_token_walk", seed=seed,
             params={"words": words, "packets": packets, "jobs": jobs})  # fmt: skip
