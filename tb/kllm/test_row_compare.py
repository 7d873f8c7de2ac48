"""KllmRowCompare against golden.kllm.quantizer_phases.compare_row.

Shown to fail with:

- ties that ignore positions
- the position of a tie left out or taken in on the other side
- elements after the length as outliers, or as not finite
- a NaN as an outlier
- one midpoint more
- the tie of one element of a row left out, on either side
- a bit of the row's number, in ``o`` or where it is compared, stuck at 0 (the longest tokens alone)
"""

import pytest

from golden.kllm.vectors.row_compare import row_compare_params
from hdl.kllm.quantize.compare import KllmRowCompare, KllmRowCompareConfig
from tb.simulate.run import simulate

CONFIGS = {f"bits_{bits}": KllmRowCompareConfig(bits_a=bits) for bits in (2, 3, 4)}


@pytest.mark.parametrize("name", CONFIGS)
def test_row_compare(name, seed):
    params = row_compare_params(CONFIGS[name], seed)
    simulate(
        KllmRowCompare(CONFIGS[name]), "tb.kllm.tb_row_compare", params=params, seed=seed
    )  # fmt: skip
