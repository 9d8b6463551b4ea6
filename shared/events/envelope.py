"""The envelope that every fact travels in, and how old versions are read.

CloudEvents 1.0, binary mode over NATS headers: attributes are `ce-…` headers, the body is the event
as JSON. `ce-dataschema` carries the version, so a reader upcasts what an older engine wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, ClassVar, cast

import orjson
from pydantic import BaseModel, ConfigDict

from shared.ids import is_token
from shared.subjects import Aggregate, fact

Upcaster = Callable[[dict[str, Any]], dict[str, Any]]

_TYPES: dict[str, type[Event]] = {}
_UPCASTERS: dict[tuple[str, int], Upcaster] = {}


class Event(BaseModel):
    """A fact in the past tense. Frozen; a reader tolerates fields that it does not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", ser_json_inf_nan="null")

    TYPE: ClassVar[str] = ""
    VERSION: ClassVar[int] = 1

    @classmethod
    def __pydantic_init_subclass__(cls, **kwargs: Any) -> None:
        super().__pydantic_init_subclass__(**kwargs)
        if not cls.TYPE:
            return
        if cls.TYPE in _TYPES:
            raise TypeError(f"two events are called {cls.TYPE!r}")
        _TYPES[cls.TYPE] = cls


class Unknown(Event):
    """A fact of a type that this reader has never heard of: a newer engine wrote it.

    `problem` is set where the type is known but the body could not be read, by `decode_anything`.
    """

    type: str
    data: dict[str, Any]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Fact:
    """An event as the log holds it: what happened, and where in the one order it stands."""

    seq: int
    id: str
    time: datetime
    source: str
    aggregate: Aggregate
    event: Event
    causation_id: str | None = None
    traceparent: str | None = None

    @property
    def type(self) -> str:
        return self.event.type if isinstance(self.event, Unknown) else self.event.TYPE

    @property
    def scope(self) -> str:
        return self.aggregate.scope


def upcast(event_type: str, *, from_version: int) -> Callable[[Upcaster], Upcaster]:
    """Register how the body of an old version becomes that of the next one."""

    def register(function: Upcaster) -> Upcaster:
        _UPCASTERS[event_type, from_version] = function
        return function

    return register


def event_types() -> Mapping[str, type[Event]]:
    return _TYPES


def subject_of(aggregate: Aggregate, event: Event) -> str:
    domain, name = event.TYPE.split(".")
    if domain != aggregate.domain:
        raise ValueError(f"{event.TYPE} is not a fact of {aggregate}")
    return fact(domain, aggregate.scope, name)


def headers_of(
    event: Event,
    *,
    id: str,
    time: datetime,
    source: str,
    scope: str,
    causation_id: str | None = None,
    traceparent: str | None = None,
) -> dict[str, str]:
    headers = {
        "Nats-Msg-Id": id,
        "ce-specversion": "1.0",
        "ce-id": id,
        "ce-type": event.TYPE,
        "ce-source": source,
        "ce-subject": scope,
        "ce-time": time.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "ce-dataschema": f"/schemas/{event.TYPE}/v{event.VERSION}",
        "content-type": "application/json",
    }
    if causation_id:
        headers["ce-causationid"] = causation_id
    if traceparent:
        headers["traceparent"] = traceparent
    return headers


def body_of(event: Event) -> bytes:
    """The event as compact JSON; fields at their default are left out, to keep the log small."""
    return orjson.dumps(event.model_dump(mode="json", exclude_defaults=True))


def parse(event_type: str, version: int, body: bytes | str) -> Event:
    """The event that a body holds, upcast to today's version.

    A type or a version newer than this reader gives `Unknown` or the fields that it knows.
    """
    model = _TYPES.get(event_type)
    if model is None:
        return Unknown(type=event_type, data=cast(dict[str, Any], orjson.loads(body or b"{}")))
    if version >= model.VERSION:
        return model.model_validate_json(body)
    data = cast(dict[str, Any], orjson.loads(body))
    for step in range(version, model.VERSION):
        data = _UPCASTERS[event_type, step](data)
    return model.model_validate(data)


@lru_cache(maxsize=4096)
def _aggregate(domain: str, scope: str) -> Aggregate:
    return Aggregate(domain, scope)


def decode(seq: int, subject: str, headers: Mapping[str, str], body: bytes) -> Fact:
    """A stored message as a fact."""
    _, _, domain, scope, name = subject.split(".")
    event_type = headers.get("ce-type", f"{domain}.{name}")
    version = int(headers.get("ce-dataschema", "/v1").rpartition("/v")[2])
    return Fact(
        seq=seq,
        id=headers.get("ce-id", ""),
        time=datetime.fromisoformat(headers["ce-time"]) if "ce-time" in headers else datetime.fromtimestamp(0, UTC),
        source=headers.get("ce-source", ""),
        aggregate=_aggregate(domain, scope),
        event=parse(event_type, version, body),
        causation_id=headers.get("ce-causationid"),
        traceparent=headers.get("traceparent"),
    )


def decode_anything(seq: int, subject: str, headers: Mapping[str, str], body: bytes) -> Fact:
    """`decode` for readers that must get past every message: what cannot be read is `Unknown` with the reason."""
    try:
        return decode(seq, subject, headers, body)
    except Exception as error:  # whatever an upcaster or a model raised, it would raise it again
        _, _, domain, scope, name = (subject.split(".") + ["unreadable"] * 5)[:5]
        aggregate = Aggregate(domain, scope) if is_token(domain) and is_token(scope) else Aggregate("unreadable", "unreadable")
        event = Unknown(type=headers.get("ce-type", f"{domain}.{name}"), data={}, problem=f"{type(error).__name__}: {error}"[:300])
        return Fact(seq, headers.get("ce-id", ""), datetime.fromtimestamp(0, UTC), headers.get("ce-source", ""), aggregate, event)
