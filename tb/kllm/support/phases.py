"""Phases of lane jobs inside the simulator: a codebook packet, then jobs, against golden.

``vectors`` holds the words of stream NAME in phase PHASE under "PHASE.NAME".
"""

from golden.kllm.format import Status
from tb.bench import vectors
from tb.words import unpack_ints

__all__ = ["check", "jobs", "load", "streams", "words"]

_WORDS = {name: unpack_ints(array) for name, array in vectors.items() if "." in name}


def words(phase: str, name: str) -> list[int]:
    return _WORDS.get(f"{phase}.{name}", [])


def streams(bench, phase: str) -> tuple[dict, dict]:
    """(offers but for the codebook, takes) of a phase."""
    offers = {name: words(phase, name) for name in bench.sources if name != "codebook"}
    return offers, {name: len(words(phase, name)) for name in bench.sinks}


def check(bench, flow, phase: str) -> None:
    """Every output and status is golden's, word for word."""
    for name in bench.sinks:
        expected = words(phase, name)
        for n, (got, golden) in enumerate(zip(flow.words[name], expected, strict=True)):
            assert got == golden, (
                f"phase {phase}: {name} word {n} is {got:#x}, golden {golden:#x}"
                + (f" ({Status(got)!r}, {Status(golden)!r})" if "status" in name else "")
            )


async def load(bench, phase: str, **flow) -> None:
    await bench.run({"codebook": words(phase, "codebook")}, {}, settle=4, **flow)


async def jobs(bench, phase: str, **flow):
    offers, takes = streams(bench, phase)
    result = await bench.run(offers, takes, **flow)
    check(bench, result, phase)
    return result
