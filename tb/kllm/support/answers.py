"""A memory of read clients, inside the simulator: answers come some cycles after their requests."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly


class Answers:
    """Appends the answer of each request to ``offers[answer]``, in the order of the requests.

    Parameters
    ----------
    clients : request -> (answer, function from the request's word to the answer's word)
    delay : cycles from a request to its answer, 1 or more; at most so many if ``random``
    """

    def __init__(self, bench, clients, delay=1, *, random=False):
        self.offers = {answer: [] for answer, _ in clients.values()}
        self._running = True
        cocotb.start_soon(self._serve(bench, clients, delay, random))

    async def _serve(self, bench, clients, delay, random):
        rng, cycle, due = bench.rng("answers"), 0, []
        while self._running:
            await ReadOnly()
            for name, word in bench.transfers(clients):
                answer, look_up = clients[name]
                wait = rng.randint(1, delay) if random else delay
                due.append((cycle + wait, answer, look_up(word)))
            while due and due[0][0] <= cycle + 1:  # the bench offers it in the next cycle
                _, answer, word = due.pop(0)
                self.offers[answer].append(word)
            await FallingEdge(bench.dut.clk)
            cycle += 1

    def stop(self):
        self._running = False
