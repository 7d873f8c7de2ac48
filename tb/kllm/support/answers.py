"""A memory of read clients, inside the simulator: answers come some cycles after their requests."""

import cocotb
from cocotb.triggers import FallingEdge, ReadOnly

from tb.contract import Contract


class Answers:
    """Appends the answer of each request to ``offers[answer]``, in the order of the requests.

    Parameters
    ----------
    clients : request -> (answer, function from the request's word to that of the answer, or to a
        list of its words)
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
                found = look_up(word)
                due.append((cycle + wait, answer, found if isinstance(found, list) else [found]))
            while due and due[0][0] <= cycle + 1:  # the bench offers it in the next cycle
                _, answer, words = due.pop(0)
                self.offers[answer] += words
            await FallingEdge(bench.dut.clk)
            cycle += 1

    def stop(self):
        self._running = False


class Served(Contract):
    """A contract with a memory: the words of a source in ``clients`` are answers, not given ones.

    clients : as of Answers
    delay : cycles from a request to its answer, at most, where sources idle or sinks stall
    fastest : the same of the other runs, exactly
    """

    def __init__(self, words, clients, *, delay, fastest=1, packets, **fields) -> None:
        self.clients, self.delay, self.fastest = clients, delay, fastest
        answers = [answer for answer, _ in clients.values()]
        none = [0] * len(next(iter(packets.values())))
        words, packets = words | {n: [] for n in answers}, packets | dict.fromkeys(answers, none)
        super().__init__(words, packets=packets, **fields)

    def offers(self, counts):
        return super().offers(counts) | self.answers.offers

    async def serve(self, bench, run, flow):
        delay = self.delay if flow else self.fastest
        self.answers = Answers(bench, self.clients, delay, random=bool(flow))
        try:
            return await run
        finally:
            self.answers.stop()

    async def replay(self, bench, packets=None, **flow):
        return await self.serve(bench, super().replay(bench, packets, **flow), flow)

    async def interrupt(self, bench, cut, **flow) -> None:
        await self.serve(bench, super().interrupt(bench, cut, **flow), flow)
