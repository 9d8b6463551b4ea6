"""Commands of those who want a slot or a card: ask, renew, give back. Pure but for the draft."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from services.scheduler.arbiter import commands
from services.scheduler.arbiter.checks import check_request, describe, wrong_ttl
from services.scheduler.arbiter.commands import BadRequest, LeaseEnded, UnknownLease
from services.scheduler.arbiter.draft import Draft
from services.scheduler.arbiter.planning import room_for, size_of
from services.scheduler.arbiter.state import Lease
from services.scheduler.vram import Level, Need, plan
from shared.events import card, lease
from shared.events.lease import LeaseRequested, ModelNeed, Priority
from shared.ids import is_token


def request(draft: Draft, ask: commands.RequestLease, group: str = "", after: str | None = None) -> None:
    check_request(draft.state, ask)
    card_name = draft.state.catalogue.slots[ask.slot].card
    if _is_known(draft, ask):
        draft.touched.add(card_name)
        return
    draft.add(_requested(draft, ask, card_name, group, after))
    draft.arrived.append(ask.lease_id)


def request_group(draft: Draft, command: commands.RequestGroup) -> None:
    """Ask for all parts; of those on one card each waits for the grant of the one before it (KS 6.1)."""
    if not command.parts:
        raise BadRequest("name at least one slot", field="parts")
    if any(part.priority is not Priority.RUN or part.run_id != command.parts[0].run_id for part in command.parts):
        raise BadRequest("slots are acquired together by one run: priority run and the same run_id in all parts", field="parts")
    for part in command.parts:
        check_request(draft.state, part)
    if any(draft.state.ending(part.lease_id) for part in command.parts):
        for part in command.parts:
            draft.touched.add(draft.state.catalogue.slots[part.slot].card)
        return  # it was answered before: what ended ends the whole group
    last_on: dict[str, str] = {}
    for part in command.parts:
        card_name = draft.state.catalogue.slots[part.slot].card
        request(draft, part, command.group, last_on.get(card_name))
        last_on[card_name] = part.lease_id


def _is_known(draft: Draft, ask: commands.RequestLease) -> bool:
    """Whether this request was made before.

    Raises:
        BadRequest: its id or its key stands for another request.
    """
    by_key = draft.state.by_key(ask.key) if ask.key else None
    for field, lease_id in (("key", by_key), ("lease_id", ask.lease_id)):
        before = _asked(draft, lease_id) if lease_id is not None else None
        if before is None:
            continue
        if _described(before) != describe(ask):
            raise BadRequest(f"{getattr(ask, field)!r} was used for another request ({before.slot}): use a new {field}", field=field)
        return True
    return False


def _asked(draft: Draft, lease_id: str) -> LeaseRequested | None:
    found = draft.state.lease(lease_id)
    if found is not None:
        return found.asked
    ended = draft.state.ending(lease_id)
    return ended.asked if ended is not None else None


def _described(before: LeaseRequested) -> dict[str, Any]:
    same = ("holder", "priority", "slot", "resident_only", "rotates", "services", "services_mib", "context_tokens", "run_id")
    return {**{name: getattr(before, name) for name in same}, "models": tuple(need.name for need in before.models)}


def _requested(draft: Draft, ask: commands.RequestLease, card_name: str, group: str, after: str | None) -> LeaseRequested:
    times = draft.state.catalogue.times
    waits = {Priority.RUN: times.run_wait, Priority.INTERACTIVE: timedelta(), Priority.BATCH: times.batch_wait}
    wait = ask.wait if ask.wait is not None else waits[ask.priority]
    return LeaseRequested(
        at=draft.now,
        slot=ask.slot,
        card=card_name,
        lease_id=ask.lease_id,
        holder=ask.holder,
        priority=ask.priority,
        models=tuple(ModelNeed(name=name, mib=size_of(draft.state, ask.slot, name)) for name in ask.models),
        context_tokens=ask.context_tokens,
        resident_only=ask.resident_only or ask.priority is Priority.INTERACTIVE,
        rotates=ask.rotates,
        services=ask.services,
        services_mib=ask.services_mib,
        run_id=ask.run_id,
        key=ask.key,
        group=group,
        after=after,
        ttl_s=(ask.ttl or times.lease_ttl).total_seconds(),
        wait_until=draft.now + wait,
    )


def renew(draft: Draft, command: commands.Renew) -> None:
    """Only this lease lives on; what others do moves no expiry of it.

    Raises:
        LeaseEnded, UnknownLease, BadRequest
    """
    for field, message in wrong_ttl(draft.state, command.ttl):
        raise BadRequest(message, field=field)
    each = _open(draft, command.lease_id)
    if each.expires_at is None:
        raise BadRequest(f"lease {each.id} is not granted yet: wait for it, a request needs no renewal", field="lease_id")
    if each.expires_at <= draft.now:
        draft.expire(each, "it was not renewed in time")
        return
    ttl = command.ttl or timedelta(seconds=each.asked.ttl_s)
    draft.add(lease.LeaseRenewed(**draft.about(each), expires_at=draft.now + ttl))


def _open(draft: Draft, lease_id: str) -> Lease:
    found = draft.state.lease(lease_id)
    if found is not None:
        return found
    ended = draft.state.ending(lease_id)
    if ended is None:
        raise UnknownLease(f"no lease {lease_id!r} is known: request one", field="lease_id")
    how = ended.how.replace("_", " ")
    raise LeaseEnded(
        f"lease {lease_id} was {how} at {ended.at:%H:%M:%S} UTC ({ended.reason or 'no reason given'}): request a new one",
        field="lease_id",
        how=ended.how,
    )


def release(draft: Draft, command: commands.Release) -> None:
    found = draft.state.lease(command.lease_id)
    if found is not None:
        draft.release(found, command.reason)
    elif draft.state.ending(command.lease_id) is None:
        raise UnknownLease(f"no lease {command.lease_id!r} is known: there is nothing to release", field="lease_id")


def end_run(draft: Draft, command: commands.EndRun) -> None:
    for each in draft.state.of_run(command.run_id):
        draft.release(each, command.reason)


def need_model(draft: Draft, command: commands.NeedModel) -> None:
    """Bring a rotating lease's model in. Nothing that is loading, answering or pinned goes for it."""
    each = _open(draft, command.lease_id)
    slot, spec = draft.state.slot(each.asked.slot), draft.state.catalogue.slots.get(each.asked.slot)
    if not each.asked.rotates or not any(need.name == command.model for need in each.asked.models) or spec is None:
        raise BadRequest(f"lease {each.id} has no model {command.model!r} that takes turns: request a lease with it", field="model")
    unloading = any(
        model.state == "unloading"
        for other in draft.state.catalogue.on_card(spec.card)
        for model in draft.state.slot(other.name).models.values()
    )
    if not each.is_live or not slot.known or slot.is_loaded(command.model) or slot.is_changing or unloading:
        return
    need = Need(command.model, size_of(draft.state, each.asked.slot, command.model), rotating=True)
    planned = plan(room_for(draft.state, each, (need,), draft.answering), Level.ANSWERING)
    if not planned.fits:
        draft.lose(each, planned.words)
        return
    if planned.level > Level.STANDARD:
        return
    for held in planned.evicts:
        model = draft.state.slot(held.slot).models.get(held.name)
        if model is not None:
            draft.unload(model, held.slot, "swap", each, planned.words)
    if not planned.evicts:
        draft.load(need, spec, "swap", each, planned.words)


