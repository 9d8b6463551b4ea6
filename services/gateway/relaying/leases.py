"""The interactive leases of chat clients: one a client, slot and model, watched for as long as it is held (KS 6.10).

A lease is given back after a while without a request, and at once when its client leaves in the middle of one: a batch job may wait
for the slot. When the arbiter ends it, whatever is under way under it is cut off there and then.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from shared.errors import Fault, RemoteFault

LEASE_TTL_S = 30.0  # a gateway that dies frees the slot after so long
RENEW_S = 10.0
NEWS_S = 5.0  # that one question for news waits: a scheduler that died in it is noticed soon after
RETRY_S = 0.5
ENDED = ("lease.ended", "lease.not_found")
MAX_HELD = 200  # leases; clients beyond that share one name

logger = structlog.get_logger()

Key = tuple[str, str, str]
"""Client, slot and model."""


class Arbiter(Protocol):
    """The lease arbiter of the scheduler."""

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """
        Raises:
            RemoteFault: it refused; the code is its own.
            ServiceUnavailable: no scheduler is active.
        """
        ...


class LeaseLost(Exception):
    """The lease ended while it was used: a run took the slot, mostly."""


@dataclass(eq=False)
class Held:
    """A granted lease; `calls` are in flight under it, and `lost` says how it ended."""

    key: Key
    lease_id: str
    used_at: float
    renewed_at: float
    lost: str = ""
    calls: set[asyncio.Timeout] = field(default_factory=set[asyncio.Timeout])
    watch: asyncio.Task[None] | None = None

    def end(self, why: str) -> None:
        self.lost = why
        for call in self.calls:
            call.reschedule(_now())


@dataclass
class Leases:
    arbiter: Arbiter
    idle_s: float
    _held: dict[Key, Held] = field(default_factory=dict[Key, Held])
    _locks: dict[Key, asyncio.Lock] = field(default_factory=dict[Key, asyncio.Lock])

    @asynccontextmanager
    async def use(self, client: str, slot: str, model: str) -> AsyncGenerator[bool]:
        """The client's lease there for as long as the block runs; False: a run or a batch job has the slot.

        Raises:
            LeaseLost: it ended; the block was cut off.
            ServiceUnavailable: no scheduler is active.
        """
        held = await self._take((client if len(self._held) < MAX_HELD else "others", slot, model))
        if held is None:
            yield False
            return
        limit = asyncio.timeout(None)
        try:
            async with limit:
                held.calls.add(limit)
                if held.lost:
                    limit.reschedule(_now())
                yield True
        except TimeoutError as error:
            if limit.expired():
                raise LeaseLost(held.lost) from error
            raise
        finally:
            held.calls.discard(limit)
            held.used_at = _now()

    async def leave(self, client: str) -> None:
        """The client has gone in the middle of a request: what it does not use otherwise is free at once."""
        for held in [held for held in self._held.values() if held.key[0] == client and not held.calls]:
            await self._give_back(held, "the client left")

    async def close(self) -> None:
        for held in list(self._held.values()):
            await self._give_back(held, "the gateway stops")

    async def _take(self, key: Key) -> Held | None:
        async with self._locks.setdefault(key, asyncio.Lock()):  # requests that come together share one
            held = self._held.get(key) or await self._granted(key)
            if held is None:
                self._locks.pop(key, None)
            return held

    async def _granted(self, key: Key) -> Held | None:
        client, slot, model = key
        wanted = {"holder": f"chat {client}", "slot": slot, "priority": "interactive", "models": [model], "residentOnly": True}
        try:
            view = await self.arbiter.ask("lease_request", {**wanted, "ttlS": LEASE_TTL_S})
        except RemoteFault as fault:
            logger.info("relay_lease_refused", slot=slot, model=model, reason=fault.message)
            return None
        if view["state"] != "granted":
            logger.info("relay_lease_refused", slot=slot, model=model, reason=view.get("reason", view["state"]))
            return None
        held = self._held[key] = Held(key, view["leaseId"], _now(), _now())
        held.watch = asyncio.create_task(self._watch(held))
        return held

    # ---- while it is held

    async def _watch(self, held: Held) -> None:
        """Renew it, hear of its end, and give it back when it is not used."""
        while not held.lost:
            left_s = self.idle_s - (_now() - held.used_at)
            if not held.calls and left_s <= 0:
                await self._give_back(held, "idle")
                return
            try:
                await self._tend(held, NEWS_S if held.calls else min(NEWS_S, left_s))
            except Fault as fault:
                if isinstance(fault, RemoteFault) and fault.remote_code in ENDED:
                    self._drop(held, fault.message)
                else:  # no scheduler answers: it is being restarted, and the lease stands in its log
                    await asyncio.sleep(RETRY_S)

    async def _tend(self, held: Held, wait_s: float) -> None:
        if _now() - held.renewed_at >= RENEW_S:
            await self.arbiter.ask("lease_renew", {"leaseId": held.lease_id, "ttlS": LEASE_TTL_S})
            held.renewed_at = _now()
        view = await self.arbiter.ask("lease", {"leaseId": held.lease_id, "waitS": wait_s, "seen": "granted"})
        if view["state"] != "granted":
            self._drop(held, str(view.get("reason") or view["state"]))

    def _drop(self, held: Held, why: str) -> None:
        logger.info("relay_lease_ended", slot=held.key[1], model=held.key[2], reason=why)
        if self._held.get(held.key) is held:
            del self._held[held.key]
            self._locks.pop(held.key, None)
        held.end(why)

    async def _give_back(self, held: Held, why: str) -> None:
        self._drop(held, why)
        if held.watch is not None and held.watch is not asyncio.current_task():
            held.watch.cancel()
            await asyncio.gather(held.watch, return_exceptions=True)
        with suppress(Fault):  # it runs out by itself
            await self.arbiter.ask("lease_release", {"leaseId": held.lease_id, "reason": why})


def _now() -> float:
    return asyncio.get_running_loop().time()
