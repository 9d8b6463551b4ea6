"""What time alone decides: expiries, graces that are over, loads that never came back, restores that are due."""

from __future__ import annotations

from datetime import datetime

from services.scheduler.arbiter import restore
from services.scheduler.arbiter.backend import load_failed
from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.state import Lease, State, Status
from shared.events import card


def sweep(draft: Draft) -> None:
    for each in [each for each in draft.state.leases() if _is_over(draft.state, each, draft.now)]:
        if draft.state.lease(each.id) is not None:  # a sibling's end may have ended it
            _end(draft, each)
    for name, on in list(draft.state.cards.items()):
        for hold in on.holds.values():
            if hold.expires_at is not None and hold.expires_at <= draft.now:
                draft.add(card.CardReleased(at=draft.now, card=name, hold_id=hold.hold_id, holder=hold.holder, reason="its time is over"))
    _overdue_changes(draft)
    draft.touched.update(name for name in draft.state.cards if draft.is_unsettled(name))
    missing = [name for name in draft.state.cards if _misses_a_model(draft.state, name)]
    draft.touched.update(missing)
    draft.changed.update(missing)
    restore.begin_due(draft)


def _misses_a_model(state: State, card: str) -> bool:
    """Whether somebody holds a lease on a model that is gone: a decision about that was cut short."""
    for each in state.live_on(card):
        if not each.asked.rotates and any(not state.slot(each.asked.slot).is_loaded(need.name) for need in each.asked.models):
            return True
    return False


def ends_at(state: State, each: Lease) -> datetime | None:
    """When a lease ends if nobody does anything: each lease by its own time, whatever others do.

    An admitted one has the time that its loads may take beyond what it was ready to wait.
    """
    if each.status is Status.GRANTED:
        return each.expires_at
    if each.status is Status.WAITING:
        return each.asked.wait_until
    times = state.catalogue.times
    return each.asked.wait_until + (times.load_timeout + times.unload_timeout) * (1 + len(each.asked.models))


def _is_over(state: State, each: Lease, now: datetime) -> bool:
    over = each.expires_at if each.status is Status.GRANTED else ends_at(state, each)
    return (over is not None and over <= now) or (each.preemption is not None and each.preemption.deadline_at <= now)


def _end(draft: Draft, each: Lease) -> None:
    if each.preemption is not None and each.preemption.deadline_at <= draft.now:
        reason = f"the grace was over at {each.preemption.deadline_at:%H:%M:%S} UTC"
        draft.preempt(each, each.preemption.by, each.preemption.by_holder, reason)
    else:
        draft.expire(each, "it was not renewed" if each.status is Status.GRANTED else "it waited as long as it may")


def _overdue_changes(draft: Draft) -> None:
    """Nothing waits for ever: a load or unload past its time leaves the slot unknown, never empty."""
    for name, slot in list(draft.state.slots.items()):
        for each in slot.models.values():
            if each.deadline_at is None or each.deadline_at > draft.now or name not in draft.state.catalogue.slots:
                continue
            if each.state == "loading":
                load_failed(draft, name, each, "timed_out", "the load did not end in time", unknown=True)
            else:
                if each.purpose == "restore":
                    restore.fail(draft, name, f"{each.name} was not unloaded in time")
                draft.lose_slot(name, f"{each.name} was not unloaded in time")
