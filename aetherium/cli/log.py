"""How verbs read the log itself. Apart from `gateway`, because the driver takes a while to import."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aetherium.cli.options import settings_with
from aetherium.launcher import state
from shared import telemetry
from shared.bus import connect
from shared.config import TelemetrySettings
from shared.eventlog import NatsEventLog


def nats_url(data_dir: Path | None) -> str:
    settings = settings_with(data_dir)
    engine = state.find(settings.data_dir)
    if engine is not None and "nats" in engine.urls:
        return engine.urls["nats"]
    return settings.nats.url or "nats://127.0.0.1:4222"


@asynccontextmanager
async def event_log(data_dir: Path | None) -> AsyncGenerator[NatsEventLog, None]:
    telemetry.set_up(TelemetrySettings(log_level="error"), "cli")  # what a verb prints is its answer, not a log
    bus = await connect(nats_url(data_dir), "cli", timeout_s=5.0)
    try:
        yield NatsEventLog(bus, "cli")
    finally:
        await bus.close()