# ---- holds


def hold(draft: Draft, command: commands.HoldCard) -> None:
    """Reserve a card. Asked again by the same id while it is held, it lasts so much longer."""
    for field, message in _wrong_hold(draft, command):
        raise BadRequest(message, field=field)
    draft.touched.add(command.card)
    before = draft.state.card(command.card).holds.get(command.hold_id)
    if before is None:
        ttl_s = command.ttl.total_seconds() if command.ttl is not None else None
        draft.add(
            card.HoldRequested(
                at=draft.now, card=command.card, hold_id=command.hold_id, holder=command.holder, reason=command.reason, ttl_s=ttl_s
            )
        )
    elif before.held and command.ttl is not None:
        expires_at = draft.now + command.ttl
        draft.add(card.CardHeld(at=draft.now, card=command.card, hold_id=command.hold_id, holder=before.holder, expires_at=expires_at))


def _wrong_hold(draft: Draft, command: commands.HoldCard) -> list[tuple[str, str]]:
    wrong: list[tuple[str, str]] = []
    if command.card not in draft.state.catalogue.cards:
        known = ", ".join(draft.state.catalogue.cards) or "none is configured"
        wrong.append(("card", f"no card is called {command.card!r}; use one of: {known}"))
    if not is_token(command.hold_id):
        wrong.append(("hold_id", f"hold id {command.hold_id!r} must be of [A-Za-z0-9_-]: use a GUID"))
    if not command.holder:
        wrong.append(("holder", "say who holds the card: holder must not be empty"))
    if command.ttl is not None and command.ttl <= timedelta():
        wrong.append(("ttl", f"ttl must be above 0 s, got {command.ttl.total_seconds():g} s: leave it out to hold until it is released"))
    return wrong


def release_hold(draft: Draft, command: commands.ReleaseHold) -> None:
    for name, on in draft.state.cards.items():
        found = on.holds.get(command.hold_id)
        if found is not None:
            draft.add(card.CardReleased(at=draft.now, card=name, hold_id=found.hold_id, holder=found.holder, reason=command.reason))
            return
