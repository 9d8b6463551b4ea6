"""Teams, a chat client and a batch job on shared cards at once: LM Studio (simulated) and a real llama-server router.

`AETHERIUM_TEST_MIXED_S` says for how long they go on; what they did is printed, and the arbiter's rules are checked on the facts.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from services.scheduler.invariants import violations
from shared import rpc, subjects
from shared.bus import Bus, connect
from shared.errors import RemoteFault
from shared.eventlog import NatsEventLog, ensure_streams, read_together
from shared.events.llm import LlmCompleted, LlmFailed
from shared.events.run import LlmRequested, MessageAdded, RunCompleted
from shared.ids import new_id
from shared.subjects import Aggregate
from shared.transcript import reference
from simulators.lmstudio.config import LmConfig, SimModel
from simulators.lmstudio.server import LmStudioServer
from simulators.script import Script
from simulators.testing import serving
from tests.conftest import NatsServer
from tests.requirements import covers
from tests.support import router, schedulers
from tests.support.waiting import until

LASTS_S = float(os.environ.get("AETHERIUM_TEST_MIXED_S", "8"))
SIZES = {"alpha": 6000, "beta": 6000, "gamma": 3000, "delta": 5000}  # MiB, on a card of 10,000
ROUTED = ("one", "two")
EVERY_S = 0.2  # a chat client's pace
THINKS_S = 0.7  # a team's pause between two runs
REPLY = [{"content": "word " * 6, "delay_s": 0.02}]


@dataclass
class Box:
    """The engine's log and scheduler, and everybody who wants its cards."""

    bus: Bus
    log: NatsEventLog
    studio: LmStudioServer
    ends_s: float
    did: Counter[str] = field(default_factory=Counter[str])

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.ends_s

    async def ask(self, verb: str, **fields: Any) -> dict[str, Any]:
        return await rpc.call(self.bus, "scheduler", verb, fields, timeout_s=30)

    async def team(self, name: str, models: Sequence[str], slot: str) -> None:
        """Runs one after the other, each with a few calls that take turns between the models."""
        for _ in count():
            if not self.goes_on:
                return
            run = Aggregate("run", new_id())
            answers = self.log.follow(Aggregate("llm", run.scope).filter, after=await self.log.last_seq())
            newest = 0
            for number in range(4):
                said = MessageAdded(key=f"m{number}", agent=name, role="user", content="Say a word.")
                (message,) = await self.log.append(run, [said], after=newest)
                request = LlmRequested(
                    key=f"c{number}",
                    call_id=f"{run.scope}-{number}",
                    agent=name,
                    turn=number + 1,
                    adds=(reference(message),),
                    model=models[number % len(models)],
                    slot=slot,
                    timeout_s=120,
                )
                (asked,) = await self.log.append(run, [request], after=message.seq)
                newest = asked.seq
                ended = await anext(fact async for fact in answers if isinstance(fact.event, LlmCompleted | LlmFailed))
                assert isinstance(ended.event, LlmCompleted), ended.event
                self.did[f"calls of {name}"] += 1
            await self.log.append(run, [RunCompleted(reply="Done.")], after=newest)
            self.did["runs"] += 1
            await asyncio.sleep(THINKS_S)

    async def chat(self) -> None:
        """A chat client asks again and again; it is let in only while nobody else is there."""
        while self.goes_on:
            fields = {"holder": "chat", "slot": "primary", "priority": "interactive", "models": ["gamma"], "residentOnly": True}
            view = await self.ask("lease_request", **fields)
            self.did[f"chat {view['state']}"] += 1
            await asyncio.sleep(EVERY_S)
            if view["state"] == "granted":
                await self._release(view["leaseId"])

    async def batch(self) -> None:
        """A batch job that works for two seconds at a time, and yields when it is asked to."""
        while self.goes_on:
            view = await self.ask("lease_request", holder="nightly", slot="primary", models=["delta"], waitS=600)
            while view["state"] in ("waiting", "admitted") and self.goes_on:
                view = await self.ask("lease", leaseId=view["leaseId"], seen=view["state"], waitS=1)
            if view["state"] == "granted":
                self.did["batch granted"] += 1
                view = await self.ask("lease", leaseId=view["leaseId"], seen="granted", waitS=2)
            self.did[f"batch {view['state']}"] += 1
            await self._release(view["leaseId"])

    async def _release(self, lease_id: str) -> None:
        try:
            await self.ask("lease_release", leaseId=lease_id)
        except RemoteFault as fault:
            if fault.remote_code != "lease.ended":  # that: a run took the card, and the lease had ended by itself
                raise


