"""The HTTP side: the API's routes, the page of the batch and its figures."""

import asyncio
import contextlib
import dataclasses
import functools
import os
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from golden.kllm.isa import Unit
from senbazuru.host.engine import HostError
from senbazuru.serve import protocol, text
from senbazuru.serve.protocol import Answer, ApiError, Asked
from senbazuru.serve.worker import Done, Failed, Item, Piece, Wanted, Worker

_PAGE = Path(__file__).with_name("page.html")
_TOKENS = 16  # of a completion, by default: the API's number
_DISCARDED = 64 << 20  # bytes of a body that is too large, so that its sender reads the answer


class Encoder(Protocol):
    """The part of a ``tokenizers.Tokenizer`` that is used."""

    def encode(self, sequence: str, *, add_special_tokens: bool) -> Any: ...
    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str: ...


@dataclasses.dataclass(frozen=True)
class Model:
    """ends: tokens that end a text; fingerprint: of all that tokens depend on

    clock : MHz of the chip, for tokens per second
    least : fewest cycles of each unit for a step, from its tokens and choosing places
    """

    name: str
    tokenizer: Encoder
    chat: text.Chat
    ends: Sequence[int]
    fingerprint: str
    clock: int = 500
    least: Callable[[int, int], dict[str, int]] = lambda _tokens, _choosing: {}


@dataclasses.dataclass(frozen=True)
class Limits:
    """body: bytes; patience: seconds in which a body must come"""

    body: int = 1 << 20
    patience: float = 30.0


