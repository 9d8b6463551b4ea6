"""What has become possible: after every command, until nothing more is. Pure but for the draft that it writes.

Each step looks at the state alone, so a decision that a crash cut short is completed by the next one.
"""

from __future__ import annotations

from datetime import timedelta

from services.scheduler.arbiter import restore
from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.planning import missing
from services.scheduler.arbiter.rules import Admit, Grant, Refuse, Wait, consider, make_room, still_waits
from services.scheduler.arbiter.state import Hold, Lease, Status
from services.scheduler.vram import Level, Plan
from shared.events import card, lease
from shared.events.lease import Priority


def settle(draft: Draft) -> None:
    """Take every step that is possible for who has just arrived, and on the cards that were touched."""
    for lease_id in draft.arrived:
        each = draft.state.lease(lease_id)
        if each is not None and not each.is_live:
            _serve(draft, each)
    while draft.touched:
        name = min(draft.touched)
        draft.touched.discard(name)
        has_changed = name in draft.changed
        draft.changed.discard(name)
        _settle_card(draft, name, has_changed)


def _settle_card(draft: Draft, name: str, has_changed: bool) -> None:
    """`has_changed`: what the card holds is not what it was, so those who have their models see whether they still do."""
    for each in list(draft.state.card(name).leases.values()):  # in order of arrival
        if each.is_live and (has_changed or each.status is Status.ADMITTED or each.preemption is not None):
            _go_on(draft, each.id)
    _serve_holds(draft, name)
    _serve_queue(draft, name)
    restore.go_on(draft, name)


# ---- live leases


def _go_on(draft: Draft, lease_id: str) -> None:
    each = draft.state.lease(lease_id)
    if each is None or each.asked.slot not in draft.state.catalogue.slots:
        return
    if each.preemption is not None and not _still_asks(draft, each.preemption.by):
        draft.add(lease.LeasePreemptWithdrawn(**draft.about(each), by=each.preemption.by))
    if each.status is Status.ADMITTED:
        _bring_in(draft, each)
    elif not each.asked.rotates and each.asked.models:
        _look_after(draft, each)


def _still_asks(draft: Draft, by: str) -> bool:
    """Whether the lease or hold that a release was asked for is still without its place."""
    found = draft.state.lease(by)
    if found is not None:
        return found.status is not Status.GRANTED
    return any(by in on.holds and not on.holds[by].held for on in draft.state.cards.values())


def _bring_in(draft: Draft, each: Lease) -> None:
    """An admitted lease: one unload or load after another, planned anew each time from what is there now."""
    slot = draft.state.slot(each.asked.slot)
    if not slot.known:
        if not any(model.lease_id == each.id for model in slot.models.values()):
            draft.refuse(each, "slot_unknown", f"what slot {each.asked.slot} holds is not known: {slot.reason}")
        return
    if not missing(draft.state, each):
        draft.grant(each)
        return
    _next_change(draft, each)


def _look_after(draft: Draft, each: Lease) -> None:
    """A granted lease whose model left the card by another hand: it is brought back, or the lease is lost (never a silent lie)."""
    slot = draft.state.slot(each.asked.slot)
    gone = [need for need in each.asked.models if not slot.is_loaded(need.name)]
    if not slot.known or not gone:
        return
    others = draft.state.live_on(each.asked.card)
    is_beside_run = each.priority is Priority.BATCH and any(other.priority is Priority.RUN for other in others)
    if each.asked.resident_only or is_beside_run:
        draft.lose(each, f"{gone[0].name} is no longer loaded on slot {each.asked.slot}")
    else:
        _next_change(draft, each)


def _next_change(draft: Draft, each: Lease) -> None:
    slot = draft.state.slot(each.asked.slot)
    spec = draft.state.catalogue.slots[each.asked.slot]
    unloading = any(
        model.state == "unloading"
        for other in draft.state.catalogue.on_card(spec.card)
        for model in draft.state.slot(other.name).models.values()
    )
    if slot.is_changing or unloading:
        return  # loads of one instance come one after another, and memory is free only when that is confirmed
    verdict = make_room(draft.state, each, draft.answering)
    if isinstance(verdict, Refuse):
        if each.status is Status.ADMITTED:
            draft.refuse(each, verdict.code, verdict.reason)
        else:
            draft.lose(each, verdict.reason)
    elif isinstance(verdict, Wait):
        _wait(draft, each, verdict)
    elif isinstance(verdict, Admit):
        _end_for(draft, each, verdict.ends)
        _carry_out(draft, each, verdict.plan)


def _carry_out(draft: Draft, each: Lease, plan: Plan) -> None:
    """The next step of a plan: all unloads that it needs, else its first load."""
    reload = {need.name for need in plan.loads}
    purpose = "lease" if each.status is Status.ADMITTED else "reload"
    for held in plan.evicts:
        model = draft.state.slot(held.slot).models.get(held.name)
        if model is not None and model.state == "loaded" and held.level <= Level.STANDARD:
            too_small = held.slot == each.asked.slot and held.name in reload
            why = f"its context of {model.context_tokens} tokens is too small for {each.asked.holder}" if too_small else plan.words
            draft.unload(model, held.slot, "reload" if too_small else purpose, each, why)
    if not plan.evicts:
        draft.load(plan.loads[0], draft.state.catalogue.slots[each.asked.slot], purpose, each, plan.words)


