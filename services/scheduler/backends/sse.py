"""Server-sent events from bytes, with the two things that servers of models add to them.

Lines are split at bytes: a text's own U+2028 or U+0085 ends no line, as it would with `splitlines`.
"""

from __future__ import annotations

from dataclasses import dataclass

_MAX_LINE = 32 * 2**20
_IGNORED = ("retry", "id")


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event. `kind` is its `event:` field; `stray` marks a line that is no field of SSE at all."""

    data: str
    kind: str = ""
    stray: bool = False


class LineTooLong(Exception):
    """A line exceeds what any model writes: the other side does not speak SSE."""


class SseParser:
    """Feeds on bytes, gives events; keeps what is incomplete."""

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._tail_size = 0
        self._data: list[str] = []
        self._kind = ""

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """The events that `chunk` completes."""
        *lines, rest = chunk.split(b"\n")
        events: list[SseEvent] = []
        for line in lines:
            whole = b"".join((*self._tail, line))
            self._tail, self._tail_size = [], 0
            events += self._line(whole)
        if rest:
            self._tail.append(rest)
            self._tail_size += len(rest)
        if self._tail_size > _MAX_LINE:
            raise LineTooLong
        return events

    def finish(self) -> list[SseEvent]:
        """What the end of the stream leaves: an event that no empty line closed is given too."""
        events = self._line(b"".join(self._tail)) if self._tail else []
        self._tail, self._tail_size = [], 0
        return [*events, *self._dispatch()]

    def _line(self, raw: bytes) -> list[SseEvent]:
        line = raw.removesuffix(b"\r").decode("utf-8", "replace")
        if not line.strip():
            return self._dispatch()
        if line.startswith(":"):
            return []
        name, colon, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data" and colon:
            return self._add(value)
        if name == "event" and colon:
            self._kind = value
            return []
        if name in _IGNORED and colon:
            return []
        # `error: {...}` of older servers, or a router's plain text in mid-stream.
        return [*self._dispatch(), SseEvent(value if name == "error" else line, kind="error" if name == "error" else "", stray=True)]

    def _add(self, value: str) -> list[SseEvent]:
        # Every event of these servers is one line of JSON. A second one in the same event is the next
        # event of a server that forgot the empty line between them.
        given = self._dispatch() if self._data and value.startswith(("{", "[DONE]")) else []
        self._data.append(value)
        return given

    def _dispatch(self) -> list[SseEvent]:
        if not self._data:
            return []
        event = SseEvent("\n".join(self._data), self._kind)
        self._data, self._kind = [], ""
        return [event]
