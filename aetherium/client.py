"""A typed async client for the gateway: start runs, follow them, stop them.

    async with GatewayClient(address(config.load())) as gateway:
        submission = await gateway.submit("quick-script", "Write hello.py and run it.", project="hello")
        async for item in gateway.events(submission.run_guid, live=True):
            ...

An event stream that breaks is taken up again after the last fact seen, for as long as it takes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import httpx
import orjson
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from aetherium.launcher import state
from shared.config import PREFIX, Settings
from shared.errors import Fault, Verdict
from shared.events.envelope import Fact, parse
from shared.events.run import TERMINAL, RunParked
from shared.runstate import Status
from shared.subjects import Aggregate

PAUSES_S = (0.1, 0.2, 0.5, 1.0, 2.0)
SILENCE_S = 45.0  # the gateway says something every 15 s, so a stream silent for so long is dead


class Unreachable(Fault):
    """Nothing answers where the gateway should be."""

    code: ClassVar[str] = "client.unreachable"
    verdict: ClassVar[Verdict] = Verdict.RETRY


class Refused(Fault):
    """The gateway answered with a problem; `status` is HTTP's, `details` its other members."""

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message, **details)
        self.status = status
        self.remote_code = code

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "code": self.remote_code, "status": self.status}


class _Over(Exception):
    """The stream has nothing more, ever."""


class Answer(BaseModel):
    """A part of an answer; fields that a newer gateway adds are let through."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)


class Submission(Answer):
    """A run that the gateway has accepted; the fields of its end are set where that was waited for."""

    run_guid: str
    project_id: int
    status: Status
    message: str = ""
    response: str = ""
    reason: str = ""


class Step(Answer):
    key: str
    agent: str
    title: str = ""
    status: str
    started_at: datetime
    ended_at: datetime | None = None
    reason: str = ""
    files: tuple[str, ...] = ()


class Tokens(Answer):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0


class Run(Answer):
    """A run as it was when the gateway was asked."""

    run_guid: str
    project_id: int
    template_id: str
    status: Status
    message: str
    submitted_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    resumes: int = 0
    turns: int = 0
    model_calls: int = 0
    tool_calls: int = 0
    usage: Tokens = Tokens()
    steps: tuple[Step, ...] = ()
    response: str = ""
    reason: str = ""
    code: str = ""
    files: tuple[str, ...] = ()
    cancel_requested: bool = False
    seq: int = 0
    workspace: Path = Path()


class LogLine(Answer):
    """A line of a run's build log."""

    seq: int
    time: datetime
    type: str
    text: str


