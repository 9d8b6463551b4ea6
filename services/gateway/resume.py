"""Where an event stream goes on: what a client's last id means in this log."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from services.gateway import wire
from services.gateway.problems import Malformed
from shared import subjects
from shared.errors import BadInput, NotFound
from shared.eventlog import EventLog
from shared.events.envelope import Fact
from shared.events.run import RunSubmitted

_GLOB = re.compile(r"[a-z_*]+(?:\.[a-z_*]+)?")


@dataclass(frozen=True, slots=True)
class Start:
    """Send `opening`, if any, then what follows sequence `after`."""

    after: int
    opening: bytes | None = None


def cursor_of(header: str | None, parameter: str | None) -> int | None:
    """The last id that a client has seen. Empty = none, as browsers mean it.

    Raises:
        Malformed: it is not a sequence.
    """
    field, text = ("Last-Event-ID", header) if header else ("lastEventId", parameter)
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise Malformed(f"{field}: {text[:40]!r} is no sequence of this log: send the id of the last event, or none", field=field)
    return int(text)


async def start_of_run(log: EventLog, run_id: str, cursor: int | None) -> Start:
    """A cursor that this run's history cannot be joined to without a gap starts it anew, and says so."""
    if not cursor:
        first = await log.last(subjects.fact("run", run_id, RunSubmitted.TYPE.split(".")[1]))
        return Start(0) if first else Start(0, wire.reset_of("history_gone"))
    start = await start_of_all(log, cursor)
    if start.opening is None and (await log.get(cursor)).scope != run_id:
        return Start(0, wire.reset_of("id_of_another_run", lastEventId=cursor))
    return start


async def start_of_all(log: EventLog, cursor: int | None) -> Start:
    if not cursor:
        return Start(0)
    newest = await log.last_seq()
    if cursor > newest:
        return Start(0, wire.reset_of("id_beyond_the_log", lastEventId=cursor, lastSeq=newest))
    try:
        await log.get(cursor)
    except NotFound:
        return Start(0, wire.reset_of("history_gone", lastEventId=cursor))
    return Start(cursor)


def by_types(globs: str | None) -> Callable[[Fact], bool]:
    """A test for the types that a comma-separated list of globs names, such as `run.*,tool.completed`.

    Raises:
        BadInput: one of them is no pattern of types.
    """
    if not globs:
        return lambda _fact: True
    patterns: list[str] = []
    for glob in globs.split(","):
        if not _GLOB.fullmatch(glob.strip()):
            raise BadInput(f"types: {glob!r} matches no type: use globs such as run.* or tool.completed", field="types")
        patterns.append(re.escape(glob.strip()).replace(r"\*", "[a-z_.]*"))
    wanted = re.compile("|".join(patterns))
    return lambda fact: wanted.fullmatch(fact.type) is not None
