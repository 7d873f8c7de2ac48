"""A chip whose costs are a formula, and a server that runs one pass at a time."""

import dataclasses
import math

from golden.config import Config
from sim.constant import Constant, Interval
from sim.cost import Cost, Spent
from sim.engine import Engine
from sim.hardware import Hardware, Memory
from sim.model import Model
from sim.serving.policy import Policy
from sim.serving.trace import Request

MODEL = Model(
    name="small", architecture="llama", hidden=64, layers=2, heads=4, kv_heads=2, head_size=16,
    intermediate=128, vocabulary=100,
)  # fmt: skip
WINDOWED = dataclasses.replace(MODEL, window=9)


def _constant(value: float, unit: str) -> Constant:
    return Constant(value=value, unit=unit, kind="assumed", source="a test")


class FakeEngine(Engine):
    """Seconds are linear in sequences, new tokens and the tokens that they read."""

    name = "fake"
    constants = {}  # noqa: RUF012, the interface is a mapping

    @dataclasses.dataclass(frozen=True, kw_only=True)
    class Settings(Config):
        """None."""

    def __init__(self, tokens: int = 1000, slow: float = 1.0, bend: int = 0):
        """tokens: that fit next to the weights; slow: factor of time; bend: context of a kink."""
        constants = {
            "bandwidth": _constant(1, "GB/s"),
            "capacity": _constant(1000.0 + 8 * tokens, "B"),
            "efficiency": _constant(1, ""),
            "latency": _constant(0, "s"),
            "energy": _constant(1, "pJ/bit"),
            "static": _constant(0, "W"),
        }
        memory = Memory("none", 1, constants)
        super().__init__(Hardware("fake", "fake", "a formula", {}, {}, memory))
        self.slow, self.bend = slow, bend

    def weight_bytes(self, model: Model) -> float:
        return 1000.0

    def kv_bytes(self, model: Model, tokens: int) -> float:
        return 8.0 * tokens

    def seconds(self, new: int, read: float) -> float:
        """read: cached tokens that all sequences read."""
        return self.slow * (0.0101 + 0.00137 * new + 0.000113 * read)

    def cost(self, model: Model, step) -> Cost:
        read = step.cached(model)
        if self.bend:
            read = max(read, self.bend * step.sequences)
        seconds = self.seconds(step.tokens, read)
        traffic = {"weights": 1000.0, "kv_read": 8.0 * read}
        energy = {"core": Interval(seconds, 2 * seconds, 3 * seconds)}
        return Cost((Spent("all", seconds, {}, traffic),), energy)


