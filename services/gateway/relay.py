"""The OpenAI-compatible relay: an external chat client uses a card only while nothing else does (KS 6.10, S17).

It never loads a model. Where a run or a batch job holds the card, or the model is not there, the client gets the answer that
llama-server's router would give, so that its own chain of fallbacks goes on. What is said passes through and is neither read nor kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import httpx
import structlog

from shared.errors import Fault, RemoteFault

LEASE_TTL_S = 30.0  # a gateway that dies frees the slot after so long
RENEW_S = 10.0
NEWS_S = 20.0
CONNECT_S = 5.0

logger = structlog.get_logger()


class Arbiter(Protocol):
    """The lease arbiter of the scheduler."""

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        """
        Raises:
            RemoteFault: it refused; the code is its own.
            ServiceUnavailable: no scheduler is active.
        """
        ...


@dataclass(frozen=True, slots=True)
class Upstream:
    """An inference server, as it is reached."""

    url: str
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request can go: `names` are tried one after the other there. `slot` None: the one server of an engine without slots."""

    slot: str | None
    names: tuple[str, ...]


@dataclass(slots=True)
class Held:
    """An interactive lease of one client; `calls` are in flight under it."""

    lease_id: str
    used_at: float
    renewed_at: float
    calls: int = 0


@dataclass
class Relay:
    """`upstreams` by slot; `plain` where no slots are configured. `keep` has to run beside it."""

    arbiter: Arbiter
    upstreams: Mapping[str, Upstream]
    plain: Upstream | None = None
    idle_s: float = 60.0  # after so long without a request a client's lease is given back
    silence_s: float = 120.0  # the longest pause of a server inside one answer
    transport: httpx.AsyncBaseTransport | None = None
    _held: dict[tuple[str, str, str], Held] = field(default_factory=dict[tuple[str, str, str], Held])
    _locks: dict[tuple[str, str, str], asyncio.Lock] = field(default_factory=dict[tuple[str, str, str], asyncio.Lock])

    # ---- where

    async def places(self, model: str) -> list[Place]:
        """Where the model is loaded now, in the order in which they are tried; without slots the one server.

        Raises:
            Fault: no scheduler answers.
        """
        if not self.upstreams:
            return [Place(None, (model,))] if self.plain else []
        answer = await self.arbiter.ask("relay_places", {"model": model})
        return [
            Place(row["slot"], tuple(dict.fromkeys(name for name in (row["copy"], row["model"]) if name)))
            for row in answer["places"]
            if row["resident"] and row["slot"] in self.upstreams
        ]

    async def models(self) -> list[str]:
        """The models that are listed anywhere, each once."""
        if self.upstreams:
            rows = (await self.arbiter.ask("models", {}))["models"]
            return list(dict.fromkeys(str(row["model"]) for row in rows))
        if self.plain is None:
            return []
        async with self._client(self.plain) as client:
            answer = await client.get("/v1/models", timeout=CONNECT_S)
            listed = cast(list[dict[str, Any]], answer.json()["data"])
        return list(dict.fromkeys(str(row["id"]) for row in listed))

    # ---- leases

    @asynccontextmanager
    async def lease(self, client: str, place: Place) -> AsyncGenerator[str | None]:
        """The client's lease on a slot for as long as the block runs; None: a run or a batch job is there. Without slots there is none."""
        if place.slot is None:
            yield ""
            return
        key = (client, place.slot, place.names[-1])
        async with self._locks.setdefault(key, asyncio.Lock()):  # requests that come together share one
            held = await self._renewed(key) or await self._granted(key)
        if held is None:
            yield None
            return
        held.calls += 1
        try:
            yield held.lease_id
        finally:
            held.calls -= 1
            held.used_at = _now()

    async def _renewed(self, key: tuple[str, str, str]) -> Held | None:
        held = self._held.get(key)
        if held is None:
            return None
        try:
            await self.arbiter.ask("lease_renew", {"leaseId": held.lease_id, "ttlS": LEASE_TTL_S})
        except RemoteFault:  # it ended: a run took the card, or it ran out
            self._held.pop(key, None)
            return None
        held.renewed_at = _now()
        return held

    async def _granted(self, key: tuple[str, str, str]) -> Held | None:
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
        held = self._held[key] = Held(view["leaseId"], _now(), _now())
        return held

    async def lost(self, lease_id: str) -> None:
        """Return when a lease is no longer granted; never, while it is."""
        if not lease_id:
            await asyncio.get_running_loop().create_future()
        while True:
            try:
                view = await self.arbiter.ask("lease", {"leaseId": lease_id, "waitS": NEWS_S, "seen": "granted"})
            except RemoteFault:
                return
            except Fault:  # no scheduler answers: it is being restarted, and the lease stands in its log
                await asyncio.sleep(1.0)
                continue
            if view["state"] != "granted":
                return

    async def keep(self) -> None:
        """Renew what is used and give back what is not; never returns."""
        while True:
            await asyncio.sleep(min(RENEW_S / 2, self.idle_s))
            for key, held in list(self._held.items()):
                async with self._locks.setdefault(key, asyncio.Lock()):
                    await self._tend(key, held)

    async def _tend(self, key: tuple[str, str, str], held: Held) -> None:
        if self._held.get(key) is not held:
            return
        with suppress(Fault):  # no scheduler answers: the lease runs out by itself if that lasts
            if not held.calls and _now() - held.used_at >= self.idle_s:
                del self._held[key]
                await self.arbiter.ask("lease_release", {"leaseId": held.lease_id, "reason": "idle"})
            elif _now() - held.renewed_at >= RENEW_S:
                await self._renewed(key)

    async def close(self) -> None:
        """Give back every lease."""
        held, self._held = self._held, {}
        for each in held.values():
            with suppress(Fault):
                await self.arbiter.ask("lease_release", {"leaseId": each.lease_id, "reason": "the gateway stops"})

    # ---- upstream

    @asynccontextmanager
    async def answer(self, place: Place, body: bytes) -> AsyncGenerator[httpx.Response]:
        """The open answer of a place's server. Leaving the block closes the connection, which stops the server's work.

        Raises:
            httpx.HTTPError: it cannot be reached.
        """
        upstream = self.plain if place.slot is None else self.upstreams[place.slot]
        assert upstream is not None
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        timeout = httpx.Timeout(self.silence_s, connect=CONNECT_S)
        async with (
            self._client(upstream) as client,
            client.stream("POST", "/v1/chat/completions", content=body, headers=headers, timeout=timeout) as response,
        ):
            yield response

    def _client(self, upstream: Upstream) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=upstream.url.rstrip("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {upstream.api_key}"} if upstream.api_key else {},
            trust_env=False,  # a proxy of the environment must not see what is said to a local server
            transport=self.transport,
        )


def _now() -> float:
    return asyncio.get_running_loop().time()


def error_body(status: int, message: str, kind: str = "invalid_request_error", **members: Any) -> dict[str, Any]:
    """An error as llama-server's router words it: `{"error": {"code", "message", "type"}}`."""
    return {"error": {"code": status, "message": message, "type": kind, **members}}
