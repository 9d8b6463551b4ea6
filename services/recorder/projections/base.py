"""What a projection is: from facts to the statements that bring its tables up to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, Protocol

from shared.events.envelope import Fact
from shared.ids import short_digest

KEY_CHARS = 400  # of a text in a primary key: PostgreSQL takes 2,704 bytes in all


@dataclass(frozen=True, slots=True)
class Change:
    """One SQL statement and its named values. Lists of text become `text[]`, other values that need it `Json`."""

    sql: LiteralString
    values: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Json:
    """A value for a jsonb column."""

    value: Any


class Projection(Protocol):
    """A read model. Its changes for facts are the same however the facts are cut into batches."""

    @property
    def name(self) -> str: ...

    async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
        """What the facts, in order and each given once, do to the tables."""
        ...

    def forget(self) -> None:
        """Drop what is remembered of facts: the changes last given were not stored."""
        ...


@dataclass(frozen=True, slots=True)
class PerFact:
    """A projection that looks at one fact at a time and remembers nothing."""

    name: str
    of: Callable[[Fact], Iterable[Change]]

    async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
        return [change for fact in facts for change in self.of(fact)]

    def forget(self) -> None:
        pass


def key_text(text: str) -> str:
    """A text as part of a primary key: as it is, or cut, with the digest of the whole."""
    return text if len(text) <= KEY_CHARS else f"{text[:KEY_CHARS]}…{short_digest(text)}"
