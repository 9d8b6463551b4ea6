"""The scheduler dies after any fact of a scripted day, and the day ends as the undisturbed one does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from services.scheduler.arbiter import Load, State, fold, owed
from services.scheduler.arbiter.commands import (
    Command,
    FailUnload,
    FinishLoad,
    FinishUnload,
    HoldCard,
    ObserveSlot,
    ReleaseHold,
    Renew,
    RequestGroup,
    RequestLease,
    Sweep,
)
from services.scheduler.slots import catalogue
from shared.events import model
from shared.events.envelope import Event
from shared.scheduler_settings import ModelSettings, SlotSettings
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, box

REPORTS = (ObserveSlot, FinishLoad, FinishUnload, FailUnload)
"""What a living process hears from a backend: a new one does not, and probes instead."""


@dataclass
class Mortal(World):
    """A box whose scheduler dies once: when `dies_at` facts are stored, before or after it acts on the last of them."""

    dies_at: int | None = None
    acts_first: bool = False
    lives: int = 0

    def do(self, command: Command) -> list[Event]:
        if self.dies_at is not None and self.acts_first and len(self.facts) >= self.dies_at:
            return self._die(command)
        facts, before = list[Event](), len(self.facts)
        auto, self.auto = self.auto, False
        try:
            facts = super().do(command)
        finally:
            self.auto = auto
        if self.dies_at is not None and not self.acts_first and len(self.facts) >= self.dies_at > before:
            del self.facts[self.dies_at :]
            return self._die(command)
        return [*facts, *self._carry_out(facts)]

    def _die(self, command: Command) -> list[Event]:
        """A new process: the state from the log, the backends asked, what is owed done again; and the caller asks again."""
        self.dies_at = None
        self.lives += 1
        self.state = fold(State(self.known), [fact.event for fact in self.facts])
        facts = self.probe()
        for each in owed(self.state):
            facts += self.finish(again(each, self))
        return facts if isinstance(command, REPORTS) else [*facts, *self.do(command)]

    def _carry_out(self, facts: Sequence[Event]) -> list[Event]:
        life, more = self.lives, list[Event]()
        for fact in facts:
            if self.lives != life:
                break  # a dead process does nothing more
            more += self.finish(fact)
        return more


def again(each: Any, world: World) -> Event:
    """The order behind something that is owed, as the backend gets it."""
    place = {"at": world.now, "slot": each.slot, "card": world.known.slots[each.slot].card, "deadline_at": each.deadline_at}
    if isinstance(each, Load):
        return model.ModelLoading(**place, model=each.model, context_tokens=each.context_tokens, purpose="lease")
    return model.ModelUnloading(**place, model=each.model, instance=each.instance, purpose="lease")


def part(slot: str, name: str) -> RequestLease:
    return RequestLease(f"one-{slot}", "one", RUN, slot, (name,), run_id="one")


SCRIPT: tuple[tuple[float, Callable[[World], object]], ...] = (
    (0, lambda world: world.probe()),
    (0, lambda world: world.do(Sweep())),
    (1, lambda world: world.ask("job", BATCH, "primary", "mid", key="job", ttl=timedelta(seconds=300))),
    (1, lambda world: world.ask("chat", INTERACTIVE, "secondary", "vision", ttl=timedelta(seconds=300))),
    (1, lambda world: world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=1_000, ttl=timedelta(seconds=300))),
    (2, lambda world: world.do(RequestGroup("group", (part("primary", "big"), part("second", "small"), part("secondary", "coder"))))),
    (5, lambda world: world.release("painter")),
    (26, lambda world: world.do(Sweep())),
    (5, lambda world: world.do(Sweep())),  # the grace of the job is over
    (5, lambda world: world.do(Renew("one-primary"))),
    (1, lambda world: world.ask("judge", BATCH, "primary", "big", ttl=timedelta(seconds=300))),
    (1, lambda world: world.ask("later", BATCH, "primary", "std", wait=timedelta(seconds=40))),
    (1, lambda world: world.do(HoldCard("hold", "a game", "gpu0"))),
    (1, lambda world: world.ask("two", RUN, "primary", "mid", run_id="two")),
    (5, lambda world: world.end_run("one")),
    (5, lambda world: world.do(Sweep())),
    (5, lambda world: world.release("judge")),
    (30, lambda world: world.do(Sweep())),  # `later` has waited long enough
    (5, lambda world: world.do(ReleaseHold("hold"))),
    (5, lambda world: world.end_run("two")),
    *[(5, lambda world: world.do(Sweep()))] * 4,
)


def day(**death: Any) -> Mortal:
    slots = {**box().slots, "second": SlotSettings(card="gpu0", models={"small": ModelSettings(mib=1_000)})}
    world = Mortal(catalogue(box(slots=slots)), **death)
    world.put("primary", "embed")
    world.put("secondary", "vision", mib=4_000)  # by hand: a chat client's
    for seconds, step in SCRIPT:
        world.now += timedelta(seconds=seconds)
        step(world)
    return world


def end_of(world: World) -> dict[str, Any]:
    """What the day came to: how each lease ended, what is loaded, and what is still to be done."""
    leases = {fact.event.lease_id for fact in world.facts if hasattr(fact.event, "lease_id") and fact.type.startswith("lease.")}
    return {
        "leases": {name: world.status(str(name)) for name in sorted(map(str, leases))},
        "resident": {name: world.resident(name) for name in world.known.slots},
        "backends": {name: set(world.loaded.get(name, {})) for name in world.known.slots},
        "restores": [name for name, slot in world.state.slots.items() if slot.restore is not None],
        "holds": [name for name, on in world.state.cards.items() if on.holds],
        "owed": owed(world.state),
        "open": [each.id for each in world.state.leases()],
    }


UNDISTURBED = day()


def test_the_undisturbed_day_has_every_kind_of_ending_and_keeps_every_rule() -> None:
    end = end_of(UNDISTURBED)
    assert end["leases"] == {
        "job": "preempted",
        "chat": "preempted",
        "painter": "released",
        "one-primary": "released",
        "one-second": "released",
        "one-secondary": "released",
        "judge": "released",
        "later": "expired",
        "two": "released",
    }
    assert end["resident"]["primary"] == {"embed", "std"}
    assert (end["restores"], end["holds"], end["owed"], end["open"]) == ([], [], [], [])
    assert UNDISTURBED.violations() == []


@covers("lease.fold")
@pytest.mark.parametrize("acts_first", [False, True], ids=["before it acts", "after it acted"])
@pytest.mark.parametrize("dies_at", range(1, len(UNDISTURBED.facts) + 1))
def test_a_day_cut_after_any_fact_ends_like_the_undisturbed_one(dies_at: int, acts_first: bool) -> None:
    world = day(dies_at=dies_at, acts_first=acts_first)
    assert world.lives == 1 or (acts_first and dies_at == len(UNDISTURBED.facts))
    assert end_of(world) == end_of(UNDISTURBED)
    assert world.violations() == []
    assert fold(State(world.known), [fact.event for fact in world.facts]) == world.state


@covers("lease.fold")
def test_every_prefix_of_a_log_is_a_state_and_the_same_facts_make_the_same_one() -> None:
    state = State(UNDISTURBED.known)
    for count, fact in enumerate(UNDISTURBED.facts, start=1):
        state = fold(state, [fact.event])
        assert state == fold(State(UNDISTURBED.known), [each.event for each in UNDISTURBED.facts[:count]])
    assert state == UNDISTURBED.state
