"""`api/inference`: leases on the cards for work outside the engine's runs, holds, and who waits for what (S14).

The scheduler's arbiter decides; this hands requests to it. `docs/inference.md` shows a batch job that yields when it is asked to.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Header, Query, Request, Response
from fastapi import Path as PathParameter

from services.gateway import body
from services.gateway.core import Gateway
from services.gateway.problems import LeaseRefused
from services.gateway.requests import example_of
from shared.errors import BadInput, Conflict, Fault, NotFound, RemoteFault
from shared.lease_requests import MAX_WAIT_S, Ending, HoldRequest, LeaseRequest, Renewal

Key = Annotated[str | None, Header(alias="Idempotency-Key")]
LeaseId = Annotated[str, PathParameter(alias="leaseId")]
HoldId = Annotated[str, PathParameter(alias="holdId")]
WaitS = Annotated[float, Query(alias="waitS", ge=0, le=MAX_WAIT_S)]
OPEN = {"granted": 201, "release_wanted": 201}  # others wait: 202
REFUSED = "refused"

KINDS: dict[str, type[Fault]] = {
    "lease.bad_request": BadInput,
    "input.invalid": BadInput,
    "lease.not_found": NotFound,
    "lease.ended": Conflict,
}


async def _ask(gateway: Gateway, verb: str, **fields: Any) -> dict[str, Any]:
    """The arbiter's answer; what it refuses is a fault of this API."""
    try:
        return await gateway.arbiter.ask(verb, {name: value for name, value in fields.items() if value is not None})
    except RemoteFault as fault:
        kind = KINDS.get(fault.remote_code)
        if kind is None:
            raise
        raise kind(fault.message, **fault.details) from fault


def leases(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["inference"], prefix="/api/inference/leases")
    limit, ask = gateway.policy.max_body_bytes, partial(_ask, gateway)

    @api.post("", status_code=201, openapi_extra=example_of(LeaseRequest))
    async def request_lease(request: Request, idempotency_key: Key = None) -> Response:
        """Ask for a slot: 201 when it is granted, 202 with its place when it waits, 409 with the reason when it is refused."""
        asked = await body.read(request, LeaseRequest, limit=limit)
        if idempotency_key:
            asked = asked.model_copy(update={"key": idempotency_key})
        view = await ask("lease_request", **asked.model_dump(mode="json", by_alias=True, exclude_unset=True))
        if view["state"] == REFUSED:
            raise LeaseRefused(view["reason"], leaseId=view["leaseId"])
        return Response(orjson.dumps(view), OPEN.get(view["state"], 202), media_type="application/json")

    @api.get("")
    async def list_leases() -> dict[str, Any]:
        """All leases that are waiting or live."""
        return await ask("leases")

    @api.get("/{leaseId}")
    async def get_lease(
        lease_id: LeaseId,
        wait_s: WaitS = 0.0,
        seen: str = "",
    ) -> dict[str, Any]:
        """A lease as it is. With `waitS` and `seen`: as soon as its state is another, such as `release_wanted`."""
        return await ask("lease", leaseId=lease_id, waitS=wait_s, seen=seen)

    @api.post("/{leaseId}/renew", openapi_extra=example_of(Renewal))
    async def renew_lease(request: Request, lease_id: LeaseId) -> dict[str, Any]:
        """Say that the holder is alive: the lease lasts for another `ttlS`."""
        asked = await body.read(request, Renewal, limit=limit, optional=True)
        return await ask("lease_renew", leaseId=lease_id, ttlS=asked.ttl_s)

    @api.delete("/{leaseId}")
    async def release_lease(request: Request, lease_id: LeaseId) -> dict[str, Any]:
        """Give a lease back, or leave the queue."""
        asked = await body.read(request, Ending, limit=limit, optional=True)
        return await ask("lease_release", leaseId=lease_id, reason=asked.reason)

    return api


def cards(gateway: Gateway) -> APIRouter:
    api = APIRouter(tags=["inference"], prefix="/api/inference")
    limit, ask = gateway.policy.max_body_bytes, partial(_ask, gateway)

    @api.get("/queue")
    async def queue() -> dict[str, Any]:
        """Who waits, for whom, and why, card by card in the order in which they are served."""
        return await ask("queue")

    @api.get("/cards")
    async def list_cards() -> dict[str, Any]:
        """Each card: its size, what is on it, and who holds it."""
        return await ask("cards")

    @api.get("/models")
    async def models() -> dict[str, Any]:
        """What each slot can serve, and whether it is loaded."""
        return await ask("models")

    @api.post("/cards/{card}/hold", openapi_extra=example_of(HoldRequest))
    async def hold_card(request: Request, card: str) -> dict[str, Any]:
        """Reserve a card for something outside the engine. It is held once its runs are over; runs then wait for it."""
        asked = await body.read(request, HoldRequest, limit=limit)
        return await ask("hold", **{**asked.model_dump(by_alias=True, exclude_unset=True), "card": card})

    @api.delete("/holds/{holdId}")
    async def release_hold(hold_id: HoldId) -> dict[str, Any]:
        """End a reservation."""
        return await ask("hold_release", holdId=hold_id)

    return api
