"""Runs inside the simulator: quantized vectors through OakenTokenWriter."""

from golden.words import unpack_ints
from tb.bench import config, vectors
from tb.contract import Contract

NAMES = ("start", "dense", "sparse", "record", "w")


class Long(Contract):
    """Records of many words: the last ones of a record leave before the next record begins."""

    def check_timing(self, flow, packets=None) -> None:
        blocks = flow.cycles["sparse"]
        most = len(blocks) + 3 * len(flow.cycles["record"])
        assert blocks[-1] - blocks[0] < most, f"{len(blocks)} blocks took more than {most} cycles"


def records(phase: str, contract=Contract, **fields) -> Contract:
    """The vectors of one phase."""
    ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
    return contract(words, packets=ends, **fields)


def causes() -> list[int]:
    """The last block of each record."""
    blocks = config.kv.part_blocks
    count = len(vectors["full.record"])
    return [(n + 1) * blocks - 1 for n in range(count)]


# The codes of a block are together a cycle after its last beat.
is_long = config.kv.part_blocks > 4
first = config.kv.block // config.lanes + 1
full = records("full", Long if is_long else Contract, causes=causes(), first=first)
*_, full_rate, reset_in_mid_packet = full.tests()
random_flow, uneven_flow, late_ready = records("mixed").tests()[:3]
