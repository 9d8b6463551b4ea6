"""Why somebody waits, and where in the line: for whoever waits, and for `queue`, `cards` and `leases` (S21). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.arbiter.rules import Wait, consider, make_room
from services.scheduler.arbiter.state import NOTHING, Answering, Lease, State, Status
from shared.events.lease import Priority


@dataclass(frozen=True, slots=True)
class Waiting:
    """`position` 1 is next on its card. `waits_for`: ids of leases and holds, or names of models."""

    lease_id: str
    holder: str
    priority: Priority
    slot: str
    card: str
    position: int
    code: str
    reason: str
    waits_for: tuple[str, ...] = ()


def waiting(state: State, answering: Answering = NOTHING) -> list[Waiting]:
    """Everybody who waits, card by card in the order in which they are served."""
    lines: list[Waiting] = []
    for name in state.cards:
        places = 0
        for each in _line(state, name):
            places += not each.is_live
            lines.append(_why(state, each, 0 if each.is_live else places, answering))
    return lines


def explain(state: State, lease_id: str, answering: Answering = NOTHING) -> Waiting | None:
    """Why this lease waits now; None if it does not."""
    each = state.lease(lease_id)
    if each is None or each.status is Status.GRANTED:
        return None
    return next((line for line in waiting(state, answering) if line.lease_id == lease_id), None)


def _line(state: State, card: str) -> list[Lease]:
    unready = [each for each in state.card(card).leases.values() if each.status is not Status.GRANTED]
    return sorted(unready, key=lambda each: (not each.is_live, each.priority is not Priority.RUN, each.order))


def _why(state: State, each: Lease, position: int, answering: Answering) -> Waiting:
    code, reason, waits_for = "loading", f"its models are being loaded on {each.asked.slot}", tuple[str, ...]()
    is_there = each.asked.slot in state.catalogue.slots
    verdict = make_room(state, each, answering) if each.is_live and is_there else consider(state, each, answering)
    if isinstance(verdict, Wait):
        code, reason, waits_for = verdict.code, verdict.reason, verdict.waits_for
    asked = each.asked
    return Waiting(each.id, asked.holder, each.priority, asked.slot, asked.card, position, code, reason, waits_for)
