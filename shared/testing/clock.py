"""Time that moves when the test says so."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta


@dataclass
class FakeClock:
    """A clock at a fixed time. `advance` moves it and wakes those whose time has come."""

    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    sleepers: list[tuple[datetime, asyncio.Future[None]]] = field(default_factory=list[tuple[datetime, "asyncio.Future[None]"]])

    def now(self) -> datetime:
        return self.at

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.sleepers.append((self.at + timedelta(seconds=seconds), future))
        await future

    def advance(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)
        due = [future for when, future in self.sleepers if when <= self.at]
        self.sleepers = [(when, future) for when, future in self.sleepers if when > self.at]
        for future in due:
            if not future.done():
                future.set_result(None)
