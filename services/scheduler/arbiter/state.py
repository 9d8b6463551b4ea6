"""What the arbiter knows: leases, what each slot holds, holds on cards. A fold of facts, never edited.

`Catalogue` comes from the settings, everything else from `evolve`. Calls in flight are no part of it: they are sockets
of the living process, which a restart does not have, and are handed to `decide` as `Answering`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from services.scheduler.slots import Catalogue
from shared.events.lease import LeaseRequested, Priority

Answering = Mapping[tuple[str, str], int]
"""Calls in flight by (slot, model)."""
NOTHING: Answering = {}


class Status(StrEnum):
    WAITING = "waiting"
    ADMITTED = "admitted"
    GRANTED = "granted"


@dataclass(frozen=True, slots=True)
class Preemption:
    by: str
    by_holder: str
    deadline_at: datetime


@dataclass(frozen=True, slots=True)
class Lease:
    """An open lease: it waits, or it is live (admitted or granted)."""

    asked: LeaseRequested
    order: int  # of arrival, over all leases and holds
    status: Status = Status.WAITING
    queued: bool = False  # its wait was told
    loaded: bool = False  # it had models loaded or services started for it
    expires_at: datetime | None = None
    preemption: Preemption | None = None

    @property
    def id(self) -> str:
        return self.asked.lease_id

    @property
    def priority(self) -> Priority:
        return self.asked.priority

    @property
    def is_live(self) -> bool:
        return self.status is not Status.WAITING

    @property
    def pins(self) -> bool:
        """Whether its models must stay for as long as it is live."""
        return self.status is not Status.WAITING and not self.asked.rotates

    @property
    def is_heavy(self) -> bool:
        """Whether it took more than what was there already: then it does not stay beside a run on its card."""
        return self.loaded or bool(self.asked.services)


@dataclass(frozen=True, slots=True)
class Model:
    """A model on a slot. `ours`: the engine loaded it, or it belongs to the slot's standard set."""

    name: str
    state: Literal["loading", "loaded", "unloading"]
    mib: int | None = None
    context_tokens: int | None = None
    ours: bool = False
    instances: tuple[str, ...] = ()
    lease_id: str | None = None  # whom it is loading for
    purpose: str = ""
    dropping: str | None = None  # the superfluous copy that is being unloaded; the others go on
    deadline_at: datetime | None = None

    @property
    def total_mib(self) -> int | None:
        """The memory of all its copies."""
        return None if self.mib is None else self.mib * max(1, len(self.instances))


@dataclass(frozen=True, slots=True)
class Restore:
    """A slot that is to get its standard set back. `due_at` is kept past a delay or a back-off."""

    due_at: datetime
    failed: int = 0
    under_way: bool = False


@dataclass(frozen=True, slots=True)
class SlotState:
    """What a slot holds, as last told. Not `known`: it may be otherwise, and nothing is done there."""

    known: bool = False
    seen: bool = False  # at least once in the log
    reason: str = "it has not been asked yet"
    models: Mapping[str, Model] = field(default_factory=dict[str, Model])
    listed: Mapping[str, int | None] = field(default_factory=dict[str, int | None])  # sizes as the backend says
    tried: frozenset[str] = frozenset()  # loads of the engine that failed; should the model be there yet, it is the engine's
    restore: Restore | None = None
    released_by: str | None = None  # the run whose lease ended here last: its others end before any restore

    def is_loaded(self, model: str) -> bool:
        found = self.models.get(model)
        return found is not None and found.state == "loaded"

    @property
    def is_changing(self) -> bool:
        """Whether a load or an unload is under way. Loads of one instance come one after another."""
        return any(model.state != "loaded" or model.dropping is not None for model in self.models.values())


@dataclass(frozen=True, slots=True)
class Hold:
    """A reservation of a whole card; `held` once nothing of the engine's own is on it."""

    hold_id: str
    holder: str
    order: int
    ttl_s: float | None
    reason: str = ""
    held: bool = False
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CardState:
    outside_mib: int | None = None
    used_mib: int | None = None
    size_mib: int | None = None  # as measured; a configured size comes first
    holds: Mapping[str, Hold] = field(default_factory=dict[str, Hold])
    leases: Mapping[str, Lease] = field(default_factory=dict[str, Lease])

    @property
    def held(self) -> Hold | None:
        return next((hold for hold in self.holds.values() if hold.held), None)


@dataclass(frozen=True, slots=True)
class Ended:
    """What is remembered of leases that ended: enough to answer a late renewal, release or retry."""

    asked: LeaseRequested
    how: str
    reason: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Past:
    """Leases that ended, the newest apart; and the lease that each idempotency key stands for, open or ended."""

    newest: Mapping[str, Ended] = field(default_factory=dict[str, Ended])
    older: Mapping[str, Ended] = field(default_factory=dict[str, Ended])
    keys: Mapping[str, str] = field(default_factory=dict[str, str])


EMPTY_SLOT = SlotState()
NO_PAST = Past()
EMPTY_CARD = CardState()
NEW = 16  # endings that are kept apart, so that noting one copies few
REMEMBERED = 512  # endings; when there are more, the older half is forgotten


@dataclass(frozen=True, slots=True)
class State:
    """Everything. Leases are kept by card, since that is what they compete for."""

    catalogue: Catalogue
    cards: Mapping[str, CardState] = field(default_factory=dict[str, CardState])
    slots: Mapping[str, SlotState] = field(default_factory=dict[str, SlotState])
    past: Past = NO_PAST
    count: int = 0  # of arrivals

    def slot(self, name: str) -> SlotState:
        return self.slots.get(name, EMPTY_SLOT)

    def card(self, name: str) -> CardState:
        return self.cards.get(name, EMPTY_CARD)

    def lease(self, lease_id: str) -> Lease | None:
        for card in self.cards.values():  # few
            found = card.leases.get(lease_id)
            if found is not None:
                return found
        return None

    def ending(self, lease_id: str) -> Ended | None:
        return self.past.newest.get(lease_id) or self.past.older.get(lease_id)

    def leases(self) -> Iterator[Lease]:
        """All open leases, card by card."""
        for card in self.cards.values():
            yield from card.leases.values()

    def live_on(self, card: str) -> Iterator[Lease]:
        return (lease for lease in self.card(card).leases.values() if lease.status is not Status.WAITING)

    def of_run(self, run_id: str) -> list[Lease]:
        return sorted((lease for lease in self.leases() if lease.asked.run_id == run_id), key=lambda lease: (lease.order, lease.id))

    def by_key(self, key: str) -> str | None:
        """The lease that an idempotency key stands for, open or ended."""
        return self.past.keys.get(key)

    def is_changing(self, card: str) -> bool:
        """Whether a load or an unload is under way on any slot of the card: what telemetry reads then accounts for nothing."""
        return any(self.slot(spec.name).is_changing for spec in self.catalogue.on_card(card))

    def size_of(self, card: str) -> int | None:
        """The card's memory in MiB: as configured, else as measured, else unknown."""
        known = self.catalogue.cards.get(card)
        return known.size_mib if known is not None and known.size_mib is not None else self.card(card).size_mib
