"""Alive, ready, and measured."""

from __future__ import annotations

import orjson
from fastapi import APIRouter, Response
from prometheus_client import generate_latest

from shared.health import Ready


def router(missing: Ready) -> APIRouter:
    api = APIRouter(include_in_schema=False)

    @api.get("/healthz")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @api.get("/readyz")
    async def readyz() -> Response:
        lacks = await missing()
        content = {"status": "waiting" if lacks else "ready", "missing": lacks}
        return Response(orjson.dumps(content), 503 if lacks else 200, media_type="application/json")

    @api.get("/metrics")
    async def metrics() -> Response:
        return Response(generate_latest(), media_type="text/plain; version=0.0.4")

    return api
