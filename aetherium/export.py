"""A run as a file: JSON lines, exactly as the log holds it, so that it can be read and verified anywhere.

Each fact is `{seq, subject, headers, body}`; the template that the run was pinned to is one `{blob, content}`.
"""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator, Iterable
from typing import Any, cast

import nats.errors
import orjson

from aetherium.prefix import the_one
from shared import subjects
from shared.blobs import NatsBlobs
from shared.bus import Bus
from shared.errors import BadInput, LogUnavailable, NotFound
from shared.eventlog import NatsEventLog
from shared.events.envelope import Fact, decode
from shared.events.run import RunSubmitted
from shared.ids import is_token

# How a message was read and how its append was checked; neither is part of the fact.
_TRANSPORT = (
    "Nats-Sequence",
    "Nats-Subject",
    "Nats-Stream",
    "Nats-Time-Stamp",
    "Nats-Last-Sequence",
    "Nats-Num-Pending",
    "Nats-Expected",
    "Nats-Batch",
)


async def lines(bus: Bus, run_id: str) -> AsyncGenerator[bytes, None]:
    """The run as the lines of a file.

    Raises:
        LogUnavailable: the log does not answer.
        NotFound: there is no such run, or the log has lost its template.
    """
    seq = 1
    while (message := await _next(bus, subjects.of_run(run_id), seq)) is not None:
        row, seq = message, message["seq"] + 1
        yield orjson.dumps(row) + b"\n"
        if row["headers"].get("ce-type") == RunSubmitted.TYPE:
            template = RunSubmitted.model_validate(row["body"]).template
            content = await NatsBlobs(bus).get(template)
            yield orjson.dumps({"blob": template.sha256, "content": base64.b64encode(content).decode()}) + b"\n"
    if seq == 1:
        raise NotFound(f"the log holds no run {run_id!r}")


async def _next(bus: Bus, subject_filter: str, seq: int) -> dict[str, Any] | None:
    """The first stored message that matches at or after `seq`, raw: also one that this engine cannot read."""
    ask = orjson.dumps({"seq": seq, "next_by_subj": subject_filter})
    try:
        message = await bus.client.request(f"$JS.API.DIRECT.GET.{subjects.STREAM}", ask, timeout=5.0)
    except (TimeoutError, nats.errors.Error) as error:
        raise LogUnavailable(f"the event log did not answer at {seq}: is the engine running?") from error
    headers = message.headers or {}
    if "Nats-Sequence" not in headers:
        return None
    kept = {name: value for name, value in headers.items() if not name.startswith(_TRANSPORT)}
    return {"seq": int(headers["Nats-Sequence"]), "subject": headers["Nats-Subject"], "headers": kept, "body": orjson.loads(message.data)}


def facts(rows: Iterable[bytes], origin: str) -> list[Fact]:
    """The facts of an exported run.

    Raises:
        BadInput: a line is no fact; the message names it.
    """
    found: list[Fact] = []
    for number, line in enumerate(rows, 1):
        try:
            row = cast(dict[str, Any], orjson.loads(line))
            if "blob" not in row:
                found.append(decode(row["seq"], row["subject"], row["headers"], orjson.dumps(row["body"])))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadInput(f"{origin}: line {number} is not a fact: {error!r}", field="--file") from error
    return found


async def find(log: NatsEventLog, prefix: str) -> str:
    """The id of the one run that begins with `prefix`.

    Raises:
        NotFound: none does.
        BadInput: several do.
    """
    if not is_token(prefix):
        raise NotFound(f"no run {prefix!r}: see 'aetherium runs'")
    ids = [fact.scope for fact in await log.read(subjects.every(RunSubmitted.TYPE)) if fact.scope.startswith(prefix)]
    return the_one(ids, prefix)
