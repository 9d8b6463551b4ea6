"""Values made fit for PostgreSQL.

Outside text is cleaned before it enters the log (`shared.text`), so nothing should need mending here; but a
read model must not stop for a value that a stranger, or an older engine, put into the log.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from math import isfinite
from typing import Any, cast

from psycopg.types.json import Jsonb

from services.recorder.projections.base import Json
from shared.text import clean

BIGINT = 2**63 - 1


class Mending:
    """Makes values storable, and counts those that it had to change."""

    def __init__(self) -> None:
        self.changed = 0

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.value(value) for name, value in values.items()}

    def value(self, value: Any) -> Any:
        """A column's value."""
        match value:
            case str():
                return self._text(value)
            case bool() | None | datetime():
                return value
            case int() if abs(value) > BIGINT:
                self.changed += 1
                return BIGINT if value > 0 else -BIGINT
            case float() if not isfinite(value):
                self.changed += 1
                return None
            case Json(value=inner):
                return Jsonb(self._json(inner))
            case list():
                return [self.value(each) for each in cast(list[Any], value)]
            case _:
                return value

    def _json(self, value: Any) -> Any:
        """A value inside jsonb; numbers of any size fit there."""
        match value:
            case str():
                return self._text(value)
            case float() if not isfinite(value):
                self.changed += 1
                return None
            case dict():
                items = cast(Iterable[tuple[Any, Any]], value.items())
                return {self._text(str(key)): self._json(each) for key, each in items}
            case list() | tuple():
                return [self._json(each) for each in cast(Iterable[Any], value)]
            case _:
                return value

    def _text(self, text: str) -> str:
        cleaned = clean(text)
        if cleaned != text:
            self.changed += 1
        return cleaned
