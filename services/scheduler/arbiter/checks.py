"""What is wrong with a request before any rule looks at it, in words that say how to mend it. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from services.scheduler.arbiter.commands import BadRequest, RequestLease
from services.scheduler.arbiter.state import State
from services.scheduler.slots import Slot
from shared.events.lease import Priority
from shared.ids import is_token


def check_request(state: State, ask: RequestLease) -> None:
    """
    Raises:
        BadRequest: for the first field that is wrong.
    """
    for field, message in _wrong(state, ask):
        raise BadRequest(message, field=field)


def _wrong(state: State, ask: RequestLease) -> Iterator[tuple[str, str]]:
    slot = state.catalogue.slots.get(ask.slot)
    if not is_token(ask.lease_id):
        yield "lease_id", f"lease id {ask.lease_id!r} must be of [A-Za-z0-9_-]: use a GUID"
    if not ask.holder:
        yield "holder", "say who asks: holder must not be empty"
    if slot is None:
        yield "slot", f"no slot is called {ask.slot!r}; use one of: {', '.join(state.catalogue.slots) or 'none is configured'}"
        return
    if not ask.models and not ask.services:
        yield "models", "name at least one model, or a service"
    yield from _wrong_models(state, slot, ask)
    yield from _wrong_numbers(state, ask)
    yield from _wrong_kind(ask)


def _wrong_models(state: State, slot: Slot, ask: RequestLease) -> Iterator[tuple[str, str]]:
    if len(set(ask.models)) != len(ask.models):
        yield "models", f"each model is named once, got {', '.join(ask.models)}"
    listed = slot.models.keys() | state.slot(slot.name).listed | set(slot.standard_set)
    if not listed:  # neither configured nor seen: only the backend can tell
        return
    for name in ask.models:
        if name not in listed:
            other = _slots_with(state, name)
            where = f"; slot {' and '.join(other)} lists it" if other else ", and no other slot lists it"
            yield "models", f"slot {slot.name} lists no model {name!r}{where}. It lists: {', '.join(sorted(listed))}"


def _slots_with(state: State, model: str) -> list[str]:
    return [name for name, slot in state.catalogue.slots.items() if model in slot.models or model in state.slot(name).listed]


def _wrong_numbers(state: State, ask: RequestLease) -> Iterator[tuple[str, str]]:
    if ask.services_mib < 0:
        yield "services_mib", f"a size can't be negative, got {ask.services_mib}: give MiB, 0 or more"
    if ask.context_tokens is not None and ask.context_tokens < 1:
        yield "context_tokens", f"context_tokens must be at least 1, got {ask.context_tokens}: leave it out to take what is loaded"
    if ask.wait is not None and ask.wait < timedelta():
        yield "wait", f"a wait can't be negative, got {ask.wait.total_seconds():g} s: give 0 or more"
    yield from wrong_ttl(state, ask.ttl)


def wrong_ttl(state: State, ttl: timedelta | None) -> Iterator[tuple[str, str]]:
    longest = state.catalogue.times.max_lease_ttl
    if ttl is not None and not timedelta() < ttl <= longest:
        yield "ttl", f"ttl must be above 0 and at most {longest.total_seconds():g} s, got {ttl.total_seconds():g} s: renew for longer"


def _wrong_kind(ask: RequestLease) -> Iterator[tuple[str, str]]:
    if ask.priority is Priority.RUN and ask.run_id is None:
        yield "run_id", "a lease of run priority names its run: set run_id"
    if ask.priority is Priority.INTERACTIVE and (ask.services or ask.rotates):
        field = "services" if ask.services else "rotates"
        yield field, "an interactive lease uses what is loaded: leave services and rotates out"
    if ask.rotates and ask.resident_only:
        yield "rotates", "a lease that loads nothing can't rotate: leave out rotates or resident_only"
    if ask.services_mib and not ask.services:
        yield "services", "services_mib is the memory of services: name them"


def describe(ask: RequestLease) -> dict[str, Any]:
    """What makes two requests the same under one idempotency key: all but the lease's id."""
    return {
        "holder": ask.holder,
        "priority": ask.priority,
        "slot": ask.slot,
        "models": ask.models,
        "resident_only": ask.resident_only or ask.priority is Priority.INTERACTIVE,
        "rotates": ask.rotates,
        "services": ask.services,
        "services_mib": ask.services_mib,
        "context_tokens": ask.context_tokens,
        "run_id": ask.run_id,
    }
