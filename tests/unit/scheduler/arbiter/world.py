"""A box to arbitrate: a catalogue, a clock, backends that do as they are told, and the facts of it all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from services.scheduler.arbiter import State, decide_and_evolve, fold
from services.scheduler.arbiter.commands import (
    Command,
    EndRun,
    FailLoad,
    FailUnload,
    FinishLoad,
    FinishUnload,
    ObserveSlot,
    Release,
    RequestLease,
    Seen,
    Sweep,
)
from services.scheduler.arbiter.decide import aggregate_of
from services.scheduler.arbiter.state import Lease
from services.scheduler.invariants import Violation, violations
from services.scheduler.slots import Catalogue, catalogue
from shared.events import lease, model
from shared.events.envelope import Event, Fact
from shared.events.lease import Priority
from shared.scheduler_settings import CardSettings, ModelSettings, SchedulerSettings, SlotSettings
from shared.subjects import Aggregate

START = datetime(2026, 1, 1, tzinfo=UTC)
RUN, INTERACTIVE, BATCH = Priority.RUN, Priority.INTERACTIVE, Priority.BATCH
Kind = TypeVar("Kind", bound=Event)


def box(**changes: Any) -> SchedulerSettings:
    """Two cards. On the first: `primary` with an embedding model and a standard set, and `art` for services. On the second: `secondary`."""
    settings: dict[str, Any] = {
        "cards": {"gpu0": CardSettings(size_mib=24_000), "gpu1": CardSettings(size_mib=16_000)},
        "slots": {
            "primary": SlotSettings(
                card="gpu0",
                models={
                    "embed": ModelSettings(mib=500),
                    "std": ModelSettings(mib=8_000),
                    "mid": ModelSettings(mib=9_000),
                    "big": ModelSettings(mib=20_000),
                    "huge": ModelSettings(mib=30_000),
                    "tiny": ModelSettings(mib=1_000),
                },
                standard_set=("std",),
            ),
            "art": SlotSettings(card="gpu0"),
            "secondary": SlotSettings(card="gpu1", models={"coder": ModelSettings(mib=10_000), "vision": ModelSettings(mib=7_000)}),
        },
        "embedding_models": ("embed",),
        "preempt_grace_s": 30,
        "lease_ttl_s": 120,
        "restore_backoff_s": 10,
        **changes,
    }
    return SchedulerSettings(**settings)


@dataclass
class World:
    """Facts and state of a box. `auto` carries out each load and unload at once."""

    known: Catalogue = field(default_factory=lambda: catalogue(box()))
    auto: bool = True
    now: datetime = START
    answering: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    loaded: dict[str, dict[str, Seen]] = field(default_factory=dict[str, dict[str, Seen]])
    facts: list[Fact] = field(default_factory=list[Fact])
    outside: dict[str, int] = field(default_factory=dict[str, int])
    loads: list[str] = field(default_factory=list[str])  # what the backends were asked to load, in order
    broken: set[str] = field(default_factory=set[str])  # models that fail to load
    state: State = field(init=False)

    def __post_init__(self) -> None:
        self.state = State(self.known)

    def do(self, command: Command) -> list[Event]:
        """One command, its facts stored, and the backends' work done where `auto`; gives all facts that followed."""
        facts, state = decide_and_evolve(self.state, command, self.now, self.answering)
        self.note(*facts)
        assert fold(self.state, facts) == state, "the state that was decided on is the fold of its facts"
        self.state = state
        return [*facts, *self._carry_out(facts)] if self.auto else facts

    def note(self, *events: Event, scope: str | None = None) -> None:
        for event in events:
            aggregate = aggregate_of(event) if scope is None else Aggregate(event.TYPE.partition(".")[0], scope)
            seq = len(self.facts) + 1
            self.facts.append(Fact(seq, f"id-{seq}", self.now, "test", aggregate, event))

    def pass_time(self, seconds: float) -> list[Event]:
        self.now += timedelta(seconds=seconds)
        return self.do(Sweep())

    # ---- backends

    def listing(self, slot: str) -> tuple[Seen, ...]:
        """What the slot's server would list: what is loaded there, and all else that it could load."""
        there = self.loaded.get(slot, {})
        names = [*self.known.slots[slot].models, *(name for name in there if name not in self.known.slots[slot].models)]
        return tuple(there.get(name, Seen(name)) for name in names)

    def probe(self, *slots: str) -> list[Event]:
        return [fact for slot in slots or tuple(self.known.slots) for fact in self.do(ObserveSlot(slot, self.listing(slot)))]

    def put(self, slot: str, *models: str, **more: Any) -> None:
        """A model on a server by another hand."""
        for name in models:
            self.loaded.setdefault(slot, {})[name] = Seen(name, "loaded", **more)

    def take(self, slot: str, name: str) -> None:
        self.loaded.get(slot, {}).pop(name, None)

    def finish(self, event: Event) -> list[Event]:
        """A backend does what a `loading` or `unloading` fact says."""
        if isinstance(event, model.ModelLoading):
            self.loads.append(event.model)
            if event.model in self.broken:
                return self.do(FailLoad(event.slot, event.model, "out_of_memory", "not enough memory"))
            self.put(event.slot, event.model, context_tokens=event.context_tokens)
            return self.do(FinishLoad(event.slot, event.model, self.listing(event.slot)))
        if isinstance(event, model.ModelUnloading):
            self.take(event.slot, event.instance or event.model)
            return self.do(FinishUnload(event.slot, event.model, event.instance))
        return []

    def _carry_out(self, facts: Sequence[Event]) -> list[Event]:
        return [more for fact in facts for more in self.finish(fact)]

    # ---- people

    def ask(self, lease_id: str, priority: Priority, slot: str, *models: str, **more: Any) -> list[Event]:
        run_id = more.pop("run_id", f"run-{lease_id}" if priority is RUN else None)
        holder = more.pop("holder", lease_id)
        return self.do(RequestLease(lease_id, holder, priority, slot, models, run_id=run_id, **more))

    def release(self, lease_id: str) -> list[Event]:
        return self.do(Release(lease_id))

    def end_run(self, run_id: str) -> list[Event]:
        return self.do(EndRun(run_id))

    def fail_unload(self, slot: str, name: str) -> list[Event]:
        return self.do(FailUnload(slot, name, "it is in use"))

    # ---- what came of it

    def lease(self, lease_id: str) -> Lease:
        found = self.state.lease(lease_id)
        assert found is not None, f"{lease_id} is not open: {self.state.ending(lease_id)}"
        return found

    def status(self, lease_id: str) -> str:
        """`waiting`, `admitted`, `granted`, or how it ended."""
        found = self.state.lease(lease_id)
        if found is not None:
            return found.status.value
        ended = self.state.ending(lease_id)
        return ended.how if ended is not None else "unknown"

    def resident(self, slot: str) -> set[str]:
        return {name for name, each in self.state.slot(slot).models.items() if each.state == "loaded"}

    def violations(self) -> list[Violation]:
        return violations(self.facts, self.known.embedding_models)

    def types(self) -> list[str]:
        return [fact.type for fact in self.facts]


def started(**changes: Any) -> World:
    """A box whose slots were seen: the embedding model was there before, the standard set was restored."""
    world = World(catalogue(box(**changes)))
    world.put("primary", "embed")
    world.probe()
    world.pass_time(0)
    assert world.resident("primary") == {"embed", "std"}
    return world


def only(facts: Sequence[Event], kind: type[Kind]) -> Kind:
    """The one fact of a kind among several."""
    (found,) = [fact for fact in facts if isinstance(fact, kind)]
    return found


def some(facts: Sequence[Event], kind: type[Kind]) -> list[Kind]:
    return [fact for fact in facts if isinstance(fact, kind)]


def reason(world: World, lease_id: str) -> str:
    ended = world.state.ending(lease_id)
    assert ended is not None
    return ended.reason


__all__ = ["BATCH", "INTERACTIVE", "RUN", "START", "Catalogue", "World", "box", "lease", "only", "reason", "some", "started"]
