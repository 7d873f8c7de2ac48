"""KllmTokenScheduler against golden.kllm.quantizer_phases.schedule, and the payloads by the table.

Shown to fail with:

- a change of kind that does not wait, and a codebook that does not
- a dead token without a slot that waits
- CODEBOOK_MISSING of an integer token, or with its slot written
- a word of ``found`` taken by an OFFLINE token, or left by a dead one
- a threshold of -0 above +0
- statistics of an integer token
- the kind of the latest token kept through a reset
- a bit of the length stuck at 0
"""

import numpy as np
import pytest

from golden.kllm.format import TokenKind
from golden.kllm.isa import CommandStatus, Norm
from golden.kllm.quantizer_phases import schedule, total_order_key
from hdl.kllm.function.norm_stats import KllmNormStats
from hdl.kllm.quantize.payloads import (
    KllmQuantizePhaseConfig,
    finish_layout,
    found_layout,
    second_pass_layout,
    token_layout,
)
from hdl.kllm.quantize.scheduler import KllmTokenScheduler
from tb.kllm.support.cared import cared
from tb.simulate.run import simulate

TOKENS = 150
BLOCK = KllmTokenScheduler(KllmQuantizePhaseConfig())
JOB = BLOCK.job.p.shape()
SOURCES = ("token", "found", "scale", "fault")
SINKS = ("finish", "second", "request", "threshold", "job")
WIDTHS = {name: token_layout[name].width for name in token_layout.members}


def random_bound(rng) -> dict[str, int]:
    return {"on": int(rng.integers(2)), "tie": 1, "key": int(rng.integers(1 << 16)),
            "position": int(rng.integers(1 << 14))}  # fmt: skip


def offline_bound(word: int, zero: int) -> dict[str, int]:
    """The bound of a threshold: neither zero is beyond a zero."""
    return {"on": 1, "tie": 0, "key": total_order_key(word if word & 0x7FFF else zero)}


def make_token(rng, kind: TokenKind, codebook_ok: bool, **given) -> dict:
    """The words of every stream for one token."""
    t = {name: int(rng.integers(0, 1 << bits)) for name, bits in WIDTHS.items()}
    dead = rng.random() < 0.2
    t |= {"kind": int(kind), "norm": int(rng.integers(0, len(Norm)))}
    t |= {"rows": int(rng.integers(1, 8)), "dead": int(dead), "touches": 1, "status": 0}
    t["length"] = t["rows"] * 16 - int(rng.integers(0, 16))
    for side in ("upper", "lower"):
        if rng.random() < 0.3:
            t[side] = int(rng.choice([0, 0x8000]))
    if kind == TokenKind.CODEBOOK:
        t |= {"touches": 0, "rows": 2}
    if dead:
        t["touches"] = int(rng.integers(2))
        t["status"] = int(CommandStatus.CAPACITY if t["touches"] else CommandStatus.RANGE)
    t |= given
    words = {name: [] for name in (*SOURCES, *SINKS)}
    words["token"] = [token_layout.const(t).as_bits()]
    online, integer = kind == TokenKind.ONLINE, kind == TokenKind.INTEGER
    kmeans = online or kind == TokenKind.OFFLINE
    bounds = {"largest": {"on": 0}, "smallest": {"on": 0}}
    faults, s = CommandStatus(0), int(rng.integers(1 << 16))
    if kind == TokenKind.OFFLINE:
        s = max(t["upper"] & 0x7FFF, t["lower"] & 0x7FFF)
        bounds = {"largest": offline_bound(t["upper"], 0),
                  "smallest": offline_bound(t["lower"], 0x8000)}  # fmt: skip
    if online and not t["dead"]:
        bounds = {side: random_bound(rng) for side in bounds}
        bad = bool(rng.random() < 0.2)
        faults = CommandStatus.NONFINITE if bad else faults
        words["found"] = [found_layout.const({"bad": bad, "s": s, **bounds}).as_bits()]
    if integer and not t["dead"]:
        faults = CommandStatus(int(rng.choice([0, 0, CommandStatus.NEGATIVE])))
        words["scale"], words["fault"] = [s], [int(faults)]
    finish = schedule(
        kmeans=kmeans, touches=bool(t["touches"]), found=faults, codebook_ok=codebook_ok,
        dead=CommandStatus(t["status"]) if t["dead"] else None,
    )  # fmt: skip
    norm = finish.rows and kmeans and t["norm"] != Norm.NONE
    same = {name: t[name] for name in ("kind", "slot")}
    fields = {**same, "rows": int(finish.rows), "touches": int(finish.touches),
              "status": int(finish.status), "end": t["end"], "norm": int(norm),
              "length": t["length"]}  # fmt: skip
    if kind != TokenKind.CODEBOOK and not t["dead"]:
        fields["s"] = s
    words["finish"] = [cared(finish_layout, fields)]
    if finish.rows:
        second = {**same, "rows": t["rows"], "tail": (t["length"] - 1) % 16, "norm": int(norm)}
        second |= bounds | ({"s": s} if kind != TokenKind.CODEBOOK else {})
        words["second"] = [cared(second_pass_layout, second)]
        words["request"] = [(-1, t["row"] + row & 0xFFFF) for row in range(t["rows"])]
        words["threshold"] = [(-1, s)] * kmeans
    if norm:
        job = {"length": t["length"], "s": s, "epsilon": t["epsilon"],
               "layer_norm": int(t["norm"] == Norm.LAYER),
               "outliers": KllmNormStats.OUTLIERS_OF_MASK}  # fmt: skip
        words["job"] = [cared(JOB, job)]
    return words | {"touched": bool(t["touches"] or not t["dead"]), "kind": kind}


