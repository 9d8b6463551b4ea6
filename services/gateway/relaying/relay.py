"""The OpenAI-compatible relay: an external chat client uses a card only while nothing else does (KS 6.10, S17).

It never loads a model. Where a run or a batch job holds the card, or the model is not there, the client gets the answer that
llama-server's router would give, so that its own chain of fallbacks goes on. What is said passes through and is neither read nor kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import httpx

from services.gateway.relaying.leases import Arbiter, Leases
from services.gateway.relaying.servers import Servers, Upstream

FRESH_S = 5.0  # a client that holds its lease is sent to the same place for so long before the slots are asked again
MAX_KNOWN = 500


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request can go: `names` are tried one after the other there. `slot` None: the one server of an engine without slots."""

    slot: str | None
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """Where a model is loaded now, in the order in which places are tried. `is_listed`: some slot knows it, loaded or not."""

    places: tuple[Place, ...]
    is_listed: bool


@dataclass
class Relay:
    """`upstreams` by slot; `plain` where no slots are configured."""

    arbiter: Arbiter
    upstreams: Mapping[str, Upstream]
    plain: Upstream | None = None
    idle_s: float = 60.0  # after so long without a request a client's lease is given back
    silence_s: float = 120.0  # the longest pause of a server inside one answer
    leases: Leases = field(init=False)
    servers: Servers = field(init=False)
    _last: dict[tuple[str, str], tuple[float, Place]] = field(default_factory=dict[tuple[str, str], tuple[float, Place]])

    def __post_init__(self) -> None:
        self.leases, self.servers = Leases(self.arbiter, self.idle_s), Servers(self.silence_s)

    def upstream(self, place: Place) -> Upstream:
        found = self.plain if place.slot is None else self.upstreams[place.slot]
        assert found is not None
        return found

    def last(self, client: str, model: str) -> Place | None:
        """Where the client's last request for the model was answered, if that was a moment ago: nobody need be asked again."""
        at, place = self._last.get((client, model), (float("-inf"), None))
        return place if _now() - at < FRESH_S else None

    def answered(self, client: str, model: str, place: Place) -> None:
        self._last[client, model] = _now(), place
        if len(self._last) > MAX_KNOWN:
            del self._last[next(iter(self._last))]

    async def find(self, model: str) -> Found:
        """Where the model is loaded now; without slots the one server.

        Raises:
            Fault: no scheduler answers.
        """
        if not self.upstreams:
            return Found((Place(None, (model,)),), is_listed=True) if self.plain else Found((), is_listed=False)
        rows = (await self.arbiter.ask("relay_places", {"model": model}))["places"]
        places = tuple(
            Place(row["slot"], tuple(dict.fromkeys(name for name in (row["copy"], row["model"]) if name)))
            for row in rows
            if row["resident"] and row["slot"] in self.upstreams
        )
        return Found(places, is_listed=bool(rows))

    async def models(self) -> list[str]:
        """The models that are listed anywhere, each once."""
        if self.upstreams:
            rows = (await self.arbiter.ask("models", {}))["models"]
            return list(dict.fromkeys(str(row["model"]) for row in rows))
        if self.plain is None:
            return []
        listed = cast(list[dict[str, Any]], (await self.servers.models(self.plain)).json()["data"])
        return list(dict.fromkeys(str(row["id"]) for row in listed))

    async def close(self) -> None:
        """Give back every lease."""
        await self.leases.close()
        await self.servers.close()


def _now() -> float:
    return asyncio.get_running_loop().time()


UNREACHABLE = (httpx.HTTPError, httpx.StreamError)
