"""Cards that are held for something outside the engine, standard sets that come back, and leases that come together."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.scheduler.arbiter import explain
from services.scheduler.arbiter.commands import HoldCard, LoseSlot, ReleaseHold, RequestGroup, RequestLease, Sweep
from services.scheduler.slots import catalogue
from shared.events import card, lease, model
from shared.scheduler_settings import ModelSettings, SlotSettings
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, box, only, some, started

HOLD = HoldCard("hold", "a game", "gpu0")


# ---- holds


@covers("lease.holds")
def test_a_hold_waits_for_a_live_run_and_a_run_waits_for_the_hold() -> None:
    world = started()
    world.ask("first", RUN, "primary", "std")
    world.do(HOLD)
    assert world.state.card("gpu0").held is None
    world.ask("second", RUN, "primary", "std")
    assert world.status("second") == "waiting"
    told = explain(world.state, "second")
    assert told is not None
    assert "a game" in told.reason
    facts = world.end_run("run-first")
    assert only(facts, card.CardHeld).hold_id == "hold"
    assert world.status("second") == "waiting"
    world.do(ReleaseHold("hold"))
    assert world.status("second") == "granted"
    assert world.violations() == []


@covers("lease.holds", "lease.resident_run")
def test_a_hold_waits_for_a_resident_only_run_lease_too() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std", resident_only=True)
    world.do(HOLD)
    assert world.state.card("gpu0").held is None
    world.end_run("run-run")
    assert world.state.card("gpu0").held is not None


@covers("lease.holds")
def test_a_card_is_held_once_the_engines_own_models_are_off_it_and_others_stay() -> None:
    world = started()
    world.put("primary", "tiny")  # by hand
    world.probe("primary")
    world.do(HOLD)
    assert world.resident("primary") == {"embed", "tiny"}
    assert world.state.card("gpu0").held is not None


@covers("lease.holds", "lease.grace", "lease.interactive")
def test_for_a_hold_chats_end_at_once_and_batch_work_after_its_grace() -> None:
    world = started()
    world.ask("chat", INTERACTIVE, "primary", "std")
    world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=2_000)
    facts = world.do(HOLD)
    assert only(facts, lease.LeasePreempted).lease_id == "chat"
    assert only(facts, lease.LeasePreemptRequested).lease_id == "painter"
    world.pass_time(30)
    assert world.status("painter") == "preempted"
    assert world.state.card("gpu0").held is not None
    assert world.violations() == []


@covers("lease.holds")
def test_on_a_held_card_batch_waits_and_chats_are_refused_and_the_other_card_goes_on() -> None:
    world = started()
    world.do(HOLD)
    world.ask("chat", INTERACTIVE, "primary", "std")
    world.ask("job", BATCH, "primary", "std")
    world.ask("far", RUN, "secondary", "coder")
    assert (world.status("chat"), world.status("job"), world.status("far")) == ("refused", "waiting", "granted")


@covers("lease.holds", "lease.beside_run")
def test_a_call_that_a_run_makes_as_batch_work_does_not_wait_for_a_hold_that_waits_for_the_run() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std")
    world.do(HOLD)
    world.ask("judge", BATCH, "primary", "std")
    assert world.status("judge") == "granted"
    world.end_run("run-run")
    assert world.state.card("gpu0").held is None
    world.release("judge")
    assert world.state.card("gpu0").held is not None


@covers("lease.holds")
def test_a_hold_ends_by_its_time_and_lasts_longer_when_it_is_asked_for_again() -> None:
    world = started()
    timed = HoldCard("hold", "a game", "gpu0", ttl=timedelta(seconds=60))
    world.do(timed)
    world.pass_time(50)
    world.do(timed)
    world.pass_time(50)
    assert world.state.card("gpu0").held is not None
    facts = world.pass_time(10)
    assert only(facts, card.CardReleased).hold_id == "hold"
    assert world.resident("primary") == {"embed", "std"}, "the standard set is back"


@covers("lease.holds", "lease.unknown")
def test_a_server_that_is_off_keeps_no_hold_waiting_and_the_hold_says_what_may_be_left() -> None:
    world = started()
    world.do(LoseSlot("primary", "connection refused"))
    held = only(world.do(HOLD), card.CardHeld)
    assert set(held.left) == {"embed", "std"}
    assert not some([fact.event for fact in world.facts], model.ModelUnloading)


# ---- the standard set


@covers("lease.restore")
def test_the_last_release_on_a_slot_restores_its_standard_set_with_the_next_sweep() -> None:
    world = started()
    world.ask("a", RUN, "primary", "big")
    world.ask("b", RUN, "primary", "big")
    world.end_run("run-a")
    world.pass_time(5)
    assert world.resident("primary") == {"embed", "big"}, "one is still live"
    world.end_run("run-b")
    assert world.resident("primary") == {"embed", "big"}
    world.pass_time(5)
    assert world.resident("primary") == {"embed", "std"}
    assert world.state.slot("primary").restore is None


@covers("lease.restore")
def test_a_queued_request_keeps_a_slot_from_being_restored() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.ask("other", RUN, "secondary", "coder", run_id="run-x")
    world.do(HoldCard("hold", "a game", "gpu0"))
    world.ask("next", RUN, "primary", "big")
    world.do(ReleaseHold("hold"))
    world.end_run("run-run")
    world.pass_time(5)
    assert world.status("next") == "granted"
    assert world.loads.count("big") == 1, "what it needed was left where it was"


def delayed(seconds: float) -> World:
    plain = box().slots["primary"]
    slots = {**box().slots, "primary": plain.model_copy(update={"restore_delay_s": seconds})}
    world = World(catalogue(box(slots=slots)))
    world.put("primary", "embed")
    world.probe()
    world.pass_time(0)
    return world


@covers("lease.restore")
def test_a_restore_waits_for_its_delay_which_each_release_starts_anew() -> None:
    world = delayed(60)
    world.ask("a", RUN, "primary", "big")
    world.release("a")
    world.pass_time(50)
    world.ask("b", BATCH, "primary", "big")
    world.release("b")
    world.pass_time(50)
    assert world.resident("primary") == {"embed", "big"}
    world.pass_time(10)
    assert world.resident("primary") == {"embed", "std"}


@covers("lease.restore")
def test_idleness_begins_with_the_last_release_and_not_with_a_request() -> None:
    """Idle after 10 s: one answer takes from 0 to 25, the next from 30 to 32, two overlap, and the model goes 10 s after the last."""
    world = delayed(10)
    world.ask("a", RUN, "primary", "big", run_id="r")
    world.pass_time(25)
    world.release("a")
    world.pass_time(5)
    world.ask("b", RUN, "primary", "big", run_id="r")
    world.pass_time(1)
    world.ask("c", RUN, "primary", "big", run_id="r")
    world.pass_time(1)
    world.release("b")
    world.release("c")
    assert world.loads.count("big") == 1, "the follow-up needed no load"
    gone_at: list[float] = []
    for _ in range(14):
        facts = world.pass_time(1)
        gone_at += [(each.at - world.facts[0].time).total_seconds() for each in some(facts, model.ModelUnloading)]
    assert len(gone_at) == 1
    assert 42 <= gone_at[0] <= 44


@covers("lease.restore")
def test_a_failed_restore_is_tried_three_times_each_later_than_the_last_and_again_after_the_next_lease() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.broken = {"std"}
    world.end_run("run-run")
    tries: list[float] = []
    for _ in range(200):
        tries += [(each.at - world.facts[0].time).total_seconds() for each in some(world.pass_time(1), model.ModelLoading)]
    assert len(tries) == 3
    assert [tries[1] - tries[0], tries[2] - tries[1]] == [10, 20]
    failures = some([fact.event for fact in world.facts], model.RestoreFailed)
    assert [each.attempt for each in failures] == [1, 2, 3]
    assert failures[-1].retry_at is None
    world.broken = set()
    world.ask("next", RUN, "primary", "tiny")
    world.end_run("run-next")
    world.pass_time(1)
    assert world.resident("primary") == {"embed", "std"}


@covers("lease.restore", "lease.protected")
def test_a_restore_whose_unload_meets_a_request_in_flight_is_tried_again() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.end_run("run-run")
    world.auto = False
    world.pass_time(1)
    world.fail_unload("primary", "big")
    assert only([fact.event for fact in world.facts], model.RestoreFailed).retry_at is not None
    world.auto = True
    world.probe("primary")
    world.pass_time(10)
    assert world.resident("primary") == {"embed", "std"}


@covers("lease.restore")
def test_a_slot_that_gave_way_to_a_run_elsewhere_on_its_card_gets_its_standard_set_back_too() -> None:
    slots = {**box().slots, "art": SlotSettings(card="gpu0", models={"painter": ModelSettings(mib=6_000)}, standard_set=("painter",))}
    world = World(catalogue(box(slots=slots)))
    world.put("primary", "embed")
    world.probe()
    world.pass_time(0)
    assert world.resident("art") == {"painter"}
    world.ask("run", RUN, "primary", "big")
    assert world.resident("art") == set()
    world.pass_time(5)
    assert world.resident("art") == set(), "there is no room for it"
    world.end_run("run-run")
    world.pass_time(5)
    world.pass_time(5)
    assert (world.resident("art"), world.resident("primary")) == ({"painter"}, {"embed", "std"})


# ---- leases that come together


def parts(run_id: str, *wanted: tuple[str, str]) -> RequestGroup:
    asks = tuple(RequestLease(f"{run_id}-{slot}", run_id, RUN, slot, (name,), run_id=run_id) for slot, name in wanted)
    return RequestGroup(f"group-{run_id}", asks)


def beside() -> World:
    slots = {**box().slots, "second": SlotSettings(card="gpu0", models={"small": ModelSettings(mib=1_000)})}
    world = World(catalogue(box(slots=slots)), auto=False)
    world.put("primary", "embed", "std")
    world.probe()
    return world


@covers("lease.group")
def test_slots_on_different_cards_are_acquired_at_the_same_time_and_on_one_card_one_after_another() -> None:
    world = beside()
    facts = world.do(parts("r", ("primary", "mid"), ("second", "small"), ("secondary", "coder")))
    assert {each.model for each in some(facts, model.ModelLoading)} == {"mid", "coder"}
    told = explain(world.state, "r-second")
    assert told is not None
    assert told.code == "after_sibling"
    loading = next(each for each in some(facts, model.ModelLoading) if each.model == "mid")
    assert [each.model for each in some(world.finish(loading), model.ModelLoading)] == ["small"]


@covers("lease.group")
def test_a_refusal_releases_all_of_them() -> None:
    world = beside()
    world.auto = True
    world.do(parts("r", ("secondary", "coder"), ("primary", "huge")))
    assert [world.status("r-secondary"), world.status("r-primary")] == ["released", "refused"]
    world.broken = {"mid"}
    world.do(parts("s", ("secondary", "coder"), ("primary", "mid"), ("second", "small")))
    assert [world.status(f"s-{slot}") for slot in ("secondary", "primary", "second")] == ["released", "refused", "refused"]
    assert list(world.state.leases()) == []


@covers("lease.group", "lease.restore")
def test_all_leases_of_a_run_end_in_one_decision_before_any_slot_is_restored() -> None:
    world = beside()
    world.auto = True
    world.do(parts("r", ("primary", "big"), ("second", "small"), ("secondary", "coder")))
    assert all(each.status.value == "granted" for each in world.state.leases())
    facts = world.end_run("r")
    assert len(some(facts, lease.LeaseReleased)) == 3
    assert not some(facts, model.ModelUnloading)
    assert not some(facts, model.ModelLoading)
    assert some(world.pass_time(5), model.ModelLoading)


@covers("lease.group", "lease.restore")
def test_a_slot_is_not_restored_while_its_run_still_holds_another() -> None:
    world = beside()
    world.auto = True
    world.do(parts("r", ("primary", "big"), ("secondary", "coder")))
    world.release("r-primary")
    world.pass_time(5)
    assert "big" in world.resident("primary")
    world.end_run("r")
    world.pass_time(5)
    assert "std" in world.resident("primary")


@covers("lease.group", "lease.expiry")
@pytest.mark.parametrize("how", ["released", "expired"])
def test_a_part_that_waits_for_a_sibling_is_not_stranded_when_that_ends(how: str) -> None:
    world = beside()
    world.do(parts("r", ("primary", "mid"), ("second", "small")))
    if how == "released":
        world.release("r-primary")
        assert world.status("r-second") == "admitted"
        return
    for _ in range(20):
        world.pass_time(600)
        world.probe()
    assert list(world.state.leases()) == []


@covers("lease.group")
def test_a_run_under_way_is_not_stopped_on_its_second_card_by_a_hold_that_waits_for_it() -> None:
    world = started()
    world.ask("a", RUN, "primary", "std", run_id="r")
    world.do(HoldCard("hold", "a game", "gpu1"))
    world.do(ReleaseHold("hold"))
    world.ask("other", RUN, "secondary", "coder", run_id="x")
    world.do(HoldCard("hold", "a game", "gpu1"))
    world.ask("b", RUN, "secondary", "coder", run_id="r")
    assert world.status("b") == "granted"
    world.do(Sweep())
    assert world.state.card("gpu1").held is None
