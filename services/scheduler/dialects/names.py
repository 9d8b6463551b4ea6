"""Which offered tool a written name means: exact, or the only one left after folding. Never a guess.

Folding is: control markers cut off, case ignored, `-` and `_` alike, a `functions.` or `prefix:` in
front dropped. There is no matching by prefix or likeness: `shell__run_as_root` is not `shell__run`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from shared.events.content import Repair

_MARKER = re.compile(r"<[|｜].*", re.DOTALL)
_SHOWN = 80


@dataclass(frozen=True, slots=True)
class Resolved:
    """An offered tool, and how the written name had to be changed, if at all."""

    name: str
    repairs: tuple[Repair, ...] = ()


class Names:
    """The offered tools, prepared for looking up."""

    def __init__(self, offered: Sequence[str]) -> None:
        self._offered = tuple(offered)
        self._folded: dict[str, list[str]] = {}
        for name in dict.fromkeys(offered):
            self._folded.setdefault(_fold(name), []).append(name)

    def resolve(self, written: str) -> Resolved | None:
        """The tool that `written` means, or None if none or more than one fits."""
        if written in self._offered:
            return Resolved(written)
        for candidate in _candidates(plain(written)):
            if candidate in self._offered:
                return _mended(written, candidate)
            if len(found := self._folded.get(_fold(candidate), ())) == 1:
                return _mended(written, found[0])
        return None

    def unknown(self, written: str) -> str:
        """What to tell a model that named no offered tool."""
        names = ", ".join(self._offered) or "none"
        return f"There is no tool {plain(written)[:_SHOWN]!r}. Call one of: {names}."


def plain(written: str) -> str:
    """A written name without control markers, quotes and space around it."""
    return _MARKER.sub("", written).strip(" \t\r\n`'\"")


def _candidates(name: str) -> Iterator[str]:
    yield name
    if name.lower().startswith("functions."):
        yield name[len("functions.") :]
    if ":" in name:
        yield name.rpartition(":")[2].strip()


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")


def _mended(written: str, name: str) -> Resolved:
    return Resolved(name, (Repair(what="tool_name", before=written[:_SHOWN], after=name),))
