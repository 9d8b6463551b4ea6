"""Reasoning between tags: `<think>…</think>` and its kin. Nothing inside is ever acted on or shown."""

from __future__ import annotations

import re

# Behind a backtick or a quote the tag is talked about, not used.
_NAMES = r"(?:think|thinking|thought|reasoning)"
OPEN = rf"(?<![`'\"])<{_NAMES}>"
CLOSE = rf"(?<![`'\"])</{_NAMES}>"
_EITHER = re.compile(rf"(?P<open>{OPEN})|{CLOSE}", re.IGNORECASE)
_CLOSE = re.compile(CLOSE, re.IGNORECASE)


def end_of_block(text: str, inside: int) -> tuple[int, int]:
    """Where the reasoning that starts at `inside` ends, and where the text goes on.

    A tag that opens again within needs its own end. If the ends do not suffice, the last one counts:
    rather an answer too short than a thought acted on. Without any end, all is reasoning.
    """
    depth, last = 1, None
    for tag in _EITHER.finditer(text, inside):
        if tag["open"]:
            if last is not None and depth == 0:
                break
            depth += 1
            continue
        depth, last = depth - 1, tag
        if depth == 0:
            break
    return (last.start(), last.end()) if last else (len(text), len(text))


def next_close(text: str, start: int) -> int:
    """Where the next closing tag begins; the text's length if there is none."""
    tag = _CLOSE.search(text, start)
    return tag.start() if tag else len(text)
