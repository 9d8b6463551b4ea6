"""From what a server said to the fault it means.

The error body is an object with a message, a bare string, or plain text, under any status, 200 included;
so the words decide first and the status only then.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, cast

from services.scheduler.backends.faults import (
    BackendBroken,
    BackendFault,
    BackendRefused,
    ContextExceeded,
    ModelLoadFailed,
    ModelLoading,
    ModelNotLoaded,
    OutOfMemory,
    OutputUnparseable,
    Overloaded,
    ProxyError,
)
from shared.text import clean, cut

_QUOTED = 600  # characters of a server's words that a message repeats


@dataclass(frozen=True, slots=True)
class ServerError:
    """What a server said about a failure."""

    message: str
    kind: str = ""  # its `type` or `code`, in lower case
    status: int | None = None  # of the body, when it names one
    prompt_tokens: int | None = None
    context: int | None = None


def error_in(data: Any) -> ServerError | None:
    """The error that a decoded JSON body or event holds, in any of the three shapes; else None."""
    if not isinstance(data, dict):
        return None
    body = cast("dict[str, Any]", data)
    error = body.get("error")
    if isinstance(error, dict):
        return _of_object(cast("dict[str, Any]", error))
    if error:
        message = body.get("message")
        return ServerError(f"{error}: {message}" if isinstance(message, str) and message else str(error))
    return None


def _of_object(error: dict[str, Any]) -> ServerError:
    code = error.get("code")
    kind = " ".join(str(error[key]) for key in ("type", "code") if error.get(key) is not None)
    return ServerError(
        message=str(error.get("message") or kind or "no reason given"),
        kind=kind.lower(),
        status=code if isinstance(code, int) else None,
        prompt_tokens=_count(error.get("n_prompt_tokens")),
        context=_count(error.get("n_ctx")),
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def error_in_body(text: str) -> ServerError:
    """The error of a response that is known to have failed, whatever its shape."""
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return ServerError(text.strip() or "an empty answer")
    return error_in(data) or error_in({"error": data}) or ServerError(text.strip() or "an empty answer")


# Read from top to bottom: a failed load is also "not loaded", an overflow is also "invalid request".
_WORDS: tuple[tuple[type[BackendFault], re.Pattern[str]], ...] = tuple(
    (fault, re.compile(pattern, re.IGNORECASE))
    for fault, pattern in (
        (ProxyError, r"^\s*proxy error|bad gateway|upstream connect error"),
        (OutputUnparseable, r"failed to parse (?:input|tool call|output)|does not match the expected|error parsing (?:tool|harmony)"),
        (OutputUnparseable, r"unexpected tokens? remaining in message header|harmony"),
        (ModelLoading, r"loading model|model is (?:still )?(?:being )?load(?:ing|ed now)"),
        (ContextExceeded, r"exceeds? the (?:available )?context|context[ _](?:size|length|window)|tokens to keep from the initial prompt"),
        (OutOfMemory, r"out of memory|insufficient (?:system )?(?:resources|memory|vram)|\boom\b|unable to allocate"),
        (ModelLoadFailed, r"fail(?:ed|ure) to load|model_load_failed|load(?:ing)? (?:the )?model failed"),
        (ModelNotLoaded, r"model (?:is )?(?:not loaded|unloaded)|no models? (?:is |are )?loaded|model has crashed"),
        (ModelNotLoaded, r"invalid model identifier"),  # LM Studio: several are loaded, and none of them is meant
        (Overloaded, r"overloaded|rate.?limit|too many requests|limit reached|server busy|no slot available|try again later"),
    )
)
_KINDS: dict[str, type[BackendFault]] = {
    "exceed_context_size_error": ContextExceeded,
    "context_length_exceeded": ContextExceeded,
    "model_load_failed": ModelLoadFailed,
    "rate_limit": Overloaded,
    "overloaded": Overloaded,
}
_ADVICE: dict[type[BackendFault], str] = {
    ProxyError: "The router lost its model server; try again.",
    OutputUnparseable: "The server could not read what the model wrote; try once more, then change the sampling or the model.",
    ModelLoading: "Wait until the model is loaded.",
    ContextExceeded: "Shorten the conversation, or start the server with a larger context.",
    OutOfMemory: "Free memory: unload another model, or use a smaller one.",
    ModelLoadFailed: "Look into the server's log, or choose another model.",
    ModelNotLoaded: "Load the model on the server, then try again.",
    Overloaded: "Wait a little, then try again.",
    BackendBroken: "Look into the server's log.",
    BackendRefused: "Mend the request or the scheduler's settings.",
}


def fault_of(error: ServerError, *, status: int | None, server: str, retry_after_s: float | None = None) -> BackendFault:
    """The fault that a server's error means. `status` is the response's, None within a stream."""
    kind = _kind_of(error, status)
    said = clean(error.message)
    details: dict[str, Any] = {"server": server, "status": status, "upstream": cut(said, 2000)}
    if error.prompt_tokens is not None:
        details["prompt_tokens"] = error.prompt_tokens
    if error.context is not None:
        details["context"] = error.context
    if retry_after_s is not None:
        details["retry_after_s"] = retry_after_s
    return kind(f"{server} answered: {cut(said, _QUOTED)} {_advice(kind, status)}", **details)


def _advice(kind: type[BackendFault], status: int | None) -> str:
    if kind is BackendRefused and status in (401, 403):
        return "Set the API key that this server expects."
    if kind is BackendRefused and status == 404:
        return "Check the server's URL and the model's name."
    return _ADVICE[kind]


def _kind_of(error: ServerError, status: int | None) -> type[BackendFault]:
    for token, kind in _KINDS.items():
        if token in error.kind:
            return kind
    for kind, words in _WORDS:
        if words.search(error.message):
            return kind
    return _by_status(error.status if status in (None, 200) else status)


def _by_status(status: int | None) -> type[BackendFault]:
    match status:
        case 429:
            return Overloaded
        case 502 | 504:
            return ProxyError
        case 503:
            return Overloaded
        case int() if 300 <= status < 500:
            return BackendRefused
        case _:
            return BackendBroken
