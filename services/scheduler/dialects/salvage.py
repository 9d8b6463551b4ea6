"""Reading a reply: what is shown, what was thought, and which tools are called.

One pass from left to right. Whatever begins first is read as what it is, and what stands inside it is
not looked at again: a tag within a file's content is content, a call within a thought is a thought.
The work is linear in the reply's length, whatever a model writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from services.scheduler.dialects import harmony, mending, mistral, python_calls, react, tags, think
from services.scheduler.dialects.calls import Dialect, NativeCall, ParsedCall, Reading
from services.scheduler.dialects.json_calls import CallReader
from services.scheduler.dialects.python_reader import Statements
from services.scheduler.dialects.scan import Braces, Finder
from services.scheduler.dialects.visible import CALL, visible_text
from shared.events.content import Repair
from shared.text import clean
from shared.text import cut as shortened

_STARTS = re.compile(
    "|".join(
        f"(?P<{kind}>{pattern})"
        for kind, pattern in (
            ("think", think.OPEN),
            ("unthink", think.CLOSE),
            ("tag", tags.OPEN),
            ("function", tags.FUNCTION),
            ("stray", tags.STRAY),
            ("mistral", mistral.OPEN),
            ("react", react.OPEN),
            ("python", python_calls.OPEN),
            ("harmony", harmony.OPEN),
            ("fence", "```"),
            ("brace", r"\{"),
        )
    ),
    re.IGNORECASE,
)
_LANGUAGE = re.compile(r"```([\w+.-]{0,40})")
_PYTHON_LANGUAGES = frozenset({"tool_code", "python", "py"})
_FENCE_END = re.compile(r"\n[ \t]{0,20}```")
# A fence in any other language is code that is shown: an example of a call in it is no call.
_CALL_LANGUAGES = frozenset(
    {
        "",
        "json",
        "json5",
        "jsonc",
        "xml",
        "text",
        "txt",
        "plaintext",
        "tool",
        "tools",
        "tool_call",
        "tool_calls",
        "function",
        "action",
        "tool_code",
    }
)
_SPACE_AND_COMMAS = re.compile(r"[\s,;\[\]]*")
_TAIL = " \t\r\n`"  # what may follow a call at the end of its fence
_KEPT = 400


def read_reply(
    content: str,
    native: Sequence[NativeCall],
    tool_names: Sequence[str],
    schemas: Mapping[str, dict[str, Any]],
    *,
    cut: bool = False,
) -> Reading:
    """Read what a model wrote. `schemas` maps a tool's name to the JSON schema of its arguments.

    With native calls those are the calls, and the content is only cleaned of markup: the server has
    read the reply already. `cut` says that the token limit ended the reply, so that nothing unfinished
    is completed. Never raises, whatever the text.
    """
    reader = _Reader(clean(content), CallReader(tool_names, schemas), is_cut=cut)
    reader.read()
    calls, problem = reader.calls, reader.problem
    if native:
        calls, problem = [reader.read_native(call) for call in native], None
    return Reading(visible_text(reader.shown), "\n".join(reader.thoughts).strip(), tuple(calls), problem)


class _Reader:
    """The state of one pass."""

    def __init__(self, text: str, calls: CallReader, *, is_cut: bool) -> None:
        self.shown: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ParsedCall] = []
        self.problem: str | None = None
        self._text = text
        self._read_call = calls
        self._is_cut = is_cut
        self._braces = Braces(text)
        self._find = Finder(text)
        self._statements = Statements(text, calls, self._spend)
        self._has_thought = False
        # Decoding and mending may be tried at many braces; together they may cost a few times the length.
        self._allowance = 8 * len(text) + 4096

    def read_native(self, call: NativeCall) -> ParsedCall:
        return self._read_call.native(NativeCall(clean(call.name), clean(call.arguments), call.server_id))

    def read(self) -> None:
        position = 0
        while (start := _STARTS.search(self._text, position)) is not None:
            self.shown.append(self._text[position : start.start()])
            position = self._begin(start)
        self.shown.append(self._text[position:])

    def _begin(self, start: re.Match[str]) -> int:
        """Take what begins here; where the text goes on."""
        match start.lastgroup:
            case "think":
                return self._thought(start.end())
            case "unthink":
                return self._end_of_unopened_thought(start)
            case "tag":
                return self._tag(start)
            case "function":
                return self._function(start)
            case "harmony":
                return self._harmony(start)
            case "mistral":
                return self._mistral(start.end())
            case "react":
                return self._react(start)
            case "python":
                return self._python(start.start(), start.end())
            case "fence":
                return self._fence(start.start())
            case "brace":
                return self._brace(start.start())
            case _:
                return start.end()  # a tag that opens and closes nothing

    # --- reasoning

    def _thought(self, inside: int) -> int:
        end, after = think.end_of_block(self._text, inside)
        self.thoughts.append(self._text[inside:end].strip())
        self._has_thought = True
        return after

    def _end_of_unopened_thought(self, tag: re.Match[str]) -> int:
        """The prompt's template opened the thought, so all before its first end is one."""
        if not self._has_thought:
            self.thoughts = [self._text[: tag.start()].strip()]
            self.shown, self.calls, self.problem = [], [], None
            self._has_thought = True
        return tag.end()

    def _harmony(self, marker: re.Match[str]) -> int:
        header = harmony.header_at(self._text, marker.start())
        if header is None:
            if harmony.is_cut_header(self._text, marker.start()):
                return self._give_up("A call was cut off before its arguments, so it was not run. Write it again, whole.", len(self._text))
            return marker.end()
        if header.channel in ("final", "") and header.recipient is None:
            return header.body
        end, after = harmony.end_of_body(self._text, header.body)
        if header.recipient is None or header.recipient == "assistant" or header.channel == "analysis":
            self.thoughts.append(self._text[header.body : end].strip())
            return after
        return self._harmony_call(header.recipient, header.body, end, after)

    def _harmony_call(self, recipient: str, body: int, end: int, after: int) -> int:
        written = harmony.without_cut_end(self._text[body:end]).strip()
        start = self._text.find("{", body, end)
        close = self._braces.close_of(start) if start >= 0 and written.startswith("{") else None
        if close is not None and close >= end:  # the marker stands within a string
            end, after = harmony.end_of_body(self._text, close)
            written = self._text[body:end].strip()
        is_unbegun = not written.startswith("{") and end == len(self._text)
        if is_unbegun or (close is None and written.startswith("{")):
            return self._give_up(f"A call of {recipient[:80]!r} was cut off, so it was not run. Write it again, whole.", end)
        self._accept([self._read_call.call(recipient, written)], "harmony")
        return after

    # --- tags

    def _tag(self, tag: re.Match[str]) -> int:
        """Calls between a tag and its end. Without the end, nothing in it is a call."""
        if not tags.holds_something(self._text, tag.end()):
            return tag.end()  # prose, or a function's own tag, which is read by itself
        calls, inside = self._objects_in_tag(tag.end())
        limit = tags.next_opening(self._find, inside)
        closing = tags.closing_of(tag.group()).search(self._text, inside, limit)
        if closing is None:
            limit = min(limit, think.next_tag(self._find, inside))
            return self._give_up(
                f"A tool call was opened with {tag.group()} and not closed, so it was not run. Write it again, whole.", limit
            )
        calls = calls or self._loose_object(self._text[tag.end() : closing.start()].strip())
        if not calls:
            return self._give_up(
                "What stands in the tool call's tags is no call, so nothing was run. Write one JSON object there.", closing.end()
            )
        self._accept(calls, "tool_call")
        return closing.end()

    def _objects_in_tag(self, start: int) -> tuple[list[ParsedCall], int]:
        calls: list[ParsedCall] = []
        while (found := self._next_object(start)) is not None:
            value, start = found
            calls += self._read_call.calls_in(value)
        return calls, start

    def _next_object(self, start: int) -> tuple[Any, int] | None:
        """The whole JSON object behind nothing but space, commas and brackets, and where it ends."""
        skipped = _SPACE_AND_COMMAS.match(self._text, start)
        at = skipped.end() if skipped else start
        if not self._text.startswith("{", at) or self._braces.close_of(at) is None:
            return None
        try:
            return self._decode(at)
        except ValueError:
            return None

    def _loose_object(self, inner: str) -> list[ParsedCall]:
        """What stands between two tags, when it is not quite JSON."""
        if not self._spend(2 * len(inner)):
            return []
        start = inner.find("{")
        close = Braces(inner).close_of(start) if start >= 0 else None
        if close is None:
            return [] if start < 0 else self._read_call.closed(inner[start:])
        return self._mended_calls(inner[start : close + 1])

    def _function(self, tag: re.Match[str]) -> int:
        block = tags.function_at(self._find, tag.start())
        if block is None:
            limit = min(tags.next_opening(self._find, tag.end()), think.next_tag(self._find, tag.end()))
            return self._give_up(f"The call {tag.group()[:80]} was cut off, so it was not run. Write it again, whole.", limit)
        self._accept([self._read_call.call(block.name, block.parameters or block.inner)], "function")
        return block.end

    def _mistral(self, start: int) -> int:
        """Calls behind their token; each that follows at once belongs to it."""
        if mistral.is_list(self._text, start):
            return start
        head = mistral.head_at(self._text, start, first=True)
        if head is None or not mistral.is_call(self._text, head):
            return start
        while head is not None:
            start = self._object_given(head.name, head.arguments, "mistral")
            head = mistral.head_at(self._text, start, first=False)
        return start

    def _object_given(self, name: str, at: int, dialect: Dialect) -> int:
        """The call of `name` whose arguments are the object at `at`; cut off if it does not close there."""
        close = self._braces.close_of(at)
        if close is None:
            limit = think.next_tag(self._find, at)
            return self._give_up(f"A call of {name[:80]!r} was cut off, so it was not run. Write it again, whole.", limit)
        self._accept([self._read_call.call(name, self._text[at : close + 1])], dialect)
        return close + 1

    # --- two lines

    def _react(self, label: re.Match[str]) -> int:
        head = react.head_at(self._text, label.end())
        if head is None or not (self._read_call.knows(head.name) or head.given is not None):
            return self._label(label)
        if head.given is None:
            if not react.is_cut(self._text, head):
                return self._label(label)
            return self._give_up(f"The call of {head.name!r} has no input, so it was not run. Write it again, whole.", len(self._text))
        at = react.object_at(self._text, head.given)
        if at is not None:
            return react.behind(self._text, self._object_given(head.name, at, "react"))
        return self._plain_input(head.name, head.given) if self._read_call.knows(head.name) else self._label(label)

    def _label(self, label: re.Match[str]) -> int:
        """A label that begins no call in two lines; one in a single line may follow it."""
        self.shown.append(label.group())
        head = python_calls.head_at(self._text, label.end())
        return self._python(label.end(), head.inside) if head else label.end()

    def _plain_input(self, name: str, start: int) -> int:
        given = react.plain_text(self._find, start)
        written = self._text[start : given.end]
        if given.end == len(self._text) and (self._is_cut or react.is_unfinished(written)):
            return self._give_up(f"The input of {name!r} was cut off, so it was not run. Write it again, whole.", given.end)
        arguments = react.arguments_of(written, self._read_call.only_parameter(name))
        # What is no object is refused in the reader's own words.
        self._accept([self._read_call.call(name, arguments if arguments is not None else "…")], "react")
        return react.behind(self._text, given.after)

    # --- Python

    def _python(self, start: int, inside: int) -> int:
        """A call on a line of its own; without an offered tool's name, or with more behind it, it is prose."""
        read = self._statements.at(start)
        if read is None:
            self.shown.append(self._text[start:inside])
            return inside
        if read.problem is not None:
            return self._give_up(read.problem, read.end if read.end is not None else think.next_tag(self._find, inside))
        assert read.end is not None, "calls that were read have an end"
        self._accept(list(read.calls), "python")
        return read.end

    def _python_fence(self, language: re.Match[str]) -> int | None:
        """A fence that holds nothing but calls of tools; None if it is a program, which is shown."""
        read = self._statements.program(language.end())
        if read is None or read.end is None:
            return None
        self.shown.append(language.group())
        self._accept(list(read.calls), "python")
        return read.end

    # --- JSON

    def _fence(self, start: int) -> int:
        language = _LANGUAGE.match(self._text, start)
        assert language is not None, "a fence starts with its backticks"
        if language[1].lower() in _PYTHON_LANGUAGES and (end := self._python_fence(language)) is not None:
            return end
        if language[1].lower() in _CALL_LANGUAGES:
            self.shown.append(language.group())
            return language.end()
        closing = self._find.search(_FENCE_END, language.end())
        end = closing.end() if closing else think.next_tag(self._find, language.end())
        self.shown.append(self._text[start:end])
        return end

    def _brace(self, at: int) -> int:
        """An object: a call, data that is shown, or a brace of prose, within which a call may stand."""
        close = self._braces.close_of(at)
        if close is None:
            return self._unclosed(at)
        try:
            value, end = self._decode(at)
        except ValueError:
            return self._broken(at, close + 1)
        calls = self._read_call.calls_in(value)
        if not calls:
            self.shown.append(self._text[at:end])
            return end
        self._accept(calls, "json")
        while self._text.startswith("}", end):  # one brace too many is a common slip
            end += 1
        return end

    def _broken(self, at: int, end: int) -> int:
        """An object that is no JSON: mended if it begins as a call does."""
        head = self._read_call.head_at(self._text, at)
        if head is not None:
            if calls := self._mended_calls(self._text[at:end]):
                self._accept(calls, "json")
                return end
            if head[1] is not None:
                form = '{"name": …, "arguments": {…}}'
                words = f"A call of {head[1].name!r} is not valid JSON, so it was not run. Write it again as one object {form}."
                return self._give_up(words, end)
        self.shown.append("{")
        return at + 1

    def _unclosed(self, at: int) -> int:
        """An object without an end. If it begins as a call does, all that follows belongs to it."""
        head = self._read_call.head_at(self._text, at)
        if head is None or (head[0] and head[1] is None):
            self.shown.append("{")
            return at + 1
        limit = think.next_tag(self._find, at)
        if self._text.startswith("{", at + 1) and self._braces.close_of(at + 1) is not None:
            return at + 1  # a brace doubled at the front alone
        written = self._text[at:limit].rstrip(_TAIL)
        if not self._is_cut and written.endswith("}") and (calls := self._read_call.closed(written)):
            self._accept(calls, "json")
            return limit
        name = f" of {head[1].name!r}" if head[1] else ""
        return self._give_up(f"A call{name} was cut off before its end, so it was not run. Write it again, whole.", limit)

    def _mended_calls(self, written: str) -> list[ParsedCall]:
        if not self._spend(2 * len(written)):
            return []
        mended = mending.mend(written)
        if mended is None:
            return []
        value, what = mended
        return self._read_call.calls_in(value, (Repair(what=what, before=shortened(written, _KEPT)),) if what != "json" else ())

    def _decode(self, at: int) -> tuple[Any, int]:
        if not self._spend(0):
            raise ValueError("too many broken objects")
        try:
            value, end = mending.decode(self._text, at)
        except json.JSONDecodeError as error:
            self._spend(max(1, error.pos - at))
            raise
        return value, end

    # --- what came of it

    def _accept(self, calls: list[ParsedCall], dialect: Dialect) -> None:
        self.calls += [replace(call, dialect=dialect) for call in calls]
        self.shown.append(CALL)

    def _give_up(self, words: str, end: int) -> int:
        """Leave out what can't be read up to `end`; the model is told about the first such place."""
        self.problem = self.problem or words
        self.shown.append(CALL)
        return end

    def _spend(self, cost: int) -> bool:
        self._allowance -= cost
        return self._allowance > 0
