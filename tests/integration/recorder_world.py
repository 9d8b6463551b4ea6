"""A small history for the recorder's tests: runs with steps, model calls and tool calls, written as the services would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

from psycopg.rows import dict_row
from psycopg.sql import SQL, Identifier
from psycopg_pool import AsyncConnectionPool

from services.recorder.follower import Pauses, Recorder
from services.recorder.projections import Projection, all_projections
from services.recorder.tables import Tables
from shared.eventlog import EventLog
from shared.events import llm, project, run, signal, tool
from shared.events.content import BlobRef, FileChange, Pins, ToolCall, Usage
from shared.events.envelope import Event
from shared.ids import new_id
from shared.subjects import Aggregate
from tests.support.waiting import until

BLOB = BlobRef(sha256="b" * 64, size=300_000, preview="long")
QUICK = Pauses(first_s=0.01, outage_s=0.05, stuck_s=0.02, standby_s=0.02, lag_s=0.05)


async def append(log: EventLog, scope: str, *events: Event) -> None:
    """Append to the aggregates that the events belong to, as the only writer."""
    for event in events:
        aggregate = Aggregate(event.TYPE.partition(".")[0], scope)
        newest = await log.last(aggregate.filter)
        await log.append(aggregate, [event], after=newest.seq if newest else 0)


def submitted(message: str = "write primes.py", project_id: int = 1) -> Event:
    return run.RunSubmitted(project_id=project_id, template_id="quick-script", template=BLOB, message=message, pins=Pins(template="t"))


def a_run() -> list[Event]:
    """Two turns: a tool call that changes a file and one that is denied, then the answer."""
    write = ToolCall(call_id="call_1", name="write_file", arguments={"path": "primes.py"})
    usage = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=50)
    change = FileChange(path="primes.py", after_sha256="a" * 64, before=BLOB)
    return [
        submitted(),
        run.RunStarted(owner="orchestrator-0", engine="0.1.0"),
        run.StepStarted(key="step-1", agent="coder", title="Write it"),
        run.MessageAdded(key="task", agent="coder", role="user", content="write primes.py"),
        run.LlmRequested(key="turn-1/think", call_id="llm_1", agent="coder", turn=1, model="small"),
        llm.LlmQueued(call_id="llm_1", position=1),
        llm.LlmDispatched(call_id="llm_1", slot="main", model="small"),
        llm.LlmRetried(call_id="llm_1", code="llm.dropped", reason="connection reset"),
        llm.LlmDispatched(call_id="llm_1", slot="main", model="small", attempt=2),
        llm.LlmCompleted(
            call_id="llm_1", content="I write it.", tool_calls=(write,), usage=usage, model="small", first_token_ms=40, duration_ms=90
        ),
        run.ToolRequested(key="turn-1/tool/1", call_id="call_1", agent="coder", tool="write_file", arguments={"path": "primes.py"}),
        tool.ToolStarted(call_id="call_1", tool="write_file", server="workspace", owner="tools-0"),
        tool.ToolCompleted(call_id="call_1", tool="write_file", content="x" * 5000, changes=(change,), duration_ms=3.5),
        run.ToolRequested(key="turn-1/tool/2", call_id="call_2", agent="coder", tool="run_shell", arguments={"command": "ls"}),
        tool.ToolStarted(call_id="call_2", tool="run_shell", server="shell", owner="tools-0", tier="elevated"),
        tool.ToolCompleted(call_id="call_2", tool="run_shell", content="y" * 5000, is_error=True, duration_ms=8),
        run.ToolRequested(key="turn-1/tool/3", call_id="call_3", agent="coder", tool="delete_file"),
        tool.ToolDenied(call_id="call_3", tool="delete_file", layer="permissions", message="delete_file is not in your tools"),
        run.LlmRequested(key="turn-2/think", call_id="llm_2", agent="coder", turn=2),
        llm.LlmFailed(call_id="llm_2", code="llm.timeout", message="no answer in 600 s", duration_ms=600_000),
        run.StepCompleted(key="step-1", files=("primes.py",)),
        run.RunCompleted(reply="done", files=("primes.py",)),
        signal.CancelRequested(reason="too late"),
    ]


async def a_history(log: EventLog, runs: int = 3) -> list[str]:
    """Some runs, their facts interleaved, in a project; gives the runs' ids."""
    await append(log, "1", project.ProjectCreated(name="One", template_id="quick-script"))
    ids = [new_id() for _ in range(runs)]
    for event in a_run():
        for run_id in ids:
            await append(log, run_id, event)
    return ids


def recorder_of(log: EventLog, pool: AsyncConnectionPool, *, extra: tuple[Projection, ...] = ()) -> Recorder:
    return Recorder(log, Tables(pool), (*all_projections(log), *extra), pauses=QUICK)


@asynccontextmanager
async def running(recorder: Recorder) -> AsyncIterator[asyncio.Task[None]]:
    """The recorder at work; a failure of it fails the test."""
    task = cast("asyncio.Task[None]", asyncio.create_task(recorder.run()))
    try:
        yield task
    finally:
        if task.done():
            task.result()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def until_recorded(log: EventLog, tables: Tables, *, without: tuple[str, ...] = (), timeout: float = 15.0) -> None:
    """Wait until every projection has all that the log holds now."""
    target = await log.last_seq()
    names = [each.name for each in all_projections(log) if each.name not in without]

    async def there() -> bool:
        found = await rows(tables, "positions") if await tables.answers() else []
        positions = {row["projection"]: row["seq"] for row in found}
        return all(positions.get(name, 0) >= target for name in names)

    await until(there, timeout=timeout)


async def rows(tables: Tables, table: str, run_id: str | None = None) -> list[dict[str, Any]]:
    """The rows of a table, or none where it does not exist yet."""
    async with tables.pool.connection() as connection:
        known = await (await connection.execute("SELECT to_regclass(%s)", (f"{tables.schema}.{table}",))).fetchone()
        if known is None or known[0] is None:
            return []
        query = SQL("SELECT * FROM {}").format(Identifier(tables.schema, table))
        if run_id is not None:
            query += SQL(" WHERE run_id = {}").format(run_id)
        cursor = connection.cursor(row_factory=dict_row)
        return await (await cursor.execute(query)).fetchall()
