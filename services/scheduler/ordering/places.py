"""Where each waiting call stands and why it waits, in words for whoever waits (S21).

A position counts the calls that would go first if nobody else asked: those of the model that a slot holds, then model by model as
`fair` takes them, each by age. It is a forecast, not a promise: an agent's own next call, or a turn that ends early, may pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.situation import is_overdue, turn
from services.scheduler.ordering.slots import Slot
from services.scheduler.ordering.waiting import Call, Priority


@dataclass(frozen=True, slots=True)
class Place:
    """A call's place in the queue of the slot where it would be answered soonest."""

    slot: str  # empty: no slot can answer it
    position: int  # 1 goes next; 0: it never goes
    why: str
    holder: str  # who has what it waits for: who keeps the slot, or whose calls are in flight; empty: nobody


def places(desk: Desk, now_s: float) -> Mapping[str, Place]:
    """The place of every waiting call, by its id."""
    found: dict[str, Place] = {}
    for name in sorted(desk.slots):
        slot = desk.slots[name]
        if slot.down is not None:
            continue
        for position, call in enumerate(_foreseen(desk, slot, now_s), start=1):
            known = found.get(call.id)
            if known is None or position < known.position:
                found[call.id] = Place(name, position, _why(slot, call, position), _holder(slot))
    for call in desk.waiting:
        if call.id not in found:
            found[call.id] = Place("", 0, desk.refusal(call.model, call.pin) or f"no slot is free to serve {call.model!r}", "")
    return found


def _foreseen(desk: Desk, slot: Slot, now_s: float) -> list[Call]:
    """What a slot would answer, in order."""
    calls = [call for lane in desk.waiting.lanes() if desk.may_serve(slot.name, lane) for call in lane.calls.values()]
    later = {call.id: call.priority is Priority.LOW and not is_overdue(call, now_s) for call in calls}
    since: dict[tuple[bool, str], tuple[float, int]] = {}  # a model's turn among what goes first, and among what goes later
    for call in calls:
        group = (later[call.id], call.model)
        since[group] = min(since.get(group, turn(call)), turn(call))
    return sorted(
        calls, key=lambda call: (later[call.id], call.model != _held(slot), since[later[call.id], call.model], call.model, turn(call))
    )


def _held(slot: Slot) -> str | None:
    return slot.loading or slot.leaving_for or slot.resident


def _why(slot: Slot, call: Call, position: int) -> str:
    before = f"{position - 1} go before it" if position > 1 else "it is next"
    if call.model == slot.loading:
        return f"{call.model} is being loaded; {before}"
    if call.model == slot.leaving_for:
        return f"{call.model} is loaded when {len(slot.running)} in flight have their answers; {before}"
    if call.model == slot.resident and slot.loading is None and slot.leaving_for is None:
        busy = f"{slot.name} answers {len(slot.running)} at once, as many as it may" if not slot.has_room else f"{call.model} is loaded"
        return f"{busy}; {before}"
    if slot.kept_for is not None:
        return f"{slot.name} is kept for {slot.kept_for}, and {call.model} is not loaded there"
    has = f"{slot.name} has {_held(slot)}" if _held(slot) is not None else f"nothing is loaded on {slot.name}"
    return f"{has}, and {call.model} must be loaded; {before}"


def _holder(slot: Slot) -> str:
    return slot.kept_for or ", ".join(sorted({call.agent or call.id for call in slot.running.values()}))
