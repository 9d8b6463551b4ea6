"""Runs: start, follow up, stop."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as PathParameter
from fastapi.responses import PlainTextResponse

from services.gateway import body, views
from services.gateway.core import Gateway
from services.gateway.requests import Cancel, RunFromTemplate, RunOnProject, example_of
from shared.runstate import RunState, Status

Run = Annotated[str, PathParameter(alias="runGuid")]
Project = Annotated[int, PathParameter(alias="projectId")]
Key = Annotated[str | None, Header(alias="Idempotency-Key")]
Trace = Annotated[str | None, Header(alias="traceparent")]
REPLAYED = {"Idempotent-Replayed": "true"}
GONE = 499  # nobody reads this answer: the caller left


def router(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["runs"])
    limit = gateway.policy.max_body_bytes

    @api.post("/api/orchestrator/run-from-template", openapi_extra=example_of(RunFromTemplate))
    async def run_from_template(request: Request, wait: bool = True, idempotency_key: Key = None, traceparent: Trace = None) -> Response:
        """Create a project from a template and run its team on the message. With `wait=false`: answer at once.

        A caller that leaves while waiting does not stop the run: it goes on, and the same Idempotency-Key finds it again.
        """
        ask = await body.read(request, RunFromTemplate, limit=limit)
        return await submit(gateway, request, ask, wait, idempotency_key, traceparent)

    @api.post("/api/orchestrator/run", openapi_extra=example_of(RunOnProject))
    async def run_on_project(request: Request, wait: bool = True, idempotency_key: Key = None, traceparent: Trace = None) -> Response:
        """Run an existing project's team on the message. With `wait=false`: answer at once."""
        ask = await body.read(request, RunOnProject, limit=limit)
        return await submit(gateway, request, ask, wait, idempotency_key, traceparent)

    @api.post("/api/orchestrator/runs/{projectId}/cancel", status_code=202, openapi_extra=example_of(Cancel))
    async def cancel_project(request: Request, project_id: Project) -> dict[str, Any]:
        """Stop every run of a project that has not ended."""
        asked = await body.read(request, Cancel, limit=limit, optional=True)
        states = await gateway.runs_of(project_id)
        under_way = [state.run_id for state in states if not state.status.is_final] or [state.run_id for state in states[:1]]
        for run_id in under_way:
            await gateway.cancel(run_id, asked.reason)
        return {"status": "cancel_requested", "projectId": project_id, "runGuids": under_way}

    @api.post("/api/runs/{runGuid}/cancel", status_code=202, openapi_extra=example_of(Cancel))
    async def cancel_run(request: Request, run_guid: Run) -> dict[str, Any]:
        """Stop a run."""
        asked = await body.read(request, Cancel, limit=limit, optional=True)
        await gateway.cancel(run_guid, asked.reason)
        return {"status": "cancel_requested", "runGuid": run_guid}

    return api


def reads(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["runs"])

    @api.get("/api/runs")
    async def list_runs(
        limit: Annotated[int, Query(ge=1, le=1000)] = 50,
        project_id: Annotated[int | None, Query(alias="projectId")] = None,
        status: Status | None = None,
        prefix: str = "",
    ) -> dict[str, Any]:
        """The newest runs, the newest first."""

        def wanted(state: RunState) -> bool:
            fits = (project_id is None or state.project_id == project_id) and (status is None or state.status is status)
            return fits and state.run_id.startswith(prefix)

        found = gateway.index.newest(wanted, limit)
        return {"runs": [views.run_view(state, gateway.workspaces).as_json() for state in found]}

    @api.get("/api/runs/{runGuid}")
    async def get_run(run_guid: Run) -> dict[str, Any]:
        """A run as it is now."""
        return await shown(gateway, await gateway.state(run_guid))

    @api.get("/api/orchestrator/runs/{projectId}/logs")
    async def project_log(
        request: Request, project_id: Project, run_guid: Annotated[str | None, Query(alias="runGuid")] = None
    ) -> Response:
        """The build log of a project's newest run, or of the one named; text, or JSON where it is accepted."""
        states = [await gateway.state_in(project_id, run_guid)] if run_guid else await gateway.runs_of(project_id)
        return await log_of(gateway, request, states[0].run_id if states else None)

    @api.get("/api/runs/{runGuid}/logs")
    async def run_log(request: Request, run_guid: Run) -> Response:
        """The build log of a run; text, or JSON where it is accepted."""
        return await log_of(gateway, request, (await gateway.state(run_guid)).run_id)

    @api.get("/api/orchestrator/runs/{projectId}/{runGuid}")
    async def get_run_of_project(project_id: Project, run_guid: Run) -> dict[str, Any]:
        """A run as it is now."""
        return await shown(gateway, await gateway.state_in(project_id, run_guid))

    @api.get("/api/runs/{runGuid}/prompt/{callId}")
    async def prompt(run_guid: Run, call_id: Annotated[str, PathParameter(alias="callId")]) -> Response:
        """The exact prompt of a model call, rebuilt from the log."""
        asked, built = await gateway.prompt(run_guid, call_id)
        head = {"runGuid": run_guid, "callId": call_id, "seq": asked.seq}
        return Response(orjson.dumps({**head, "messages": built.messages, "tools": built.tools}), media_type="application/json")

    return api


async def submit(
    gateway: Gateway, request: Request, ask: RunFromTemplate | RunOnProject, wait: bool, key: str | None, trace: str | None
) -> Response:
    accepted = await gateway.submitter.submit(ask, gateway.library(), key=key, trace=trace)
    is_new = isinstance(ask, RunFromTemplate)
    headers = {"Location": f"/api/runs/{accepted.run_id}"} | (REPLAYED if accepted.is_replay else {})
    if not wait:
        state = await gateway.state(accepted.run_id)
        return _answer(views.answer(state, state.reply, is_new_project=is_new), 200 if accepted.is_replay else 202, headers)
    state = await _ended(gateway, request, accepted.run_id)
    if state is None:
        return Response(status_code=GONE)
    return _answer(views.answer(state, await gateway.response(state), is_new_project=is_new), 200, headers)


async def _ended(gateway: Gateway, request: Request, run_id: str) -> RunState | None:
    """The run at its end; None when the caller left first. The run goes on without them: to stop it is another request."""
    end = asyncio.ensure_future(gateway.index.ended(run_id))
    left = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait([end, left], return_when=asyncio.FIRST_COMPLETED)
        return end.result() if end.done() else None
    finally:
        end.cancel()
        left.cancel()


async def _left(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def shown(gateway: Gateway, state: RunState) -> dict[str, Any]:
    return views.run_view(state, gateway.workspaces).as_json() | {"response": await gateway.response(state)}


async def log_of(gateway: Gateway, request: Request, run_id: str | None) -> Response:
    lines = views.log_lines(await gateway.facts(run_id)) if run_id else []
    if body.is_json(request.headers.get("accept", "").partition(",")[0]):
        return Response(orjson.dumps({"lines": lines}, option=orjson.OPT_UTC_Z), media_type="application/json")
    return PlainTextResponse(views.log_text(lines))


def _answer(content: dict[str, Any], status: int, headers: dict[str, str]) -> Response:
    return Response(orjson.dumps(content), status, headers, "application/json")
