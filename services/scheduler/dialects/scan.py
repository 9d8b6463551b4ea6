"""Finding things in a text in time linear in its length: patterns, and where objects end.

A `{` opens an object, and quotes count from there on; a quote outside any object is prose. Which `}`
closes a given `{` depends on nothing before it, so each answer is kept and no part of the text is
gone through again for an object that an earlier look has already settled.
"""

from __future__ import annotations

import re

_TOKEN = re.compile(r'[{}"]|\\.', re.DOTALL)
_WORK_PER_TOKEN = 16


class Finder:
    """Searches in one text. What was found, or found absent, from an earlier start is not looked for again."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._known: dict[re.Pattern[str], tuple[int, re.Match[str] | None]] = {}

    def search(self, pattern: re.Pattern[str], start: int) -> re.Match[str] | None:
        """The first match at or behind `start`."""
        if (known := self._known.get(pattern)) is not None:
            begun, found = known
            if begun <= start and (found is None or start <= found.start()):
                return found
        found = pattern.search(self.text, start)
        self._known[pattern] = (start, found)
        return found


class Braces:
    """The objects of one text. `steps` counts the work, so that a test can hold it to the length.

    A text made to be looked at again and again (quotes and escapes that never agree) exhausts an
    allowance proportional to its length; what is left then counts as never closed.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[tuple[int, str]] = [(match.start(), match.group()) for match in _TOKEN.finditer(text)]
        self._at = {start: index for index, (start, token) in enumerate(self._tokens) if token == "{"}
        self._close: dict[int, int | None] = {}  # by index of the token: index of its `}`
        self._allowance = _WORK_PER_TOKEN * (len(self._tokens) + 64)
        self.steps = len(self._tokens)

    def close_of(self, start: int) -> int | None:
        """The position of the `}` that closes the `{` at `start`; None if the text ends before."""
        index = self._at.get(start)
        if index is None:  # behind a backslash, as in `\\{`: prose or mathematics
            return None
        if index not in self._close:
            self._scan(index)
        close = self._close[index]
        return None if close is None else self._tokens[close][0]

    def _scan(self, first: int) -> None:
        """Settle the object at token `first`, and every object met on the way to its end."""
        stack = [first]
        index, in_string = first + 1, False
        while stack and index < len(self._tokens) and self._allowance > 0:
            self._allowance -= 1
            self.steps += 1
            token = self._tokens[index][1]
            if token == '"':
                in_string = not in_string
            elif token == "}" and not in_string:
                self._close[stack.pop()] = index
            elif token == "{" and not in_string:
                if index not in self._close:
                    stack.append(index)
                elif (close := self._close[index]) is None:
                    break  # what is inside never closes, so nothing around it does
                else:
                    index = close
            index += 1
        for unclosed in stack:
            self._close[unclosed] = None