def with_waits(tokens: list[dict]) -> list[dict]:
    """Adds to each token whether it waits until the tokens before it have left."""
    latest = None
    for token in tokens:
        kind = token["kind"]
        alike = latest is not None and TokenKind.CODEBOOK not in (kind, latest)
        alike = alike and (kind == TokenKind.INTEGER) == (latest == TokenKind.INTEGER)
        token["waits"] = token["touched"] and not alike
        latest = kind if token["touched"] else latest
    return tokens


@pytest.mark.parametrize("codebook_ok", [False, True])
def test_token_scheduler(codebook_ok, seed):
    rng = np.random.default_rng([seed, 93, codebook_ok])
    kind, tokens = TokenKind.ONLINE, []
    for _ in range(TOKENS):
        if rng.random() < 0.4:
            kind = TokenKind(int(rng.integers(4)))
        tokens.append(make_token(rng, kind, codebook_ok))
    # As long as a slot can be: every bit of the length.
    longest = {"rows": 1024, "length": (1 << 14) - 1, "dead": 0, "status": 0, "norm": int(Norm.RMS)}
    tokens.append(make_token(rng, TokenKind.OFFLINE, codebook_ok, **longest))
    # The tokens of another kind than those that are settled: a dead one first.
    dead = {"dead": 1, "touches": 0, "status": int(CommandStatus.RANGE)}
    pair = [make_token(rng, TokenKind.INTEGER, codebook_ok, **dead),
            make_token(rng, TokenKind.CODEBOOK, codebook_ok, dead=0, status=0)]  # fmt: skip
    firsts = [[make_token(rng, TokenKind.INTEGER, codebook_ok, **dead),
               make_token(rng, kind, codebook_ok, dead=0, status=0)]
              for kind in TokenKind]  # fmt: skip
    simulate(
        BLOCK, "tb.kllm.tb_token_scheduler", seed=seed,
        params={"tokens": with_waits(tokens), "codebook_ok": int(codebook_ok),
                "pair": with_waits(pair), "firsts": firsts},
    )  # fmt: skip
