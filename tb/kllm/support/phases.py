"""Phases of lane jobs inside the simulator: a codebook packet, then jobs, against golden.

``vectors`` holds the words of stream NAME in phase PHASE under "PHASE.NAME".
"""

from golden.kllm.format import Status
from golden.kllm.timing import LaneJob, lane_cycles, lane_latency
from golden.words import unpack_ints
from tb.bench import vectors
from tb.contract import block_timing

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


def check_cycles(lane, phase: str, job: dict, cycles: dict, suffix: str = "") -> None:
    """The cycles of a run of equal jobs at full rate are those of golden.kllm.timing.

    lane: the lane's configuration; job: the fields of LaneJob, and ``jobs``; cycles: of the
    streams, those of one lane named with ``suffix``.
    """
    fields = dict(job)
    count = fields.pop("jobs")
    one, shape = LaneJob(**fields), lane.cycles
    y, w, status = (cycles[f"{name}{suffix}"] for name in ("y", "w", "status"))
    expected, taken = lane_cycles(shape, one, count), y[-1] - w[0]
    assert taken == expected, f"{phase}: {taken} cycles, not {expected}"
    ends = [n for n, word in enumerate(words(phase, "a")) if word >> lane.a_layout.size - 1]
    latency, stated = y[0] - cycles["a"][ends[0]], lane_latency(shape, one.mode, one.ends)
    assert latency == stated, f"{phase}: first y {latency} cycles after the last a, not {stated}"
    timing = block_timing()
    assert stated in (timing.latency, *dict(timing.delays).values())
    gap = timing.delay("from a column's y to the next")
    if one.outputs > 1 and one.mode == 0:
        assert y[1] - y[0] == gap, f"{phase}: {y[1] - y[0]} cycles between outputs, not {gap}"
    after = timing.delay("from a job's last y to its status")
    assert status[-1] - y[-1] == after, f"{phase}: status {status[-1] - y[-1]} cycles after y"
