"""Reasoning between tags: `<think>…</think>`, `[THINK]…[/THINK]` and their kin. Nothing inside is ever acted on or shown."""

from __future__ import annotations

import re

from services.scheduler.dialects.scan import Finder

# Behind a backtick or a quote the tag is talked about, not used.
_NAMES = r"(?:think|thinking|thought|reasoning)"
OPEN = rf"(?<![`'\"])(?:<{_NAMES}>|(?-i:\[THINK\]))"
CLOSE = rf"(?<![`'\"])(?:</{_NAMES}>|(?-i:\[/THINK\]))"
_EITHER = re.compile(rf"(?P<open>{OPEN})|{CLOSE}", re.IGNORECASE)


def end_of_block(text: str, inside: int) -> tuple[int, int]:
    """Where the reasoning that starts at `inside` ends, and where the text goes on.

    A tag that opens again within needs its own end. If the ends do not suffice, the last one counts:
    rather an answer too short than a thought acted on. Without any end, all is reasoning.
    """
    depth, last = 1, None
    for tag in _EITHER.finditer(text, inside):
        if tag["open"]:
            depth += 1
            continue
        depth, last = depth - 1, tag
        if depth == 0:
            break
    return (last.start(), last.end()) if last else (len(text), len(text))


def next_tag(find: Finder, start: int) -> int:
    """Where reasoning next begins or ends; the text's length if it does not."""
    tag = find.search(_EITHER, start)
    return tag.start() if tag else len(find.text)
