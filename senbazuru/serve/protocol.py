"""Bodies of the API: requests, answers, chunks of a stream, and errors.

A field that would change the answer and that the chip cannot honour is refused. A field that is
unknown is refused too. ``docs/serve.md`` lists all fields.
"""

import dataclasses
import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import pydantic_core
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

SEED_MAX = (1 << 32) - 1
STOPS, STOP_CHARACTERS, MESSAGES = 4, 256, 1024
_SHOWN = 100  # characters of a name in an error


class ApiError(Exception):
    """An error in the API's form: status, and the fields of its body."""

    def __init__(
        self, status: int, message: str, code: str | None = None, param: str | None = None,
        retry_after: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(message)
        self.status, self.message, self.code, self.param = status, message, code, param
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}

    @property
    def body(self) -> dict[str, Any]:
        kinds = {429: "rate_limit_error", 404: "not_found_error"}
        kind = "server_error" if self.status >= 500 else "invalid_request_error"
        return {
            "error": {
                "message": self.message,
                "type": kinds.get(self.status, kind),
                "param": self.param,
                "code": self.code,
            }
        }


# Fields.


def _only(*values: Any) -> AfterValidator:
    """A field that has one value here, or is null: others would change the answer."""

    def check(value: Any) -> Any:
        if any(value == each and type(value) in _types(each) for each in (None, *values)):
            return value
        shown = " or ".join(json.dumps(each) for each in values) or "null"
        raise PydanticCustomError(
            "unsupported_value", "is not supported here unless it is {shown}", {"shown": shown}
        )

    return AfterValidator(check)


def _types(value: Any) -> tuple[type, ...]:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (int, float) if is_number else (type(value),)


def _stops(value: Any) -> Any:
    """One string or a few, each of some characters."""
    stops = [value] if isinstance(value, str) else value
    if stops is None:
        return []
    if not isinstance(stops, list) or not all(isinstance(each, str) for each in stops):
        raise PydanticCustomError("type", "must be a string or a list of strings")
    if len(stops) > STOPS or not all(1 <= len(each) <= STOP_CHARACTERS for each in stops):
        raise PydanticCustomError(
            "value", "must be at most {most} strings of 1 to {long} characters",
            {"most": STOPS, "long": STOP_CHARACTERS},
        )  # fmt: skip
    return stops


