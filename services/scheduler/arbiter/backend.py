"""What a backend says about itself: listings, loads and unloads that ended, and silence. Pure but for the draft.

A listing that came is the truth; anything else leaves the slot unknown (integrations, "LM Studio"). Consequences are
written before the fact they follow from, so that a command that is repeated after a crash finds what is still to be done.
"""

from __future__ import annotations

from services.scheduler.arbiter import commands as asked
from services.scheduler.arbiter import restore
from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.evolve import evolve
from services.scheduler.arbiter.planning import size_of
from services.scheduler.arbiter.state import Model, SlotState, Status
from services.scheduler.model_names import base_of
from services.scheduler.slots import Slot
from shared.events import card, model
from shared.events.model import ObservedModel


def observe(draft: Draft, command: asked.ObserveSlot) -> None:
    spec = slot_of(draft, command.slot)
    if _is_as_known(draft.state.slot(spec.name), command.seen):
        return
    rows, before = _rows(draft, spec, command.seen), draft.state
    by_name = {row.name: row for row in rows}
    for each in list(draft.state.slot(spec.name).models.values()):
        row = by_name.get(each.name)
        is_there = row is not None and row.state != "not-loaded"
        if each.state == "loading" and each.deadline_at is not None and row is not None and row.state == "loaded":
            _landed(draft, spec, each, row)
        elif each.state == "unloading" and not is_there:
            draft.add(model.ModelUnloaded(at=draft.now, slot=spec.name, card=spec.card, model=each.name))
    _record(draft, spec, rows if draft.state is before else _rows(draft, spec, command.seen))


def lose(draft: Draft, command: asked.LoseSlot) -> None:
    slot_of(draft, command.slot)
    if draft.state.slot(command.slot).known:
        draft.lose_slot(command.slot, command.reason)


def finish_load(draft: Draft, command: asked.FinishLoad) -> None:
    """The load is believed when the listing after it shows the model; what else is there is noted, not held against it."""
    spec = slot_of(draft, command.slot)
    loading = _loading(draft, command.slot, command.model)
    if command.seen is None:
        if loading is not None:
            load_failed(draft, spec.name, loading, "probe_unanswered", "the probe after the load did not answer", unknown=True)
        return
    rows = {row.name: row for row in _rows(draft, spec, command.seen)}
    row = rows.get(command.model)
    if loading is not None and row is not None and row.state == "loaded":
        _landed(draft, spec, loading, row)
    elif loading is not None:
        load_failed(draft, spec.name, loading, "did_not_land", f"the backend does not list {command.model} as loaded after the load")
    observe(draft, asked.ObserveSlot(command.slot, command.seen))


def fail_load(draft: Draft, command: asked.FailLoad) -> None:
    slot_of(draft, command.slot)
    loading = _loading(draft, command.slot, command.model)
    if loading is not None:
        load_failed(draft, command.slot, loading, command.code, command.reason, unknown=command.unknown)
    elif command.unknown:
        lose(draft, asked.LoseSlot(command.slot, command.reason))


def load_failed(draft: Draft, slot: str, loading: Model, code: str, reason: str, *, unknown: bool = False) -> None:
    """End what waited for a load. A server that says no is not asked again: all that waited for this model hear it."""
    spec = draft.state.catalogue.slots[slot]
    for each in list(draft.state.card(spec.card).leases.values()):
        waits = each.asked.slot == slot and any(need.name == loading.name for need in each.asked.models) and not each.asked.rotates
        if draft.state.lease(each.id) is None or not waits:
            continue
        if each.status is Status.ADMITTED:
            draft.refuse(each, "model_load_failed", f"{loading.name} was not loaded: {reason}")
        elif each.status is Status.GRANTED:
            draft.lose(each, f"{loading.name} could not be loaded again: {reason}")
    marked = draft.state.slot(slot).restore
    if loading.purpose == "restore" and marked is not None and marked.under_way:
        restore.fail(draft, slot, f"{loading.name} was not loaded: {reason}")
    if unknown and draft.state.slot(slot).known:
        draft.lose_slot(slot, reason)
    fact = model.ModelLoadFailed(
        at=draft.now, slot=slot, card=spec.card, model=loading.name, code=code, reason=reason, lease_id=loading.lease_id
    )
    draft.add(fact)


def finish_unload(draft: Draft, command: asked.FinishUnload) -> None:
    spec = slot_of(draft, command.slot)
    found = draft.state.slot(command.slot).models.get(command.model)
    if found is None or (found.state != "unloading" and (command.instance is None or found.dropping != command.instance)):
        return  # confirmed before
    fact = model.ModelUnloaded(at=draft.now, slot=spec.name, card=spec.card, model=command.model, instance=command.instance)
    draft.add(fact)
    if command.used_mib is not None:  # before anything is loaded into the room: somebody else may have taken it
        measure(draft, asked.MeasureCard(spec.card, command.used_mib))


def fail_unload(draft: Draft, command: asked.FailUnload) -> None:
    """Whether it is still there nobody knows until the slot is seen again."""
    slot_of(draft, command.slot)
    found = draft.state.slot(command.slot).models.get(command.model)
    if found is None or (found.state != "unloading" and found.dropping is None):
        return
    if found.purpose == "restore":
        restore.fail(draft, command.slot, f"{command.model} was not unloaded: {command.reason}")
    draft.lose_slot(command.slot, command.reason)


