"""A slot gets its standard set back once nothing live or queued is left on it (KS 6.1). Pure but for the draft.

Begun by a sweep, never by the decision that ended the last lease: so all leases of a run end before any restore. Three
failed attempts, each later than the last, and the slot is left alone until the next lease on it ends.
"""

from __future__ import annotations

from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.planning import room_to_restore, size_of
from services.scheduler.arbiter.state import Restore, SlotState
from services.scheduler.slots import Slot
from services.scheduler.vram import Level, Need, plan
from shared.events import model


def begin_due(draft: Draft) -> None:
    """Take the next step of every restore whose time has come; for sweeps."""
    for spec in draft.state.catalogue.slots.values():
        _step(draft, spec)


def go_on(draft: Draft, card: str) -> None:
    """Go on with the restores on a card that are under way."""
    for spec in draft.state.catalogue.on_card(card):
        restore = draft.state.slot(spec.name).restore
        if restore is not None and restore.under_way:
            _step(draft, spec)


def fail(draft: Draft, slot: str, reason: str) -> None:
    """One attempt failed; the next comes after a pause that doubles, the last leaves the slot unmarked."""
    spec, before = draft.state.catalogue.slots[slot], draft.state.slot(slot).restore
    if before is None:
        return
    times, attempt = draft.state.catalogue.times, before.failed + 1
    retry_at = draft.now + times.restore_backoff * 2**before.failed if attempt < times.restore_attempts else None
    draft.add(model.RestoreFailed(at=draft.now, slot=slot, card=spec.card, attempt=attempt, retry_at=retry_at, reason=reason))


def is_due(draft: Draft, spec: Slot, restore: Restore) -> bool:
    """Whether nothing stands against restoring the slot now."""
    slot, card = draft.state.slot(spec.name), draft.state.card(spec.card)
    if restore.due_at > draft.now or not slot.known or slot.is_changing or card.holds:
        return False
    if any(each.asked.slot == spec.name for each in card.leases.values()):
        return False
    return slot.released_by is None or not draft.state.of_run(slot.released_by)


def _step(draft: Draft, spec: Slot) -> None:
    slot = draft.state.slot(spec.name)
    if slot.restore is None or not is_due(draft, spec, slot.restore):
        return
    if not _unload_others(draft, spec, slot):
        _load_next(draft, spec, slot)


def _unload_others(draft: Draft, spec: Slot, slot: SlotState) -> bool:
    """Unload what the engine loaded beside the standard set; false if there is no such model."""
    kept = draft.state.catalogue.is_embedding
    others = [each for each in slot.models.values() if each.ours and each.name not in spec.standard_set and not kept(each.name)]
    for each in others:
        if not draft.answering.get((spec.name, each.name)):
            draft.unload(each, spec.name, "restore", None, f"not of the standard set of {spec.name}")
    return bool(others)


def _load_next(draft: Draft, spec: Slot, slot: SlotState) -> None:
    lacking = [name for name in spec.standard_set if name not in slot.models]
    if not lacking:
        draft.add(model.SlotRestored(at=draft.now, slot=spec.name, card=spec.card, models=spec.standard_set))
        return
    need = Need(lacking[0], size_of(draft.state, spec.name, lacking[0]))
    planned = plan(room_to_restore(draft.state, spec.name, need), Level.IDLE)
    if planned.fits:
        draft.load(need, spec, "restore", None, f"standard set of {spec.name}: {planned.words}")
    elif not _room_may_come(draft, spec):
        fail(draft, spec.name, planned.words)


def _room_may_come(draft: Draft, spec: Slot) -> bool:
    """Whether what is in the way goes by itself: a lease ends, or another slot of the card is yet to give its models up."""
    if any(draft.state.live_on(spec.card)):
        return True
    others = (draft.state.slot(each.name) for each in draft.state.catalogue.on_card(spec.card) if each.name != spec.name)
    return any(other.is_changing or (other.restore is not None and other.restore.due_at > draft.now) for other in others)
