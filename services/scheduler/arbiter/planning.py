"""From the arbiter's state to the planner's question: what is on a card, and what it would take to have it off. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from services.scheduler.arbiter.state import Answering, Lease, Model, SlotState, State
from services.scheduler.slots import Slot
from services.scheduler.vram import Held, Level, Need, Room
from shared.events.lease import Priority


def missing(state: State, lease: Lease) -> tuple[Need, ...]:
    """The lease's models that are not loaded, or loaded with too small a context."""
    asked = lease.asked
    slot = state.slot(asked.slot)
    lacking = [need for need in asked.models if not is_usable(slot, need.name, asked.context_tokens)]
    return tuple(Need(need.name, size_of(state, asked.slot, need.name) or need.mib, asked.rotates) for need in lacking)


def is_usable(slot: SlotState, model: str, context_tokens: int | None) -> bool:
    """Whether calls can use the model as it is loaded. A context that the backend does not tell is taken as enough."""
    found = slot.models.get(model)
    if found is None or found.state != "loaded":
        return False
    return context_tokens is None or found.context_tokens is None or found.context_tokens >= context_tokens


def size_of(state: State, slot: str, model: str) -> int | None:
    """A model's size in MiB: as it is loaded, as configured, as listed, else unknown."""
    on = state.slot(slot)
    loaded = on.models.get(model)
    if loaded is not None and loaded.mib is not None:
        return loaded.mib
    spec = state.catalogue.slots.get(slot)
    known = spec.models.get(model) if spec is not None else None
    return known.mib if known is not None and known.mib is not None else on.listed.get(model)


def context_for(state: State, lease: Lease, model: str) -> int | None:
    """The one context size that the model is loaded with: the most that the settings or any live lease of it want.

    It belongs to the instance: requests that name another size use it as it is, so that they don't reload it in turns.
    """
    spec = state.catalogue.slots[lease.asked.slot].models.get(model)
    wanted = [spec.context_tokens if spec is not None else None, lease.asked.context_tokens]
    for other in state.live_on(lease.asked.card):
        if other.asked.slot == lease.asked.slot and any(need.name == model for need in other.asked.models):
            wanted.append(other.asked.context_tokens)
    return max((each for each in wanted if each is not None), default=None)


def outgrown(state: State, lease: Lease, answering: Answering) -> tuple[Held, ...]:
    """The lease's models that are loaded with too small a context: they must go to be loaded again."""
    on = state.slot(lease.asked.slot)
    spec = state.catalogue.slots[lease.asked.slot]
    return tuple(
        _held(state, lease, spec, on, on.models[need.name], answering)
        for need in lease.asked.models
        if on.is_loaded(need.name) and not is_usable(on, need.name, lease.asked.context_tokens)
    )


def room_for(state: State, lease: Lease, needs: tuple[Need, ...], answering: Answering) -> Room:
    """The planner's question for a lease's `needs`."""
    asked = lease.asked
    own = {(asked.slot, need.name) for need in needs}
    held = (*_models(state, lease, asked.card, own, answering), *_promised(state, asked.card, lease, own), *_services(state, lease))
    return room(state, asked.slot, needs, held, _shared_mib(state, asked.card, lease))


def room(state: State, slot: str, needs: tuple[Need, ...], held: tuple[Held, ...], shared_mib: int = 0) -> Room:
    spec = state.catalogue.slots[slot]
    card = state.catalogue.cards[spec.card]
    on = state.card(spec.card)
    return Room(
        card=card.name,
        slot=slot,
        size_mib=state.size_of(spec.card),
        held=held,
        needs=needs,
        outside_mib=on.outside_mib,
        reserve_mib=card.reserve_mib,
        shared_mib=shared_mib,
        max_models=spec.max_models,
    )


def room_to_restore(state: State, slot: str, need: Need) -> Room:
    """The planner's question for a model of the slot's standard set: it may move nothing of what is on the card."""
    card = state.catalogue.slots[slot].card
    models = [
        Held(each.name, each.total_mib, Level.NEVER, each.state, spec.name, _takes_turns(state, spec, each.name))
        for spec in state.catalogue.on_card(card)
        for each in state.slot(spec.name).models.values()
    ]
    held = (*models, *_promised(state, card, None, set()), *_services_on(state, card))
    return room(state, slot, (need,), held, _shared_mib(state, card, None))


# ---- what is held


def _models(state: State, lease: Lease, card: str, own: set[tuple[str, str]], answering: Answering) -> Iterator[Held]:
    for spec in state.catalogue.on_card(card):
        on = state.slot(spec.name)
        for model in on.models.values():
            if model.state != "unloading" and (spec.name, model.name) not in own:
                yield _held(state, lease, spec, on, model, answering)


