"""A long run: what it takes on disk, to read and fold, and to re-execute."""

from __future__ import annotations

import time
from typing import Any

from bench import engine, floors, machine
from bench.engine import Engine
from bench.workload import TEMPLATE, UNBOUNDED, Plan, Workload, facts_of_turn
from services.orchestrator.durable.history import History
from services.orchestrator.durable.verify import verify
from shared import subjects
from shared.bus import connect
from shared.eventlog import NatsEventLog, Write
from shared.events import run
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Fact, body_of
from shared.ids import new_id
from shared.runstate import fold

Runs = dict[str, list[float]]


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    rounds, turns = (1, 200) if quick else (3, 1000)
    steps, runs = turns * 2, Runs()
    async with machine.nats_server() as server:
        async with engine.running(server.url) as product, machine.python("bench.worker", server.url):
            before = await _bytes(product)
            (run_id,) = await product.finish([Plan(turns, tools=True)])
            runs["log_bytes_per_step"] = [(await _bytes(product) - before) / steps]
            facts = await product.log.read(subjects.of_run(run_id))
        runs["floor_log_bytes_per_step"] = [sum(len(body_of(fact.event)) for fact in facts) / steps]
        bus = await connect(server.url, "bench")  # without an orchestrator, which would take up the run that is written here
        log = NatsEventLog(bus, "aetherium/bench")
        long_run, count = await _write_long_run(log, turns=2000)
        for _ in range(rounds):
            wanted = subjects.of_run(long_run)
            runs.setdefault("floor_fold_10k_ms", []).append(await floors.read_ms(server.url, subjects.STREAM, wanted, count))
            runs.setdefault("fold_10k_ms", []).append(await _fold_ms(log, long_run, count))
            runs.setdefault("floor_index_2000_ms", []).append(_index_ms(run_id, facts))
            runs.setdefault("replay_2000_steps_ms", []).append(await _replay_ms(run_id, facts))
        await bus.close()
    return runs, {"nats": server.version, "steps": steps, "facts_of_the_steps": len(facts), "facts_folded": count}


async def _bytes(product: Engine) -> int:
    return int((await product.bus.api(f"STREAM.INFO.{subjects.STREAM}"))["state"]["bytes"])


async def _write_long_run(log: NatsEventLog, *, turns: int) -> tuple[str, int]:
    """A run of five facts a turn, written in batches as one would after an import; gives its id and size."""
    run_id = new_id()
    template = BlobRef(sha256="0" * 64, size=1)
    opening = run.RunSubmitted(
        project_id=1, template_id="bench", template=template, message="x", pins=Pins(template=template.sha256), budgets=UNBOUNDED
    )
    (first,) = await log.append(subjects.Aggregate("run", run_id), [opening], after=0)
    last, count = {"run": first.seq, "llm": 0, "tool": 0}, 1
    for start in range(1, turns + 1, 10):
        rows = [row for turn in range(start, min(start + 10, turns + 1)) for row in facts_of_turn(run_id, turn, first.seq)]
        writes = [Write(subjects.Aggregate(name, run_id), [event for domain, event in rows if domain == name], last[name]) for name in last]
        stored = await log.commit(writes)
        last = {write.aggregate.domain: facts[-1].seq for write, facts in zip(writes, stored, strict=True)}
        count += len(rows)
    return run_id, count


async def _fold_ms(log: NatsEventLog, run_id: str, count: int) -> float:
    began = time.perf_counter()
    facts = await log.read(subjects.of_run(run_id))
    state = fold(run_id, facts)
    taken = (time.perf_counter() - began) * 1000
    assert len(facts) == count
    assert state.model_calls_done * 5 + 1 == count
    return taken


def _index_ms(run_id: str, facts: list[Fact]) -> float:
    began = time.perf_counter()
    History.of(run_id, facts)
    return (time.perf_counter() - began) * 1000


async def _replay_ms(run_id: str, facts: list[Fact]) -> float:
    began = time.perf_counter()
    verdict = await verify(run_id, facts, TEMPLATE, Workload())
    taken = (time.perf_counter() - began) * 1000
    if verdict.diverged_at is not None:
        raise RuntimeError(f"the measured run does not replay: {verdict.message}")
    return taken
