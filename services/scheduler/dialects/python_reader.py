"""Python's calls as calls of tools: which statements of a text are meant as such, and which are prose or programs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from services.scheduler.dialects import python_calls
from services.scheduler.dialects.calls import ParsedCall
from services.scheduler.dialects.json_calls import CallReader
from services.scheduler.dialects.python_calls import Head, NotLiteral, Written
from shared.events.content import Repair
from shared.text import cut

_BLANK = re.compile(r"(?:\s|#[^\n]*)*+")
_KEPT = 400
_UNREADABLE = "…"  # no object: refused in the reader's own words


@dataclass(frozen=True, slots=True)
class Read:
    """What stands at a place: calls up to `end`, or a `problem`; without an end all that follows belongs to it."""

    calls: tuple[ParsedCall, ...] = ()
    end: int | None = None
    problem: str | None = None


class Statements:
    """The statements of one text. `spend` takes a cost and says whether the reply's allowance holds it."""

    def __init__(self, text: str, calls: CallReader, spend: Callable[[int], bool]) -> None:
        self._text = text
        self._read_call = calls
        self._spend = spend

    def at(self, start: int) -> Read | None:
        """The call that begins at `start`; None for prose: no offered tool, more on its line, or a mere signature."""
        head = python_calls.head_at(self._text, start)
        if head is None or not self._read_call.knows(last_name(head.name)) or not self._spend(0):
            return None
        close, seen = python_calls.close_of(self._text, head.opens)
        self._spend(seen - head.opens)
        if (read := self._statement(head, close)) is not None:
            return read
        end = python_calls.end_of_line(self._text, close + 1) if close is not None else None
        if not head.is_meant(self._text) or (close is not None and end is None):
            return None
        name = last_name(head.name)
        return Read(end=end, problem=f'A call of {name!r} is not whole, so it was not run. Write it as {name}(argument="value").')

    def program(self, start: int) -> Read | None:
        """The calls of a fence that holds nothing else; its end is that of the last call."""
        found: list[ParsedCall] = []
        position = start
        while (blank := _BLANK.match(self._text, position)) is not None and self._spend(0):
            if blank.end() == len(self._text) or self._text.startswith("```", blank.end()):
                return Read(tuple(found), blank.end()) if found else None
            head = python_calls.head_at(self._text, blank.end(), assigned=True)
            if head is None or not self._read_call.knows(last_name(head.name)):
                return None
            close, seen = python_calls.close_of(self._text, head.opens)
            self._spend(seen - head.opens)
            read = self._statement(head, close)
            if read is None or read.end is None:
                return None
            found += read.calls
            position = read.end
        return None

    def _statement(self, head: Head, close: int | None) -> Read | None:
        end = python_calls.end_of_line(self._text, close + 1) if close is not None else None
        if close is None or end is None or not self._spend(2 * (close - head.start)):
            return None
        expression = self._text[head.start : close + 1]
        try:
            written, has_newlines = python_calls.parse(expression)
        except NotLiteral:
            return None
        repairs = (Repair(what="raw_newlines", before=cut(expression, _KEPT)),) if has_newlines else ()
        return Read(tuple(self._call(each, repairs) for each in written), end)

    def _call(self, call: Written, repairs: tuple[Repair, ...]) -> ParsedCall:
        name = last_name(call.name)
        if len(call.positional) == 1 and not call.named and isinstance(call.positional[0], dict):
            return self._read_call.call(name, call.positional[0], repairs=repairs)
        parameters = self._read_call.parameters(name)
        if len(call.positional) > len(parameters) and self._read_call.knows(name):
            return self._read_call.call(name, _UNREADABLE, repairs=repairs)
        return self._read_call.call(name, {**dict(zip(parameters, call.positional, strict=False)), **call.named}, repairs=repairs)


def last_name(written: str) -> str:
    """The tool's name without the module that it is called on, as in `default_api.read_file`."""
    return written.rpartition(".")[2]
