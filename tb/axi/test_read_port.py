"""AxiReadPort against golden.axi.reference: words, bursts, errors, rate.

Shown to fail:

- bursts that cross a page's end (refused by the foreign RAM too);
- the page not counted up;
- ``error`` from bit 0 of the response;
- ``last`` of each burst or of the newest request;
- a burst more than ``outstanding``;
- stray beats that hang;
- a burst done after each beat;
- a place less than ``outstanding`` (full_rate);
- AR valid only with ready (late_ready);
- words to request kept over a reset (reset_in_mid_packet).
"""

import pytest

from hdl.axi.read_port import AxiReadPort, AxiReadPortConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": AxiReadPortConfig(
        data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
    ),
    "unbuffered": AxiReadPortConfig(
        address_bits=32, data_bits=256, burst_beats=256, outstanding=4, buffered=False
    ),
    "one_at_a_time": AxiReadPortConfig(
        address_bits=64, data_bits=8, id_bits=8, burst_beats=1, outstanding=1, length_bits=5
    ),
    "widest": AxiReadPortConfig(data_bits=1024, burst_beats=32, outstanding=16, length_bits=32),
}


@pytest.mark.telling("small", "unbuffered", "one_at_a_time")
@pytest.mark.parametrize("name", CONFIGS)
def test_read_port(name, seed):
    simulate(AxiReadPort(CONFIGS[name]), "tb.axi.tb_read_port", seed=seed)


@pytest.mark.parametrize("name", ["small", "unbuffered"])
def test_read_port_on_a_foreign_ram(name, seed):
    """Under AXI's port names, against cocotbext-axi's model of a RAM."""
    simulate(AxiReadPort(CONFIGS[name]), "tb.axi.tb_read_port_axi", seed=seed, wrap="axi")
