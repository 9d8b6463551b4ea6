"""Waiting for something to become true that nothing announces, within a time that only a failure takes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

LOOK_EVERY_S = 0.01  # how often a test looks for what nothing announces


async def until(true: Callable[[], Any], *, timeout: float = 15.0, look_every_s: float = LOOK_EVERY_S) -> None:
    """Wait until `true()`, or what it is awaited to, is true."""
    async with asyncio.timeout(timeout):
        while True:
            found = true()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(look_every_s)
