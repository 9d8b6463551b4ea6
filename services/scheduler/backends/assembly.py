"""An answer put together from its chunks. Pure: what a stream means, without the stream."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

from services.scheduler.backends.base import Delta, Json
from services.scheduler.dialects.calls import NativeCall
from shared.events.content import Usage
from shared.text import clean


@dataclass(slots=True)
class _Call:
    server_id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list[str])

    def whole(self) -> NativeCall:
        return NativeCall(clean(self.name), clean("".join(self.arguments)), clean(self.server_id))


@dataclass(slots=True)
class Assembly:
    """The parts of an answer so far. Fields that a server left out, or sent as null, count as empty."""

    finish_reason: str | None = None
    model: str = ""
    usage: Usage = field(default_factory=Usage)
    _content: list[str] = field(default_factory=list[str])
    _reasoning: list[str] = field(default_factory=list[str])
    _calls: list[_Call] = field(default_factory=list[_Call])
    _by_index: dict[int, _Call] = field(default_factory=dict[int, _Call])

    @property
    def content(self) -> str:
        return clean("".join(self._content))

    @property
    def reasoning(self) -> str:
        return clean("".join(self._reasoning))

    @property
    def calls(self) -> tuple[NativeCall, ...]:
        return tuple(call.whole() for call in self._calls)

    @property
    def has_begun(self) -> bool:
        """Whether the model has written anything at all."""
        return bool(self._content or self._reasoning or self._calls)

    def add(self, chunk: Json) -> Delta | None:
        """Take one chunk of a stream; what it adds to the text, if anything."""
        self._take_envelope(chunk)
        choice = _first_choice(chunk)
        if choice is None:
            return None
        return self._take(choice, _dict(choice.get("delta")))

    def add_whole(self, body: Json) -> Delta | None:
        """Take a whole answer, from a server that does not stream."""
        self._take_envelope(body)
        choice = _first_choice(body)
        if choice is None:
            return None
        return self._take(choice, _dict(choice.get("message")))

    def _take(self, choice: Json, part: Json) -> Delta | None:
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            self.finish_reason = reason
        text = _text(part.get("content"))
        reasoning = _text(part.get("reasoning_content")) or _text(part.get("reasoning"))
        if text:
            self._content.append(text)
        if reasoning:
            self._reasoning.append(reasoning)
        for call in _dicts(part.get("tool_calls")):
            self._take_call(call)
        # A live reader gets half of a surrogate pair as U+FFFD; the whole text joins the halves.
        return Delta(clean(text), clean(reasoning)) if text or reasoning else None

    def _take_envelope(self, chunk: Json) -> None:
        self.model = _text(chunk.get("model")) or self.model
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = _usage(cast("Json", usage))
        elif isinstance(timings := chunk.get("timings"), dict) and not self.usage.total:
            self.usage = _usage_of_timings(cast("Json", timings))

    def _take_call(self, delta: Json) -> None:
        function = _dict(delta.get("function"))
        call = self._call_of(delta, _text(function.get("name")))
        call.server_id = call.server_id or _text(delta.get("id"))
        call.name = call.name or _text(function.get("name"))
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            call.arguments.append(arguments)
        elif arguments is not None:
            call.arguments.append(json.dumps(arguments, ensure_ascii=False))

    def _call_of(self, delta: Json, name: str) -> _Call:
        """The call that a delta continues; some servers leave the index out, or say 0 for all."""
        index, server_id = delta.get("index"), _text(delta.get("id"))
        latest = self._calls[-1] if self._calls and not name else None
        known = self._by_index.get(index) if isinstance(index, int) else latest
        if known is not None and not (name and server_id and known.server_id and server_id != known.server_id):
            return known
        call = _Call()
        self._calls.append(call)
        if isinstance(index, int):
            self._by_index[index] = call
        return call


def _first_choice(body: Json) -> Json | None:
    return next(iter(_dicts(body.get("choices"))), None)


def _dict(value: Any) -> Json:
    return cast("Json", value) if isinstance(value, dict) else {}


def _dicts(value: Any) -> list[Json]:
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return [cast("Json", item) for item in items if isinstance(item, dict)]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _count(value: Any) -> int:
    return max(0, int(value)) if isinstance(value, int | float) and value == value and abs(value) < 2**53 else 0


def _usage(usage: Json) -> Usage:
    return Usage(
        prompt_tokens=_count(usage.get("prompt_tokens")),
        completion_tokens=_count(usage.get("completion_tokens")),
        cached_tokens=_count(_dict(usage.get("prompt_tokens_details")).get("cached_tokens")),
    )


def _usage_of_timings(timings: Json) -> Usage:
    cached = _count(timings.get("cache_n"))
    return Usage(
        prompt_tokens=cached + _count(timings.get("prompt_n")),
        completion_tokens=_count(timings.get("predicted_n")),
        cached_tokens=cached,
    )
