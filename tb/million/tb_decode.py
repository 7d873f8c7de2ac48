"""Runs inside the simulator, started by test_decode_keys.py and others: jobs of codes."""

from itertools import accumulate

from golden.words import unpack_ints
from tb.bench import interface, params, vectors
from tb.contract import Contract, block_timing

STREAMS = (*interface["sources"], *interface["sinks"])
WORDS = {name: unpack_ints(vectors[name]) for name in STREAMS}
SIDES = params["sides"]  # of a block with both: the keys, then the values
QUEUE = 2  # jobs that wait


def schedule(side: dict, packets: int) -> dict[str, list[int]]:
    """Cycles of each stream's words, when nothing idles or stalls.

    A job begins when its codebook, its queries and it itself are there, and the job before ends in
    the same cycle. Its first beat comes in the next one. A job ends every second cycle at most.
    """
    counts, sums, latency = side["counts"], side["sums"], side["latency"]
    found: dict[str, list[int]] = {name: [] for name in packets_of(side)}
    begins, ends, switches = [], [], []

    def stream(name: str, first: int, count: int) -> int:
        """``count`` words from cycle ``first`` on; the cycle of the last."""
        first = max([first, *(last + 1 for last in found[name][-1:])])
        found[name] += range(first, first + count)
        return first + count - 1

    for n in range(packets):
        given = stream("job", begins[n - QUEUE] + 1 if n >= QUEUE else 0, 1)
        ready = [given + 1, *ends[-1:]]
        if counts["codebook"][n]:
            freed = switches[-1] + 1 if switches else 0
            ready.append(stream("codebook", freed, counts["codebook"][n]) + 2)
        if "q" in counts:
            ready.append(stream("q", begins[-1] + 1 if begins else 0, counts["q"][n]) + 1)
        begins.append(max(ready))
        if counts["codebook"][n]:
            switches.append(begins[-1])
        # Of a block of sums: those of the job before have left.
        start = max(begins[-1] + 1, ends[-1] + 3 + sums if sums and ends else 0)
        beats = counts["code"][n]
        end = max([start + max(beats - 1, 0), *(last + 2 for last in ends[-1:])])
        codes = [*range(start, start + beats - 1), end] if beats else []
        found["code"] += codes
        ends.append(end)
        found["end"].append(end + 2)
        if sums:
            found["weight"] += codes
            found["sum"] += range(end + latency, end + latency + sums)
        else:
            found["score"] += [cycle + latency for cycle in codes]
    return found


def packets_of(side: dict) -> dict[str, list[int]]:
    """Counts, by stream, the words that are done after each job."""
    codes, sums = side["counts"]["code"], side["sums"]
    one = [1] * len(codes)
    counts = {"job": one, "end": one, **side["counts"]}
    counts |= {"weight": codes, "sum": [sums] * len(codes)} if sums else {"score": codes}
    return {name: list(accumulate(each)) for name, each in counts.items()}


class Jobs(Contract):
    """The cycle of each word follows from the sizes of the jobs."""

    def check_timing(self, flow, packets=None) -> None:
        assert block_timing().latency == SIDES[0]["latency"]
        for side in SIDES:
            count = min(self.count if packets is None else packets, len(side["counts"]["code"]))
            for name, cycles in schedule(side, count).items():
                assert flow.cycles[side["prefix"] + name] == cycles, name


def packets() -> dict[str, list[int]]:
    """The packets of all streams; a side with fewer jobs has done them all in the later packets."""
    ends = {
        side["prefix"] + name: each
        for side in SIDES
        for name, each in packets_of(side).items()
    }  # fmt: skip
    most = max(len(each) for each in ends.values())
    return {name: each + each[-1:] * (most - len(each)) for name, each in ends.items()}


contract = Jobs(WORDS, packets=packets(), some=28, cuts=(*range(1, 16), 40, 90))
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
