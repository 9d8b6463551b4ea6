"""Calls as JSON: which objects are calls, and which are an answer's data.

An object is a call when it names an offered tool and brings arguments in one of the forms that models
use. One that names an unknown tool in the plain form of a call is answered with the real names; every
other object is left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from services.scheduler.dialects import mending
from services.scheduler.dialects.arguments import BadArguments, read_arguments
from services.scheduler.dialects.calls import NativeCall, ParsedCall, Source
from services.scheduler.dialects.names import Names, Resolved, plain
from shared.events.content import Repair

Object = dict[str, Any]

_NAME_KEYS = ("name", "tool", "function", "tool_name", "action")
_ARGUMENT_KEYS = ("arguments", "parameters", "args", "input", "params", "action_input", "tool_input")
_PLAIN_ARGUMENT_KEYS = ("arguments", "parameters")
_LISTS = ("tool_calls", "calls", "function_calls", "actions")
_WRAPPERS = ("function", "function_call", "tool_call", "tool", "action")
_BESIDES = frozenset({"id", "type", "thought", "reasoning", "index"})
_NAME_SHOWN = 64

_HEAD = re.compile(r"""\{{1,4}\s{0,40}["'](?:name|tool|function|tool_name|action)["']\s{0,40}:\s{0,40}["']([^"'\n]{1,128})["']""")
_ARGUMENTS_FIRST = re.compile(r"""\{{1,4}\s{0,40}["'](?:arguments|parameters|args|tool_input)["']\s{0,40}:""")


class CallReader:
    """Reads calls for one set of offered tools."""

    def __init__(self, tool_names: Sequence[str], schemas: Mapping[str, Object]) -> None:
        self._names = Names(tool_names)
        self._schemas = schemas

    def native(self, call: NativeCall) -> ParsedCall:
        return self.call(call.name, call.arguments, source="native")

    def knows(self, written: str) -> bool:
        """Whether `written` means an offered tool."""
        return self._names.resolve(written) is not None

    def parameters(self, written: str) -> tuple[str, ...]:
        """The arguments of the tool that `written` means, in the order of its schema; empty when it means none."""
        resolved = self._names.resolve(written)
        return tuple(_properties(self._schemas.get(resolved.name, {}))) if resolved else ()

    def only_parameter(self, written: str) -> str | None:
        """The one argument of a tool that needs no other, so that a bare text can be meant for it."""
        resolved = self._names.resolve(written)
        schema = self._schemas.get(resolved.name, {}) if resolved else {}
        required: Any = schema.get("required") or ()
        names = tuple(required) or tuple(_properties(schema))
        return names[0] if len(names) == 1 else None

    def call(self, written: str, arguments: Any, *, source: Source = "salvaged", repairs: Iterable[Repair] = ()) -> ParsedCall:
        """A call of the tool that `written` means, with its arguments as they were written."""
        resolved = self._names.resolve(written)
        if resolved is None:
            name = plain(written)[:_NAME_SHOWN] or "unknown"
            return ParsedCall(name, source=source, repairs=tuple(repairs), error=self._names.unknown(written))
        before = (*resolved.repairs, *repairs)
        try:
            read, mended = read_arguments(arguments, self._schemas.get(resolved.name, {}))
        except BadArguments as error:
            return ParsedCall(resolved.name, source=source, repairs=before, error=f"{resolved.name!r} was not run: {error}")
        return ParsedCall(resolved.name, read, source, (*before, *mended))

    def calls_in(self, value: Any, repairs: Iterable[Repair] = (), depth: int = 5) -> list[ParsedCall]:
        """The calls that a JSON value is: one, several in a list or an envelope, or none."""
        if depth == 0:
            return []
        if isinstance(value, list):
            return [call for item in cast("list[Any]", value) for call in self.calls_in(item, repairs, depth - 1)]
        if not isinstance(value, dict):
            return []
        body = cast("Object", value)
        if (call := self._call_of(body, tuple(repairs))) is not None:
            return [call]
        found = (self.calls_in(inner, repairs, depth - 1) for inner in _inside(body))
        return next(filter(None, found), list[ParsedCall]())

    def head_at(self, text: str, start: int) -> tuple[str, Resolved | None] | None:
        """The name with which the object at `start` begins, if it begins as a call does."""
        head = _HEAD.match(text, start)
        if head is not None:
            return head[1], self._names.resolve(head[1])
        return ("", None) if _ARGUMENTS_FIRST.match(text, start) else None

    def closed(self, text: str) -> list[ParsedCall]:
        """The call of an object that lacks only its own last brace: the arguments were closed by the model."""
        try:
            value: Any = mending.loads(text + "}")
        except ValueError:
            return []
        if not isinstance(value, dict) or not any(isinstance(cast("Object", value).get(key), dict) for key in _ARGUMENT_KEYS):
            return []
        return self.calls_in(value, (Repair(what="last_brace", before=text[-40:]),))

    def _call_of(self, body: Object, repairs: tuple[Repair, ...]) -> ParsedCall | None:
        named = self._named(body)
        if named is None:
            return None
        name_key, written, resolved = named
        key = next((key for key in _ARGUMENT_KEYS if key in body and key != name_key), None)
        if resolved is None:
            return self.call(written, None, repairs=repairs) if _is_plain_call(body) else None
        if key is not None:
            arguments = body[key]
            is_call = _may_be_arguments(arguments) or (key == "arguments" and not isinstance(arguments, dict))
            return self.call(written, arguments, repairs=repairs) if is_call else None
        return self._flat(body, name_key, resolved, repairs)

    def _named(self, body: Object) -> tuple[str, str, Resolved | None] | None:
        """The key that holds the tool's name: one whose value is an offered tool before any other."""
        candidates = [(key, cast("str", body[key])) for key in _NAME_KEYS if isinstance(body.get(key), str)]
        for key, written in candidates:
            if (resolved := self._names.resolve(written)) is not None:
                return key, written, resolved
        return (*candidates[0], None) if candidates else None

    def _flat(self, body: Object, name_key: str, resolved: Resolved, repairs: tuple[Repair, ...]) -> ParsedCall | None:
        """A call whose arguments stand beside the name, when they are just what the tool declares."""
        schema = self._schemas.get(resolved.name, {})
        rest = {key: item for key, item in body.items() if key != name_key and (key not in _BESIDES or key in _properties(schema))}
        required: Any = schema.get("required") or ()
        if not set(rest) <= set(_properties(schema)) or not set(required) <= set(rest):
            return None
        mended = Repair(what="flat_arguments") if rest else None
        return self.call(body[name_key], rest, repairs=(*repairs, mended) if mended else repairs)


def _inside(body: Object) -> Iterator[Any]:
    """What an envelope holds: `{"tool_calls": […]}`, `{"function": {…}}` and the like."""
    yield from (body[key] for key in _LISTS if isinstance(body.get(key), list))
    yield from (body[key] for key in _WRAPPERS if isinstance(body.get(key), dict))


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    return cast("Mapping[str, Any]", properties) if isinstance(properties, dict) else {}


def _is_plain_call(body: Object) -> bool:
    """Whether an object that names no offered tool has the form of a call and nothing else."""
    known = {*_NAME_KEYS, *_PLAIN_ARGUMENT_KEYS, *_BESIDES}
    return set(body) <= known and any(_may_be_arguments(body.get(key)) for key in _PLAIN_ARGUMENT_KEYS)


def _may_be_arguments(value: Any) -> bool:
    """Whether a value can be arguments: an object or the text of one. A JSON schema is a definition."""
    if isinstance(value, dict):
        body = cast("Object", value)
        return not (body.get("type") == "object" and "properties" in body)
    return isinstance(value, str) and value.lstrip().startswith("{")
