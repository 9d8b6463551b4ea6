"""The fold: one fact applied to the state. No rules here, since whatever was recorded did happen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import reduce
from typing import TypeVar, cast

from services.scheduler.arbiter.state import (
    NEW,
    REMEMBERED,
    CardState,
    Ended,
    Hold,
    Lease,
    Model,
    Past,
    Preemption,
    Restore,
    SlotState,
    State,
    Status,
)
from shared.events import card, lease, model
from shared.events.envelope import Event

Value = TypeVar("Value")


def evolve(state: State, fact: Event) -> State:
    """The state after one more fact; facts of other domains change nothing."""
    match fact.TYPE.partition(".")[0]:  # the domain: `isinstance` of a model's base class takes longer than all the rest
        case "lease":
            return _of_lease(state, cast(lease.LeaseFact, fact))
        case "model":
            return _of_model(state, cast(model.ModelFact, fact))
        case "card":
            return _of_card(state, cast(card.CardFact, fact))
        case _:
            return state


def fold(state: State, facts: Iterable[Event]) -> State:
    return reduce(evolve, facts, state)


# ---- leases


def _requested(state: State, fact: lease.LeaseRequested) -> State:
    count = state.count + 1
    on = state.card(fact.card)
    on = _with_leases(on, {**on.leases, fact.lease_id: Lease(fact, count)})
    past = state.past
    if fact.key:
        past = Past(past.newest, past.older, {**past.keys, fact.key: fact.lease_id})
    return State(state.catalogue, {**state.cards, fact.card: on}, state.slots, past, count)


def _of_lease(state: State, fact: lease.LeaseFact) -> State:
    if type(fact) is lease.LeaseRequested:
        return _requested(state, fact)
    on = state.card(fact.card)
    before = on.leases.get(fact.lease_id)
    if before is None:
        return state
    if type(fact) in lease.ENDINGS:
        return _ended(state, before, fact)
    after = _changed(before, fact)
    return _with_card(state, fact.card, _with_leases(on, {**on.leases, fact.lease_id: after}))


def _changed(before: Lease, fact: lease.LeaseFact) -> Lease:
    asked, order, status, queued, loaded = before.asked, before.order, before.status, before.queued, before.loaded
    match fact:
        case lease.LeaseGranted():
            return Lease(asked, order, Status.GRANTED, queued, loaded, fact.expires_at, before.preemption)
        case lease.LeaseRenewed():
            return Lease(asked, order, status, queued, loaded, fact.expires_at, before.preemption)
        case lease.LeaseQueued():
            return replace(before, queued=True)
        case lease.LeaseAdmitted():
            return replace(before, status=Status.ADMITTED, loaded=bool(fact.loads))
        case lease.LeasePreemptWithdrawn():
            return replace(before, preemption=None)
        case lease.LeasePreemptRequested():
            return replace(before, preemption=Preemption(fact.by, fact.by_holder, fact.deadline_at))
        case _:
            return before


def _ended(state: State, before: Lease, fact: lease.LeaseFact) -> State:
    asked = before.asked
    on = state.card(asked.card)
    cards = {**state.cards, asked.card: _with_leases(on, _without(on.leases, asked.lease_id))}
    slots = _marked_for_restore(state, asked, fact) if before.is_live else state.slots
    past = _remembered(state.past, Ended(asked, fact.TYPE.partition(".")[2], getattr(fact, "reason", ""), fact.at))
    return State(state.catalogue, cards, slots, past, state.count)


def _remembered(past: Past, ending: Ended) -> Past:
    newest = {**past.newest, ending.asked.lease_id: ending}
    if len(newest) < NEW:
        return Past(newest, past.older, past.keys)
    older = {**past.older, **newest}
    if len(older) <= REMEMBERED:
        return Past({}, older, past.keys)
    forgotten = set(list(older)[: REMEMBERED // 2])
    kept = {lease_id: each for lease_id, each in older.items() if lease_id not in forgotten}
    return Past({}, kept, {key: lease_id for key, lease_id in past.keys.items() if lease_id not in forgotten})


def _marked_for_restore(state: State, asked: lease.LeaseRequested, fact: lease.LeaseFact) -> Mapping[str, SlotState]:
    """Each release starts the slot's delay anew, and a restore that was given up is tried again (KS 6.1)."""
    spec = state.catalogue.slots.get(asked.slot)
    if spec is None or not spec.standard_set:
        return state.slots
    on = state.slot(asked.slot)
    released_by = asked.run_id if asked.run_id is not None else on.released_by
    return {**state.slots, asked.slot: replace(on, restore=Restore(fact.at + spec.restore_delay), released_by=released_by)}


