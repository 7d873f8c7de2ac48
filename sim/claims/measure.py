"""Numbers of chips that several claims use. Each is computed once."""

import functools

from golden.config import ConfigError
from sim.claims.claim import geomean
from sim.cost import Cost
from sim.engine import Engine, check_fits, engine_of
from sim.model import Model, find_model
from sim.run import Run, decoding
from sim.work import Pass

__all__ = [
    "decode_step", "energy_parts", "energy_ratio", "largest_batch", "served", "speed_ratio",
    "token",
]  # fmt: skip

_engine = functools.cache(engine_of)
_model = functools.cache(find_model)


@functools.cache
def _run(hardware: str, model: str, out: int, batch: int) -> Run:
    """Of sequences that begin with one word."""
    return Run(_engine(hardware), _model(model), batch, 1, out).compute()


def token(hardware: str, model: str, out: int, batch: int = 1) -> tuple[float, float]:
    """Seconds and joules of a new token, of sequences that begin with one word."""
    made = _run(hardware, model, out, batch)
    return made.token_seconds / batch, made.joules_per_token.value


def energy_parts(hardware: str, model: str, out: int, batch: int = 1) -> dict[str, float]:
    """Joules of the decoding of ``token`` by ``sim.cost.ENERGY``."""
    energy = _run(hardware, model, out, batch).decode.energy
    return {name: joules.value for name, joules in energy.items()}


def speed_ratio(ours: str, theirs: str, models: tuple[str, ...], out: int = 2048) -> float:
    """Geometric mean over models of tokens per second, ours by theirs, one sequence."""
    return geomean([token(theirs, m, out)[0] / token(ours, m, out)[0] for m in models])


def energy_ratio(ours: str, theirs: str, models: tuple[str, ...], out: int = 2048) -> float:
    """Geometric mean over models of joules per token, theirs by ours, one sequence."""
    return geomean([token(theirs, m, out)[1] / token(ours, m, out)[1] for m in models])


def largest_batch(engine: Engine, model: Model, batch: int, context: int) -> int:
    """Sequences of ``context`` tokens that the memory holds, at most ``batch``; 0: none."""
    low, high = 0, batch
    while low < high:
        middle = (low + high + 1) // 2
        try:
            check_fits(engine, model, middle, context)
            low = middle
        except ConfigError:
            high = middle - 1
    return low


@functools.cache
def served(hardware: str, model: str, batch: int, prompt: int, out: int) -> float:
    """New tokens per second of ``batch`` requests, in waves of as many as the memory holds.

    ConfigError: the memory holds none.
    """
    engine, found = _engine(hardware), _model(model)
    most = largest_batch(engine, found, batch, prompt + out)
    if not most:
        check_fits(engine, found, 1, prompt + out)
    seconds = 0.0
    for size in [most] * (batch // most) + ([batch % most] if batch % most else []):
        seconds += engine.cost(found, Pass.prefill(size, prompt)).seconds
        if out > 1:
            seconds += decoding(engine, found, size, prompt, out - 1).seconds
    return batch * out / seconds


@functools.cache
def decode_step(hardware: str, model: str, batch: int, context: int) -> Cost:
    """One step of decoding."""
    return _engine(hardware).cost(_model(model), Pass.decode(batch, context))
