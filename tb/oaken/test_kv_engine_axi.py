"""OakenKvEngine under AXI's port names (``hdl.build --wrap axi``) on cocotbext-axi's RAM.

What the engine must do is tested in test_kv_engine.py; here a memory that is not ours must agree.
Shown to fail: with one bit of a dense record, of a scale word, or of a threshold changed.
"""

import pytest

from golden.oaken.vectors.kv_script import random_script
from hdl.oaken.kv_engine import OakenKvEngine
from tb.oaken.test_kv_engine import CONFIGS
from tb.simulate.run import simulate

BASE = 0x40_0000


@pytest.mark.parametrize("name", ["small"])  # at SmolLM2's size: test_real.py
def test_kv_engine_on_a_foreign_ram(name, seed):
    config = CONFIGS[name]
    phases = random_script(config, seed + 2, 12, BASE)
    params = {"phases": phases, "base": BASE, "p_pauses": [0.0, 0.3, 0.7]}
    block = OakenKvEngine(config)
    simulate(block, "tb.oaken.tb_kv_engine_axi", params=params, seed=seed, wrap="axi")
