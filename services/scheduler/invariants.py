"""What must hold in any log of the arbiter, checked from its facts alone (S22). Pure: `aetherium leases verify` prints it.

The check does not run the arbiter's rules again: it folds the facts with its own small books and asks of each fact whether
it may stand where it stands. A slice may begin anywhere: leases that it never saw asked for are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import singledispatch

from services.scheduler.books import Books, Seen, note
from services.scheduler.model_names import same_model
from shared.events import card, lease, model
from shared.events.envelope import Event, Fact
from shared.events.lease import Priority

SLACK = timedelta(seconds=60)  # how late a sweep may be before a request counts as forgotten
INTERACTIVE, RUN, BATCH = Priority.INTERACTIVE, Priority.RUN, Priority.BATCH


@dataclass(frozen=True, slots=True)
class Violation:
    """A fact that may not stand where it does: its sequence, the rule's name, and what is wrong in words."""

    seq: int
    rule: str
    message: str


Found = Iterator[tuple[str, str]]
"""Names of rules and what breaks them."""


def violations(facts: Iterable[Fact], embedding_models: frozenset[str] = frozenset()) -> list[Violation]:
    """Every fact of the slice that breaks a rule, in order. Facts of other domains may be among them: `llm.*` tell what answers."""
    books = Books(embedding_models)
    found: list[Violation] = []
    last: Fact | None = None
    for fact in facts:
        found += [Violation(fact.seq, rule, message) for rule, message in _check(fact.event, books)]
        note(fact.event, books)
        last = fact
    if last is not None:
        found += [Violation(last.seq, rule, message) for rule, message in _forgotten(books, last.time)]
    return found


def _forgotten(books: Books, now: datetime) -> Found:
    """Every queued request is granted, refused or expired; until then its time has not come."""
    for each in books.leases.values():
        if not each.live and each.asked.wait_until + SLACK < now:
            yield "queue.answered", f"{_who(each)} waits beyond {each.asked.wait_until:%H:%M:%S} and nobody answered"
        if each.deadline_at is not None and each.deadline_at + SLACK < now:
            yield "grace.ended", f"the grace of {_who(each)} was over at {each.deadline_at:%H:%M:%S} and it still holds its place"


# ---- one fact against the books


@singledispatch
def _check(event: Event, books: Books) -> Found:
    if isinstance(event, lease.LeaseFact) and event.lease_id in books.ended:
        yield "lease.ends_once", f"lease {event.lease_id} of {event.holder} had ended before {event.TYPE}"


@_check.register
def _(event: lease.LeaseRequested, books: Books) -> Found:
    if event.lease_id in books.leases or event.lease_id in books.ended:
        yield "lease.asked_once", f"lease {event.lease_id} of {event.holder} was asked for twice"


@_check.register
def _(event: lease.LeaseAdmitted, books: Books) -> Found:
    yield from _placed(event, books)
    each = books.leases.get(event.lease_id)
    if each is None:
        return
    if each.asked.priority is INTERACTIVE:
        yield "interactive.resident_only", f"{_who(each)} is to load something"
    if each.asked.priority is BATCH:
        yield from _batch_beside(each, books)
    if event.loads:
        yield from _fits(each, event.card_mib, books)


@_check.register
def _(event: lease.LeaseGranted, books: Books) -> Found:
    each = books.leases.get(event.lease_id)
    if each is None:
        return
    if not each.live:
        yield from _placed(event, books)
        yield from _fits(each, books.card_mib.get(event.card), books)
        if each.asked.priority is BATCH and each.asked.services:
            yield from _batch_beside(each, books)
    if each.granted:
        yield "lease.granted_once", f"{_who(each)} was granted before"
    if each.asked.rotates:
        return
    for need in each.asked.models:
        state = books.models.get((event.slot, need.name))
        if state is not None and state != "loaded":
            yield "grant.resident", f"{_who(each)} was granted while {need.name} is {state}"


def _placed(event: lease.LeaseAdmitted | lease.LeaseGranted, books: Books) -> Found:
    """Rules about who may become live beside whom."""
    if event.lease_id in books.ended:
        yield "lease.ends_once", f"lease {event.lease_id} of {event.holder} had ended before {event.TYPE}"
    hold = books.holds.get(event.card)
    if hold is not None:
        yield "hold.respected", f"{event.holder} got a place on card {event.card}, which {hold.holder} holds"
    others = [each for each in books.live_on_slot(event.slot) if each.asked.lease_id != event.lease_id]
    if event.priority is INTERACTIVE:
        for each in others:
            if each.asked.priority is not INTERACTIVE:
                yield "interactive.yields", f"interactive {event.holder} got slot {event.slot} beside {_who(each)}"
    if event.priority is RUN:
        for each in others:
            if each.asked.priority is INTERACTIVE:
                yield "run.evicts_interactive", f"{_who(each)} kept slot {event.slot} beside run {event.holder}"


def _batch_beside(each: Seen, books: Books) -> Found:
    for other in books.live_on_card(each.asked.card):
        if other.asked.priority is RUN:
            yield "batch.waits_for_run", f"{_who(each)} loads or starts something on card {each.asked.card} beside {_who(other)}"


