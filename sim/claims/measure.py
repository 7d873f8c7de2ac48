"""Numbers of chips that several claims use. Each is computed once."""

import functools

from golden.config import ConfigError
from sim.claims.claim import geomean
from sim.cost import Cost
from sim.engine import NOT_SCALED, Engine, check_fits, engine_of
from sim.model import Model, find_model
from sim.run import Run, decoding
from sim.work import Pass

_engine = functools.cache(engine_of)
_model = functools.cache(find_model)


@functools.cache
def _run(hardware: str, model: str, out: int, batch: int) -> Run:
    """Runs sequences that begin with one word."""
    return Run(_engine(hardware), _model(model), batch, 1, out).compute()


def token_seconds(hardware: str, model: str, out: int, batch: int = 1) -> float:
    """The seconds of a new token, of sequences that begin with one word."""
    return _run(hardware, model, out, batch).token_seconds / batch


def _with_energy(hardware: str, model: str, out: int, batch: int) -> Run:
    """ConfigError: the chip's energy is not scaled."""
    made = _run(hardware, model, out, batch)
    if why := made.engine.not_scaled.get("energy"):
        raise ConfigError(f"{hardware}: energy is {NOT_SCALED}: {why}")
    return made


def token_joules(hardware: str, model: str, out: int, batch: int = 1) -> float:
    """The joules of a new token, of sequences that begin with one word.

    ConfigError: it is not scaled.
    """
    return _with_energy(hardware, model, out, batch).joules_per_token.value


def energy_parts(hardware: str, model: str, out: int, batch: int = 1) -> dict[str, float]:
    """Joules of decoding by ``sim.cost.ENERGY``. ConfigError: they are not scaled."""
    energy = _with_energy(hardware, model, out, batch).decode.energy
    return {name: joules.value for name, joules in energy.items()}


def speed_ratio(ours: str, theirs: str, models: tuple[str, ...], out: int = 2048) -> float:
    """Geometric mean over models of tokens per second, ours by theirs, one sequence."""
    return geomean([token_seconds(theirs, m, out) / token_seconds(ours, m, out) for m in models])


def energy_ratio(ours: str, theirs: str, models: tuple[str, ...], out: int = 2048) -> float:
    """Geometric mean over models of joules per token, theirs by ours, one sequence."""
    return geomean([token_joules(theirs, m, out) / token_joules(ours, m, out) for m in models])


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
