"""Cells of a routed netlist against what the vendor's guides say of them.

Shown to fail:

- a carry of the lower quarter where the sum is 1;
- a product of 18 bits without its sign;
- NORMAL as READBEFOREWRITE; the nibbles of a byte exchanged;
- byte enables of the upper half at the lower one;
- a reset that waits for the clock enable.
"""

from tb.board.cells import Cells, CellsConfig, text
from tb.simulate.run import build_model, run_model


def test_cells(seed):
    block = Cells(CellsConfig())
    model = build_model(block, transform=lambda design: text(design.name))
    run_model(model, "tb.board.tb_cells", config=block.config, seed=seed)
