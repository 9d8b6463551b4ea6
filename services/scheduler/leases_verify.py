"""`python -m services.scheduler.leases_verify --nats URL`: the arbiter's invariants over a log; exit code 1 where one is broken (S22)."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from dataclasses import asdict

import orjson

from services.scheduler.invariants import violations
from shared import config, subjects, telemetry
from shared.bus import connect
from shared.config import TelemetrySettings
from shared.eventlog import NatsEventLog, read_together
from shared.events.envelope import Fact

DOMAINS = ("lease", "model", "card", "llm")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="aetherium leases verify")
    parser.add_argument("--nats", required=True, help="the server that has the log")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    telemetry.set_up(TelemetrySettings(log_level="error"), "leases-verify")
    facts = asyncio.run(_facts(asked.nats))
    broken = violations(facts, frozenset(config.load().scheduler.embedding_models))
    if asked.json:
        print(orjson.dumps({"facts": len(facts), "violations": [asdict(each) for each in broken]}).decode())
    else:
        for each in broken:
            print(f"fact {each.seq} breaks {each.rule}: {each.message}")
        print(f"verified {len(facts)} facts" if not broken else f"{len(broken)} of {len(facts)} facts break a rule")
    return 1 if broken else 0


async def _facts(url: str) -> list[Fact]:
    bus = await connect(url, "leases-verify", timeout_s=5.0)
    try:
        return await read_together(NatsEventLog(bus, "leases-verify"), *map(subjects.of_domain, DOMAINS))
    finally:
        await bus.close()


if __name__ == "__main__":
    sys.exit(main())
