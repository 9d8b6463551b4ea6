"""Calls between tags: `<tool_call>{…}</tool_call>` and `<function=name><parameter=x>…</parameter></function>`.

An opening tag without its closing one means that the output was cut: nothing in it is a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from services.scheduler.dialects.scan import Finder

_PAIRS = {
    "<tool_call>": "</tool_call>",
    "<tools>": "</tools>",
    "<function_call>": "</function_call>",
    "[tool_request]": "[end_tool_request]",
}
# Behind a backtick or a quote a tag is talked about, not used.
OPEN = r"(?<![`'\"])(?:<tool_call>|<tools>|<function_call>|\[TOOL_REQUEST\])"
FUNCTION = r"(?<![`'\"])<function=[^<>\n]{0,200}(?:>|\Z)"
STRAY = r"</tool_call>|</tools>|</function_call>|\[END_TOOL_REQUEST\]|</function>"
_CLOSING = {opening: re.compile(re.escape(closing), re.IGNORECASE) for opening, closing in _PAIRS.items()}
_ANY_OPEN = re.compile(f"{OPEN}|{FUNCTION}", re.IGNORECASE)
_FUNCTION = re.compile(r"<function=([^<>\n]{1,200})>", re.IGNORECASE)
_FUNCTION_END = re.compile(r"</function>", re.IGNORECASE)
_PARAMETER = re.compile(r"<parameter=([^<>\n]{1,200})>", re.IGNORECASE)
# The end that another parameter or the function's end follows: a text may hold `</parameter>` itself.
_PARAMETER_END = re.compile(r"</parameter>(?=\s{0,200}(?:<parameter=|</function>))", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FunctionBlock:
    """A call in tags: parameters as raw text, or the text between the tags when there is none."""

    name: str
    parameters: dict[str, str]
    inner: str
    end: int


def closing_of(opening: str) -> re.Pattern[str]:
    """The tag that closes `opening`."""
    return _CLOSING[opening.lower()]


def next_opening(find: Finder, start: int) -> int:
    """Where the next call's tag begins; the text's length if there is none."""
    tag = find.search(_ANY_OPEN, start)
    return tag.start() if tag else len(find.text)


def holds_something(text: str, start: int) -> bool:
    """Whether what follows an opening tag can be a call, or is missing: otherwise the tag is mere prose."""
    rest = text[start : start + 200].lstrip()
    return not rest or rest.startswith(("{", "["))


def function_at(find: Finder, start: int) -> FunctionBlock | None:
    """The call whose opening tag stands at `start`, or None if it is cut off."""
    text = find.text
    opening = _FUNCTION.match(text, start)
    if opening is None:
        return None
    parameters: dict[str, str] = {}
    position = opening.end()
    while (parameter := _skipping_space(_PARAMETER, text, position)) is not None:
        end = find.search(_PARAMETER_END, parameter.end())
        if end is None:
            return None
        parameters[parameter[1].strip()] = _unpadded(text[parameter.end() : end.start()])
        position = end.end()
    closing = find.search(_FUNCTION_END, position)
    if closing is None:
        return None
    return FunctionBlock(opening[1].strip(), parameters, text[position : closing.start()].strip(), closing.end())


def _skipping_space(pattern: re.Pattern[str], text: str, start: int) -> re.Match[str] | None:
    while start < len(text) and text[start].isspace():
        start += 1
    return pattern.match(text, start)


def _unpadded(value: str) -> str:
    """A value without the one newline that the form puts on each side of it."""
    return value.removeprefix("\n").removesuffix("\n")