@asynccontextmanager
async def box(folder: Path, routed_url: str | None) -> AsyncGenerator[Box]:
    models = tuple(SimModel(key=name, size_mib=mib) for name, mib in SIZES.items())
    studio = LmStudioServer(LmConfig(models=models, vram_mib=10_000, load_s=0.3, jit=False, replies=Script.model_validate(REPLY)))
    (folder / "nats").mkdir()
    server = NatsServer(folder / "nats")
    server.start()
    try:
        async with serving(studio) as studio_url:
            primary = {
                "url": studio_url,
                "kind": "lm-studio",
                "card": "gpu0",
                "concurrency": 2,
                "models": {name: {"mib": mib} for name, mib in SIZES.items()},
                "standard_set": ["gamma"],
            }
            routed = {"url": routed_url, "kind": "llama-server", "card": "cpu", "max_models": 1, "models": {name: {} for name in ROUTED}}
            slots = {"primary": primary} | ({"secondary": routed} if routed_url else {})
            settings = {
                "AETHERIUM_SCHEDULER__CARDS": json.dumps({"gpu0": {"size_mib": 10_000}, "cpu": {}}),
                "AETHERIUM_SCHEDULER__SLOTS": json.dumps(slots),
                "AETHERIUM_SCHEDULER__PREEMPT_GRACE_S": "1",
                "AETHERIUM_SCHEDULER__LEASE_SWEEP_S": "0.5",
            }
            scheduler = await schedulers.start(folder, server.url, "0", settings)
            bus = await connect(server.url, "test")
            await ensure_streams(bus)
            try:
                yield Box(bus, NatsEventLog(bus, "test"), studio, time.monotonic() + LASTS_S)
            finally:
                await bus.close()
                await scheduler.killed()
    finally:
        server.kill()


async def everybody(made: Box, *more: Callable[[], Awaitable[None]]) -> None:
    """Let them all go on until the time is over, and the cards come to rest."""
    async with asyncio.timeout(LASTS_S + 120), asyncio.TaskGroup() as tasks:
        tasks.create_task(made.chat())
        tasks.create_task(made.batch())
        await until(lambda: made.did["batch granted"])  # so that the first run finds it there, and asks it to go
        tasks.create_task(made.team("red", ["alpha"], "primary"))
        tasks.create_task(made.team("blue", ["beta", "gamma"], "primary"))
        for one in more:
            tasks.create_task(_of(one))

    async def is_at_rest() -> bool:
        return not (await made.ask("leases"))["leases"]

    await until(is_at_rest, timeout=30)


async def _of(work: Callable[[], Awaitable[None]]) -> None:
    await work()


async def check(made: Box) -> None:
    """The facts of it all, against the arbiter's rules; and the simulator's own account against the facts."""
    domains = ("run", "llm", "lease", "model", "card")
    facts = await read_together(made.log, *map(subjects.of_domain, domains))
    found = violations(facts)
    kinds = Counter(fact.type for fact in facts)
    print(
        f"\n{LASTS_S:g} s: {dict(sorted(made.did.items()))}; {kinds['model.loaded']} loads, {kinds['lease.preempt_requested']} preemptions"
    )
    assert not found, found[:3]
    asked = [fact.event.call_id for fact in facts if isinstance(fact.event, LlmRequested)]
    ended = Counter(fact.event.call_id for fact in facts if isinstance(fact.event, LlmCompleted | LlmFailed))
    assert ended == Counter(asked), "each call has one ending"
    assert kinds["model.load_failed"] == 0
    assert made.did["runs"] >= 2
    assert made.did["batch granted"] >= 1
    assert sum(made.did[f"chat {state}"] for state in ("granted", "refused")) >= 3
    assert kinds["lease.preempt_requested"] >= 1
    assert made.studio.card.peak_mib <= 10_000


@covers("lease.mixed")
async def test_teams_a_chat_client_and_a_batch_job_share_a_card_by_the_rules(tmp_path: Path) -> None:
    async with box(tmp_path, None) as made:
        await everybody(made)
        await check(made)


@covers("lease.mixed")
@pytest.mark.real_model
async def test_a_third_team_on_a_real_router_shares_nothing_but_the_arbiter(tmp_path: Path) -> None:
    async with router.running(tmp_path, ROUTED) as url, box(tmp_path, url) as made:
        await everybody(made, lambda: made.team("green", ROUTED, "secondary"))
        await check(made)
        assert made.did["calls of green"] >= 4
