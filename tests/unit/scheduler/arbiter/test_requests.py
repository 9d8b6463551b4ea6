"""Asking, renewing, giving back: bad input, repeated requests, and expiries of one's own."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from services.scheduler.arbiter import State, fold, waiting
from services.scheduler.arbiter.commands import (
    BadRequest,
    HoldCard,
    LeaseEnded,
    MeasureCard,
    NeedModel,
    Release,
    Renew,
    RequestGroup,
    RequestLease,
    Sweep,
    UnknownLease,
)
from services.scheduler.slots import catalogue
from shared.events import lease
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, box, only, some, started

FINE: dict[str, Any] = {"lease_id": "L1", "holder": "job", "priority": BATCH, "slot": "primary", "models": ("std",)}


@covers("lease.bad_input")
@pytest.mark.parametrize(
    ("wrong", "field", "words"),
    [
        ({"slot": "nowhere"}, "slot", "use one of: primary, art, secondary"),
        ({"models": ("coder",)}, "models", "slot secondary lists it"),
        ({"models": ("unheard-of",)}, "models", "no other slot lists it"),
        ({"models": ("std", "std")}, "models", "named once"),
        ({"models": ()}, "models", "at least one model"),
        ({"services": ("comfyui",), "services_mib": -5}, "services_mib", "got -5"),
        ({"services_mib": 5}, "services", "name them"),
        ({"context_tokens": 0}, "context_tokens", "at least 1"),
        ({"ttl": timedelta()}, "ttl", "above 0"),
        ({"ttl": timedelta(days=2)}, "ttl", "at most 3600 s"),
        ({"wait": timedelta(seconds=-1)}, "wait", "negative"),
        ({"holder": ""}, "holder", "who asks"),
        ({"lease_id": "a b"}, "lease_id", "GUID"),
        ({"priority": RUN}, "run_id", "names its run"),
        ({"priority": INTERACTIVE, "services": ("tts",)}, "services", "uses what is loaded"),
        ({"rotates": True, "resident_only": True}, "rotates", "loads nothing"),
    ],
)
def test_a_wrong_request_is_refused_by_its_field_and_changes_nothing(wrong: dict[str, Any], field: str, words: str) -> None:
    world = started()
    before = world.state
    with pytest.raises(BadRequest, match=words) as caught:
        world.do(RequestLease(**{**FINE, **wrong}))
    assert caught.value.details["field"] == field
    assert world.state == before


@covers("lease.bad_input")
def test_the_same_request_again_is_one_lease_and_another_under_its_key_or_id_is_refused() -> None:
    world = started()
    ask = RequestLease(**FINE, key="k1")
    world.do(ask)
    assert world.do(ask) == []
    assert world.do(RequestLease(**{**FINE, "lease_id": "L2"}, key="k1")) == []
    assert world.status("L2") == "unknown"
    assert world.state.by_key("k1") == "L1"
    with pytest.raises(BadRequest, match="use a new key"):
        world.do(RequestLease(**{**FINE, "lease_id": "L3", "models": ("mid",)}, key="k1"))
    with pytest.raises(BadRequest, match="use a new lease_id"):
        world.do(RequestLease(**{**FINE, "models": ("mid",)}))
    world.release("L1")
    assert world.do(ask) == [], "nor does it come back to life when it is redelivered after its end"
    assert world.status("L1") == "released"


@covers("lease.bad_input")
def test_a_key_is_remembered_for_as_long_as_its_lease_however_many_end_meanwhile() -> None:
    world = started()
    world.do(RequestLease(**FINE, key="open"))
    for number in range(1_200):
        world.do(RequestLease(**{**FINE, "lease_id": f"x{number}"}, key=f"key-{number}"))
        world.release(f"x{number}")
    assert world.state.by_key("open") == "L1"
    assert world.state.by_key("key-1199") == "x1199"
    assert world.state.by_key("key-0") is None, "old endings are forgotten in the end"
    assert len(world.state.past.older) + len(world.state.past.newest) < 600


@covers("lease.bad_input")
def test_renewals_of_leases_that_ended_or_never_were_say_so() -> None:
    world = started()
    world.do(RequestLease(**FINE))
    world.release("L1")
    with pytest.raises(LeaseEnded, match="was released") as ended:
        world.do(Renew("L1"))
    assert ended.value.details["how"] == "released"
    with pytest.raises(UnknownLease):
        world.do(Renew("never"))
    with pytest.raises(UnknownLease):
        world.do(Release("never"))


@covers("lease.bad_input")
@pytest.mark.parametrize(
    ("command", "field"),
    [
        (HoldCard("h", "game", "gpu9"), "card"),
        (HoldCard("h h", "game", "gpu0"), "hold_id"),
        (HoldCard("h", "", "gpu0"), "holder"),
        (HoldCard("h", "game", "gpu0", ttl=timedelta()), "ttl"),
        (MeasureCard("gpu9", 5), "card"),
        (MeasureCard("gpu0", -5), "used_mib"),
        (RequestGroup("g", ()), "parts"),
        (RequestGroup("g", (RequestLease(**FINE),)), "parts"),
    ],
)
def test_wrong_holds_measurements_and_groups_are_refused_too(command: Any, field: str) -> None:
    world = started()
    with pytest.raises(BadRequest) as caught:
        world.do(command)
    assert caught.value.details["field"] == field


@covers("lease.bad_input", "lease.turns")
def test_a_turn_is_for_the_models_of_a_lease_that_takes_turns() -> None:
    world = started()
    world.do(RequestLease(**FINE))
    with pytest.raises(BadRequest, match="that takes turns"):
        world.do(NeedModel("L1", "std"))


@covers("lease.bad_input")
def test_a_waiting_lease_needs_no_renewal_and_is_told_so() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.do(RequestLease(**{**FINE, "models": ("mid",)}))
    with pytest.raises(BadRequest, match="not granted yet"):
        world.do(Renew("L1"))


# ---- expiries


def count(world: World) -> int:
    return sum(each.is_live for each in world.state.leases())


@covers("lease.expiry")
def test_a_lease_whose_holder_died_expires_whatever_others_do() -> None:
    """L1 is taken at 0 and its holder dies; others come and go every minute; at 120 it is over."""
    world = started()
    world.do(RequestLease(**FINE))
    assert count(world) == 1
    counts: list[tuple[int, int, int]] = []
    for minute in range(1, 11):
        expired = some(world.pass_time(60), lease.LeaseExpired)
        if minute == 2:
            assert [(each.lease_id, each.holder) for each in expired] == [("L1", "job")]
        between = count(world)
        world.do(RequestLease(**{**FINE, "lease_id": f"M{minute}", "holder": "other"}))
        during = count(world)
        world.release(f"M{minute}")
        counts.append((between, during, count(world)))
    assert counts[0] == (1, 2, 1)
    assert counts[1:] == [(0, 1, 0)] * 9
    assert world.do(Release("L1")) == [], "a late release changes nothing"
    assert fold(State(world.known), [fact.event for fact in world.facts]) == world.state


@covers("lease.expiry")
def test_a_renewed_lease_lives_on_for_its_own_time() -> None:
    world = started()
    world.do(RequestLease(**{**FINE, "ttl": timedelta(seconds=100)}))
    world.pass_time(90)
    facts = world.do(Renew("L1"))
    assert only(facts, lease.LeaseRenewed).expires_at == world.now + timedelta(seconds=100)
    world.do(Renew("L1", timedelta(seconds=10)))
    world.pass_time(10)
    assert world.status("L1") == "expired"


@covers("lease.expiry")
def test_a_renewal_that_comes_too_late_ends_the_lease_and_does_not_bring_it_back() -> None:
    world = started()
    world.do(RequestLease(**FINE))
    world.now += timedelta(seconds=121)
    assert only(world.do(Renew("L1")), lease.LeaseExpired).lease_id == "L1"
    assert world.status("L1") == "expired"


@covers("lease.expiry", "lease.order")
def test_the_leases_of_a_run_that_died_without_a_word_are_ended_by_the_sweep() -> None:
    world = started()
    world.ask("a", RUN, "primary", "big", run_id="r")
    world.ask("b", RUN, "secondary", "coder", run_id="r")
    world.pass_time(121)
    assert world.state.of_run("r") == []
    world.pass_time(5)
    assert world.resident("primary") == {"embed", "std"}


@covers("slots.catalogue", "lease.queue")
def test_settings_may_change_under_open_leases_and_those_on_a_slot_that_is_gone_come_to_an_end() -> None:
    world = started()
    world.auto = False
    world.ask("busy", RUN, "secondary", "coder")  # still loading
    world.ask("job", BATCH, "secondary", "vision")
    fewer = {name: slot for name, slot in box().slots.items() if name != "secondary"}
    world.known = catalogue(box(slots=fewer))
    world.state = replace(world.state, catalogue=world.known)
    assert all(line.reason for line in waiting(world.state))
    world.do(Sweep())
    assert world.status("job") == "refused"
    world.ask("next", RUN, "primary", "std")
    assert world.status("next") == "granted"
    world.pass_time(7_200)
    assert world.status("busy") == "expired"