class Reference:
    """The rules of sim.serving.schedule, one pass at a time, every sum anew from its terms."""

    def __init__(self, engine: FakeEngine, policy: Policy, page: int, total: int, window: int = 0):
        self.engine, self.policy, self.page, self.total = engine, policy, page, total
        self.window = window
        self.now = 0.0
        self.live: list[dict] = []  # oldest first; left > 0: the prompt is not cached yet
        self.waiting: list[dict] = []
        self.most_used = 0

    def pages(self, tokens: int) -> int:
        return math.ceil(tokens / self.page)

    def used(self, grow: int = 0) -> int:
        """Pages of all; grow: words more of each that decodes."""
        used = 0
        for each in self.live:
            tokens = each["fill"] if each["left"] else each["cached"] + grow
            if self.policy.schedule == "static":
                tokens = each["prompt"] + each["output"] - 1
            used += self.pages(tokens)
        return used

    def enter(self) -> None:
        static = self.policy.schedule == "static"
        if static and self.live:
            return
        while self.waiting and len(self.live) < self.policy.max_batch:
            head = self.waiting[0]
            fill = head["prompt"] + head["made"]
            need = self.pages(head["prompt"] + head["output"] - 1 if static else fill)
            spare = self.total // 100 if self.live else 0
            if self.used() + need > self.total - spare:
                return
            self.live.append(self.waiting.pop(0))
            head |= {"left": fill, "fill": fill, "cached": 0}

    def read(self, decoding: list[dict]) -> int:
        most = self.window - 1 if self.window else 1 << 30
        return sum(min(each["cached"], most) for each in decoding)

    def make_room(self) -> None:
        while self.policy.schedule != "static" and self.used(1) > self.total:
            youngest = self.live.pop()
            youngest["preempted"] += 1
            self.waiting.insert(0, youngest)

    def one_pass(self) -> None:
        filling = [each for each in self.live if each["left"]]
        pieces: list[tuple[dict, int]] = []
        decoding: list[dict] = []
        if self.policy.mixes or not filling:
            self.make_room()
            filling = [each for each in self.live if each["left"]]
            decoding = [each for each in self.live if not each["left"]]
        if self.policy.mixes:
            room = self.policy.tokens - len(decoding) % self.policy.tokens
            if self.policy.schedule == "chunked":
                room = max(self.policy.tokens - len(decoding), 0)
            for each in filling:
                piece = min(room, each["left"])
                room -= piece
                if piece:
                    pieces.append((each, piece))
        else:
            tokens = 0
            for each in filling:
                tokens += each["left"]
                if pieces and tokens > self.policy.tokens:
                    break
                pieces.append((each, each["left"]))
        read = self.read(decoding)
        most = self.window - 1 if self.window else 1 << 30
        read_by_prompts = sum(min(each["cached"], most) for each, _ in pieces)
        if decoding and pieces:
            read = len(decoding) * round(read / len(decoding))
        new = len(decoding) + sum(piece for _, piece in pieces)
        self.now += self.engine.seconds(new, read + read_by_prompts)
        for each in decoding:
            each["cached"] += 1
            each["made"] += 1
        for each, piece in pieces:
            each["cached"] += piece
            each["left"] -= piece
            if not each["left"]:
                each["made"] += 1
                each.setdefault("first", self.now)
        self.most_used = max(self.most_used, self.used())
        for each in self.live:
            if not each["left"] and each["made"] == each["output"]:
                each["end"] = self.now
        self.live = [each for each in self.live if "end" not in each]

    def run(self, requests: list[Request]) -> list[dict]:
        every = [dataclasses.asdict(each) | {"made": 0, "preempted": 0} for each in requests]
        kept = [
            each for each in every if self.pages(each["prompt"] + each["output"] - 1) <= self.total
        ]
        while kept or self.waiting or self.live:
            if not (self.waiting or self.live):
                self.now = max(self.now, kept[0]["arrival"])
            while kept and kept[0]["arrival"] <= self.now:
                self.waiting.append(kept.pop(0))
            if self.policy.schedule == "v1":
                self.one_step()
            else:
                self.enter()
                self.one_pass()
        return every

    def one_step(self) -> None:
        """vLLM's V1: each request in the order of entry allocates its tokens, then the queue."""
        budget, steps, preempted = self.policy.tokens, [], False
        at = 0
        while at < len(self.live) and budget:
            each = self.live[at]
            new = min(each["left"] or 1, budget)
            need = self.pages(each["cached"] + new)
            lost = False
            while self.held() - self.pages(each["fill"]) + need > self.total:
                victim = self.live.pop()
                victim["preempted"] += 1
                self.waiting.insert(0, victim)
                preempted = True
                lost = victim is each
                if lost:
                    break
            if lost:
                break
            each["fill"] = each["cached"] + new
            steps.append((each, new))
            budget -= new
            at += 1
        while self.waiting and not preempted and budget and len(self.live) < self.policy.max_batch:
            head = self.waiting[0]
            new = min(head["prompt"] + head["made"], budget)
            if self.held() + self.pages(new) > self.total:
                break
            self.waiting.pop(0)
            self.live.append(head)
            head |= {"left": head["prompt"] + head["made"], "cached": 0, "fill": new}
            steps.append((head, new))
            budget -= new
        self.run_step(steps)

    def held(self) -> int:
        return sum(self.pages(each["fill"]) for each in self.live)

    def run_step(self, steps: list[tuple[dict, int]]) -> None:
        decoding = [each for each, _ in steps if not each["left"]]
        read = self.read(decoding)
        filling = [(each, new) for each, new in steps if each["left"]]
        most = self.window - 1 if self.window else 1 << 30
        if decoding and filling:
            read = len(decoding) * round(read / len(decoding))
        read += sum(min(each["cached"], most) for each, _ in filling)
        self.now += self.engine.seconds(sum(new for _, new in steps), read)
        self.most_used = max(self.most_used, self.held())
        for each, new in steps:
            each["cached"] += new
            if each["left"]:
                each["left"] -= new
                if each["left"]:
                    continue
                each.setdefault("first", self.now)
            each["made"] += 1
            if each["made"] == each["output"]:
                each["end"] = self.now
        self.live = [each for each in self.live if "end" not in each]