# ---- models


def _of_model(state: State, fact: model.ModelFact) -> State:
    on = state.slot(fact.slot)
    match fact:
        case model.ModelLoading():
            on = _loading(on, fact)
        case model.ModelLoaded():
            on = _loaded(on, fact)
        case model.ModelUnloading():
            on = _unloading(_evicted(state, on, fact), fact)
        case model.ModelUnloaded():
            on = _unloaded(on, fact)
        case model.ModelLoadFailed():
            on = replace(on, models=_without(on.models, fact.model), tried=on.tried | {fact.model})
        case model.ModelsObserved():
            on = _observed(state, on, fact)
        case model.SlotUnknown():
            on = replace(on, known=False, reason=fact.reason, models=_settled(on.models))
        case model.SlotRestored():
            on = replace(on, restore=None, released_by=None)
        case model.RestoreFailed():
            on = replace(on, restore=Restore(fact.retry_at, fact.attempt) if fact.retry_at is not None else None)
        case _:
            return state
    state = _with_slot(state, fact.slot, on)
    return _forget_measurement(state, fact) if isinstance(fact, model.ModelLoaded | model.ModelsObserved) else state


def _loading(on: SlotState, fact: model.ModelLoading) -> SlotState:
    loading = Model(
        fact.model,
        "loading",
        mib=fact.mib,
        context_tokens=fact.context_tokens,
        ours=True,
        lease_id=fact.lease_id,
        purpose=fact.purpose,
        deadline_at=fact.deadline_at,
    )
    return _under_restore(replace(on, models={**on.models, fact.model: loading}), fact.purpose)


def _loaded(on: SlotState, fact: model.ModelLoaded) -> SlotState:
    loaded = Model(fact.model, "loaded", mib=fact.mib, context_tokens=fact.context_tokens, ours=True)
    return replace(on, models={**on.models, fact.model: loaded})


def _unloading(on: SlotState, fact: model.ModelUnloading) -> SlotState:
    before = on.models.get(fact.model, Model(fact.model, "loaded"))
    if fact.instance is not None:
        return replace(on, models={**on.models, fact.model: replace(before, dropping=fact.instance, deadline_at=fact.deadline_at)})
    going = replace(before, state="unloading", lease_id=fact.lease_id, purpose=fact.purpose, deadline_at=fact.deadline_at)
    return _under_restore(replace(on, models={**on.models, fact.model: going}), fact.purpose)


def _evicted(state: State, on: SlotState, fact: model.ModelUnloading) -> SlotState:
    """A slot that gave way to a lease or hold elsewhere on its card gets its standard set back too."""
    return _marked(state, on, fact) if fact.purpose in ("lease", "swap", "hold") else on


def _marked(state: State, on: SlotState, fact: model.ModelFact) -> SlotState:
    spec = state.catalogue.slots.get(fact.slot)
    if spec is None or not spec.standard_set or on.restore is not None:
        return on
    return replace(on, restore=Restore(fact.at))


def _under_restore(on: SlotState, purpose: str) -> SlotState:
    if purpose != "restore" or on.restore is None:
        return on
    return replace(on, restore=replace(on.restore, under_way=True))


