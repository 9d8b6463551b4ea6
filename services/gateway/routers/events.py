"""Event streams: server-sent events whose ids are the log's own sequences."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query, Response
from fastapi.responses import StreamingResponse

from services.gateway import feed, resume, wire
from services.gateway.core import Gateway
from services.gateway.feed import Item
from services.gateway.resume import Start
from shared.events.envelope import Fact
from shared.events.run import TERMINAL
from shared.subjects import Aggregate

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
LastId = Annotated[str | None, Header(alias="Last-Event-ID")]
LastIdParameter = Annotated[str | None, Query(alias="lastEventId")]


def router(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["events"])

    @api.get("/api/runs/{run_guid}/events")
    async def run_events(
        run_guid: str, live: bool = False, last_event_id: LastId = None, last_event_id_parameter: LastIdParameter = None
    ) -> Response:
        """Every fact of a run: its history, then what happens, to its end. `live=true` adds the text that models are writing."""
        cursor = resume.cursor_of(last_event_id, last_event_id_parameter)
        await gateway.state(run_guid)
        start = await resume.start_of_run(gateway.log, run_guid, cursor)
        if start.after and await _is_over(gateway, run_guid, start.after):
            return Response(status_code=204)  # tells a browser to stop reconnecting: there is nothing more
        return _stream(of_run(gateway, run_guid, start, live=live))

    @api.get("/api/events")
    async def all_events(
        types: str | None = None,
        from_end: Annotated[bool, Query(alias="fromEnd")] = False,
        last_event_id: LastId = None,
        last_event_id_parameter: LastIdParameter = None,
    ) -> Response:
        """Every fact of the whole log, or those whose type matches one of the globs, such as `run.*,tool.completed`.

        `fromEnd=true` leaves the history out, for a client that has no id to resume after.
        """
        cursor = resume.cursor_of(last_event_id, last_event_id_parameter)
        wanted = resume.by_types(types)
        start = await resume.start_of_all(gateway.log, cursor)
        if from_end and cursor is None:
            newest = await gateway.log.last_seq()
            start = Start(newest, wire.cursor_of(newest))

        async def pages() -> AsyncGenerator[bytes, None]:
            with gateway.feed.subscribed(None, wanted, limit=gateway.policy.queue) as subscriber:
                if start.opening is not None:
                    yield start.opening
                history = feed.stream(
                    subscriber,
                    lambda after: gateway.history_of_all(after, wanted),
                    after=start.after,
                    ends_with_run=False,
                    keep_alive_s=gateway.policy.keep_alive_s,
                    pause_s=lambda: gateway.feed.pause_s,
                )
                async with aclosing(history) as source:
                    async for page in source:
                        yield page

        return _stream(pages())

    return api


async def of_run(gateway: Gateway, run_id: str, start: Start, *, live: bool) -> AsyncGenerator[bytes, None]:
    """The stream of one run."""
    async with AsyncExitStack() as stack:
        subscriber = stack.enter_context(gateway.feed.subscribed(run_id, _any, limit=gateway.policy.queue))
        if live:
            put = subscriber.put
            await stack.enter_async_context(gateway.live.of_run(run_id, lambda delta: put(Item(None, wire.delta_of(delta)))))
        if start.opening is not None:
            yield start.opening
        source = feed.stream(
            subscriber,
            lambda after: gateway.history_of_run(run_id, after),
            after=start.after,
            ends_with_run=True,
            keep_alive_s=gateway.policy.keep_alive_s,
            pause_s=lambda: gateway.feed.pause_s,
        )
        async with aclosing(source):
            async for page in source:
                yield page


def _any(_fact: Fact) -> bool:
    return True


async def _is_over(gateway: Gateway, run_id: str, after: int) -> bool:
    newest = await gateway.log.last(Aggregate("run", run_id).filter)
    return newest is not None and isinstance(newest.event, TERMINAL) and newest.seq <= after


def _stream(pages: AsyncGenerator[bytes, None]) -> Response:
    return StreamingResponse(pages, media_type="text/event-stream", headers=HEADERS)
