"""Replacing one piece of a text by another, as forgiving as is safe: pure functions over strings.

A model rarely copies a piece byte for byte. The exact text is looked for first; then whole lines that differ
only in white space, with the new text moved to the indentation of the place; then a piece of a line that
differs only in white space. Each must be found in exactly one place.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

_SHOWN_LINES = 12
_COMPARED_LINES = 3000
_COMPARED_CHARACTERS = 200
# Any quote may stand for any other: a model that writes 'x' for "x" still means that line.
_QUOTES = str.maketrans(dict.fromkeys("\u2018\u2019\u201c\u201d'", '"'))


class NoEdit(Exception):
    """The edit cannot be made; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Edited:
    """The whole new text, the first line that changed (from 1), and whether white space had to be ignored."""

    text: str
    line: int
    tolerant: bool = False


def replace_once(text: str, old: str, new: str, line_end: str = "\n") -> Edited:
    r"""`text` with its one `old` replaced; line ends outside of that piece stay as they are.

    >>> replace_once("a = 1\r\nb = 2\r\n", "a = 1\nb", "a = 3\nb", "\r\n").text
    'a = 3\r\nb = 2\r\n'

    Raises:
        NoEdit: `old` is empty, is not there, is there several times, or equals `new`.
    """
    plain, old, new = _plain(text), _plain(old), _plain(new)
    if not old.strip():
        raise NoEdit("old is empty. Copy into old the exact lines that must change, or use write_file to write the whole file.")
    if old == new:
        raise NoEdit("old and new are the same text, so there is nothing to change. Put the changed text into new.")
    start, end, new, tolerant = _place(plain, old, new)
    breaks = [match.start() - count for count, match in enumerate(re.finditer("\r\n", text))]
    raw_start, raw_end = start + bisect_left(breaks, start), end + bisect_left(breaks, end)
    edited = text[:raw_start] + new.replace("\n", line_end) + text[raw_end:]
    if edited == text:
        raise NoEdit("The file already reads like that, so nothing was changed. Go on with the next step.")
    return Edited(edited, plain.count("\n", 0, start) + 1, tolerant)


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n")


def _place(text: str, old: str, new: str) -> tuple[int, int, str, bool]:
    """Where to replace (start, end), by what, and whether white space was ignored."""
    count = text.count(old)
    if count == 1:
        start = text.index(old)
        return start, start + len(old), new, False
    if count > 1:
        raise _ambiguous(text, [match.start() for match in re.finditer(re.escape(old), text)], count)
    found = _as_lines(text, old, new) or _as_words(text, old, new)
    if found is None:
        raise _not_found(text, old, new)
    return (*found, True)


def _ambiguous(text: str, starts: Sequence[int], count: int) -> NoEdit:
    lines = ", ".join(str(text.count("\n", 0, start) + 1) for start in starts[:8])
    return NoEdit(
        f"old occurs {count} times (lines {lines}), so it is not clear which one to change. "
        "Copy more of the lines around it into old, so that it occurs once."
    )


# ---- whole lines, white space ignored


def _as_lines(text: str, old: str, new: str) -> tuple[int, int, str] | None:
    lines, wanted = text.split("\n"), old.strip("\n").split("\n")
    keys, wanted_keys = [_key(line) for line in lines], [_key(line) for line in wanted]
    places = [at for at in range(len(lines) - len(wanted) + 1) if keys[at : at + len(wanted)] == wanted_keys]
    if len(places) > 1:
        starts = [len("\n".join(lines[:at])) + (at > 0) for at in places]
        raise _ambiguous(text, starts, len(places))
    if not places:
        return None
    at = places[0]
    block = lines[at : at + len(wanted)]
    indents = _indents(wanted, block)
    if indents is None:
        return None
    start = len("\n".join(lines[:at])) + (at > 0)
    end = start + len("\n".join(block))
    if not new.strip("\n"):  # the lines are deleted, with their end
        return start, min(end + 1, len(text)), ""
    return start, end, "\n".join(_indented(line, indents) for line in new.strip("\n").split("\n"))


def _key(line: str) -> str:
    return " ".join(line.translate(_QUOTES).split())


def _indent(line: str) -> str:
    return line[: len(line) - len(line.lstrip())]


def _indents(wanted: Sequence[str], block: Sequence[str]) -> dict[str, str] | None:
    """Which indentation of the file stands for each of the model's; None when one stands for two."""
    known: dict[str, str] = {}
    for mine, theirs in zip(wanted, block, strict=True):
        if mine.strip() and known.setdefault(_indent(mine), _indent(theirs)) != _indent(theirs):
            return None
    return known


def _indented(line: str, indents: dict[str, str]) -> str:
    """A new line moved like the known indentation that is nearest to its own from below."""
    if not line.strip():
        return ""
    own = _indent(line)
    base = max((known for known in indents if own.startswith(known)), key=len, default=None)
    return line if base is None else indents[base] + own[len(base) :] + line.lstrip()


# ---- a piece of a line, white space ignored


def _as_words(text: str, old: str, new: str) -> tuple[int, int, str] | None:
    pattern = r"\s+".join(re.escape(word) for word in old.split())
    found = list(re.finditer(pattern, text))
    if len(found) > 1:
        raise _ambiguous(text, [match.start() for match in found], len(found))
    if not found:
        return None
    # Leading and trailing white space of old took no part in the match, so new's own is dropped with it.
    return found[0].start(), found[0].end(), new.strip() if old != old.strip() else new


# ---- what to say when it is not there


def _not_found(text: str, old: str, new: str) -> NoEdit:
    if new.strip() and new in text:
        line = text.count("\n", 0, text.index(new)) + 1
        return NoEdit(f"old is not in the file, and new is there already (line {line}), so this change seems to be made. Go on.")
    if not text.strip():
        return NoEdit("The file is empty, so old is not in it. Use write_file to write its content.")
    lines = text.split("\n")
    near = _nearest(lines, old.strip("\n").split("\n"))
    if near is None:
        return NoEdit("old is not in the file, nor anything like it. Call read_file, then copy the lines to change exactly into old.")
    first, last = near
    excerpt = "\n".join(lines[first : last + 1])
    return NoEdit(
        f"old is not in the file. The nearest lines are {first + 1} to {last + 1}:\n{excerpt}\n"
        "Call edit_file again with old copied exactly from these lines."
    )


def _nearest(lines: Sequence[str], wanted: Sequence[str]) -> tuple[int, int] | None:
    """The first and last line (from 0) of the place that looks most like `wanted`."""
    anchor = max(range(len(wanted)), key=lambda at: len(wanted[at].strip()))
    matcher = difflib.SequenceMatcher(autojunk=False)
    matcher.set_seq2(wanted[anchor].strip()[:_COMPARED_CHARACTERS])
    best, best_score = -1, 0.5
    for at, line in enumerate(lines[:_COMPARED_LINES]):
        matcher.set_seq1(line.strip()[:_COMPARED_CHARACTERS])
        if matcher.real_quick_ratio() > best_score and matcher.quick_ratio() > best_score and (score := matcher.ratio()) > best_score:
            best, best_score = at, score
    if best < 0:
        return None
    first = max(0, best - min(anchor, _SHOWN_LINES // 2))
    return first, min(len(lines) - 1, first + min(len(wanted), _SHOWN_LINES) - 1)
