"""A server of a test: in a thread, at a free port of this machine."""

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import openai

from senbazuru.host.engine import Engine
from senbazuru.serve.app import Service
from senbazuru.serve.command import Server

PATIENCE = 120.0  # seconds: more than anything here takes on a busy machine


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Waits until something holds. AssertionError: it does not."""
    end = time.monotonic() + patience
    while not holds():
        assert time.monotonic() < end, "it does not come to hold"
        time.sleep(0.002)


def is_idle(engine: Engine) -> bool:
    """Whether no request is left: none has a step before it, and each END has been taken."""
    return not (engine.is_busy or engine.stats()["requests"])


@contextlib.contextmanager
def running(service: Service) -> Iterator[int]:
    """The port of a server that ends with its worker and its engine."""
    server = Server(service)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as place:
        thread = threading.Thread(target=server.run, args=([place],), daemon=True)
        thread.start()
        try:
            until(lambda: server.started)
            yield place.getsockname()[1]
        finally:
            server.end()
            thread.join(PATIENCE)
            assert not thread.is_alive()
            assert service.worker.close(PATIENCE)
            service.worker.engine.close()


def client(port: int) -> openai.OpenAI:
    """The official client, which tries nothing twice."""
    return openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    )
