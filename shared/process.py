"""What every service process does alike: settings, logging, the bus, health, signals, and a tidy end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import signal
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass

import structlog
import uvloop

from shared import config, health, telemetry
from shared.blobs import NatsBlobs
from shared.bus import Bus, connect
from shared.config import Settings
from shared.errors import Fault, Verdict
from shared.eventlog import NatsEventLog, ensure_streams

logger = structlog.get_logger()

CANNOT_START = 2  # exit code: starting again would not help


@dataclass(frozen=True, slots=True)
class Process:
    """The parts that a service's composition root starts from."""

    name: str
    settings: Settings
    bus: Bus
    log: NatsEventLog
    blobs: NatsBlobs

    @property
    def owner(self) -> str:
        """This copy of the service; the same after a restart, so that it finds its own work again."""
        return f"{self.name}-{self.settings.instance}"


Main = Callable[[Process], Awaitable[None]]


def run(name: str, main: Main) -> None:
    """Run a service until SIGTERM or SIGINT; exit 2 with one line when it cannot start as it is set up."""
    try:
        settings = config.load()
    except Fault as fault:
        print(f"aetherium {name}: {fault.message}", file=sys.stderr)
        raise SystemExit(CANNOT_START) from fault
    telemetry.set_up(settings.telemetry, name)
    rarely_collect()
    try:
        uvloop.run(_serve(name, settings, main))
    except Fault as fault:
        logger.error("cannot_start", reason=fault.message, code=fault.code)
        # What only waits for something else may be started again; anything else would end the same way.
        raise SystemExit(1 if fault.verdict is Verdict.RETRY else CANNOT_START) from fault
    finally:
        telemetry.shut_down()


async def _serve(name: str, settings: Settings, main: Main) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with opened(name, settings) as process:
        work = asyncio.ensure_future(main(process))
        waiting = asyncio.create_task(stop.wait())
        await asyncio.wait({work, waiting}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if not work.done():
            logger.info("stopping")
            work.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await work


def rarely_collect() -> None:
    """Look for garbage in cycles a tenth as often, and never in what the modules hold.

    Facts make no cycles, and with the stock thresholds looking through those that a long run keeps takes a third of the time
    to read them.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


@contextlib.asynccontextmanager
async def opened(name: str, settings: Settings) -> AsyncGenerator[Process]:
    """A process connected to the bus, with the streams in place."""
    url = settings.nats.url or "nats://127.0.0.1:4222"
    bus = await connect(url, name)
    try:
        await ensure_streams(bus)
        log = NatsEventLog(bus, f"aetherium/{name}-{settings.instance}", trace=telemetry.traceparent)
        yield Process(name, settings, bus, log, NatsBlobs(bus))
    finally:
        await bus.close()


async def serve_health(process: Process, ready: Callable[[], Awaitable[dict[str, str]]] | None = None) -> asyncio.Server | None:
    """The health endpoints of a service; NATS is a dependency of every one."""

    async def missing() -> dict[str, str]:
        lacks = {} if process.bus.client.is_connected else {"nats": "not connected"}
        return lacks | (await ready() if ready else {})

    return await health.serve(process.settings.health.host, process.settings.health.port, missing)
