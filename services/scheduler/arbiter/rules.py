"""May a waiting lease have its place? The order run > interactive > batch and all its exceptions. Pure.

    run          waits for a hold, evicts interactive leases at once, preempts batch after its grace, is never displaced
    interactive  only what is loaded, only while no run or batch lease is live on the slot; never waits
    batch        waits beside a run on its card unless its model is there and it needs no service; in order of arrival

A resident-only run lease loads nothing and asks no batch lease to go, but an interactive lease on its slot ends for it as
for any run: a chat client uses a slot only while nothing else does. A run that must load also has batch work that loaded
models or started services leave its card, since batch work of that kind would not be let in beside it either.

Source: KS 6.1 ("Residency is a lease"), KS 6.10 (InferenceLeaseService).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from services.scheduler.arbiter.planning import is_usable, missing, outgrown, room_for
from services.scheduler.arbiter.state import Answering, Hold, Lease, State, Status
from services.scheduler.vram import Held, Level, Need, Plan, plan
from shared.events.lease import Priority


@dataclass(frozen=True, slots=True)
class Grant:
    """It can use its models now. `ends`: leases that end at once for it."""

    ends: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class Admit:
    """It has its place; `plan` says what to unload and load."""

    plan: Plan
    ends: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class Wait:
    """Not yet. `preempts`: leases to be asked to release; `ends`: leases that end at once all the same."""

    code: str
    reason: str
    waits_for: tuple[str, ...] = ()
    preempts: tuple[Lease, ...] = ()
    ends: tuple[Lease, ...] = ()


@dataclass(frozen=True, slots=True)
class Refuse:
    code: str
    reason: str


Verdict = Grant | Admit | Wait | Refuse
NO_PLAN = Plan(True, (), (), Level.IDLE, 0, "nothing is to be loaded")


def consider(state: State, lease: Lease, answering: Answering) -> Verdict:
    """What becomes of a waiting lease now."""
    asked = lease.asked
    if asked.slot not in state.catalogue.slots:
        return Refuse("unknown_slot", f"slot {asked.slot} is no longer configured")
    if asked.after is not None:
        before = state.lease(asked.after)
        if before is not None and before.status is not Status.GRANTED:
            return Wait("after_sibling", f"slots of one card come one after another: first {before.asked.slot}", (before.id,))
    if lease.priority is Priority.INTERACTIVE:
        return _interactive(state, lease, answering)
    return _run(state, lease, answering) if lease.priority is Priority.RUN else _batch(state, lease, answering)


# ---- interactive


def _interactive(state: State, lease: Lease, answering: Answering) -> Verdict:
    holds = state.card(lease.asked.card).holds
    if holds:
        return Refuse("card_held", f"card {lease.asked.card} is reserved for {_holders(holds.values())}")
    others = [each for each in state.card(lease.asked.card).leases.values() if each.asked.slot == lease.asked.slot]
    users = [each for each in others if each.priority is Priority.RUN or (each.priority is Priority.BATCH and each.is_live)]
    if users:
        return Refuse("slot_in_use", f"slot {lease.asked.slot} is in use by {_names(users)}")
    if (lacking := _resident(state, lease)) is not None:
        return lacking
    if runs := _set_aside_for(state, lease, answering):
        return Refuse("set_aside", f"the memory of {lease.asked.models[0].name} is set aside for {_names(runs)}")
    return Grant()


def _set_aside_for(state: State, lease: Lease, answering: Answering) -> list[Lease]:
    """The runs whose models take turns in memory that a lease on what is loaded would pin: a run is never displaced."""
    turning = [each for each in state.live_on(lease.asked.card) if each.asked.rotates and each.id != lease.id]
    if not turning or not lease.asked.models or plan(room_for(state, lease, (), answering), Level.ANSWERING).fits:
        return []
    return turning


def _behind_turns(state: State, lease: Lease, answering: Answering) -> Wait | None:
    runs = _set_aside_for(state, lease, answering)
    return Wait("set_aside", f"its memory is set aside for {_names(runs)}", tuple(each.id for each in runs)) if runs else None


def is_resident(state: State, lease: Lease) -> bool:
    """Whether all its models can be used as they are loaded."""
    asked = lease.asked
    on = state.slot(asked.slot)
    return not asked.models or (on.known and all(is_usable(on, need.name, asked.context_tokens) for need in asked.models))


def _resident(state: State, lease: Lease) -> Refuse | None:
    """Why a lease that loads nothing can't be granted, if so."""
    if is_resident(state, lease):
        return None
    on = state.slot(lease.asked.slot)
    if not on.known:
        return Refuse("slot_unknown", f"what slot {lease.asked.slot} holds is not known: {on.reason}")
    lacking = missing(state, lease)
    small = [need.name for need in lacking if on.is_loaded(need.name)]
    if small:
        return Refuse("context_too_small", f"{small[0]} is loaded with a context below {lease.asked.context_tokens} tokens")
    return Refuse("not_resident", f"{lacking[0].name} is not loaded on slot {lease.asked.slot}, and this lease loads nothing")