def _unloaded(on: SlotState, fact: model.ModelUnloaded) -> SlotState:
    before = on.models.get(fact.model)
    if before is None or fact.instance is None or len(before.instances) < 2:
        return replace(on, models=_without(on.models, fact.model))
    left = tuple(each for each in before.instances if each != fact.instance)
    kept = replace(before, instances=left if len(left) > 1 else (), dropping=None, deadline_at=None)
    return replace(on, models={**on.models, fact.model: kept})


def _observed(state: State, on: SlotState, fact: model.ModelsObserved) -> SlotState:
    """What was seen replaces what was thought, apart from what the engine itself has under way."""
    models = {name: each for name, each in on.models.items() if each.state != "loaded" and each.deadline_at is not None}
    for seen in fact.models:
        if seen.state != "not-loaded" and seen.name not in models:
            models[seen.name] = _seen(seen, on.models.get(seen.name))
    if not on.seen:
        on = _marked(state, on, fact)
    listed = {seen.name: seen.mib for seen in fact.models}
    return replace(on, known=True, seen=True, reason="", models=models, listed=listed, tried=frozenset())


def _seen(seen: model.ObservedModel, before: Model | None) -> Model:
    state = "loaded" if seen.state == "loaded" else "loading"
    now = Model(seen.name, state, seen.mib, seen.context_tokens, seen.ours, seen.instances)
    if before is None or before.dropping not in seen.instances:
        return now
    return replace(now, dropping=before.dropping, deadline_at=before.deadline_at)


def _settled(models: Mapping[str, Model]) -> Mapping[str, Model]:
    """An unload whose slot went silent may or may not have happened: until the slot is seen, the model counts as there."""
    return {
        name: each if each.state == "loading" else replace(each, state="loaded", lease_id=None, purpose="", dropping=None, deadline_at=None)
        for name, each in models.items()
    }


def _forget_measurement(state: State, fact: model.ModelFact) -> State:
    """A model of unknown size came: what telemetry had counted does not hold it."""
    if all(each.mib is not None for each in state.slot(fact.slot).models.values()):
        return state
    on = state.card(fact.card)
    return state if on.outside_mib is None else _with_card(state, fact.card, replace(on, outside_mib=None))


# ---- cards


def _of_card(state: State, fact: card.CardFact) -> State:
    on = state.card(fact.card)
    match fact:
        case card.HoldRequested():
            count = state.count + 1
            hold = Hold(fact.hold_id, fact.holder, count, fact.ttl_s, fact.reason)
            state = replace(state, count=count)
            return _with_card(state, fact.card, replace(on, holds={**on.holds, fact.hold_id: hold}))
        case card.CardHeld():
            before = on.holds.get(fact.hold_id, Hold(fact.hold_id, fact.holder, 0, None))
            held = replace(before, held=True, expires_at=fact.expires_at)
            return _with_card(state, fact.card, replace(on, holds={**on.holds, fact.hold_id: held}))
        case card.CardReleased():
            return _with_card(state, fact.card, replace(on, holds=_without(on.holds, fact.hold_id)))
        case card.CardMeasured():
            measured = replace(on, used_mib=fact.used_mib, outside_mib=fact.outside_mib, size_mib=fact.size_mib or on.size_mib)
            return _with_card(state, fact.card, measured)
        case _:
            return state


def _with_card(state: State, name: str, on: CardState) -> State:
    """Spelt out, like the next one: `replace` takes twice as long, and this is done for each fact."""
    cards = {**state.cards, name: on}
    return State(state.catalogue, cards, state.slots, state.past, state.count)


def _with_leases(on: CardState, leases: Mapping[str, Lease]) -> CardState:
    return CardState(on.outside_mib, on.used_mib, on.size_mib, on.holds, leases)


def _with_slot(state: State, name: str, on: SlotState) -> State:
    return replace(state, slots={**state.slots, name: on})


def _without(table: Mapping[str, Value], key: str) -> dict[str, Value]:
    rest = {**table}
    rest.pop(key, None)
    return rest
