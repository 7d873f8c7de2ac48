"""Runs inside the simulator, started by test_norm_finish.py: sums to statistics."""

from tb.bench import params
from tb.contract import Contract, block_timing

TOKENS = params["tokens"]
TIMING = block_timing()
WORDS = {
    "token": [token["token"] for token in TOKENS],
    "value": [word for token in TOKENS for word in token["value"]],
    "o": [token["o"] for token in TOKENS],
}


def ends(name):
    count, found = 0, []
    for token in TOKENS:
        count += len(token["value"]) if name == "value" else 1
        found.append(count)
    return found


class Tokens(Contract):
    """The cycle of every token and result, from the timing."""

    def check_timing(self, flow, packets=None) -> None:
        taken, starts, results, value = 0, [], [], 0
        for token in TOKENS[:packets]:
            starts.append(taken)
            if token["value"]:
                last = flow.cycles["value"][value + 4]
                value += 5
                cycles = TIMING.latency_max if token["layer_norm"] else TIMING.latency
                results.append(last + cycles)
            else:
                results.append(taken + TIMING.delay("from a faulty token to o"))
            taken = results[-1] + 1
        assert flow.cycles["token"] == starts
        assert flow.cycles["o"] == results
        # One after the other, tokens of RMSNorm take the interval.
        pairs = zip(TOKENS, starts, starts[1:], strict=False)
        periods = {
            after - now for token, now, after in pairs if token["value"] and not token["layer_norm"]
        }
        assert periods == {TIMING.interval}


contract = Tokens(
    WORDS, packets={name: ends(name) for name in WORDS}, some=40, cuts=range(1, 160, 9)
)
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
