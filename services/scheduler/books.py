"""What the facts of the arbiter add up to, kept simply: the books that `invariants.py` checks facts against. Pure.

Kept apart from the arbiter's own fold on purpose: a mistake there must not hide itself here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from functools import singledispatch

from shared.events import card, lease, llm, model
from shared.events.envelope import Event

Place = tuple[str, str]  # (slot, model)


@dataclass(slots=True)
class Seen:
    """A lease that was asked for and has not ended."""

    asked: lease.LeaseRequested
    live: bool = False
    granted: bool = False
    deadline_at: datetime | None = None

    def is_on(self, slot: str, name: str) -> bool:
        return self.asked.slot == slot and any(need.name == name for need in self.asked.models)


@dataclass(slots=True)
class Books:
    embedding: frozenset[str]
    leases: dict[str, Seen] = field(default_factory=dict[str, Seen])
    ended: set[str] = field(default_factory=set[str])
    models: dict[Place, str] = field(default_factory=dict[Place, str])  # (slot, model) → state
    sizes: dict[Place, int | None] = field(default_factory=dict[Place, int | None])  # of all copies together
    copies: dict[Place, int] = field(default_factory=dict[Place, int])  # where there is more than one
    cards: dict[str, str] = field(default_factory=dict[str, str])  # slot → card
    foreign: set[Place] = field(default_factory=set[Place])
    unknown: set[str] = field(default_factory=set[str])
    answering: dict[str, Place] = field(default_factory=dict[str, Place])  # call → (slot, model)
    holds: dict[str, card.CardHeld] = field(default_factory=dict[str, card.CardHeld])  # card → hold
    outside: dict[str, int | None] = field(default_factory=dict[str, int | None])
    card_mib: dict[str, int] = field(default_factory=dict[str, int])  # as decisions were made with

    def size_of(self, place: Place, asked: int | None) -> int:
        """MiB of a model as it is loaded, else as it was asked for; unknown counts as nothing."""
        return (self.sizes.get(place) if place in self.models else asked) or 0

    def live_on_card(self, name: str) -> Iterator[Seen]:
        return (each for each in self.leases.values() if each.live and each.asked.card == name)

    def live_on_slot(self, name: str) -> Iterator[Seen]:
        return (each for each in self.leases.values() if each.live and each.asked.slot == name)


@singledispatch
def note(event: Event, books: Books) -> None:
    """Enter a fact. Of other domains only `llm.*` have a line: they tell what answers."""


@note.register
def _(event: lease.LeaseFact, books: Books) -> None:
    if isinstance(event, lease.LeaseRequested):
        books.leases[event.lease_id] = Seen(event)
        return
    each = books.leases.get(event.lease_id)
    if type(event) in lease.ENDINGS:
        books.leases.pop(event.lease_id, None)
        books.ended.add(event.lease_id)
    elif isinstance(event, lease.LeaseAdmitted | lease.LeaseGranted) and each is not None:
        _note_size(event, books)
        each.live = True
        each.granted = each.granted or isinstance(event, lease.LeaseGranted)
    elif isinstance(event, lease.LeasePreemptRequested) and each is not None:
        each.deadline_at = event.deadline_at
    elif isinstance(event, lease.LeasePreemptWithdrawn) and each is not None:
        each.deadline_at = None


@note.register
def _(event: model.ModelFact, books: Books) -> None:
    books.cards[event.slot] = event.card
    _note_size(event, books)
    match event:
        case model.ModelLoading() | model.ModelLoaded():
            place = (event.slot, event.model)
            books.models[place] = "loading" if isinstance(event, model.ModelLoading) else "loaded"
            books.sizes[place] = event.mib
            books.copies.pop(place, None)
            books.foreign.discard(place)
        case model.ModelUnloading():
            if event.instance is None:
                books.models[event.slot, event.model] = "unloading"
        case model.ModelUnloaded() | model.ModelLoadFailed():
            _note_departure(event, books)
        case model.ModelsObserved():
            _note_listing(event, books)
        case model.SlotUnknown():
            books.unknown.add(event.slot)
            for place, state in books.models.items():
                if place[0] == event.slot and state == "unloading":
                    books.models[place] = "loaded"
        case _:
            pass


def _note_size(event: lease.LeaseFact | model.ModelFact, books: Books) -> None:
    size = getattr(event, "card_mib", None)
    if size is not None:
        books.card_mib[event.card] = size


def _note_departure(event: model.ModelUnloaded | model.ModelLoadFailed, books: Books) -> None:
    """All of a model goes, or one of its copies with its share of the memory."""
    place = (event.slot, event.model)
    count = books.copies.get(place, 1)
    if isinstance(event, model.ModelLoadFailed) or event.instance is None or count < 2:
        books.models.pop(place, None)
        books.copies.pop(place, None)
        return
    size = books.sizes.get(place)
    books.sizes[place] = None if size is None else size * (count - 1) // count
    books.copies[place] = count - 1


def _note_listing(event: model.ModelsObserved, books: Books) -> None:
    books.unknown.discard(event.slot)
    under_way = {place for place, state in books.models.items() if place[0] == event.slot and state != "loaded"}
    for place in [place for place in books.models if place[0] == event.slot and place not in under_way]:
        del books.models[place]
        books.foreign.discard(place)
    for seen in event.models:
        place = (event.slot, seen.name)
        if seen.state == "not-loaded" or place in under_way:
            continue
        books.models[place] = "loaded" if seen.state == "loaded" else "foreign load"
        books.copies[place] = max(1, len(seen.instances))
        books.sizes[place] = None if seen.mib is None else seen.mib * books.copies[place]
        if not seen.ours:
            books.foreign.add(place)


@note.register
def _(event: card.CardFact, books: Books) -> None:
    match event:
        case card.CardHeld():
            books.holds[event.card] = event
        case card.CardReleased():
            held = books.holds.get(event.card)
            if held is not None and held.hold_id == event.hold_id:
                del books.holds[event.card]
        case card.CardMeasured():
            books.outside[event.card] = event.outside_mib
        case _:
            pass


@note.register
def _(event: llm.LlmDispatched, books: Books) -> None:
    books.answering[event.call_id] = (event.slot, event.model)


@note.register
def _(event: llm.LlmCompleted, books: Books) -> None:
    books.answering.pop(event.call_id, None)


@note.register
def _(event: llm.LlmFailed, books: Books) -> None:
    books.answering.pop(event.call_id, None)