def _held(state: State, lease: Lease, spec: Slot, on: SlotState, model: Model, answering: Answering) -> Held:
    level, why, leases = _grip(state, lease, spec, on, model)
    if level < Level.ANSWERING and (answering.get((spec.name, model.name)) or model.state == "loading" or model.dropping):
        level, why = Level.ANSWERING, "is loading" if model.state == "loading" else "is answering"
    rotating = _takes_turns(state, spec, model.name)
    return Held(model.name, model.total_mib, level, why, spec.name, rotating, leases)


def _grip(state: State, lease: Lease, spec: Slot, on: SlotState, model: Model) -> tuple[Level, str, tuple[str, ...]]:
    """What keeps a model where it is: never to go, until leases end, or nothing."""
    if state.catalogue.is_embedding(model.name):
        return Level.NEVER, "the embedding model", ()
    if not model.ours:
        return Level.NEVER, "not loaded by the engine", ()
    if not on.known:
        waits = Level.NEVER if lease.priority is Priority.RUN else Level.LEASED
        return waits, f"slot {spec.name} does not say what it holds", ()
    if (
        spec.name == lease.asked.slot
        and not lease.asked.rotates
        and _names(lease, model.name)
        and is_usable(on, model.name, lease.asked.context_tokens)
    ):
        return Level.NEVER, "needed itself", ()
    leases = [
        each
        for each in state.live_on(spec.card)
        if each.pins and each.id != lease.id and each.asked.slot == spec.name and _names(each, model.name)
    ]
    if leases:
        return max(level_of(each, lease) for each in leases), _whose(leases), tuple(each.id for each in leases)
    if model.name in spec.standard_set:
        return Level.STANDARD, "of the standard set", ()
    return Level.IDLE, "", ()


def level_of(other: Lease, asker: Lease) -> Level:
    """What it takes for `asker` to have the place of another live lease (KS 6.1): run > interactive > batch."""
    if asker.priority is not Priority.RUN:
        return Level.LEASED
    return {Priority.RUN: Level.NEVER, Priority.INTERACTIVE: Level.INTERACTIVE, Priority.BATCH: Level.BATCH}[other.priority]


def _names(lease: Lease, model: str) -> bool:
    return any(need.name == model for need in lease.asked.models)


def _whose(leases: list[Lease]) -> str:
    return " and ".join(f"{each.priority} lease of {each.asked.holder}" for each in leases)


def _promised(state: State, card: str, lease: Lease | None, own: set[tuple[str, str]]) -> Iterator[Held]:
    """Models of other live leases that are still to come: their memory is set aside."""
    told: set[tuple[str, str]] = set(own)
    for other in state.live_on(card):
        if not other.pins or (lease is not None and other.id == lease.id):
            continue
        on = state.slot(other.asked.slot)
        for need in other.asked.models:
            place = (other.asked.slot, need.name)
            present = on.models.get(need.name)
            if place in told or (present is not None and present.state != "unloading"):
                continue
            told.add(place)
            level = Level.NEVER if lease is None else level_of(other, lease)
            yield Held(need.name, need.mib, level, f"promised to {other.asked.holder}", other.asked.slot, leases=(other.id,))


def _services(state: State, lease: Lease) -> Iterator[Held]:
    for other in state.live_on(lease.asked.card):
        if other.asked.services and other.id != lease.id:
            yield Held(
                ", ".join(other.asked.services), other.asked.services_mib, level_of(other, lease), _whose([other]), leases=(other.id,)
            )
    if lease.asked.services:
        yield Held(", ".join(lease.asked.services), lease.asked.services_mib, Level.NEVER, "asked for with it")


def _services_on(state: State, card: str) -> Iterator[Held]:
    for other in state.live_on(card):
        if other.asked.services:
            yield Held(", ".join(other.asked.services), other.asked.services_mib, Level.NEVER, _whose([other]), leases=(other.id,))


# ---- models that take turns


def _takes_turns(state: State, spec: Slot, model: str) -> bool:
    """Whether a model is there for rotating leases only."""
    users = [each for each in state.live_on(spec.card) if each.asked.slot == spec.name and _names(each, model)]
    return bool(users) and all(each.asked.rotates for each in users)


def _shared_mib(state: State, card: str, lease: Lease | None) -> int:
    """Memory for models that take turns: the largest that a live rotating lease, or this one, names."""
    rotating = [each for each in state.live_on(card) if each.asked.rotates]
    if lease is not None and lease.asked.rotates:
        rotating.append(lease)
    sizes = [size_of(state, each.asked.slot, need.name) or need.mib for each in rotating for need in each.asked.models]
    whole = state.size_of(card) or 0
    return max((whole if size is None else size for size in sizes), default=0)
