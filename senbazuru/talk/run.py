"""Tokens one after another: the pass on hardware, golden next to it, the session on disk."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from golden.kllm.layer.layout import Job
from golden.kllm.model.host import logits_of
from golden.kllm.model.program import PassProgram, largest_chunk, pass_program
from golden.llm.kllm.pack import ModelPack
from hdl.kllm.accelerator import KllmAcceleratorConfig
from senbazuru.talk.driver import Driver, ProgramRun
from senbazuru.talk.golden import (
    Golden,
    GoldenRun,
    KeptTokens,
    fill_program,
    kept_file,
    state_program,
)
from senbazuru.talk.report import Figures, figures, step_figures
from senbazuru.talk.sampling import Sampling
from senbazuru.talk.session import Session
from tb.native.build import Native


class Mismatch(AssertionError):
    """Hardware and golden differ; one line says where."""


@dataclasses.dataclass(frozen=True)
class Settings:
    """check : compare every word and the state; golden: compare tokens. latency: of all memories

    chunk : most tokens of the prompt in a pass
    all_logits : of every token, not of the last one alone
    by_host : the host writes each command, and reads each status and the logits
    """

    pack: ModelPack
    config: KllmAcceleratorConfig
    native: Native
    sampling: Sampling
    latency: int = 40
    chunk: int = 8
    check: bool = False
    golden: bool = True
    all_logits: bool = False
    by_host: bool = False

    @property
    def steps(self) -> bool:
        """Programs are in memory, and the chip chooses: else the host needs statuses or logits."""
        return not (self.check or self.all_logits or self.by_host)


@dataclasses.dataclass(frozen=True)
class Pass:
    """token: chosen, None where no logits were read; compared: words equal to golden's.

    logits: (tokens, vocabulary) FP16 words
    """

    job: Job
    token: int | None
    seconds: float
    figures: Figures
    compared: int
    logits: np.ndarray


def made_for(settings: Settings, prompt: list[int]) -> dict[str, object]:
    """The facts that the tokens of a run depend on."""
    made: dict[str, object] = {
        "image": settings.pack.identity,
        "prompt": prompt,
        "sampling": settings.sampling.describe(),
    }
    # A run that nobody compared does not go on as one that is.
    return made | ({"check": True} if settings.check else {})


class Talk:
    """A run: the session's tokens go on from where they are. Use it in a ``with``."""

    def __init__(self, settings: Settings, session: Session, total: int, kept: Path) -> None:
        """total: tokens that the session will have; kept: folder of golden's tokens."""
        self.settings, self.session, self.total = settings, session, total
        self.layout = settings.pack.layout
        prompt = session.made_for["prompt"]
        assert isinstance(prompt, list)
        self._prompt = len(prompt)
        self._kept = KeptTokens(kept_file(kept, session.made_for))
        is_known = set(range(len(prompt), total)) <= self._kept.tokens.keys()
        self._needs_golden = settings.check or (settings.golden and not is_known)
        self._chunk: int | None = None

    def __enter__(self) -> "Talk":
        settings, folder = self.settings, self.settings.pack.folder
        with contextlib.ExitStack() as stack:
            self.driver = stack.enter_context(
                Driver(settings.native.executable, settings.pack, settings.latency)
            )
            self.golden: Golden | None = None
            if self._needs_golden:
                golden = Golden(folder, settings.config.machine)
                self.golden = stack.enter_context(golden)
            self._restore()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _restore(self) -> None:
        """K and V of the tokens that are cached already: their passes again, on both sides.

        Mismatch: a token of the session is not golden's.
        """
        tokens = self.session.tokens
        if self.settings.golden:
            for place, token in enumerate(tokens):
                self._check_token(place, token, self._kept.tokens.get(place, token))
        for job in self.session.jobs():
            some = tokens[job.context : job.context + job.tokens]
            if self.settings.steps:
                self.driver.run_step(job, some, 0)
            else:
                program = pass_program(self.layout, job, 0)
                self.driver.run_pass(program, some)
            if self.golden:
                self._repeat(job)
        if self.settings.check:
            self._compare_program(fill_program(self.layout), "rows filled at the start")

    def _repeat(self, job: Job) -> None:
        """A pass of the session on golden, whose token must be the session's; Mismatch."""
        assert self.golden is not None
        tokens, place = self.session.tokens, job.context + job.tokens
        some = tokens[job.context : place]
        self.golden.send("run", job, 1, some, self.settings.sampling.place)
        found = self.golden.result()
        if self._prompt <= place < len(tokens):
            self._compare_token(job, found, tokens[place])

    # Passes.

    def passes(self) -> Iterator[Pass]:
        """Until the session has ``total`` tokens. DriverError, GoldenFailed, Mismatch."""
        while len(self.session.tokens) < self.total:
            yield self.next_pass()

    def next_job(self) -> tuple[Job, int]:
        """The job of the next pass, and of how many of its tokens the logits are read."""
        context = self.session.cached
        pending = len(self.session.tokens) - context
        count = 1
        if pending > 1:
            most = min(pending, self._chunk or self.settings.chunk)
            count = self._chunk = largest_chunk(
                self.layout, most, context, self.settings.steps
            )
            count = min(count, pending)
        is_whole = self.settings.check or self.settings.all_logits
        logits = count if is_whole else int(count == pending)
        return Job(count, context), logits

    def next_pass(self) -> Pass:
        """DriverError, GoldenFailed, Mismatch: the session is as it was."""
        session, settings = self.session, self.settings
        job, logits = self.next_job()
        tokens = session.tokens[job.context : job.context + job.tokens]
        place = job.context + job.tokens
        began = time.perf_counter()
        program = pass_program(self.layout, job, logits, chooses=True)
        if self.golden:
            self.golden.send("run", job, logits, tokens, settings.sampling.place)
        if settings.steps:
            return self._step(program, tokens, logits, began)
        run = self.driver.run_pass(program, tokens, settings.sampling.place)
        seconds = time.perf_counter() - began
        # Those of all tokens are read for the comparison: the last one's are what follows.
        token = int(run.readback[-1]) if logits and place == len(session.tokens) else None
        words = logits_of(program, run.readback).numpy()
        compared = self._compare(job, run, token)
        made = figures(program, run, settings.config)
        kept = {"tokens": job.tokens, "context": job.context, "logits": logits,
                "seconds": round(seconds, 2), "compared": compared, **made.describe()}  # fmt: skip
        session.add(token, kept)
        return Pass(job, token, seconds, made, compared, words)

    def _step(self, program: PassProgram, tokens: list[int], logits: int, began: float) -> Pass:
        """The next pass, its program in memory; ``program`` is the one with commands by the host.

        The last token of the job chooses, or none.
        """
        job, session = program.job, self.session
        done = self.driver.run_step(job, tokens, logits, self.settings.sampling.place)
        seconds = time.perf_counter() - began
        token = done.ids[-1] if logits and job.context + job.tokens == len(session.tokens) else None
        compared = self._compare(job, None, token)
        words = self.driver.step_words(job.tokens, logits)
        made = step_figures(words, done, self.settings.config)
        kept = {"tokens": job.tokens, "context": job.context, "logits": logits,
                "seconds": round(seconds, 2), "compared": compared, "written": done.written,
                "checked": done.checked, **made.describe()}  # fmt: skip
        session.add(token, kept)
        empty = np.zeros((0, self.layout.shape.vocabulary), dtype=np.int64)
        return Pass(job, token, seconds, made, compared, empty)

    # Comparisons.

    def _compare(self, job: Job, run: ProgramRun | None, token: int | None) -> int:
        """Words equal to golden's; Mismatch. Without ``check`` the token alone."""
        found: GoldenRun | None = self.golden.result() if self.golden else None
        compared = 0
        if self.settings.check:
            assert run is not None
            assert found is not None
            compared = compare_run(run, found, "pass")
            state = state_program(self.layout.config)
            compared += self._compare_program(state, "state after the pass")
        if token is not None and self.settings.golden:
            self._compare_token(job, found, token)
            compared += 0 if self.settings.check else 1
        return compared

    def _compare_token(self, job: Job, found: GoldenRun | None, token: int) -> None:
        place = job.context + job.tokens

        def golden_token() -> int:
            assert found is not None
            return int(found.readback[-1])

        self._check_token(place, token, self._kept.get(place, golden_token))

    @staticmethod
    def _check_token(place: int, token: int, wanted: int) -> None:
        if token != wanted:
            raise Mismatch(f"token {place} is {token}, golden's is {wanted}")

    def _compare_program(self, words: list[int], where: str) -> int:
        assert self.golden is not None
        self.golden.send("program", words)
        return compare_run(self.driver.run(words), self.golden.result(), where)


def compare_run(run: ProgramRun, wanted: GoldenRun, where: str) -> int:
    """Statuses, of which hardware keeps the order within a unit, and words read back; Mismatch."""
    pairs = (
        ("statuses", np.sort(run.status), np.sort(wanted.status.astype(np.uint32))),
        ("words read back", run.readback, wanted.readback.astype(np.uint32)),
    )
    for what, found, golden in pairs:
        if len(found) != len(golden):
            raise Mismatch(f"{where}: {len(found)} {what}, golden has {len(golden)}")
        differ = np.flatnonzero(found != golden)
        if len(differ):
            first = int(differ[0])
            raise Mismatch(
                f"{where}: {len(differ)} of {len(golden)} {what} differ, first word {first}: "
                f"{int(found[first]):#x}, golden {int(golden[first]):#x}"
            )
    return len(run.status) + len(run.readback)
