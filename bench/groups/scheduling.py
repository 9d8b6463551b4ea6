"""What the scheduler's process adds to a model call that a server answers at once: on its one slot, and on a leased slot."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Any

import httpx
import orjson

from bench import instant_model, machine
from bench.figures import percentile
from shared import subjects
from shared.bus import Bus, connect
from shared.eventlog import NatsEventLog, ensure_streams
from shared.events.content import MessageRef, Sampling
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted, LlmFailed
from shared.events.run import LlmRequested, MessageAdded, RunCompleted
from shared.ids import new_id, place_id
from shared.transcript import reference

Runs = dict[str, list[float]]
TURNS = 20  # calls of one conversation, each with the whole of it as its prompt


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    rounds, conversations = (1, 2) if quick else (3, 8)
    runs: Runs = {}
    async with machine.nats_server() as server, instant_model.running() as url:
        common = {"AETHERIUM_NATS__URL": server.url, "AETHERIUM_TELEMETRY__LOG_LEVEL": "warning"}
        slots = orjson.dumps({"primary": {"url": url, "kind": "openai", "models": {"instant": {}}}}).decode()
        kinds = {
            "scheduler": {"AETHERIUM_INFERENCE__URL": url, "AETHERIUM_INFERENCE__KIND": "openai"},
            "dispatch": {"AETHERIUM_SCHEDULER__SLOTS": slots},
        }
        bus = await connect(server.url, "bench")
        await ensure_streams(bus)
        for name, settings in kinds.items():
            async with machine.service("scheduler", common | settings):
                await _conversation(bus, NatsEventLog(bus, "aetherium/bench"))  # warm-up
                await _direct_ms(url, TURNS)
                for _ in range(rounds):
                    direct = percentile(await _direct_ms(url, conversations * TURNS), 0.5)
                    calls = [took for _ in range(conversations) for took in await _conversation(bus, NatsEventLog(bus, "aetherium/bench"))]
                    through = percentile(calls, 0.5)
                    runs.setdefault("floor_http_p50_ms" if name == "scheduler" else "floor_leased_http_p50_ms", []).append(direct)
                    runs.setdefault(f"{name}_call_p50_ms", []).append(through)
                    runs.setdefault(f"{name}_overhead_p50_ms", []).append(through - direct)
        await bus.close()
    return runs, {"nats": server.version, "calls": conversations * TURNS, "turns_of_a_conversation": TURNS}


async def _direct_ms(url: str, count: int) -> list[float]:
    """The same request without the engine: one streamed answer, on a connection of its own as the scheduler makes it."""
    taken: list[float] = []
    async with httpx.AsyncClient(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0)) as client:
        for turn in range(count):
            said = {"role": "user", "content": "Write primes.py."}, {"role": "assistant", "content": "".join(instant_model.PIECES)}
            messages = [message for _ in range(turn % TURNS + 1) for message in said]
            began = time.perf_counter()
            async with client.stream("POST", f"{url}/v1/chat/completions", json={"messages": messages, "stream": True}) as response:
                async for _ in response.aiter_bytes():
                    pass
            taken.append((time.perf_counter() - began) * 1000)
    return taken


async def _conversation(bus: Bus, log: NatsEventLog) -> list[float]:
    """Milliseconds of each call, from `llm_requested` stored to `llm.completed` stored, by the server's clock."""
    run_id = new_id()
    aggregate, answers = subjects.Aggregate("run", run_id), log.follow(subjects.Aggregate("llm", run_id).filter, after=await log.last_seq())
    before: Fact | None = None
    (said,) = await log.append(aggregate, [MessageAdded(key="task", agent="coder", role="user", content="Write primes.py.")], after=0)
    adds: tuple[MessageRef, ...] = (reference(said),)
    newest, pairs = said.seq, list[tuple[int, int]]()
    for turn in range(1, TURNS + 1):
        (before,) = await log.append(aggregate, [_request(run_id, turn, before, adds)], after=newest)
        newest = before.seq
        reply = await anext(fact async for fact in answers if isinstance(fact.event, LlmCompleted | LlmFailed))
        if isinstance(reply.event, LlmFailed):
            raise RuntimeError(f"a measured call failed: {reply.event.message}")
        pairs.append((before.seq, reply.seq))
        (said,) = await log.append(aggregate, [MessageAdded(key=f"t{turn}", agent="coder", role="user", content="Go on.")], after=newest)
        newest, adds = said.seq, (reference(reply), reference(said))
    await log.append(aggregate, [RunCompleted(reply="Done.")], after=newest)  # its lease ends with it
    return [((await _stored_at(bus, done)) - (await _stored_at(bus, asked))) * 1000 for asked, done in pairs]


def _request(run_id: str, turn: int, before: Fact | None, adds: tuple[MessageRef, ...]) -> LlmRequested:
    return LlmRequested(
        key=f"turn-{turn}",
        call_id=place_id("llm", run_id, f"turn-{turn}"),
        agent="coder",
        turn=turn,
        model="instant",
        extends=before.seq if before else None,
        adds=adds,
        sampling=Sampling(temperature=0.0, max_tokens=100),
    )


async def _stored_at(bus: Bus, seq: int) -> float:
    """When the server stored a fact, in seconds of its clock; the server says nanoseconds, of which microseconds are kept."""
    message = await bus.client.request(f"$JS.API.DIRECT.GET.{subjects.STREAM}", orjson.dumps({"seq": seq}), timeout=5)
    day, _, fraction = (message.headers or {})["Nats-Time-Stamp"].removesuffix("Z").partition(".")
    return datetime.fromisoformat(f"{day}.{fraction[:6]:0<6}+00:00").timestamp()