# ---- who waits


def _serve_queue(draft: Draft, name: str) -> None:
    """Runs first, each kind in order of arrival."""
    waiting = [each for each in draft.state.card(name).leases.values() if each.status is Status.WAITING]
    if len(waiting) > 1:
        waiting.sort(key=lambda each: (each.priority is not Priority.RUN, each.order))
    for each in waiting:
        current = draft.state.lease(each.id)  # a sibling's refusal may have ended it meanwhile
        if current is not None and not current.is_live and not still_waits(draft.state, current):
            _serve(draft, current)


def _place(draft: Draft, each: Lease) -> int:
    """Its place in the queue of its card: 1 is next."""
    waiting = [other for other in draft.state.card(each.asked.card).leases.values() if other.status is Status.WAITING]
    mine = (each.priority is not Priority.RUN, each.order)
    return 1 + sum((other.priority is not Priority.RUN, other.order) < mine for other in waiting)


def _serve(draft: Draft, each: Lease) -> None:
    verdict = consider(draft.state, each, draft.answering)
    if isinstance(verdict, Grant):
        _end_for(draft, each, verdict.ends)
        draft.grant(each)
    elif isinstance(verdict, Admit):
        _end_for(draft, each, verdict.ends)
        _admit(draft, each, verdict.plan)
    elif isinstance(verdict, Refuse):
        draft.refuse(each, verdict.code, verdict.reason)
    else:
        _wait(draft, each, verdict)


def _admit(draft: Draft, each: Lease, plan: Plan) -> None:
    loads = tuple(lease.ModelNeed(name=need.name, mib=need.mib) for need in plan.loads)
    draft.add(
        lease.LeaseAdmitted(
            **draft.about(each),
            loads=loads,
            evicts=tuple(held.name for held in plan.evicts),
            reason=plan.words,
            card_mib=draft.state.size_of(each.asked.card),
        )
    )
    draft.touch_run(each)


def _wait(draft: Draft, each: Lease, verdict: Wait) -> None:
    if not each.is_live and each.asked.wait_until <= each.asked.at:
        draft.refuse(each, verdict.code, f"{verdict.reason}; it was not to wait")
        return
    if not each.is_live and not each.queued:
        about, place = draft.about(each), _place(draft, each)
        draft.add(lease.LeaseQueued(**about, code=verdict.code, reason=verdict.reason, position=place, waits_for=verdict.waits_for))
    _end_for(draft, each, verdict.ends)
    draft.ask_to_release(verdict.preempts, each.id, each.asked.holder)


def _end_for(draft: Draft, each: Lease, ends: tuple[Lease, ...]) -> None:
    for other in ends:
        if draft.state.lease(other.id) is not None:
            draft.preempt(other, each.id, each.asked.holder, f"{each.asked.holder} takes {each.asked.slot}: a run goes first")


# ---- holds


def _serve_holds(draft: Draft, name: str) -> None:
    """The first hold that waits: live runs end by themselves, chats end now, batch after its grace, then models go."""
    on = draft.state.card(name)
    if on.held is not None or not on.holds:
        return
    hold = min(on.holds.values(), key=lambda each: each.order)
    leases = list(on.leases.values())
    if any(each.priority is Priority.RUN and (each.is_live or each.order < hold.order) for each in leases):
        return
    for each in leases:
        if each.is_live and each.priority is Priority.INTERACTIVE:
            draft.preempt(each, hold.hold_id, hold.holder, f"card {name} is reserved for {hold.holder}")
    batch = [each for each in leases if each.is_live and each.priority is Priority.BATCH]
    draft.ask_to_release(batch, hold.hold_id, hold.holder)
    if not batch and _clear(draft, name, hold):
        expires_at = None if hold.ttl_s is None else draft.now + timedelta(seconds=hold.ttl_s)
        left = _out_of_reach(draft, name)
        draft.add(card.CardHeld(at=draft.now, card=name, hold_id=hold.hold_id, holder=hold.holder, expires_at=expires_at, left=left))


def _clear(draft: Draft, name: str, hold: Hold) -> bool:
    """Unload the engine's own models from a card; true once none is left that may go.

    A slot that does not say what it holds keeps nobody waiting: nothing can be done there, and its server may just be off.
    """
    is_clear = True
    for spec in draft.state.catalogue.on_card(name):
        slot = draft.state.slot(spec.name)
        if not slot.known and not slot.is_changing:
            continue
        own = [each for each in slot.models.values() if each.ours and not draft.state.catalogue.is_embedding(each.name)]
        is_clear = is_clear and not own
        for each in own:
            if slot.known and each.state == "loaded" and not draft.answering.get((spec.name, each.name)):
                draft.unload(each, spec.name, "hold", None, f"card {name} is reserved for {hold.holder}")
    return is_clear


def _out_of_reach(draft: Draft, name: str) -> tuple[str, ...]:
    """Models that may still be on the card, on slots that do not say what they hold."""
    slots = [draft.state.slot(spec.name) for spec in draft.state.catalogue.on_card(name)]
    return tuple(each for slot in slots if not slot.known for each in slot.models)
