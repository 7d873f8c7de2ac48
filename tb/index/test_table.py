"""IndexTable against golden.index.codebook.look_up.

Shown to fail:

- a row given before its last outlier;
- an outlier taken while o stalls;
- a row that waits for an empty block (full_rate);
- outliers from the highest position down;
- a table written one place on;
- indices one place on.
"""

import pytest

from golden.index.vectors.table import table_vectors
from hdl.index.table import IndexTable, IndexTableConfig
from tb.simulate.run import simulate

CONFIGS = {
    "width_8": IndexTableConfig(),
    "width_1": IndexTableConfig(width=1),
    "width_2": IndexTableConfig(bits_a=3, width=2),
    "width_4": IndexTableConfig(bits_a=3, width=4),
    "width_16": IndexTableConfig(bits_a=2, integer_bits=0, width=16),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_table(name, seed):
    config = CONFIGS[name]
    vectors, params = table_vectors(config, seed)
    simulate(IndexTable(config), "tb.index.tb_table", vectors=vectors, params=params, seed=seed)
