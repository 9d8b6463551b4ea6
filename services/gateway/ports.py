"""The outside things that the gateway asks: the tools service's catalogue, and text being written now."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.msg import Msg

from shared import rpc, subjects
from shared.bus import Bus
from shared.errors import ServiceUnavailable
from shared.lease_requests import MAX_WAIT_S

WAIT_S = 5.0
FRESH_S = 5.0


@dataclass
class RpcCatalogue:
    """The digest of the tools that exist, asked of the tools service and kept for a few seconds."""

    bus: Bus
    _digest: str = ""
    _until: float = 0.0

    async def digest(self) -> str:
        loop = asyncio.get_running_loop()
        if loop.time() >= self._until:
            self._digest = await self._ask(loop.time() + WAIT_S)
            self._until = loop.time() + FRESH_S
        return self._digest

    async def _ask(self, deadline: float) -> str:
        """A service that is restarting is waited for."""
        loop = asyncio.get_running_loop()
        while True:
            left = deadline - loop.time()
            try:
                answer = await rpc.call(self.bus, "tools", "catalogue", timeout_s=max(0.1, left))
                return str(answer["digest"])
            except ServiceUnavailable as fault:
                if left <= 0.25:
                    raise ServiceUnavailable(
                        f"the tools service has not answered for {WAIT_S:g} s: see 'aetherium status', then send the request again",
                        service="tools",
                    ) from fault
                await asyncio.sleep(0.2)


@dataclass(frozen=True, slots=True)
class RpcArbiter:
    """The scheduler's arbiter."""

    bus: Bus

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        return await rpc.call(self.bus, "scheduler", verb, fields, timeout_s=float(fields.get("waitS") or MAX_WAIT_S) + WAIT_S)


@dataclass(frozen=True, slots=True)
class NatsLive:
    """Deltas over core NATS."""

    bus: Bus

    @asynccontextmanager
    async def of_run(self, run_id: str, put: Callable[[bytes], None]) -> AsyncGenerator[None, None]:
        async def take(message: Msg) -> None:
            put(message.data)

        subscription = await self.bus.client.subscribe(  # pyright: ignore[reportUnknownMemberType]  nats-py names a bare Future
            subjects.live_of_run(run_id), cb=take
        )
        try:
            yield
        finally:
            with suppress(nats.errors.Error):
                await subscription.unsubscribe()
