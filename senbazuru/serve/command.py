"""``senbazuru.serve``: the model on a chip, and the server until a signal ends it."""

import argparse
import asyncio
import contextlib
import functools
import hashlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import uvicorn
from rich.console import Console

from golden.config import ConfigError
from golden.kllm.bounds import bounds
from golden.kllm.isa import Unit
from golden.kllm.model.host_image import host_image
from golden.llm.kllm.pack import ModelPack
from hdl.kllm.accelerator import KllmAcceleratorConfig
from senbazuru.host.build import build_chip
from senbazuru.host.engine import Engine, HostError, Policy, VerilatedChip
from senbazuru.serve.app import Model, Service
from senbazuru.serve.text import Chat
from senbazuru.serve.worker import Worker
from senbazuru.talk.command import image, tokenizer_of
from senbazuru.talk.options import Options
from senbazuru.talk.report import rates

PATIENCE = 5  # seconds in which connections, and then the step, must end
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Server(uvicorn.Server):
    """A server that ends its requests as soon as it is to end."""

    def __init__(self, service: Service) -> None:
        config = uvicorn.Config(
            service.app(), log_level="warning", access_log=False, lifespan="on",
            timeout_graceful_shutdown=PATIENCE,
        )  # fmt: skip
        super().__init__(config)
        self._worker = service.worker

    def end(self) -> None:
        """Called in the thread of the server."""
        self._worker.shut()
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The server ends by itself after a signal; uvicorn would raise it once more."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop, before = asyncio.get_running_loop(), [signal.getsignal(each) for each in _SIGNALS]
        for each in _SIGNALS:
            loop.add_signal_handler(each, self.end)
        try:
            yield
        finally:
            for each, handler in zip(_SIGNALS, before, strict=True):
                loop.remove_signal_handler(each)
                signal.signal(each, handler)


def fingerprint(pack: ModelPack, config: KllmAcceleratorConfig) -> str:
    """A hash of all that the tokens of a request depend on."""
    said = repr((pack.identity, config.machine.describe()))
    return f"fp_{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def model_of(
    pack: ModelPack, config: KllmAcceleratorConfig, name: str | None = None, clock: int = 500
) -> Model:
    """ConfigError: the image has no tokenizer."""
    known = pack.manifest.model
    found = known.get("checkpoint") or Path(known["name"]).name

    @functools.cache
    def least(tokens: int, choosing: int) -> dict[str, int]:
        words = pack.step_programs.words(tokens, choosing)
        cycles = dict.fromkeys((unit.name for unit in Unit), 0)
        for each in bounds(words, config.machine, rates(config)):
            cycles[each.unit.name] += each.cycles
        return cycles

    return Model(
        name or found, tokenizer_of(pack), Chat.of(known.get("chat")), tuple(known.get("end", ())),
        fingerprint(pack, config), clock, least,
    )  # fmt: skip


def serve(options: argparse.Namespace) -> int:
    """The command; its exit status. ConfigError, OSError: bad input, one line."""
    # Before the calibration, which takes minutes.
    with socket.create_server((options.host, options.port)) as place:
        chosen = Options.of(options)
        say = Console(stderr=True, width=100)
        pack = image(chosen)
        model = model_of(pack, chosen.config, options.name, options.clock)
        say.print("building the accelerator: minutes, the first time")
        library = build_chip(chosen.config, chosen.threads)
        programs = host_image(pack.step_programs, pack.thresholds.tolist())
        policy = Policy[options.policy.upper().replace("-", "_")]
        with contextlib.ExitStack() as stack:
            try:
                chip = stack.enter_context(VerilatedChip(library, pack.folder, chosen.latency))
                requests = options.queue + chosen.config.machine.cache_part.sequences + 1
                engine = Engine(chip, programs, policy=policy, requests=requests)
            except HostError as error:
                raise ConfigError(f"{error}") from None
            worker = Worker(engine, options.queue)
            stack.callback(_end, worker, engine)
            host, port = place.getsockname()[:2]
            say.print(
                f"{model.name} at http://{host}:{port}/v1, the batch at http://{host}:{port}/"
            )
            asyncio.run(Server(Service(model, worker)).serve(sockets=[place]))
            say.print("the server has ended")
    return 0


def _end(worker: Worker, engine: Engine) -> None:
    """Closes the engine. A step may take minutes: then the process ends with it, at once."""
    if worker.close(PATIENCE):
        return engine.close()
    print("senbazuru.serve: ended within a step", file=sys.stderr, flush=True)
    os._exit(0)