# ---- run


def _run(state: State, lease: Lease, answering: Answering) -> Verdict:
    hold = _blocking_hold(state, lease)
    if hold is not None:
        return Wait("card_held", f"card {lease.asked.card} is reserved for {hold.holder}", (hold.hold_id,))
    ahead = _run_ahead(state, lease)
    if ahead is not None:
        return Wait("behind_run", f"{ahead.asked.holder} is next on card {lease.asked.card}", (ahead.id,))
    here = tuple(each for each in _live_on_slot(state, lease) if each.priority is Priority.INTERACTIVE)
    if lease.asked.resident_only:
        return _resident(state, lease) or _behind_turns(state, lease, answering) or Grant(ends=here)
    if lease.asked.models and not state.slot(lease.asked.slot).known:
        return _resident(state, lease) or Grant()
    return make_room(state, lease, answering, here)


def make_room(state: State, lease: Lease, answering: Answering, here: tuple[Lease, ...] = ()) -> Verdict:
    """How a run or an admitted lease gets what it lacks; `here` are interactive leases that end with it in any case."""
    limit = Level.BATCH if lease.priority is Priority.RUN else Level.LEASED
    planned, lacking = plan_for(state, lease, answering, limit) if needs_room(state, lease) else (NO_PLAN, ())
    if not planned.fits:
        return _after_turns(state, lease, answering, limit) or Refuse("no_room", planned.words)
    victims = _victims(state, lease, planned)
    ends = tuple({each.id: each for each in (*here, *(v for v in victims if v.priority is Priority.INTERACTIVE))}.values())
    batch = tuple(each for each in victims if each.priority is Priority.BATCH)
    if batch:
        return Wait("preempting", f"{_names(batch)} was asked to release", tuple(each.id for each in batch), preempts=batch)
    if planned.level == Level.LEASED:
        others = tuple(dict.fromkeys(lease_id for held in planned.evicts for lease_id in held.leases))
        return Wait("no_room_yet", f"room is taken: {', '.join(f'{held.name} ({held.why})' for held in planned.evicts)}", others)
    busy = tuple(held.name for held in planned.evicts if held.level == Level.ANSWERING)
    if busy:
        return Wait("answering", f"{busy[0]} must go and is still in use", busy, ends=ends)
    return Admit(planned, ends) if lacking else Grant(ends)


def _after_turns(state: State, lease: Lease, answering: Answering, limit: Level) -> Wait | None:
    """Batch work waits for what is set aside for a run, as for all else that a run has; without it, it would fit."""
    turning = [each for each in state.live_on(lease.asked.card) if each.asked.rotates and each.id != lease.id]
    if lease.priority is Priority.RUN or not turning or not plan_for(state, lease, answering, limit, set_aside=False)[0].fits:
        return None
    return Wait("no_room_yet", f"room is set aside for {_names(turning)}", tuple(each.id for each in turning))


def needs_room(state: State, lease: Lease) -> bool:
    """Whether there is anything to plan: what is loaded already needs no room."""
    asked = lease.asked
    return asked.rotates or bool(asked.services) or not is_resident(state, lease)


def plan_for(state: State, lease: Lease, answering: Answering, limit: Level, *, set_aside: bool = True) -> tuple[Plan, tuple[Need, ...]]:
    """The plan for what the lease lacks, and what that is. A rotating lease lacks nothing: room for its largest is enough.

    `set_aside` False: as if nothing were for models that take turns.
    """
    lacking = missing(state, lease)
    must_go = tuple[Held, ...]() if lease.asked.rotates else outgrown(state, lease, answering)
    stuck = next((held for held in must_go if held.level > limit), None)
    if stuck is not None:
        words = f"{stuck.name} is loaded with too small a context and can't be loaded again: {stuck.why}"
        return Plan(False, lacking, (), Level.NEVER, 0, words), lacking
    needs = (max(lacking, key=lambda need: need.mib or 0),) if lease.asked.rotates and lacking else lacking
    room = room_for(state, lease, needs, answering)
    planned = plan(room if set_aside else replace(room, shared_mib=0), limit)
    if must_go and planned.fits:
        evicts = (*must_go, *planned.evicts)
        planned = Plan(True, planned.loads, evicts, max(held.level for held in evicts), 0, planned.words)
    return planned, () if lease.asked.rotates else lacking


def _victims(state: State, lease: Lease, planned: Plan) -> tuple[Lease, ...]:
    """Leases that must end for a run: whose memory it needs, and batch work that does more than use what is loaded."""
    if lease.priority is not Priority.RUN:
        return ()
    named = {lease_id for held in planned.evicts for lease_id in held.leases}
    live = [each for each in state.live_on(lease.asked.card) if each.id != lease.id]
    return tuple(each for each in live if each.id in named or (each.priority is Priority.BATCH and each.is_heavy))


def _blocking_hold(state: State, lease: Lease) -> Hold | None:
    """A hold that the run waits for: one in force, or one that came first. A run that holds something goes on.

    Were it to wait for a hold that itself waits for that run, neither would ever end.
    """
    on = state.card(lease.asked.card)
    if on.held is not None:
        return on.held
    if not on.holds or is_under_way(state, lease):
        return None
    return next((hold for hold in on.holds.values() if hold.order < lease.order), None)


