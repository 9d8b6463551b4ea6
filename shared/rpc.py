"""Queries and short commands between services, on the NATS services API (`nats.micro`).

A request is JSON on `aetherium.rpc.<service>.<verb>`; the answer is JSON, or the problem `{code,
message, verdict, details}` in an error answer. `$SRV.PING`, `INFO` and `STATS` work with standard tools.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, cast

import nats.errors
import nats.micro
import orjson
import structlog
from nats.micro.request import Request
from nats.micro.service import Service

from shared import subjects
from shared.bus import Bus
from shared.client import ConnectionLost
from shared.errors import BadInput, Fault, RemoteFault, ServiceUnavailable, Verdict

logger = structlog.get_logger()

Verb = Callable[[dict[str, Any]], Awaitable[Any]]
BUG: dict[str, Any] = {"code": "rpc.bug", "message": "the service failed; its log has the reason", "verdict": "unknown", "details": {}}


async def serve(bus: Bus, service: str, verbs: Mapping[str, Verb], *, version: str = "0.1.0") -> Service:
    """Answer `verbs` until the connection closes. Calls run at the same time, each in a task of its own."""
    micro = await nats.micro.add_service(bus.client, name=service, version=version)  # pyright: ignore[reportUnknownMemberType]
    group = micro.add_group(name=f"aetherium.rpc.{service}")
    running: set[asyncio.Task[None]] = set()
    for name, verb in verbs.items():

        async def handle(request: Request, verb: Verb = verb) -> None:
            # Endpoints run one at a time per subscription: a slow call must not hold up the next.
            task = asyncio.create_task(_answer(request, verb))
            running.add(task)
            task.add_done_callback(running.discard)

        await group.add_endpoint(name=name, handler=handle)
    return micro


async def _answer(request: Request, verb: Verb) -> None:
    try:
        asked = orjson.loads(request.data or b"{}")
        if not isinstance(asked, dict):
            raise BadInput("the request must be a JSON object", field="")
        answer = orjson.dumps(await verb(cast(dict[str, Any], asked)))
    except orjson.JSONDecodeError as error:
        await _refuse(request, BadInput(f"the request is not JSON: {error}", field="").as_dict())
    except Fault as fault:
        await _refuse(request, fault.as_dict())
    except Exception:  # the outermost loop of a call: the caller gets no inner detail
        logger.exception("rpc_failed", subject=request.subject)
        await _refuse(request, BUG)
    else:
        await request.respond(answer)


async def _refuse(request: Request, problem: Mapping[str, Any]) -> None:
    await request.respond_error(str(problem["code"]), str(problem["message"])[:200].replace("\n", " "), data=orjson.dumps(problem))


async def call_patiently(bus: Bus, service: str, verb: str, request: Mapping[str, Any], *, patience_s: float = 60.0) -> Any:
    """`call`, tried again while nobody answers: services restart. For questions that are safe to repeat.

    Raises:
        ServiceUnavailable: nobody answered within `patience_s`.
        RemoteFault: the service refused.
    """
    loop = asyncio.get_running_loop()
    until, pause = loop.time() + patience_s, 0.05
    while True:
        try:
            return await call(bus, service, verb, request)
        except ServiceUnavailable:
            if loop.time() + pause > until:
                raise
            await asyncio.sleep(pause)
            pause = min(pause * 2, 1.0)


class NobodyListens(ServiceUnavailable):
    """No copy of the service is connected: nothing was handed over, and asking again is safe."""

    code = "rpc.nobody_listens"


class AnswerLost(ServiceUnavailable):
    """The connection broke while the service worked: what was asked may have been done."""

    code = "rpc.answer_lost"
    verdict = Verdict.UNKNOWN


async def call(bus: Bus, service: str, verb: str, request: Mapping[str, Any] | None = None, *, timeout_s: float = 5.0) -> Any:
    """The answer of a service.

    Raises:
        ServiceUnavailable: nobody answered in time; `NobodyListens` and `AnswerLost` when that is known sooner.
        RemoteFault: the service refused; `code` is its own.
    """
    try:
        reply = await bus.client.request(subjects.rpc(service, verb), orjson.dumps(dict(request or {})), timeout=timeout_s)
    except nats.errors.NoRespondersError as error:
        raise NobodyListens(f"the {service} service is not there", service=service) from error
    except ConnectionLost as error:
        raise AnswerLost(f"the connection to the {service} service was lost during {verb!r}", service=service) from error
    except (TimeoutError, nats.errors.Error) as error:
        raise ServiceUnavailable(f"the {service} service did not answer {verb!r} in {timeout_s:g} s", service=service) from error
    if reply.headers and "Nats-Service-Error-Code" in reply.headers:
        problem: dict[str, Any] = orjson.loads(reply.data) if reply.data else {}
        raise RemoteFault(
            problem.get("code", reply.headers["Nats-Service-Error-Code"]),
            problem.get("message", reply.headers.get("Nats-Service-Error", "")),
            problem.get("verdict", "final"),
            problem.get("details") or {},
        )
    return orjson.loads(reply.data)


async def tell(bus: Bus, service: str, verb: str, request: Mapping[str, Any]) -> None:
    """Ask without waiting for an answer; lost when nobody listens."""
    await bus.client.publish(subjects.rpc(service, verb), orjson.dumps(dict(request)))
