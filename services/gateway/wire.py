"""Facts as server-sent events. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from services.gateway.index import RUN_DOMAINS
from shared.events.envelope import Fact, Unknown

KEEP_ALIVE = b": keep-alive\n\n"


def data_of(fact: Fact) -> bytes:
    """A fact as JSON; `data` has the fields of its schema."""
    event = fact.event
    return orjson.dumps(
        {
            "seq": fact.seq,
            "id": fact.id,
            "type": fact.type,
            "version": fact.event.VERSION,
            "time": fact.time,
            "source": fact.source,
            "scope": fact.scope,
            "runGuid": fact.scope if fact.aggregate.domain in RUN_DOMAINS else None,
            "traceparent": fact.traceparent,
            "causationId": fact.causation_id,
            "data": event.data if isinstance(event, Unknown) else orjson.Fragment(event.model_dump_json()),
        },
        option=orjson.OPT_UTC_Z,
    )


def event_of(fact: Fact) -> bytes:
    """A fact as one event. Its id is the log's own sequence: the same for every client, server and day."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (fact.seq, fact.type.encode(), data_of(fact))


def delta_of(delta: bytes) -> bytes:
    """A piece of text that a model is writing. No id: it is not a fact, and no resume can give it again."""
    return b"event: llm.delta\ndata: %s\n\n" % delta.replace(b"\n", b" ")


def reset_of(reason: str, **members: Any) -> bytes:
    """Tells a client to forget what it has: the events that follow begin anew. The empty id clears its cursor."""
    fields: Mapping[str, Any] = {"reason": reason, **members}
    return b"id:\nevent: reset\ndata: %s\n\n" % orjson.dumps(fields)


def cursor_of(seq: int) -> bytes:
    """Sets a client's cursor and says nothing, so that it can resume before its first event."""
    return b"id: %d\n\n" % seq
