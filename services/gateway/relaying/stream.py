"""A server's stream on its way to the client: whole events as they came, up to the first that is an error. Pure.

An error inside a stream whose status was 200 comes in many shapes (case RW-41), and clients read most of them as an empty answer.
One that a client can read passes as it came; any other is said again in the form that it can. Nothing follows an error.
"""

from __future__ import annotations

import re
from typing import Any, cast

import orjson

_END = re.compile(rb"\r?\n\r?\n")
_FIELDS = (b"data", b"event", b"id", b"retry", b"")
MAX_EVENT = 32 * 2**20
DONE = b"[DONE]"


def error_body(status: int, message: str, kind: str = "invalid_request_error", **members: Any) -> dict[str, Any]:
    """An error as llama-server's router words it: `{"error": {"code", "message", "type"}}`."""
    return {"error": {"code": status, "message": message, "type": kind, **members}}


def error_event(status: int, message: str, kind: str = "server_error") -> bytes:
    return b"data: " + orjson.dumps(error_body(status, message, kind)) + b"\n\n"


class Passage:
    """Feeds on bytes, gives those to pass on. `is_over`: an error was passed on, and nothing may follow it."""

    def __init__(self) -> None:
        self.is_over = False
        self.is_whole = False  # an answer came to its end: a reason to finish, or [DONE]
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What to pass on now; the rest of an event that has only begun is held back."""
        self._held += data
        passed: list[bytes] = []
        while not self.is_over and (end := _END.search(self._held)) is not None:
            event, self._held = self._held[: end.end()], self._held[end.end() :]
            passed.append(self._judged(event))
        if not self.is_over and len(self._held) > MAX_EVENT:
            passed.append(self._over(error_event(502, "the server sent an event without end")))
        return b"".join(passed)

    def finish(self) -> bytes:
        """What the end of the server's answer leaves to say."""
        passed = b""
        if not self.is_over and self._held.strip():
            passed = self._judged(self._held)
            if not self.is_over:
                passed = passed.rstrip(b"\r\n") + b"\n\n"
        if not self.is_over and not self.is_whole:
            passed += self._over(error_event(502, "the server's answer ended before it was whole"))
        return passed

    def _over(self, event: bytes) -> bytes:
        self.is_over = True
        return event

    def _judged(self, event: bytes) -> bytes:
        data, kind = list[bytes](), b""
        for line in event.splitlines():
            name, _, value = line.partition(b":")
            if name == b"data":
                data.append(value.removeprefix(b" "))
            elif name == b"event":
                kind = value.strip()
            elif name not in _FIELDS and _is_outcry(line):
                return self._over(error_event(502, _message_in(_json(value if name == b"error" else line), line)))
        return self._read(event, b"\n".join(data).strip(), kind)

    def _read(self, event: bytes, data: bytes, kind: bytes) -> bytes:
        if data == DONE:
            self.is_whole = True
            return event
        if not data:
            return event
        body = _json(data)
        if kind == b"error":
            return self._over(error_event(_code_in(body), _message_in(body, data)))
        if not isinstance(body, dict):
            return self._over(error_event(502, "the server sent an event that is not JSON"))
        chunk = cast("dict[str, Any]", body)
        if (error := chunk.get("error")) is not None:
            is_readable = isinstance(error, dict) and isinstance(cast("dict[str, Any]", error).get("message"), str)
            return self._over(event if is_readable else error_event(_code_in(chunk), _message_in(chunk, data)))
        self.is_whole = self.is_whole or _finishes(chunk)
        return event


def _is_outcry(line: bytes) -> bool:
    """Whether a line that is no field of SSE is an error: of a server of early 2025, or of a router before it."""
    return line.lower().startswith((b"error", b"proxy error", b"{"))


def _finishes(chunk: dict[str, Any]) -> bool:
    choices: Any = chunk.get("choices")
    rows = cast("list[Any]", choices) if isinstance(choices, list) else []
    return any(isinstance(row, dict) and cast("dict[str, Any]", row).get("finish_reason") for row in rows)


def _json(data: bytes) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        return None


def _message_in(body: Any, raw: bytes) -> str:
    while isinstance(body, dict):
        fields = cast("dict[str, Any]", body)
        body = fields.get("error") or fields.get("message")
    return body if isinstance(body, str) and body else raw.decode("utf-8", "replace")[:500]


def _code_in(body: Any) -> int:
    fields: Any = body.get("error", body) if isinstance(body, dict) else {}  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    code: Any = cast("dict[str, Any]", fields).get("code") if isinstance(fields, dict) else None
    return code if isinstance(code, int) else 500
