"""Composition root of the gateway: `python -m services.gateway.app`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Generator
from importlib import metadata

import uvicorn
from pydantic import SecretStr

from services.gateway import web
from services.gateway.core import Gateway, Policy
from services.gateway.feed import Feed
from services.gateway.index import Index
from services.gateway.ports import NatsLive, RpcArbiter, RpcCatalogue
from services.gateway.relaying.leases import Arbiter
from services.gateway.relaying.relay import Relay
from services.gateway.relaying.servers import Upstream
from services.gateway.submission import Limits, Submitter
from shared import process
from shared.config import Settings, is_loopback
from shared.errors import Fault
from shared.health import Ready
from shared.process import Process

DRAIN_S = 3


class PortTaken(Fault):
    """Something else listens where the gateway should."""

    code = "gateway.port_taken"


class Server(uvicorn.Server):
    """uvicorn inside a process that owns its signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


async def main(own: Process) -> None:
    gateway = compose(own)
    await gateway.start()
    caught_up = await own.log.last_seq()

    async def missing() -> dict[str, str]:
        lacks = {} if own.bus.client.is_connected else {"nats": "not connected"}
        behind = caught_up - gateway.index.seq
        return lacks | ({"log": f"{behind} facts to read"} if behind > 0 else {})

    listener = listen(own.settings.gateway.host, own.settings.gateway.port)
    health = await process.serve_health(own, missing)
    server = server_of(gateway, missing)
    serving = asyncio.create_task(server.serve([listener]))
    following = asyncio.create_task(gateway.feed.run())
    try:
        await asyncio.wait([serving, following], return_when=asyncio.FIRST_COMPLETED)
    finally:
        gateway.feed.close()
        server.should_exit = True
        following.cancel()
        await asyncio.gather(serving, following, return_exceptions=True)
        await gateway.relay.close()
        if health is not None:
            health.close()
    for task in (serving, following):
        if not task.cancelled():
            task.result()  # neither ends by itself: show what ended it


def compose(own: Process) -> Gateway:
    """The gateway over the real log, blobs and services."""
    settings = own.settings
    index = Index()
    limits = Limits(engine_version(), settings.orchestrator.budgets, settings.gateway.max_message_chars)
    token, arbiter = settings.gateway.token, RpcArbiter(own.bus)
    return Gateway(
        log=own.log,
        blobs=own.blobs,
        live=NatsLive(own.bus),
        index=index,
        feed=Feed(own.log, index),
        submitter=Submitter(own.log, own.blobs, index, RpcCatalogue(own.bus), limits),
        arbiter=arbiter,
        relay=relay(settings, arbiter),
        workspaces=settings.workspaces,
        user_templates=settings.data_dir.absolute() / "templates",
        policy=Policy(
            max_body_bytes=settings.gateway.max_body_bytes,
            max_chat_bytes=settings.gateway.max_chat_bytes,
            token=token.get_secret_value() if token else None,
            loopback_only=is_loopback(settings.gateway.host),
        ),
    )


def relay(settings: Settings, arbiter: Arbiter) -> Relay:
    """The relay to the configured slots; without any, to the one inference server."""
    slots, one = settings.scheduler.slots, settings.inference
    return Relay(
        arbiter,
        {name: Upstream(slot.url, _secret(slot.api_key)) for name, slot in slots.items() if slot.url is not None},
        Upstream(one.url, _secret(one.api_key)) if one.url else None,
        idle_s=settings.gateway.relay_idle_s,
        silence_s=one.idle_timeout_s,
    )


def _secret(given: SecretStr | None) -> str | None:
    return given.get_secret_value() if given else None


def listen(host: str, port: int) -> socket.socket:
    """A socket that connections wait at until the server takes them.

    Raises:
        PortTaken: the address cannot be had.
    """
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET, backlog=1024)
    except OSError as error:
        raise PortTaken(f"the gateway cannot listen on {host}:{port} ({error.strerror}): set gateway.port") from error


def server_of(gateway: Gateway, missing: Ready) -> Server:
    app = web.build(gateway, missing, version=engine_version())
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
    )
    return Server(config)


def engine_version() -> str:
    try:
        return metadata.version("aetherium")
    except metadata.PackageNotFoundError:
        return "0+source"


if __name__ == "__main__":
    process.run("gateway", main)
