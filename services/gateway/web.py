"""The HTTP side: all routers, the guard and the problems, around one `Gateway`."""

from __future__ import annotations

from fastapi import FastAPI

from services.gateway import problems
from services.gateway.core import Gateway
from services.gateway.guard import Guard
from services.gateway.routers import events, health, inference, language, openai, runs, templates
from shared.health import Ready


async def nothing_missing() -> dict[str, str]:
    return {}


def build(gateway: Gateway, missing: Ready = nothing_missing, *, version: str = "0") -> FastAPI:
    """The app. The browsable documentation is left out: its page loads scripts from the internet."""
    app = FastAPI(title="Aetherium", version=version, docs_url=None, redoc_url=None)
    problems.install(app)
    for router in (
        runs.router(gateway),
        runs.reads(gateway),
        events.router(gateway),
        templates.router(gateway),
        inference.leases(gateway),
        inference.cards(gateway),
        openai.router(gateway.relay, limit=gateway.policy.max_chat_bytes),
        language.API,
        health.router(missing),
    ):
        app.include_router(router)
    app.add_middleware(Guard, token=gateway.policy.token, loopback_only=gateway.policy.loopback_only)
    return app
