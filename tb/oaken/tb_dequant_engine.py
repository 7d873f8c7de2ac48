"""Runs inside the simulator: requests, scales, dense and sparse words to OakenDequantEngine."""

import json
import os
from pathlib import Path

import cocotb

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.contract import Gapless

NAMES = ("request", "scale", "dense", "sparse", "o", "status")
CUTS = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


def requests(phase: str, is_full: bool = True) -> Gapless:
    """The requests of one phase; beats are compared where the mask says."""
    words = {name: unpack_ints(vectors[f"{phase}.{name}"]) for name in NAMES}
    ends = dict(zip(NAMES, vectors[f"{phase}.ends"].T.tolist(), strict=True))
    masks = {"o": unpack_ints(vectors[f"{phase}.mask"])}
    return Gapless(words, packets=ends, cuts=CUTS, masks=masks, is_full=is_full)


first = requests(params["phases"][0], is_full=False)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = first.tests()
if "full" in params["phases"]:
    # A beat in every cycle, across tokens and requests.
    full_rate = requests("full").tests()[3]


@cocotb.test()
async def statuses_late(dut):
    """No beat is lost or doubled while a last one waits for a place for its status."""
    await first.replay(await first.started(dut), p_stall={"o": 0.0, "status": 0.97})


@cocotb.test(skip="rates" not in params)
async def rates(dut):
    """Cycles to the first beat and to the end of the last, per phase; no test asserts them."""
    measured = {}
    for phase in params.get("rates", ()):
        flow = await requests(phase).replay(await first.started(dut))
        measured[phase] = [flow.cycles["o"][0], flow.cycles["o"][-1] + 1]
    Path(os.environ["TB_DIR"], "rates.json").write_text(json.dumps(measured))
