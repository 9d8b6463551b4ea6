"""`python -m services.scheduler.usage_report --nats URL`: where every card's time went, from the log alone (S23)."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import orjson

from services.scheduler.usage import CardUsage, Who, usage
from shared import subjects, telemetry
from shared.bus import connect
from shared.config import TelemetrySettings
from shared.eventlog import NatsEventLog, read_together
from shared.events.envelope import Fact
from shared.events.run import LlmRequested

DOMAINS = ("lease", "model", "card", "llm")
KINDS = {"gpu": "answering", "swap": "swapping", "held": "held, unused", "idle": "idle"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="aetherium usage")
    parser.add_argument("--nats", required=True, help="the server that has the log")
    parser.add_argument("--run", default="", help="only this run, by its id or the beginning of it")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args(argv)
    telemetry.set_up(TelemetrySettings(log_level="error"), "usage")
    found = usage(asyncio.run(_facts(asked.nats)))
    print(as_json(found, asked.run) if asked.json else as_text(found, asked.run))
    return 0


async def _facts(url: str) -> list[Fact]:
    bus = await connect(url, "usage", timeout_s=5.0)
    try:
        filters = (*map(subjects.of_domain, DOMAINS), subjects.every(LlmRequested.TYPE))
        return await read_together(NatsEventLog(bus, "usage"), *filters)
    finally:
        await bus.close()


def _lines(each: CardUsage, run: str) -> Iterator[tuple[Who, float]]:
    """The lines of a card's account, the largest first."""
    for who, seconds in sorted(each.seconds.items(), key=lambda line: -line[1]):
        if seconds > 0 and (not run or (who.run_id or "").startswith(run)):
            yield who, seconds


def as_json(found: Mapping[str, CardUsage], run: str = "") -> str:
    """`{"cards": [{card, wallS, lines: [{kind, runGuid, agent, holder, seconds}]}]}`; the lines of all runs sum to `wallS`."""
    cards: list[dict[str, Any]] = [
        {
            "card": name,
            "wallS": round(each.wall_s, 3),
            "lines": [
                {"kind": who.kind, "runGuid": who.run_id, "agent": who.agent, "holder": who.holder, "seconds": round(seconds, 3)}
                for who, seconds in _lines(each, run)
            ],
        }
        for name, each in sorted(found.items())
    ]
    return orjson.dumps({"cards": cards}).decode()


def as_text(found: Mapping[str, CardUsage], run: str = "") -> str:
    if not found:
        return "no card's time is in the log: cards are leased once scheduler.slots is set"
    rows: list[str] = []
    for name, each in sorted(found.items()):
        rows.append(f"{name}  {each.wall_s:.1f} s in all  {_shares(each)}")
        for who, seconds in _lines(each, run):
            if who.kind != "idle":
                whose = f"run {who.run_id[:8]}" if who.run_id else who.holder
                rows.append(f"  {seconds:9.1f} s  {KINDS[who.kind]:<12}  {whose}{f', {who.agent}' if who.agent else ''}")
    return "\n".join(rows)


def _shares(each: CardUsage) -> str:
    spent: defaultdict[str, float] = defaultdict(float)
    for who, seconds in each.seconds.items():
        spent[who.kind] += seconds
    return ", ".join(f"{KINDS[kind]} {spent[kind] / each.wall_s:.0%}" for kind in KINDS if each.wall_s and spent[kind])


if __name__ == "__main__":
    sys.exit(main())
