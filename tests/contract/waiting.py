"""Waiting for something to become true, within a time that only a failure takes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any


async def until(true: Callable[[], Any], *, timeout: float = 15.0) -> None:
    """Wait until `true()`, or what it is awaited to, is true."""
    async with asyncio.timeout(timeout):
        while True:
            found = true()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
