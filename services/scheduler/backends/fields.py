"""Values out of a server's JSON, which may lack them or send them as something else. Pure."""

from __future__ import annotations

from typing import Any, cast

from services.scheduler.backends.base import Json


def object_at(body: Json, name: str) -> Json:
    """The object under `name`, empty if there is none."""
    value: Any = body.get(name)
    return cast("Json", value) if isinstance(value, dict) else {}


def count_at(body: Json, name: str) -> int | None:
    """A positive number under `name`; a server's 0 means that it does not say."""
    value: Any = body.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def mib_at(body: Json, name: str) -> int | None:
    """Bytes under `name` as MiB, rounded up.

    >>> mib_at({"size": 1}, "size")
    1
    """
    size = count_at(body, name)
    return None if size is None else -(-size // 2**20)


def texts_at(body: Json, name: str) -> tuple[str, ...]:
    """The texts in the list under `name`."""
    value: Any = body.get(name)
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return tuple(item for item in items if isinstance(item, str))


def text_at(body: Json, name: str) -> str:
    value: Any = body.get(name)
    return value if isinstance(value, str) else ""