def measure(draft: Draft, command: asked.MeasureCard) -> None:
    """What programs outside the engine hold: what is used less what is accounted for. Not while models come or go.

    That nobody knows is noted at any time: an old figure would be planned with otherwise.
    """
    if command.card not in draft.state.catalogue.cards:
        known = ", ".join(draft.state.catalogue.cards) or "none is configured"
        raise asked.BadRequest(f"no card is called {command.card!r}; use one of: {known}", field="card")
    if (command.used_mib is not None and command.used_mib < 0) or (command.size_mib is not None and command.size_mib < 1):
        raise asked.BadRequest(f"sizes of card {command.card} must be positive MiB", field="used_mib")
    if command.used_mib is not None and draft.state.is_changing(command.card):
        return
    on = draft.state.card(command.card)
    outside = None if command.used_mib is None else max(0, command.used_mib - _accounted_mib(draft, command.card))
    if (on.used_mib, on.outside_mib, command.size_mib or on.size_mib) == (command.used_mib, outside, on.size_mib):
        return
    draft.add(card.CardMeasured(at=draft.now, card=command.card, used_mib=command.used_mib, outside_mib=outside, size_mib=command.size_mib))


def _accounted_mib(draft: Draft, name: str) -> int:
    slots = [draft.state.slot(spec.name) for spec in draft.state.catalogue.on_card(name)]
    models = sum(each.total_mib or 0 for slot in slots for each in slot.models.values())
    return models + sum(each.asked.services_mib for each in draft.state.card(name).leases.values() if each.is_live)


# ---- listings


def slot_of(draft: Draft, name: str) -> Slot:
    """
    Raises:
        BadRequest: no slot has that name.
    """
    spec = draft.state.catalogue.slots.get(name)
    if spec is None:
        known = ", ".join(draft.state.catalogue.slots) or "none is configured"
        raise asked.BadRequest(f"no slot is called {name!r}; use one of: {known}", field="slot")
    return spec


def _loading(draft: Draft, slot: str, name: str) -> Model | None:
    found = draft.state.slot(slot).models.get(name)
    return found if found is not None and found.state == "loading" and found.deadline_at is not None else None


def _landed(draft: Draft, spec: Slot, loading: Model, row: ObservedModel) -> None:
    fact = model.ModelLoaded(
        at=draft.now,
        slot=spec.name,
        card=spec.card,
        model=loading.name,
        mib=row.mib if row.mib is not None else loading.mib,
        context_tokens=row.context_tokens or loading.context_tokens,
        lease_id=loading.lease_id,
    )
    draft.add(fact)


def _is_as_known(slot: SlotState, seen: tuple[asked.Seen, ...]) -> bool:
    """Whether a listing plainly says what is known already, as most do; otherwise it is read in full."""
    if not slot.known or slot.tried or len(seen) != len(slot.listed):
        return False
    there = 0
    for each in seen:
        found = slot.models.get(each.id)
        if each.id not in slot.listed or (found is None) != (each.state == "not-loaded"):
            return False
        if found is None:
            continue
        there += 1
        is_same = found.state == each.state == "loaded" and found.dropping is None and len(found.instances) < 2
        if not is_same or each.mib not in (None, found.mib) or each.context_tokens not in (None, found.context_tokens):
            return False
    return there == len(slot.models)


def _record(draft: Draft, spec: Slot, rows: tuple[ObservedModel, ...]) -> None:
    """The listing as a fact where it tells something new; and copies that nobody asked for go."""
    fact = model.ModelsObserved(at=draft.now, slot=spec.name, card=spec.card, models=rows)
    if evolve(draft.state, fact).slot(spec.name) != draft.state.slot(spec.name):
        draft.add(fact)
    for each in list(draft.state.slot(spec.name).models.values()):
        kept = (each.name, *spec.interactive_copies.values())  # a copy that was made for chat clients is no accident
        spare = [copy for copy in each.instances if copy not in kept]
        idle = each.state == "loaded" and each.dropping is None and not draft.answering.get((spec.name, each.name))
        if each.ours and idle and len(each.instances) > 1 and spare:
            draft.unload(each, spec.name, "duplicate", None, f"a second copy of {each.name}: it doubles its memory", spare[-1])


def _rows(draft: Draft, spec: Slot, seen: tuple[asked.Seen, ...]) -> tuple[ObservedModel, ...]:
    """The listing by model: copies of one model are one row, with the sizes that the settings or the log know better."""
    slot = draft.state.slot(spec.name)
    known = spec.models.keys() | {each.id for each in seen} | slot.models.keys()
    grouped: dict[str, list[asked.Seen]] = {}
    for each in seen:
        grouped.setdefault(each.id if each.id in spec.models else base_of(each.id, known), []).append(each)
    return tuple(_row(draft, spec, name, copies) for name, copies in grouped.items())


def _row(draft: Draft, spec: Slot, name: str, copies: list[asked.Seen]) -> ObservedModel:
    slot = draft.state.slot(spec.name)
    before = slot.models.get(name)
    there = [each for each in copies if each.state != "not-loaded"]
    loaded = [each for each in there if each.state == "loaded"]
    state = "loaded" if loaded else "loading" if there else "not-loaded"
    told = next((each.mib for each in copies if each.mib is not None), None)
    contexts = [each.context_tokens for each in there if each.context_tokens is not None]
    return ObservedModel(
        name=name,
        state=state,
        mib=told if told is not None else size_of(draft.state, spec.name, name),
        context_tokens=min(contexts, default=before.context_tokens if before is not None and there else None),
        ours=bool(there) and ((before is not None and before.ours) or name in spec.standard_set or name in slot.tried),
        instances=tuple(each.id for each in there) if len(there) > 1 else (),
    )
