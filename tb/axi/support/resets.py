"""Resets in the middle of bursts, with other words after each."""

from collections.abc import Callable
from random import Random

from tb.contract import Contract


async def replay_after_resets(
    dut, contract: Contract, renewed: Callable[[Contract], Contract], rng: Random
) -> None:
    """Eight times: cut a run at random, reset, and replay the contract that ``renewed`` gives."""
    bench = await contract.started(dut)
    for _ in range(8):
        await contract.interrupt(bench, rng.randrange(3, 60), p_stall=0.4)
        contract = renewed(contract)
        await contract.restart(bench, 1)
        await contract.replay(bench)
        await contract.restart(bench, 1)
