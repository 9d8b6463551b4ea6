"""How many decisions a second the pure arbiter makes over a day of mixed traffic, beside folding the same facts."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from services.scheduler.arbiter import Load, State, Unload, decide_and_evolve, effects, fold
from services.scheduler.arbiter.commands import (
    Command,
    EndRun,
    FinishLoad,
    FinishUnload,
    ObserveSlot,
    Release,
    Renew,
    RequestGroup,
    RequestLease,
    Seen,
    Sweep,
)
from services.scheduler.slots import Catalogue, catalogue
from shared.events.envelope import Event
from shared.events.lease import Priority
from shared.scheduler_settings import SchedulerSettings

Runs = dict[str, list[float]]
START = datetime(2026, 1, 1, tzinfo=UTC)
SEED = 20260101
MODELS = {"primary": ("writer", "coder", "large"), "secondary": ("vision", "coder"), "art": ("painter",)}
SIZES = {"embed": 500, "writer": 8_000, "coder": 9_000, "large": 20_000, "vision": 7_000, "painter": 6_000}
TEAMS = 3  # that work at the same time
WORK_S, SWEEP_S, RENEW_S, CHAT_S, PROBE_S = 600, 5, 40, 20, 30


async def measure(quick: bool) -> tuple[Runs, dict[str, Any]]:
    rounds, teams = (2, 60) if quick else (7, 240)
    day = Day.of(teams)
    runs: Runs = {}
    for _ in range(rounds):
        runs.setdefault("floor_arbiter_folds_per_s", []).append(len(day.asked) / _fold_s(day))
        runs.setdefault("arbiter_decisions_per_s", []).append(len(day.asked) / _decide_s(day))
    return runs, {"nats": "not used", "decisions": len(day.asked), "facts": len(day.facts), "runs": teams, "seed": SEED}


def _decide_s(day: Day) -> float:
    """Seconds of the process's own time to decide all that was asked, each decision on the state after the one before."""
    state, facts = State(day.known), 0
    began = time.process_time()
    for command, now in day.asked:
        decided, state = decide_and_evolve(state, command, now)
        facts += len(decided)
    taken = time.process_time() - began
    assert facts == len(day.facts), "the same day gives the same facts"
    return taken


def _fold_s(day: Day) -> float:
    began = time.process_time()
    state = fold(State(day.known), day.facts)
    taken = time.process_time() - began
    assert state == day.state
    return taken


@dataclass
class Day:
    """What is asked of the arbiter, recorded once: teams, their judges, a chat client and batch jobs on two cards."""

    known: Catalogue
    chance: random.Random
    state: State
    now: datetime = START
    asked: list[tuple[Command, datetime]] = field(default_factory=list[tuple[Command, datetime]])
    facts: list[Event] = field(default_factory=list[Event])
    loaded: dict[str, set[str]] = field(default_factory=lambda: {name: set() for name in MODELS})

    @classmethod
    def of(cls, teams: int) -> Day:
        known = catalogue(SchedulerSettings.model_validate(_settings()))
        day = cls(known, random.Random(SEED), State(known))
        day.loaded["primary"].add("embed")
        day._probe()
        for number in range(0, teams, TEAMS):
            day._teams(number)
        return day

    def _do(self, command: Command) -> None:
        self.asked.append((command, self.now))
        facts, self.state = decide_and_evolve(self.state, command, self.now)
        self.facts += facts
        for effect in effects(facts):
            if isinstance(effect, Load):
                self.loaded[effect.slot].add(effect.model)
                self._do(FinishLoad(effect.slot, effect.model, self._listing(effect.slot)))
            elif isinstance(effect, Unload):
                self.loaded[effect.slot].discard(effect.model)
                self._do(FinishUnload(effect.slot, effect.model))

    def _listing(self, slot: str) -> tuple[Seen, ...]:
        there = self.loaded[slot]
        return tuple(Seen(name, "loaded" if name in there else "not-loaded") for name in self.known.slots[slot].models)

    def _probe(self) -> None:
        for slot in MODELS:
            self._do(ObserveSlot(slot, self._listing(slot)))

    def _pass(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self._do(Sweep())

    def _teams(self, number: int) -> None:
        """Some teams come, work for minutes beside chats and jobs, are judged, and go; then the box is idle for a moment."""
        runs = [f"run-{number + each}" for each in range(TEAMS)]
        leases = [lease_id for run_id in runs for lease_id in self._start(run_id)]
        job = f"job-{number}"
        self._do(RequestLease(job, "nightly", Priority.BATCH, "art", services=("comfyui",), services_mib=2_000, key=job))
        for step in range(1, WORK_S // SWEEP_S + 1):
            self._pass(SWEEP_S)
            if step % (RENEW_S // SWEEP_S) == 0:
                self._renew(leases)
            if step % (CHAT_S // SWEEP_S) == 0:
                self._chat(number, step)
            if step % (PROBE_S // SWEEP_S) == 0:
                self._probe()
        for run_id in runs:
            self._do(EndRun(run_id))
            self._judge(run_id)
        for _ in range(4):
            self._pass(SWEEP_S)
        self._do(Release(job))
        self._pass(SWEEP_S)

    def _renew(self, leases: list[str]) -> None:
        for lease_id in leases:
            if self.state.lease(lease_id) is not None:
                self._do(Renew(lease_id))

    def _start(self, run_id: str) -> list[str]:
        wanted = {
            slot: self.chance.choice(MODELS[slot]) for slot in self.chance.sample(["primary", "secondary"], self.chance.choice([1, 1, 2]))
        }
        parts = tuple(
            RequestLease(f"{run_id}-{slot}", run_id, Priority.RUN, slot, (name,), run_id=run_id) for slot, name in sorted(wanted.items())
        )
        self._do(RequestGroup(f"group-{run_id}", parts))
        return [part.lease_id for part in parts]

    def _chat(self, number: int, step: int) -> None:
        slot = self.chance.choice(["primary", "secondary"])
        lease_id, name = f"chat-{number}-{step}", self.chance.choice(sorted(self.loaded[slot] or {MODELS[slot][0]}))
        self._do(RequestLease(lease_id, "chat", Priority.INTERACTIVE, slot, (name,)))
        if self.state.lease(lease_id) is not None:
            self._do(Renew(lease_id))
            self._do(Release(lease_id))

    def _judge(self, run_id: str) -> None:
        """A finished run is scored by whatever is loaded."""
        lease_id, there = f"judge-{run_id}", sorted(self.loaded["primary"] - {"embed"})
        if there:
            self._do(RequestLease(lease_id, "judge", Priority.BATCH, "primary", (there[0],), resident_only=True, wait=timedelta()))
            self._do(Release(lease_id))


def _settings() -> dict[str, Any]:
    return {
        "cards": {"gpu0": {"size_mib": 24_000}, "gpu1": {"size_mib": 16_000}},
        "slots": {
            slot: {
                "card": "gpu1" if slot == "secondary" else "gpu0",
                "models": {name: {"mib": SIZES[name]} for name in (*names, *(("embed",) if slot == "primary" else ()))},
                "standard_set": ["writer"] if slot == "primary" else [],
            }
            for slot, names in MODELS.items()
        },
        "embedding_models": ["embed"],
    }
