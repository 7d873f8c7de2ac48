"""KllmDescriptorWriter against golden.kllm.quantizer_phases.descriptors.

Shown to fail with:

- a descriptor before its entries, before its mark, before its statistics
- statistics taken by a token without a norm
- a status kept from the command before, or of the last token alone
- a fault of the outliers left out
- a descriptor of a token that touches no slot
"""

import numpy as np

from golden.kllm.format import TokenKind
from golden.kllm.isa import CommandStatus
from golden.kllm.quantizer_phases import Finish, descriptors
from hdl.kllm.quantize.descriptors import TOKENS_IN_FLIGHT, KllmDescriptorWriter
from hdl.kllm.quantize.payloads import KllmQuantizePhaseConfig, finish_layout, outlier_layout
from tb.kllm.support.cared import cared
from tb.simulate.run import simulate

TOKENS = 150
BLOCK = KllmDescriptorWriter(KllmQuantizePhaseConfig())
OUTLIER, DESCRIPTOR = BLOCK.outlier.p.shape(), BLOCK.descriptor.p.shape()
NORMS = BLOCK.norms.p.shape()


def random_status(rng) -> CommandStatus:
    """None, one that a token has, or any bits: the block joins them all."""
    faults = [0, 0, 0, CommandStatus.NONFINITE, CommandStatus.CAPACITY]
    return CommandStatus(int(rng.choice([*faults, rng.integers(1 << len(CommandStatus))])))


def make_tokens(rng, count: int, share: float = 0.7) -> list[dict]:
    """Words of every stream, token by token; ``share`` of the tokens have a second pass."""
    finish, marks, norms, ends, tokens = [], [], [], [], []
    for n in range(count):
        kind = TokenKind(int(rng.integers(4)))
        codebook = kind == TokenKind.CODEBOOK
        rows = bool(rng.random() < share)
        kmeans = kind in (TokenKind.ONLINE, TokenKind.OFFLINE)
        token = Finish(
            touches=not codebook and (rows or bool(rng.integers(2))),
            rows=rows,
            status=random_status(rng) if rows else CommandStatus.NONFINITE | random_status(rng),
            s=int(rng.integers(1 << 16)),
            norm=rows and kmeans and bool(rng.integers(2)),
        )
        slot, length = int(rng.integers(256)), int(rng.integers(1 << 14))
        end = n == count - 1 or codebook or bool(rng.random() < 0.4)
        fields = {"kind": int(kind), "rows": int(rows), "touches": int(token.touches),
                  "status": int(token.status), "end": int(end), "norm": int(token.norm),
                  "slot": slot, "length": length, "s": token.s}  # fmt: skip
        words = {"finish": [finish_layout.const(fields).as_bits()], "i": [], "norms": [],
                 "outlier": [], "descriptor": [], "status": []}  # fmt: skip
        if rows:
            # Positions pass unchanged: those of any part of the longest token.
            few, many = [0, 1, 2, 9], rng.integers(1 << 14, size=6).tolist()
            outliers = int(rng.choice([*few, *many])) if kmeans else 0
            for position in range(max(outliers - 9, 0), outliers):
                word = {"slot": slot, "position": position, "word": int(rng.integers(1 << 16))}
                words["i"].append(outlier_layout.const(word).as_bits())
                words["outlier"].append((-1, OUTLIER.const(word).as_bits()))
            marks.append((outliers, random_status(rng)))
            mark = {"mark": 1, "slot": slot, "position": outliers, "word": int(marks[-1][1])}
            words["i"].append(outlier_layout.const(mark).as_bits())
        if token.norm:
            norms.append((int(rng.integers(1 << 32)), int(rng.integers(1 << 32))))
            sums = dict(zip(("mean", "rms_reciprocal"), norms[-1], strict=True))
            words["norms"].append(NORMS.const(sums).as_bits())
        finish.append(token)
        ends.append(end)
        same = {"integer": int(kind == TokenKind.INTEGER), "length": length}
        tokens.append(words | {"needs": int(rows and not codebook), "slot": slot, "same": same})
    given, statuses = descriptors(finish, marks, norms, ends)
    left = iter(statuses)
    for token, end, fields in zip(tokens, ends, given, strict=True):
        if end:
            token["status"] = [(-1, int(next(left)))]
        if fields is not None:
            whole = {"slot": token["slot"], "descriptor": fields | token.pop("same")}
            partial = {"slot": token["slot"], "descriptor": {"valid": 0}}
            chosen = whole if fields["valid"] else partial
            token["descriptor"] = [cared(DESCRIPTOR, chosen)]
    return tokens


def test_descriptor_writer(seed):
    rng = np.random.default_rng([seed, 94])
    tokens, plain = make_tokens(rng, TOKENS), make_tokens(rng, 40, 0)
    simulate(BLOCK, "tb.kllm.tb_descriptor_writer", seed=seed,
             params={"tokens": tokens, "plain": plain, "ahead": TOKENS_IN_FLIGHT})  # fmt: skip
