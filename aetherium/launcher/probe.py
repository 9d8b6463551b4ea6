"""Is it there yet: short HTTP questions to servers on this machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache

import httpx


@cache
def _client() -> httpx.AsyncClient:
    # The environment's proxies are not for loopback, and a fresh connection each time tells a restarted server from a dead one.
    return httpx.AsyncClient(trust_env=False, timeout=2.0, limits=httpx.Limits(max_keepalive_connections=0))


async def get(url: str) -> httpx.Response | None:
    """The answer, whatever its status; None when nothing answers there."""
    try:
        return await _client().get(url)
    except httpx.HTTPError:
        return None


def http_ok(url: str) -> Callable[[int], Awaitable[bool]]:
    """A readiness check: a 2xx answer at `url`."""

    async def ready(_pid: int) -> bool:
        answer = await get(url)
        return answer is not None and answer.is_success

    return ready