class PromptOfCall(Answer):
    """What a model was asked with."""

    call_id: str
    seq: int
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Delta:
    """Text that a model is writing now."""

    call_id: str
    text: str = ""
    reasoning: str = ""


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream begins anew, for the reason given: forget what came before."""

    reason: str


def address(settings: Settings, url: str | None = None, environ: Mapping[str, str] = os.environ) -> str:
    """Where the gateway is: as told, as the environment says, where the running engine put it, or the usual place."""
    if url is not None:
        return url
    if not any(f"{PREFIX}GATEWAY__{name}" in environ for name in ("HOST", "PORT")):
        engine = state.find(settings.data_dir)
        if engine is not None and "gateway" in engine.urls:
            return engine.urls["gateway"]
    host = settings.gateway.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.gateway.port}"


class GatewayClient:
    """One connection pool to one gateway. Calls raise `Refused` or `Unreachable`."""

    def __init__(self, url: str, token: str | None = None, *, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.url = url
        # The environment's proxies are not for this: the gateway is on this machine or named on purpose.
        self._http = httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=30.0, transport=transport)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._http.aclose()

    async def submit(
        self,
        template_id: str,
        message: str,
        *,
        project: str,
        overrides: Mapping[str, Any] | None = None,
        files: Mapping[str, str] | None = None,
        source_agent: str = "cli",
        wait: bool = False,
        key: str | None = None,
    ) -> Submission:
        """Start a run in a new project, whose workspace begins with `files`, texts by path.

        With `wait`: return at its end. With `key`: at most one run, however often it is sent.
        """
        body: dict[str, Any] = {
            "templateId": template_id,
            "projectName": project,
            "message": message,
            "sourceAgent": source_agent,
            "overrides": overrides or {},
        }
        if files:
            body["files"] = dict(files)
        answer = await self._ask(
            "POST",
            "/api/orchestrator/run-from-template",
            params={"wait": str(wait).lower()},
            json=body,
            headers={"Idempotency-Key": key} if key else {},
            timeout=httpx.Timeout(30.0, read=None if wait else 60.0),
        )
        return Submission.model_validate(answer)

    async def template(self, template_id: str) -> dict[str, Any]:
        """A template in the form of its file."""
        return await self._ask("GET", f"/api/templates/{template_id}")

    async def status(self, run_guid: str) -> Run:
        return Run.model_validate(await self._ask("GET", f"/api/runs/{run_guid}"))

    async def wait(self, run_guid: str) -> Run:
        """The run once it is over, or parked because the engine itself failed."""
        async with aclosing(self.events(run_guid)) as events:
            async for item in events:
                if isinstance(item, Fact) and isinstance(item.event, (*TERMINAL, RunParked)):
                    break
        return await self.status(run_guid)

    async def runs(self, *, limit: int = 50, project_id: int | None = None, status: Status | None = None, prefix: str = "") -> list[Run]:
        """The newest runs, the newest first."""
        params: dict[str, Any] = {"limit": limit, "prefix": prefix, "projectId": project_id, "status": status}
        answer = await self._ask("GET", "/api/runs", params={name: value for name, value in params.items() if value is not None})
        return [Run.model_validate(each) for each in answer["runs"]]

    async def cancel(self, run_guid: str, reason: str = "") -> None:
        await self._ask("POST", f"/api/runs/{run_guid}/cancel", json={"reason": reason})

    async def inference(self, what: str) -> dict[str, Any]:
        """`queue`, `cards`, `leases` or `models`, as the arbiter tells it."""
        return await self._ask("GET", f"/api/inference/{what}")

    async def log(self, run_guid: str) -> list[LogLine]:
        answer = await self._ask("GET", f"/api/runs/{run_guid}/logs", headers={"Accept": "application/json"})
        return [LogLine.model_validate(each) for each in answer["lines"]]

    async def prompt(self, run_guid: str, call_id: str) -> PromptOfCall:
        return PromptOfCall.model_validate(await self._ask("GET", f"/api/runs/{run_guid}/prompt/{call_id}"))

    async def events(
        self, run_guid: str | None = None, *, types: str | None = None, after: int | None = None, live: bool = False, from_end: bool = False
    ) -> AsyncGenerator[Fact | Delta | Reset, None]:
        """The facts of a run to its end, or of the whole log for ever; history first, each once.

        `after` resumes after a sequence. `live` adds text being written. `types` (globs) and `from_end` are for the whole log.
        """
        path = f"/api/runs/{run_guid}/events" if run_guid else "/api/events"
        params: dict[str, str] = (
            {"types": types or "", "fromEnd": str(from_end).lower()} if run_guid is None else {"live": str(live).lower()}
        )
        last, failures, connected = after, 0, False
        while True:
            try:
                async with aclosing(self._stream(path, params, last)) as stream:
                    async for event in stream:
                        failures, connected, last = 0, True, event.last_id
                        item = item_of(event)
                        if item is None:
                            continue
                        yield item
                        if run_guid is not None and isinstance(item, Fact) and isinstance(item.event, TERMINAL):
                            return
            except _Over:
                return
            except (httpx.TransportError, Refused) as error:
                # The gateway restarts, or the network failed: go on after the last fact.
                self._check_passing(error, connected)
            await asyncio.sleep(PAUSES_S[min(failures, len(PAUSES_S) - 1)])
            failures += 1

    def _check_passing(self, error: Exception, connected: bool) -> None:
        if isinstance(error, Refused) and error.status not in (502, 503, 504):
            raise error
        if not connected and isinstance(error, httpx.TransportError):
            raise self._unreachable() from error

    def _unreachable(self) -> Unreachable:
        return Unreachable(f"no engine answers at {self.url}: run 'aetherium up'", url=self.url)

    async def _stream(self, path: str, params: Mapping[str, str], last: int | None) -> AsyncGenerator[Received, None]:
        headers = {"Last-Event-ID": str(last)} if last else {}
        timeout = httpx.Timeout(10.0, read=SILENCE_S)
        async with self._http.stream("GET", path, params=dict(params), headers=headers, timeout=timeout) as answer:
            if not answer.is_success:
                await answer.aread()
                raise refusal(answer)
            if answer.status_code == 204:
                raise _Over
            async for event in decode(answer.aiter_bytes(), last):
                yield event

    async def _ask(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        try:
            answer = await self._http.request(method, path, **request)
        except httpx.TransportError as error:
            raise self._unreachable() from error
        if not answer.is_success:
            raise refusal(answer)
        return cast(dict[str, Any], answer.json())


def refusal(answer: httpx.Response) -> Refused:
    try:
        problem = cast(dict[str, Any], orjson.loads(answer.content))
    except orjson.JSONDecodeError:
        problem = {}
    details = {name: value for name, value in problem.items() if name not in ("type", "title", "status", "detail", "code")}
    message = str(problem.get("detail", f"{answer.request.url} answered {answer.status_code}"))
    return Refused(answer.status_code, str(problem.get("code", "http.error")), message, **details)


@dataclass(frozen=True, slots=True)
class Received:
    """A server-sent event; `last_id` is the id to resume after, once it has been seen."""

    kind: str
    data: bytes
    last_id: int | None


async def decode(chunks: AsyncIterator[bytes], last_id: int | None = None) -> AsyncIterator[Received]:
    """Server-sent events from bytes. Lines end at line feeds only: other separators may stand inside the data."""
    rest = b""
    kind, data = "", b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            name, _, value = line.rstrip(b"\r").partition(b":")
            value = value.removeprefix(b" ")
            if name == b"id":
                last_id = int(value) if value else None
            elif name == b"event":
                kind = value.decode()
            elif name == b"data":
                data = data + b"\n" + value if data else value
            elif not name and not value and (kind or data or last_id):
                yield Received(kind, data, last_id)
                kind, data = "", b""


def item_of(event: Received) -> Fact | Delta | Reset | None:
    """What an event says; None when it only moves the cursor."""
    if not event.data:
        return None
    fields = cast(dict[str, Any], orjson.loads(event.data))
    match event.kind:
        case "llm.delta":
            return Delta(fields.get("callId", ""), fields.get("text") or "", fields.get("reasoning") or "")
        case "reset":
            return Reset(fields.get("reason", ""))
        case _:
            return fact_of(fields)


def fact_of(fields: Mapping[str, Any]) -> Fact:
    """A fact from its JSON in a stream."""
    return Fact(
        seq=fields["seq"],
        id=fields["id"],
        time=datetime.fromisoformat(fields["time"]),
        source=fields["source"],
        aggregate=Aggregate(fields["type"].partition(".")[0], fields["scope"]),
        event=parse(fields["type"], fields["version"], orjson.dumps(fields["data"])),
        causation_id=fields.get("causationId"),
        traceparent=fields.get("traceparent"),
    )
