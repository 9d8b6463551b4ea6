"""Text from outside, made fit to be stored: no NUL, no half of a surrogate pair.

PostgreSQL's jsonb refuses both. They are replaced once, where outside text enters and before anything
is hashed, by U+FFFD; every other control character stays.
"""

from __future__ import annotations

from typing import Any, cast

_REPLACEMENT = "\ufffd"


def clean(text: str) -> str:
    """`text` without NUL characters and lone surrogates.

    >>> clean("a" + chr(0) + "b")
    'a\ufffdb'
    """
    if "\x00" in text:
        text = text.replace("\x00", _REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        # A pair that arrived as two halves is one character; what is left alone is replaced.
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def clean_json(value: Any) -> Any:
    """`clean` applied to every string of a JSON value, keys included."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, list):
        return [clean_json(item) for item in cast(list[Any], value)]
    if isinstance(value, dict):
        return {clean(str(key)): clean_json(item) for key, item in cast(dict[Any, Any], value).items()}
    return value


def cut(text: str, limit: int) -> str:
    """The first `limit` characters, with what was left out stated at the end."""
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n[cut: {len(text) - limit} more characters]"