class Service:
    """The endpoints. ``app`` starts the worker and closes it."""

    def __init__(self, model: Model, worker: Worker, limits: Limits = Limits()) -> None:
        self.model, self.worker, self.limits = model, worker, limits
        self.facts = worker.engine.facts
        self._began = int(time.time())

    def app(self) -> Starlette:
        post, get = ["POST"], ["GET"]
        complete = functools.partial(self._complete, protocol.Completion)
        chat = functools.partial(self._complete, protocol.Chat)
        return Starlette(
            routes=[
                Route("/v1/completions", _endpoint(complete), methods=post),
                Route("/v1/chat/completions", _endpoint(chat), methods=post),
                Route("/v1/models", self._models, methods=get),
                Route("/v1/models/{name:path}", self._model, methods=get),
                Route("/health", self._health, methods=get),
                Route("/metrics", self._metrics, methods=get),
                Route("/status", self._status, methods=get),
                Route("/", self._page, methods=get),
            ],
            exception_handlers={
                ApiError: _refuse,
                HTTPException: _refuse,
                ClientDisconnect: _left,
                Exception: _broken,
            },
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        self.worker.start()
        yield
        # The thread may be in a step of minutes: the caller decides how long it waits.
        self.worker.shut()

    # Completions.

    async def _complete(self, kind: type[Asked], request: Request) -> Response:
        asked = protocol.parse(kind, await self._body(request))
        if asked.model != self.model.name:
            raise self._no_model(asked.model)
        wanted = await asyncio.to_thread(self._wanted, asked, request)
        answer = Answer(
            ("chatcmpl-" if asked.is_chat else "cmpl-") + os.urandom(12).hex(), int(time.time()),
            self.model.name, self.model.fingerprint, asked.is_chat, asked.includes_usage,
        )  # fmt: skip
        decode = functools.partial(self.model.tokenizer.decode, skip_special_tokens=True)
        written = text.Written(decode, asked.stop, self.model.ends)
        headers = {"x-seed": str(wanted.seed)} if wanted.temperature else {}
        if asked.stream:
            items = _Items(self.worker, wanted, written)
            return _Stream(items, answer, headers)
        with _Items(self.worker, wanted, written) as items:
            body = await _unless_left(_whole(items, answer), request.receive)
        return Response() if body is None else JSONResponse(body, headers=headers)

    async def _body(self, request: Request) -> bytes:
        """ApiError 413, 408. Of a body that is too large, no more than the limit is kept."""
        said = request.headers.get("content-length", "0")
        is_large = said.isdigit() and int(said) > self.limits.body
        body, size = bytearray(), 0
        try:
            async with asyncio.timeout(self.limits.patience):
                async for chunk in request.stream():
                    size += len(chunk)
                    is_large = is_large or size > self.limits.body
                    if size > _DISCARDED:
                        break
                    if is_large:
                        body.clear()
                    else:
                        body += chunk
        except TimeoutError:
            seconds = self.limits.patience
            raise ApiError(408, f"no whole body within {seconds:g} s", "timeout") from None
        if is_large:
            raise ApiError(
                413, f"the body must have at most {self.limits.body} bytes", "body_too_large"
            )
        return bytes(body)

    def _wanted(self, asked: Asked, request: Request) -> Wanted:
        """The engine's arguments. ApiError: they are not for this model or this chip."""
        param = "messages" if asked.is_chat else "prompt"
        prompt = self._tokens(asked, param)
        vocabulary, context = self.facts["vocabulary"], self.facts["context"]
        if not prompt:
            raise ApiError(400, f"{param}: has no token", "invalid_value", param)
        if not all(0 <= token < vocabulary for token in prompt):
            raise ApiError(
                400,
                f"{param}: tokens of this model are 0..{vocabulary - 1}",
                "invalid_value",
                param,
            )
        room = context - len(prompt)
        if room < max(asked.most or 1, 1):
            raise ApiError(
                400, f"the context is {context} tokens: {param} has {len(prompt)}, and "
                f"{asked.most or 1} new ones are requested at least",
                "context_length_exceeded", param,
            )  # fmt: skip
        top = self.facts["top"]
        if (asked.top_k or 1) > top:
            raise ApiError(400, f"top_k: must be 1..{top} on this chip", "invalid_value", "top_k")
        temperature = 1.0 if asked.temperature is None else asked.temperature
        if temperature and top == 1:
            raise ApiError(
                400, "temperature: must be 0, as this chip does not draw", "unsupported_value",
                "temperature",
            )  # fmt: skip
        seed = asked.seed
        if seed is None:
            seed = int.from_bytes(os.urandom(4))
        client = request.client.host if request.client else ""
        user = zlib.crc32((asked.user or client).encode())
        most = asked.most or (room if asked.is_chat else min(room, _TOKENS))
        return Wanted(
            prompt, most, temperature, asked.top_k or top, seed, tuple(self.model.ends), user
        )

    def _tokens(self, asked: Asked, param: str) -> list[int]:
        if isinstance(asked, protocol.Completion) and isinstance(asked.prompt, list):
            return list(asked.prompt)
        if isinstance(asked, protocol.Chat):
            turns = [(each.role, each.words) for each in asked.messages]
            try:
                words = self.model.chat.prompt(turns)
            except text.ChatError as error:
                raise ApiError(400, f"{param}: {error}", "unsupported_value", param) from None
        else:
            assert isinstance(asked, protocol.Completion)
            words = asked.prompt
        try:
            words.encode()
        except UnicodeEncodeError:
            raise ApiError(400, f"{param}: is no text", "invalid_value", param) from None
        special = not asked.is_chat  # a template has them itself
        return list(self.model.tokenizer.encode(words, add_special_tokens=special).ids)

    def _no_model(self, name: str) -> ApiError:
        return ApiError(404, f"there is no model {name[:100]!r}", "model_not_found", "model")

    # The other routes.

    async def _models(self, _request: Request) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name != self.model.name:
            raise self._no_model(name)
        return JSONResponse(self._described())

    def _described(self) -> dict[str, Any]:
        return {
            "id": self.model.name, "object": "model", "created": self._began,
            "owned_by": "senbazuru", "max_model_len": self.facts["context"],
        }  # fmt: skip

    async def _health(self, _request: Request) -> Response:
        if self.worker.is_alive:
            return JSONResponse({"status": "ok"})
        return JSONResponse({"status": self.worker.broken or "shuts down"}, status_code=503)

    def _figures(self) -> dict[str, Any]:
        made = self.worker.status()
        last = made["stats"]["last"]
        places = last["tokens"], last["chosen"]
        least = self.model.least(*places) if places[0] else {}
        cycles = dict(zip((unit.name for unit in Unit), last["unit_cycles"], strict=True))
        units = cycles if any(cycles.values()) else {}
        facts = {"name": self.model.name, "clock": self.model.clock, **self.facts}
        return {"model": facts, "least": least, "units": units, **made}

    async def _status(self, _request: Request) -> Response:
        return JSONResponse(await asyncio.to_thread(self._figures))

    async def _metrics(self, _request: Request) -> Response:
        made = self.worker.status()
        stats = made["stats"]
        totals = ("steps", "failed_steps", "tokens", "chosen_tokens", "cycles")
        figures = {f"{name}_total": ("counter", stats[name]) for name in totals}
        figures["refused_total"] = "counter", made["queue"]["refused"]
        figures["resets_total"] = "counter", made["chip"]["resets"]
        figures["step_seconds_total"] = "counter", round(made["pace"]["total"], 6)
        for name in ("waiting", "running", "pages_most"):
            figures[name] = "gauge", stats[name]
        lines = [
            f"# TYPE senbazuru_{name} {kind}\nsenbazuru_{name} {value}\n"
            for name, (kind, value) in figures.items()
        ]
        return PlainTextResponse("".join(lines), media_type="text/plain; version=0.0.4")

    async def _page(self, _request: Request) -> Response:
        return HTMLResponse(_PAGE.read_text())


class _Items:
    """The items of one request, as they come. Use it in a ``with``: its end cancels the request.

    At most one item more than there are tokens waits in it.
    """

    def __init__(self, worker: Worker, wanted: Wanted, written: text.Written) -> None:
        """ApiError: the request is refused."""
        loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[Item]()

        def emit(item: Item) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._queue.put_nowait, item)

        self._worker = worker
        try:
            self._number = worker.submit(wanted, written, emit)
        except HostError as error:
            raise ApiError(400, f"the chip refuses the request: {error}", "refused") from None

    def __enter__(self) -> "_Items":
        return self

    def __exit__(self, *_error: object) -> None:
        self._worker.cancel(self._number)

    async def next(self) -> Item:
        return await self._queue.get()