def _run_ahead(state: State, lease: Lease) -> Lease | None:
    """An earlier run that still waits on this card: a later one must not take the place that is being cleared for it."""
    earlier = [
        each
        for each in state.card(lease.asked.card).leases.values()
        if each.priority is Priority.RUN and not each.is_live and each.order < lease.order and each.asked.run_id != lease.asked.run_id
    ]
    return None if not earlier or is_under_way(state, lease) else min(earlier, key=lambda each: each.order)


def is_under_way(state: State, lease: Lease) -> bool:
    """Whether the lease's run already holds a live lease somewhere."""
    return any(each.is_live and each.asked.run_id == lease.asked.run_id for each in state.leases())


# ---- batch


def _batch(state: State, lease: Lease, answering: Answering) -> Verdict:
    asked = lease.asked
    is_light = not asked.services and not asked.rotates and is_resident(state, lease)
    on = state.card(asked.card)
    runs = [each for each in on.leases.values() if each.priority is Priority.RUN]
    holds = on.holds
    if holds and not (is_light and any(each.is_live for each in runs)):  # a hold that waits for a run is not kept by what runs beside it
        return Wait("card_held", f"card {asked.card} is reserved for {_holders(holds.values())}", tuple(holds))
    if is_light:
        return _light(state, lease, runs, answering)
    lacking = _resident(state, lease) if asked.resident_only or not state.slot(asked.slot).known else None
    if lacking is not None and asked.resident_only:
        return lacking
    if lacking is not None:
        return Wait(lacking.code, lacking.reason)
    ahead = _batch_ahead(state, lease)
    if ahead is not None:
        return Wait("behind_batch", f"{ahead.asked.holder} is before it on card {asked.card}", (ahead.id,))
    waits = _batch_waits(state, lease)
    if waits is not None and lease.queued:  # that it can fit at all was seen when it was queued
        return waits
    verdict = make_room(state, lease, answering)
    return verdict if waits is None or isinstance(verdict, Refuse) else waits


def still_waits(state: State, lease: Lease) -> bool:
    """Whether a batch lease plainly waits for a run as before, seen without finding words for it; most that wait do."""
    asked = lease.asked
    if lease.priority is not Priority.BATCH or not lease.queued or asked.resident_only:
        return False
    if all(each.priority is not Priority.RUN for each in state.card(asked.card).leases.values()):
        return False
    return asked.slot in state.catalogue.slots and (bool(asked.services) or asked.rotates or not is_resident(state, lease))


def _light(state: State, lease: Lease, runs: list[Lease], answering: Answering) -> Verdict:
    """Granted beside a run, since it only uses what is there; but not on memory that a run waits for, or takes turns in."""
    waiting = [each for each in runs if each.status is not Status.GRANTED]  # an admitted one is yet to unload
    kept = {need.name for each in runs if each.pins and each.asked.slot == lease.asked.slot for need in each.asked.models}
    if waiting and not kept.issuperset(need.name for need in lease.asked.models):
        return Wait("behind_run", f"{_names(waiting)} goes first on card {lease.asked.card}", tuple(each.id for each in waiting))
    return _behind_turns(state, lease, answering) or Grant()


def _batch_waits(state: State, lease: Lease) -> Wait | None:
    """Compute is shared, and the planner only knows memory: heavy batch work waits for runs on its card (KS 6.1)."""
    card = lease.asked.card
    runs = tuple(each for each in state.card(card).leases.values() if each.priority is Priority.RUN)
    if runs:
        return Wait("run_live", f"{_names(runs)} goes first on card {card}", tuple(each.id for each in runs))
    chats = tuple(each for each in _live_on_slot(state, lease) if each.priority is Priority.INTERACTIVE)
    if chats:
        return Wait("interactive_live", f"{_names(chats)} uses slot {lease.asked.slot}", tuple(each.id for each in chats))
    return None


def _batch_ahead(state: State, lease: Lease) -> Lease | None:
    """An earlier batch request that waits on this card for more than what is loaded: the queue is in order of arrival.

    One that waits for a server to answer keeps nobody else waiting.
    """
    for each in state.card(lease.asked.card).leases.values():  # in order of arrival
        if each.order >= lease.order:
            return None
        waits = each.status is Status.WAITING and each.priority is Priority.BATCH and not each.asked.resident_only
        if waits and (state.slot(each.asked.slot).known or not each.asked.models):
            return each
    return None


def _live_on_slot(state: State, lease: Lease) -> list[Lease]:
    return [each for each in state.live_on(lease.asked.card) if each.asked.slot == lease.asked.slot and each.id != lease.id]


def _names(leases: Iterable[Lease]) -> str:
    return " and ".join(f"{each.asked.holder} ({each.priority})" for each in leases)


def _holders(holds: Iterable[Hold]) -> str:
    return " and ".join(hold.holder for hold in holds)
