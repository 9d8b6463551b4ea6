"""What a policy sees when it is asked about one slot: who waits for which model there, and for how long."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.ordering.estimates import Estimates
from services.scheduler.ordering.slots import Slot
from services.scheduler.ordering.waiting import Call, Lane, Priority, Waiting

LOW_PATIENCE_S = 600.0
"""A low call counts as a normal one that was asked this much later. So it waits for normal work, but not for ever, and even many of
them that are overdue at once stay grouped by model and behind whoever was there before."""

IN_A_ROW = 4
"""Calls of one agent that go one after the other while others of the model wait: its prompt is cached, but theirs grow old."""


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that wait for one model on this slot and may go now."""

    model: str
    since: tuple[float, int]  # when its oldest call was asked, and that call's place in the log
    count: int

    def age_s(self, now_s: float) -> float:
        return now_s - self.since[0]


@dataclass(frozen=True, slots=True)
class Situation:
    """One slot at one moment. `mine` waits for the resident model, `others` for models that would have to be loaded."""

    now_s: float
    slot: Slot
    estimates: Estimates
    waiting: Waiting
    mine: Group | None
    others: tuple[Group, ...]
    priority: Priority  # low only when no normal call waits for this slot and no low one is overdue

    def next_call(self) -> Call:
        """The call of the resident model that goes next: the last agent's own next one, within bounds, else the oldest."""
        assert self.mine is not None
        lanes = self.waiting.lanes_of(self.mine.model, self.slot.name, self.priority)
        if self.priority is Priority.NORMAL and self.slot.in_a_row < IN_A_ROW:
            own = [call for lane in lanes if (call := lane.first_of(self.slot.last_agent))]
            if own:
                return min(own, key=lambda call: call.order)
        heads = [lane.head for lane in lanes]
        if self.priority is Priority.NORMAL:
            low = self.waiting.lanes_of(self.mine.model, self.slot.name, Priority.LOW)
            heads += [lane.head for lane in low if is_overdue(lane.head, self.now_s)]
        return min(heads, key=turn)


def turn(call: Call) -> tuple[float, int]:
    """The age that a call is treated as having."""
    return (call.asked_s + (LOW_PATIENCE_S if call.priority is Priority.LOW else 0.0), call.seq)


def is_overdue(call: Call, now_s: float) -> bool:
    return turn(call)[0] <= now_s


def situation(now_s: float, slot: Slot, elsewhere: frozenset[str], waiting: Waiting, estimates: Estimates) -> Situation:
    """What waits for a slot. `elsewhere` are the models that other slots hold: their free calls go there."""
    normal: dict[str, Group] = {}
    low: dict[str, Group] = {}
    for lane in waiting.lanes():
        if not may_serve(slot, elsewhere, lane):
            continue
        if lane.priority is Priority.NORMAL:
            _merge(normal, lane.model, lane.head.order, len(lane.calls))
        else:
            _merge(low, lane.model, lane.head.order, len(lane.calls))
            if is_overdue(lane.head, now_s):  # it alone counts: whether the next one is overdue too is asked when it is the head
                _merge(normal, lane.model, turn(lane.head), 1)
    groups, priority = (normal, Priority.NORMAL) if normal else (low, Priority.LOW)
    mine = groups.pop(slot.resident, None) if slot.resident is not None else None
    return Situation(now_s, slot, estimates, waiting, mine, tuple(groups.values()), priority)


def may_serve(slot: Slot, elsewhere: frozenset[str], lane: Lane) -> bool:
    if lane.pin is not None:
        return lane.pin == slot.name
    return slot.can_serve(lane.model) and (lane.model not in elsewhere or slot.resident == lane.model)


def _merge(groups: dict[str, Group], model: str, since: tuple[float, int], count: int) -> None:
    before = groups.get(model)
    groups[model] = Group(model, since, count) if before is None else Group(model, min(before.since, since), before.count + count)
