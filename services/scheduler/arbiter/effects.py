"""What is to be done in the world after a decision is stored: models to load and unload, holders to tell. Pure.

Facts come first: a crash can lose an effect, never a decision. `owed` gives what a restarted process must do again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from services.scheduler.arbiter.state import Model, State
from services.scheduler.arbiter.sweep import ends_at
from shared.events import lease, model
from shared.events.envelope import Event

What = Literal["queued", "granted", "release_wanted", "release_withdrawn", "ended"]


@dataclass(frozen=True, slots=True)
class Load:
    """Load a model, then probe the slot: `FinishLoad` with the listing, or `FailLoad`. After `deadline_at` nobody waits for it."""

    slot: str
    model: str
    context_tokens: int | None
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Unload:
    """Unload a model, or one `instance` of it: `FinishUnload` when the backend confirms it, else `FailUnload`."""

    slot: str
    model: str
    instance: str | None
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Notify:
    """Tell whoever asked or holds. `fact` has the words; `ended` is any way that a lease can end, a refusal included."""

    lease_id: str
    holder: str
    what: What
    fact: lease.LeaseFact


Effect = Load | Unload | Notify

_TOLD: dict[type[Event], What] = {
    lease.LeaseQueued: "queued",
    lease.LeaseGranted: "granted",
    lease.LeasePreemptRequested: "release_wanted",
    lease.LeasePreemptWithdrawn: "release_withdrawn",
    **dict.fromkeys(lease.ENDINGS, "ended"),
}


def effects(facts: Iterable[Event]) -> list[Effect]:
    """What the facts of one decision ask for, in their order."""
    return [each for fact in facts for each in _of(fact)]


def _of(fact: Event) -> Iterator[Effect]:
    match fact:
        case model.ModelLoading():
            yield Load(fact.slot, fact.model, fact.context_tokens, fact.deadline_at)
        case model.ModelUnloading():
            yield Unload(fact.slot, fact.model, fact.instance, fact.deadline_at)
        case lease.LeaseFact() if type(fact) in _TOLD:
            yield Notify(fact.lease_id, fact.holder, _TOLD[type(fact)], fact)
        case _:
            pass


def owed(state: State) -> list[Load | Unload]:
    """Loads and unloads that were decided and have not been confirmed. Probe their slots before doing them again."""
    return [each for name, slot in state.slots.items() for found in slot.models.values() for each in _owed(name, found)]


def _owed(slot: str, found: Model) -> Iterator[Load | Unload]:
    if found.deadline_at is None:
        return  # nothing is under way, or a load that somebody else began
    if found.state == "loading":
        yield Load(slot, found.name, found.context_tokens, found.deadline_at)
    else:
        yield Unload(slot, found.name, found.dropping, found.deadline_at)


def next_at(state: State, now: datetime) -> datetime | None:
    """When time alone will next decide something: an expiry, the end of a grace, a load past its time, a restore. Then `Sweep`.

    What was due before `now` waits for something else, which has a command of its own.
    """
    return min((each for each in _times(state) if each > now), default=None)


def _times(state: State) -> Iterator[datetime]:
    for each in state.leases():
        over = ends_at(state, each)
        if over is not None:
            yield over
        if each.preemption is not None:
            yield each.preemption.deadline_at
    for on in state.cards.values():
        yield from (hold.expires_at for hold in on.holds.values() if hold.expires_at is not None)
    for slot in state.slots.values():
        yield from (each.deadline_at for each in slot.models.values() if each.deadline_at is not None)
        if slot.restore is not None:
            yield slot.restore.due_at
