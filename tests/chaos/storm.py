"""The storm itself: an engine, a load of runs, and a killer."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from aetherium.client import GatewayClient, Refused, Unreachable
from aetherium.launcher import stack
from aetherium.launcher.process import State
from aetherium.launcher.stack import Engine
from shared.blobs import NatsBlobs
from shared.bus import Bus, connect
from shared.config import ChromaSettings, InferenceSettings, Settings, TelemetrySettings
from shared.eventlog import NatsEventLog
from shared.ids import derived_id
from tests.chaos import checks, workload
from tests.chaos.checks import Findings
from tests.chaos.observer import Observer, percentile
from tests.support.waiting import LOOK_EVERY_S

VICTIMS = ("orchestrator", "scheduler", "tools", "recorder", "gateway", "nats")
BETWEEN_S = (1.5, 2.5)
STARTING_TOO = 0.2  # share of the kills that may also hit a process which is still starting
SETTLE_S = 60.0  # for the runs that are under way when the killing ends
STALLED_S = 45.0  # without one new fact while runs are under way
RESUME_LIMIT_S = 5.0

Say = Callable[[str], None]


class Stalled(Exception):
    """Runs are under way and nothing happens any more."""


@dataclass
class Storm:
    """One engine under fire. `submitted` holds what the gateway acknowledged: run → kind."""

    engine: Engine
    log: NatsEventLog
    bus: Bus
    gateway: GatewayClient
    observer: Observer
    chance: random.Random
    say: Say
    victims: tuple[str, ...] = VICTIMS
    submitted: dict[str, str] = field(default_factory=dict[str, str])
    kills: dict[str, int] = field(default_factory=lambda: dict.fromkeys(VICTIMS, 0))
    numbers: int = 0
    over: bool = False

    # ---- load

    async def keep_running(self, seed: int) -> None:
        """One place of the load: submit, wait for the end, and again until the storm is over."""
        while not self.over:
            self.numbers += 1
            number = self.numbers
            kind = self.chance.choice(list(workload.KINDS))
            run_id = await self._submit(kind, number, key=derived_id("chaos", str(seed), str(number)))
            self.submitted[run_id] = kind
            await self.observer.ended(run_id)

    async def _submit(self, kind: str, number: int, key: str) -> str:
        """The same request again for as long as the gateway, or what it needs, is away: the key makes that safe."""
        while True:
            try:
                answer = await self.gateway.submit(workload.TEMPLATE_ID, workload.message(kind, number), project=f"chaos {number}", key=key)
                return answer.run_guid
            except Unreachable:
                pass
            except Refused as refused:
                if refused.status != 503:
                    raise
            await asyncio.sleep(LOOK_EVERY_S)

    # ---- kills

    async def kill_many(self, count: int) -> None:
        """Kill -9, one process at a time, at random moments."""
        for number in range(1, count + 1):
            await asyncio.sleep(self.chance.uniform(*BETWEEN_S))
            name, pid = self._victim()
            os.kill(pid, signal.SIGKILL)
            owned = self.observer.orchestrator_killed() if name == "orchestrator" else 0
            self.kills[name] += 1
            ended = sum(1 for state in self.observer.runs.values() if state.status.is_final)
            took = f", slowest resume {max(self.observer.resume_s):.1f} s" if self.observer.resume_s else ""
            owner = f" with {owned} runs" if owned else ""
            self.say(f"kill {number}/{count}: {name} (pid {pid}){owner}; {ended} of {self.numbers} runs ended{took}")
            self._check_progress()

    def _victim(self) -> tuple[str, int]:
        """A process that is there now: mostly one that works, now and then one that is only starting. Each has its turn once."""
        there = [status for status in self.engine.supervisor.statuses if status.name in self.victims and status.pid]
        ready = [status for status in there if status.state is State.READY]
        choice = there if not ready or self.chance.random() < STARTING_TOO else ready
        victim = self.chance.choice([status for status in choice if not self.kills[status.name]] or choice)
        assert victim.pid is not None
        return victim.name, victim.pid

    def _check_progress(self) -> None:
        under_way = [state.run_id for state in self.observer.runs.values() if not state.status.is_final]
        if under_way and time.monotonic() - self.observer.progress_at > STALLED_S:
            raise Stalled(f"no fact for {STALLED_S:g} s while these runs are under way: {under_way}")

    # ---- end

    async def settle(self, places: list[asyncio.Task[None]]) -> None:
        """Let the runs that are under way come to their end, and the followers to the end of the log."""
        self.over = True
        async with asyncio.timeout(SETTLE_S):
            await asyncio.gather(*places)
            newest = await self.log.last_seq()
            await self.observer.shown_to(newest)

    async def judge(self) -> Findings:
        found = Findings()
        facts = await self.log.read(checks.EVERYTHING)
        runs = checks.by_run(facts)
        checks.check_ends(found, self.submitted, runs)
        for run_id, event in checks.of_submissions(facts).items():
            if run_id not in self.submitted:
                found.wrong(f"run {run_id} is in the log and nobody was told of it")
            workspace = self.engine.plan.settings.workspaces / str(event.project_id)
            checks.check_effects(found, run_id, self.submitted.get(run_id, "appends"), runs[run_id], workspace)
        checks.check_shown(found, self.observer.shown, facts)
        for reason in self.observer.resets:
            found.lost += 1
            found.wrong(f"the event stream began anew: {reason}")
        if self.observer.repeated:
            found.wrong(f"the event stream repeated facts {self.observer.repeated[:10]}")
        if self.observer.not_resumed:
            found.wrong(f"runs that never went on after their orchestrator was killed: {sorted(self.observer.not_resumed)}")
        await checks.check_replay(found, runs, NatsBlobs(self.bus))
        await checks.check_rows(found, self.engine.plan.urls["postgres"], runs, facts[-1].seq if facts else 0)
        return found


@dataclass(frozen=True)
class Report:
    """What a storm came to; `line` is the last that is printed."""

    line: str
    problems: list[str]
    findings: Findings

    @property
    def is_good(self) -> bool:
        return not self.problems


async def rage(
    folder: Path, *, kills: int, seed: int, at_a_time: int, victims: tuple[str, ...] = VICTIMS, say: Say = lambda _: None
) -> Report:
    """Start an engine in `folder`, kill its processes `kills` times, and judge what is left."""
    async with opened(folder, seed, say) as storm:
        storm.victims = victims
        followers = [asyncio.create_task(each) for each in (storm.observer.follow_log(), storm.observer.follow_stream())]
        places = [asyncio.create_task(storm.keep_running(seed)) for _ in range(at_a_time)]
        killing = asyncio.create_task(storm.kill_many(kills))
        try:
            await _first_failure(killing, *followers, *places)
            say(f"the killing is over ({', '.join(f'{name} {times}' for name, times in storm.kills.items())}); waiting for the last runs")
            await storm.settle(places)
            found = await storm.judge()
        finally:
            for task in (killing, *followers, *places):
                task.cancel()
            await asyncio.gather(killing, *followers, *places, return_exceptions=True)
        return report(found, storm, kills)


async def _first_failure(killing: asyncio.Task[None], *others: asyncio.Task[None]) -> None:
    """Wait for the killing to end, unless one of the others fails before."""
    waiting = {killing, *others}
    while not killing.done():
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    killing.result()


def report(found: Findings, storm: Storm, kills: int) -> Report:
    p95 = percentile(storm.observer.resume_s, 0.95)
    problems = list(found.problems)
    if p95 > RESUME_LIMIT_S:
        problems.append(f"95 of 100 runs should go on within {RESUME_LIMIT_S:g} s; it took {p95:.2f} s")
    line = (
        f"kills={kills} runs_completed={found.completed} resumed={storm.observer.resumed} duplicated_effects={found.duplicated} "
        f"lost_facts={found.lost} p95_resume_s={p95:.2f}"
    )
    return Report(line, problems, found)


@contextlib.asynccontextmanager
async def opened(folder: Path, seed: int, say: Say) -> AsyncGenerator[Storm]:
    """A started engine with everything connected to it."""
    settings = Settings(
        data_dir=folder,
        chroma=ChromaSettings(enabled=False),
        inference=InferenceSettings(concurrency=3, detect=False, local_model=False),
        telemetry=TelemetrySettings(log_level="info", log_format="json"),
    )
    script = workload.install(folder)
    began = time.monotonic()
    async with stack.running(settings, scripted=script) as engine:
        async with asyncio.timeout(90):
            if not await engine.ready():
                raise RuntimeError(f"the engine did not start: {engine.supervisor.statuses}")
        say(f"the engine is ready after {time.monotonic() - began:.1f} s; seed {seed}, data in {folder}")
        bus = await connect(engine.plan.urls["nats"], "chaos")
        log = NatsEventLog(bus, "chaos")
        try:
            async with GatewayClient(engine.plan.urls["gateway"]) as gateway, GatewayClient(engine.plan.urls["gateway"]) as stream:
                yield Storm(engine, log, bus, gateway, Observer(log, stream), random.Random(seed), say)
        finally:
            await bus.close()
