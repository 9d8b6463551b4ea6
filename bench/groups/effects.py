"""Durable effects of one run and of fifty, beside bare appends on the same server."""

from __future__ import annotations

import time
from typing import Any

from bench import engine, floors, machine
from bench.engine import Engine
from bench.figures import percentile
from bench.machine import Server
from bench.workload import Plan

Runs = dict[str, list[float]]
PARALLEL = 50


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    rounds, effects, each = (1, 150, 5) if quick else (3, 500, 40)
    runs: Runs = {}
    async with machine.nats_server() as server:
        async with floors.connected(server.url) as client:
            await floors.ensure_stream(client.jetstream())  # pyright: ignore[reportUnknownMemberType]
        async with (
            machine.python("bench.floors", server.url) as bare,
            engine.running(server.url) as product,
            machine.python("bench.worker", server.url) as worker,
        ):
            await product.finish([Plan(effects // 5)])  # warm-up
            await floors.effect_ms(server.url, effects // 5)
            for _ in range(rounds):
                await _floors(runs, server, bare, effects)
                await _one_run(runs, product, effects)
                await _many_runs(runs, product, [server.pid, worker], each)
    return runs, {"nats": server.version, "effects_of_one_run": effects, "runs_at_a_time": PARALLEL, "effects_of_each": each}


async def _floors(runs: Runs, server: Server, bare: int, count: int) -> None:
    _add(runs, "floor_append_p50_ms", percentile(await floors.append_ms(server.url, count), 0.5))
    _add(runs, "floor_request_p50_ms", percentile(await floors.request_ms(server.url, count), 0.5))
    before = machine.cpu_s([server.pid, bare])
    taken = await floors.effect_ms(server.url, count)
    _add(runs, "floor_cpu_ms_per_effect", (machine.cpu_s([server.pid, bare]) - before) * 1000 / count)
    _add(runs, "floor_effect_p50_ms", percentile(taken, 0.5))
    _add(runs, "floor_appends_per_s_50", await floors.appends_per_s(server.url, PARALLEL, count / 250))


async def _one_run(runs: Runs, product: Engine, count: int) -> None:
    product.workload.taken_ms.clear()
    await product.finish([Plan(count)])
    _add(runs, "effect_p50_ms", percentile(product.workload.taken_ms, 0.5))
    _add(runs, "effect_p99_ms", percentile(product.workload.taken_ms, 0.99))


async def _many_runs(runs: Runs, product: Engine, pids: list[int], each: int) -> None:
    """From the first submission to the last end: starting and ending fifty runs is in it."""
    before, began = machine.cpu_s(pids), time.perf_counter()
    await product.finish([Plan(each)] * PARALLEL)
    effects = PARALLEL * each
    _add(runs, "effects_per_s_50_runs", effects / (time.perf_counter() - began))
    _add(runs, "cpu_ms_per_effect", (machine.cpu_s(pids) - before) * 1000 / effects)


def _add(runs: Runs, name: str, value: float) -> None:
    runs.setdefault(name, []).append(value)