async def _whole(items: _Items, answer: Answer) -> dict[str, Any]:
    """ApiError: the request has failed."""
    pieces: list[str] = []
    while True:
        match await items.next():
            case Piece(text=piece):
                pieces.append(piece)
            case Done(reason=reason, usage=usage):
                return answer.whole("".join(pieces), reason, usage)
            case Failed(error=error):
                raise error


class _Stream(Response):
    """An answer in server-sent events. The request is cancelled when its client leaves."""

    media_type = "text/event-stream"

    def __init__(self, items: _Items, answer: Answer, headers: dict[str, str]) -> None:
        self._items, self._answer = items, answer
        super().__init__(headers={"Cache-Control": "no-cache", **headers})
        self.raw_headers = [each for each in self.raw_headers if each[0] != b"content-length"]

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        with self._items:
            await _unless_left(self._send(send), receive)

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        for chunk in self._answer.begin():
            await send(_part(protocol.event(chunk)))
        is_over = False
        while not is_over:
            item = await self._items.next()
            is_over = not isinstance(item, Piece)
            for event in self._events(item):
                await send(_part(event))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _events(self, item: Item) -> Iterator[bytes]:
        match item:
            case Piece(text=piece):
                yield protocol.event(self._answer.piece(piece))
            case Failed(error=error):
                yield protocol.event(error.body)
            case Done(reason=reason, usage=usage):
                yield from map(protocol.event, self._answer.end(reason, usage))
                yield protocol.event("[DONE]")


def _part(body: bytes) -> dict[str, Any]:
    return {"type": "http.response.body", "body": body, "more_body": True}


async def _unless_left(answer: Any, receive: Receive) -> Any:
    """The result of ``answer``; None, and it is cancelled, if the client leaves before."""

    async def leaves() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    tasks = asyncio.ensure_future(answer), asyncio.ensure_future(leaves())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return tasks[0].result() if tasks[0].done() else None
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _endpoint(
    function: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request], Awaitable[Response]]:
    """Starlette takes a function with an ``async def``, and no partial one of a method."""

    async def call(request: Request) -> Response:
        return await function(request)

    return call


async def _refuse(_request: Request, error: Exception) -> Response:
    headers: dict[str, str] = {}
    if isinstance(error, HTTPException):
        headers.update(error.headers or {})
        error = ApiError(error.status_code, f"{error.detail}")
    assert isinstance(error, ApiError)
    if error.status in (408, 413):
        headers["Connection"] = "close"  # what follows of its body is no request
    return JSONResponse(error.body, status_code=error.status, headers=headers | error.headers)


async def _left(_request: Request, _error: Exception) -> Response:
    return Response()  # nobody reads it


async def _broken(_request: Request, _error: Exception) -> Response:
    return JSONResponse(ApiError(500, "an error of the server", "server").body, status_code=500)