def _prompt(value: Any) -> Any:
    """A text or tokens; a list of one prompt is that prompt."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str | list):
        value = value[0]
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise PydanticCustomError("type", "must be a string or a list of tokens")
    if any(isinstance(each, str | list) for each in value):
        raise PydanticCustomError("unsupported_value", "must be one prompt: several are refused")
    if not all(type(each) is int for each in value):
        raise PydanticCustomError("type", "must be a string or a list of tokens")
    return value


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    type: Literal["text"]
    text: str


class Message(BaseModel):
    """One turn of a conversation."""

    model_config = ConfigDict(extra="forbid", strict=True)
    role: Literal["system", "user", "assistant"]
    content: str | Annotated[list[_Part], Field(max_length=MESSAGES, fail_fast=True)]

    @property
    def words(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class StreamOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    include_usage: bool = False
    include_obfuscation: Annotated[Any, _only(False)] = None


class Asked(BaseModel):
    """The fields that both endpoints have. Null is the same as no field."""

    model_config = ConfigDict(extra="forbid", strict=True)
    is_chat: ClassVar[bool]

    model: str
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2, allow_inf_nan=False)
    top_k: int | None = Field(None, ge=1)  # not of OpenAI's API; vLLM has it
    seed: int | None = Field(None, ge=0, le=SEED_MAX)
    stop: Annotated[list[str], BeforeValidator(_stops)] = []
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = None
    # Without an effect on the answer.
    metadata: dict[str, str] | None = None
    service_tier: Annotated[Any, _only("auto", "default")] = None
    # Refused unless they are as here.
    top_p: Annotated[Any, _only(1)] = None
    n: Annotated[Any, _only(1)] = None
    frequency_penalty: Annotated[Any, _only(0)] = None
    presence_penalty: Annotated[Any, _only(0)] = None
    logit_bias: Annotated[Any, _only({})] = None

    @property
    def includes_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def most(self) -> int | None:
        """Most new tokens; None: as many as usual."""
        return self.max_tokens


class Completion(Asked):
    """A body of /v1/completions."""

    is_chat = False

    prompt: Annotated[Any, BeforeValidator(_prompt)]
    best_of: Annotated[Any, _only(1)] = None
    echo: Annotated[Any, _only(False)] = None
    logprobs: Annotated[Any, _only()] = None
    suffix: Annotated[Any, _only()] = None


class Chat(Asked):
    """A body of /v1/chat/completions."""

    is_chat = True

    messages: list[Message] = Field(min_length=1, max_length=MESSAGES, fail_fast=True)
    max_completion_tokens: int | None = Field(None, ge=1)
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    store: Annotated[Any, _only(False)] = None
    logprobs: Annotated[Any, _only(False)] = None
    top_logprobs: Annotated[Any, _only(0)] = None
    response_format: Annotated[Any, _only({"type": "text"})] = None
    modalities: Annotated[Any, _only(["text"])] = None
    tools: Annotated[Any, _only([])] = None
    tool_choice: Annotated[Any, _only("none")] = None
    functions: Annotated[Any, _only([])] = None
    function_call: Annotated[Any, _only("none")] = None
    parallel_tool_calls: Annotated[Any, _only(False)] = None

    @property
    def most(self) -> int | None:
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens


def parse(kind: type[Asked], body: bytes) -> Asked:
    """ApiError 400: not JSON, or the first field that is wrong."""
    try:
        said = pydantic_core.from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"the body is not JSON: {error}", "invalid_json") from None
    if not isinstance(said, dict):
        raise ApiError(400, "the body must be a JSON object", "invalid_json")
    try:
        made = kind.model_validate(said)
    except ValidationError as error:
        raise _refused(error) from None
    if made.stream_options is not None and not made.stream:
        raise ApiError(
            400, "stream_options: only where stream is true", "invalid_value", "stream_options"
        )
    return made


def _refused(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(each) for each in first["loc"])[:_SHOWN]
    param = str(first["loc"][0])[:_SHOWN] if first["loc"] else None
    codes = {
        "extra_forbidden": ("unknown_parameter", "is not a parameter of this server"),
        "missing": ("missing_required_parameter", "is missing"),
        "unsupported_value": ("unsupported_value", first["msg"]),
        "literal_error": ("unsupported_value", first["msg"]),
    }
    code, message = codes.get(first["type"], ("invalid_value", first["msg"]))
    return ApiError(400, f"{place}: {message}", code, param)


# Answers.


@dataclasses.dataclass(frozen=True)
class Usage:
    """Tokens of a prompt, and chosen ones, the one that ends the text too."""

    prompt: int
    chosen: int

    def describe(self) -> dict[str, int]:
        total = self.prompt + self.chosen
        return {
            "prompt_tokens": self.prompt, "completion_tokens": self.chosen, "total_tokens": total,
        }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Answer:
    """The bodies of one answer, whole or in chunks."""

    identity: str
    created: int
    model: str
    fingerprint: str
    is_chat: bool
    includes_usage: bool = False

    def whole(self, text: str, reason: str, usage: Usage) -> dict[str, Any]:
        said: dict[str, Any] = {"text": text}
        if self.is_chat:
            said = {"message": {"role": "assistant", "content": text, "refusal": None}}
        made = self._made("chat.completion", [self._choice(said, reason)])
        return {**made, "usage": usage.describe()}

    def begin(self) -> Sequence[dict[str, Any]]:
        """The chunks before the first piece: a chat's says who speaks."""
        return [self._chunk({"role": "assistant", "content": ""})] if self.is_chat else []

    def piece(self, text: str) -> dict[str, Any]:
        return self._chunk({"content": text}, text)

    def end(self, reason: str, usage: Usage) -> Sequence[dict[str, Any]]:
        """The chunks after the last piece."""
        last = [self._chunk({}, reason=reason)]
        if self.includes_usage:
            made = self._made("chat.completion.chunk", [])
            last.append({**made, "usage": usage.describe()})
        return last

    def _chunk(
        self, delta: dict[str, str], text: str = "", reason: str | None = None
    ) -> dict[str, Any]:
        said: dict[str, Any] = {"delta": delta} if self.is_chat else {"text": text}
        made = self._made("chat.completion.chunk", [self._choice(said, reason)])
        return {**made, "usage": None} if self.includes_usage else made

    def _choice(self, said: dict[str, Any], reason: str | None) -> dict[str, Any]:
        return {"index": 0, **said, "logprobs": None, "finish_reason": reason}

    def _made(self, kind: str, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self.identity,
            "object": kind if self.is_chat else "text_completion",
            "created": self.created,
            "model": self.model,
            "choices": choices,
            "system_fingerprint": self.fingerprint,
        }


def event(body: dict[str, Any] | str) -> bytes:
    """A server-sent event."""
    text = body if isinstance(body, str) else json.dumps(body, separators=(",", ":"))
    return f"data: {text}\n\n".encode()
