"""Identity: new ids, ids derived from a place, and digests of content."""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Any

import orjson

_TOKEN = re.compile(r"[A-Za-z0-9_-]+")
_NAMESPACE = uuid.UUID("6f2b3c52-7f0e-5b6e-9c0e-aa1e7e4e1c11")


def new_id() -> str:
    """A random id for a fact or a run, in the form of a GUID."""
    return str(uuid.uuid4())


def derived_id(*parts: str) -> str:
    """The same GUID for the same parts, for ids that a retry or a replay must find again."""
    return str(uuid.uuid5(_NAMESPACE, "\x1f".join(parts)))


def place_id(prefix: str, *parts: str) -> str:
    """A short id that names a place in a run, such as `call_3f0a9c1b2d4e`: equal for equal parts."""
    return f"{prefix}_{hashlib.blake2b(chr(31).join(parts).encode(), digest_size=6).hexdigest()}"


def is_token(text: str) -> bool:
    """Whether `text` can stand in a subject: it neither splits a token nor matches a wildcard."""
    return _TOKEN.fullmatch(text) is not None


def canonical(value: Any) -> bytes:
    """JSON with sorted keys: equal values, equal bytes."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


def digest(value: Any) -> str:
    """SHA-256 over the canonical JSON of a value, in hex."""
    return hashlib.sha256(canonical(value)).hexdigest()


def short_digest(value: Any) -> str:
    """The first 16 hex digits of `digest`: enough to see that a recorded text was changed."""
    return digest(value)[:16]