def _fits(each: Seen, card_mib: int | None, books: Books) -> Found:
    """Never two live leases that do not fit: the models that live leases pin, and their services, within the card."""
    pinned: dict[tuple[str, str], int] = {}
    services = turns = 0
    for live in (*books.live_on_card(each.asked.card), each):
        sizes = {place: books.size_of(place, need.mib) for need in live.asked.models for place in [(live.asked.slot, need.name)]}
        services += live.asked.services_mib
        if live.asked.rotates:
            turns = max(turns, *sizes.values(), 0)
        else:
            pinned |= sizes
    total = sum(pinned.values()) + services + turns
    if card_mib is not None and total > card_mib:
        yield "leases.fit", f"with {_who(each)} live leases need {total} of {card_mib} MiB on card {each.asked.card}"


@_check.register
def _(event: lease.LeasePreemptRequested, books: Books) -> Found:
    each = books.leases.get(event.lease_id)
    if each is not None and each.asked.priority is RUN:
        yield "run.never_displaced", f"run {event.holder} was asked to make way for {event.by_holder}"
    yield from _not_for_interactive(event, books)


@_check.register
def _(event: lease.LeasePreempted, books: Books) -> Found:
    if event.lease_id in books.ended:
        yield "lease.ends_once", f"lease {event.lease_id} of {event.holder} had ended before {event.TYPE}"
    yield from _not_for_interactive(event, books)
    each = books.leases.get(event.lease_id)
    if each is None:
        return
    if each.asked.priority is RUN:
        yield "run.never_displaced", f"run {event.holder} was ended for {event.by_holder}"
    if each.asked.priority is BATCH and (each.deadline_at is None or event.at < each.deadline_at):
        grace = "was never asked to release" if each.deadline_at is None else f"had until {each.deadline_at:%H:%M:%S}"
        yield "batch.has_its_grace", f"batch {event.holder} was ended at {event.at:%H:%M:%S}, and {grace}"


def _not_for_interactive(event: lease.LeasePreemptRequested | lease.LeasePreempted, books: Books) -> Found:
    by = books.leases.get(event.by)
    if by is not None and by.asked.priority is not RUN:
        yield f"{by.asked.priority}.displaces_nobody", f"{event.holder} had to make way for {_who(by)}"


@_check.register
def _(event: model.ModelLoading, books: Books) -> Found:
    if event.slot in books.unknown:
        yield "unknown.untouched", f"{event.model} is loaded on slot {event.slot}, whose state is unknown"
    others = [name for (slot, name), state in books.models.items() if slot == event.slot and state == "loading"]
    if others:
        yield "loads.one_by_one", f"{event.model} is loaded on slot {event.slot} while {others[0]} is loading"
    if event.card_mib is None or event.mib is None:
        return
    held = sum(size or 0 for place, size in books.sizes.items() if books.cards.get(place[0]) == event.card and place in books.models)
    total = held + event.mib + (books.outside.get(event.card) or 0)
    if total > event.card_mib:
        yield "loads.fit", f"{event.model} ({event.mib} MiB) makes {total} of {event.card_mib} MiB on card {event.card}"


@_check.register
def _(event: model.ModelUnloading, books: Books) -> Found:
    place = (event.slot, event.model)
    if event.slot in books.unknown:
        yield "unknown.untouched", f"{event.model} is unloaded on slot {event.slot}, whose state is unknown"
    if books.models.get(place) == "loading":
        yield "evict.not_loading", f"{event.model} is unloaded from slot {event.slot} while it is loading"
    if place in books.answering.values():
        yield "evict.not_answering", f"{event.model} is unloaded from slot {event.slot} while it answers"
    if event.instance is not None:
        return  # one copy too many: the model itself stays
    if place in books.foreign:
        yield "evict.own_only", f"{event.model} on slot {event.slot} was not loaded by the engine"
    if any(same_model(each, event.model) for each in books.embedding):
        yield "evict.not_embedding", f"{event.model} is the embedding model"
    for each in books.live_on_slot(event.slot):
        if each.is_on(*place) and not each.asked.rotates and each.asked.lease_id != event.lease_id:
            yield "evict.not_leased", f"{event.model} is unloaded from slot {event.slot} under {_who(each)}"


@_check.register
def _(event: card.CardHeld, books: Books) -> Found:
    before = books.holds.get(event.card)
    if before is not None and before.hold_id != event.hold_id:
        yield "hold.one", f"{event.holder} holds card {event.card} beside {before.holder}"
    for each in books.live_on_card(event.card):
        yield "hold.waits", f"{event.holder} holds card {event.card} beside {_who(each)}"


@_check.register
def _(event: model.SlotRestored, books: Books) -> Found:
    for each in books.live_on_slot(event.slot):
        yield "restore.waits", f"slot {event.slot} was restored under {_who(each)}"


def _who(each: Seen) -> str:
    return f"{each.asked.priority} lease {each.asked.lease_id} of {each.asked.holder}"
