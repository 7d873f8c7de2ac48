"""KllmEntryWriter against golden.kllm.quantizer_phases.entry_row.

Shown to fail with:

- an index at an outlier, or after the length
- an integer after the length
- a row of indices without ``norm`` in the statistics
- a row taken while the statistics have no room
- a row of indices taken while one of integers goes
- ``token_done`` with every row
"""

import numpy as np
import pytest

from golden.kllm.isa import ROW_ELEMENTS
from golden.kllm.quantizer_phases import entry_row
from hdl.kllm.quantize.entries import KllmEntryWriter, KllmEntryWriterConfig
from hdl.kllm.quantize.payloads import tag_layout
from tb.simulate.run import simulate

ROWS = 200
CONFIGS = {
    "table1": KllmEntryWriterConfig(),
    "narrow": KllmEntryWriterConfig(bits_a=3, integer_bits=4),
    "no_integers": KllmEntryWriterConfig(bits_a=2, integer_bits=0),
}


def make_row(rng, block: KllmEntryWriter, kind: str) -> dict[str, list[int]]:
    """The words of every stream for one row of ``kind``, and whether it ends its token."""
    config = block.config
    live = (1 << int(rng.integers(1, ROW_ELEMENTS + 1))) - 1 if rng.random() < 0.4 else 0xFFFF
    tag = {name: int(rng.integers(1 << tag_layout[name].width)) for name in tag_layout.members}
    tag |= {"live": live, "outlier": int(rng.integers(1 << 16)) & live, "last": int(live != 0xFFFF)}
    bits = config.bits_a if kind == "index" else config.integer_bits
    given = rng.integers(0, 1 << bits, ROW_ELEMENTS).tolist()
    outlier = tag["outlier"] if kind == "index" else 0
    values = entry_row(given, live, outlier)
    fields = {"slot": tag["slot"], "row": tag["row"],
              "entries": {"value": values, "outlier": outlier}}  # fmt: skip
    words = {name: [] for name in ("index", "value", "entries", "beat")}
    words[kind].append(getattr(block, kind).p.shape().const({kind: given, "tag": tag}).as_bits())
    words["entries"].append(block.entries.p.shape().const(fields).as_bits())
    if kind == "index" and tag["norm"]:
        beat = {"index": values, "outlier": outlier, "last": tag["last"]}
        words["beat"].append(block.beat.p.shape().const(beat).as_bits())
    return words | {"last": [tag["last"]]}


@pytest.mark.parametrize("name", CONFIGS)
def test_entry_writer(name, seed):
    rng = np.random.default_rng([seed, 98])
    block = KllmEntryWriter(CONFIGS[name])
    kinds = {}
    for kind in ("index", "value") if CONFIGS[name].integer_bits else ("index",):
        made = [make_row(rng, block, kind) for _ in range(ROWS)]
        words = {stream: [] for stream in made[0]}
        packets = {stream: [] for stream in made[0]}
        for row in made:
            for stream, given in row.items():
                words[stream] += given
                packets[stream].append(len(words[stream]))
        kinds[kind] = {"last": words.pop("last"), "words": words, "packets": packets}
        assert {0, 1} == set(kinds[kind]["last"])
        packets.pop("last")
    simulate(block, "tb.kllm.tb_entry_writer", seed=seed, params=kinds)
