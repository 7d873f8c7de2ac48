"""Runs inside the simulator, started by test_control.py: requests to the jobs of the parts."""

from golden.words import unpack_ints
from tb.bench import params, vectors
from tb.million.cycles import Followed

WORDS = {name: unpack_ints(vectors[name]) for name in params["packets"]}
MASKS = {name: unpack_ints(vectors[f"mask_{name}"]) for name in ("encode", "write", "attend")}
MOVES = ("request", "begun", "attend", "encode", "encoded", "load", "write", "page")


class Parts(Followed):
    """Encoder, ATTENDs and LOADs: ``encoded`` follows each job, the others end after a while."""

    is_checked = True

    async def interrupt(self, bench, cut, **flow) -> None:
        """The requests go on from those of the run before: their jobs are others."""
        self.is_checked = False
        await super().interrupt(bench, cut, **flow)

    def begin(self, bench) -> None:
        self.is_checked = True
        self.rng = bench.rng("parts")
        self.moved = dict.fromkeys(MOVES, 0)
        self.swaps = self.attended = self.loaded = 0
        self.left = {"attended": 0, "loaded": 0}  # cycles that the oldest one still takes
        self.pulse = 0
        self.queue: list[int] = []

    def offers(self, counts):
        self.queue = []
        return {**super().offers(counts), "encoded": self.queue}

    async def replay(self, bench, packets=None, **flow):
        result = await super().replay(bench, packets, **flow)
        done = self.moved["request"]
        due = sum(request < done for request in params["swaps"])
        assert self.swaps == due, f"{self.swaps} swaps, not {due}"
        return result

    def idle(self) -> dict[str, bool]:
        return {
            "encoded": self.moved["encode"] == self.moved["encoded"],
            "attended": self.moved["begun"] == self.attended,
            "loaded": self.moved["load"] == self.loaded,
        }

    def sample(self, bench) -> None:
        if self.is_checked:
            self.check_waits(bench)
        self.swaps += int(bench.dut.swap.value)
        for name, _ in bench.transfers(MOVES):
            self.moved[name] += 1
            if name == "encode":
                words = self.words["encoded"]
                self.queue.append(words[(self.moved["encode"] - 1) % len(words)])
        for part, begun in (("attended", "attend"), ("loaded", "load")):
            if self.moved[begun] > getattr(self, part) and not self.left[part]:
                self.left[part] = self.rng.randrange(1, (90, 20)[part == "loaded"])

    def check_waits(self, bench) -> None:
        """No job comes before the parts are idle that it waits for; no swap comes undue."""
        idle = self.idle()
        request = self.moved["request"] - 1  # being carried out
        for name, needs in params["needs"].items():
            for part in needs.get(str(self.moved[name]), ()):
                is_early = bench.offered(name) and not idle[part]
                assert not is_early, f"{name} {self.moved[name]}, request {request}: not {part}"
        if bench.dut.swap.value:
            wanted = params["swaps"][self.swaps : self.swaps + 1]
            assert [request] == wanted, f"a swap in request {request}, not {wanted}"
            assert all(idle.values()), f"a swap in request {request} while parts work: {idle}"

    def drive(self, bench) -> None:
        self.pulse = 0
        for part in self.left:
            if self.left[part]:
                self.left[part] -= 1
                if not self.left[part]:
                    setattr(self, part, getattr(self, part) + 1)
                    self.pulse |= part == "attended"
        idle = self.idle()
        bench.dut.attended.value = int(self.pulse)
        bench.dut.encode_idle.value = int(idle["encoded"])
        bench.dut.load_idle.value = int(idle["loaded"])
        sound = self.rng.getrandbits(1)
        if idle["loaded"] and self.loaded:
            sound = params["sound"][(self.loaded - 1) % len(params["sound"])]
        bench.dut.loaded.value = sound

    def check_timing(self, flow, packets=None) -> None:
        """ATTENDs whose codebooks are in use, one after another."""
        timing, cycles = params["timing"], flow.cycles
        pairs = [pair for pair in params["attends"] if pair[0] + 1 < len(cycles["request"])]
        assert pairs or packets
        for request, begun in pairs:
            at = cycles["request"][request]
            assert cycles["begun"][begun] - at == timing[0], f"request {request}: begun"
            assert cycles["request"][request + 1] - at == timing[1], f"request {request + 1}"


contract = Parts(
    WORDS, packets=params["packets"], some=params["some"], masks=MASKS,
    cuts=[*range(1, 14), 25, 49, 77, 103, 203],
)  # fmt: skip
random_flow, uneven_flow, late_ready, full_rate, reset_in_mid_packet = contract.tests()
