"""AxiWritePort against golden.axi.reference: bytes, strobes, bursts, answers, rate.

Shown to fail:

- bursts that cross a page's end;
- the page not counted up;
- bytes strobed beyond the command's end, of a word that never came, or of the packet before;
- the rotation taken anew for each command;
- low bits of a continuation's address;
- a word taken for a last beat that needs none;
- no word taken for the last beat of a command with ``more``;
- WLAST at the command's end alone;
- AW before its data;
- the worst response forgotten, or kept for the next command;
- EXOKAY taken for an error;
- a burst more than ``outstanding``;
- an answer lost while ``done`` stalls;
- stray answers that hang;
- further words of a long packet not dropped;
- traces of a short packet left;
- commands of 0 bytes unanswered;
- commands of 0 bytes that do not end, or do not begin, a packet;
- a place less than ``outstanding`` (full_rate);
- AW valid only with ready (late_ready);
- an open packet kept over a reset (reset_in_mid_packet);
- the place of a word in ``carry`` kept over a reset (reset_in_mid_burst alone).
"""

import dataclasses

import pytest
from amaranth import Signal

import hdl.axi.write_port
from hdl.axi.write_port import AxiWritePort, AxiWritePortConfig
from tb.simulate.run import simulate

CONFIGS = {
    "small": AxiWritePortConfig(
        data_bits=64, id_bits=3, burst_beats=5, outstanding=3, length_bits=10
    ),
    "deep": AxiWritePortConfig(address_bits=32, data_bits=256, burst_beats=256, outstanding=4),
    "one_at_a_time": AxiWritePortConfig(
        address_bits=64, data_bits=8, id_bits=8, burst_beats=1, outstanding=1, length_bits=5
    ),
    "widest": AxiWritePortConfig(data_bits=1024, burst_beats=16, outstanding=16, length_bits=32),
}


def test_a_word_kept_over_a_reset_is_found(monkeypatch, seed):
    """``has_carry`` is not reset: packets that are the same after each reset do not show it."""
    packet = hdl.axi.write_port._Packet

    def kept(config):
        lax = Signal(name="has_carry", reset_less=True)
        return dataclasses.replace(made(config), has_carry=lax)

    made = packet.of
    monkeypatch.setattr(packet, "of", staticmethod(kept))
    block = AxiWritePort(CONFIGS["small"])
    with pytest.raises(AssertionError):
        simulate(block, "tb.axi.tb_write_port", seed=seed, testcase="reset_in_mid_burst")


@pytest.mark.telling("small")
@pytest.mark.parametrize("name", CONFIGS)
def test_write_port(name, seed):
    simulate(AxiWritePort(CONFIGS[name]), "tb.axi.tb_write_port", seed=seed)


@pytest.mark.parametrize("name", ["small", "deep"])
def test_write_port_on_a_foreign_ram(name, seed):
    """Under AXI's port names, against cocotbext-axi's model of a RAM."""
    simulate(AxiWritePort(CONFIGS[name]), "tb.axi.tb_write_port_axi", seed=seed, wrap="axi")
