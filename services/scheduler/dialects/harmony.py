"""The channels of gpt-oss, and control tokens of any template that leaked into text.

    <|channel|>analysis<|message|>…<|end|>
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{…}<|call|>
    <|channel|>final<|message|>…<|return|>

A server that stops at `<|call|>` or `<|return|>` leaves that token out, so the end of the text ends a
message too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

OPEN = r"<\|(?:start|channel|message)\|>"
_MESSAGE = re.compile(r"<\|message\|>", re.IGNORECASE)
_END = re.compile(r"<\|(?:end|call|return|start|channel)\|>", re.IGNORECASE)
_RECIPIENT = re.compile(r"\bto=([^\s<]{1,200})")
_CHANNEL = re.compile(r"<\|channel\|>\s*([A-Za-z]+)", re.IGNORECASE)
_HEADER = 400  # characters; more is no header

_MARKER = re.compile(r"<\|[^|<>\n]{0,64}\|>|<｜[^｜<>\n]{0,64}｜>")
_CUT_MARKER = re.compile(r"<[|｜][\w▁]{0,64}[|｜]?\s*\Z")

_CUT_END = re.compile(r"<(?:[|｜][\w▁]{0,64}[|｜]?)?\s*\Z")


@dataclass(frozen=True, slots=True)
class Header:
    """The head of a message: its channel, who it is for, and where its body begins."""

    channel: str
    recipient: str | None
    body: int


def header_at(text: str, start: int) -> Header | None:
    """The header that begins with the marker at `start`, or None if no message follows it."""
    mark = _MESSAGE.search(text, start, start + _HEADER)
    if mark is None:
        return None
    head = text[start : mark.start()]
    channel, recipient = _CHANNEL.search(head), _RECIPIENT.search(head)
    return Header(channel[1].lower() if channel else "", recipient[1] if recipient else None, mark.end())


def end_of_body(text: str, start: int) -> tuple[int, int]:
    """Where a message's body ends, and where the text goes on. A marker that opens the next one is left."""
    end = _END.search(text, start)
    if end is None:
        return len(text), len(text)
    opens_next = end.group().lower() in ("<|start|>", "<|channel|>")
    return end.start(), end.start() if opens_next else end.end()


def is_cut_header(text: str, start: int) -> bool:
    """Whether the text ends within a header that names a recipient."""
    return len(text) - start < _HEADER and _RECIPIENT.search(text, start) is not None


def without_cut_end(body: str) -> str:
    """A body without the first characters of the token that should have ended it."""
    return _CUT_END.sub("", body)


def without_markers(text: str) -> str:
    """`text` without control tokens, also those that appear only once others are taken out."""
    for _ in range(4):
        stripped = _CUT_MARKER.sub("", _MARKER.sub("", text))
        if stripped == text:
            return text
        text = stripped
    return text.replace("<|", "<").replace("<｜", "<")
