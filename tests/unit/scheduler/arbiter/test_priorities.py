"""Run, then interactive, then batch: who gets a slot, who makes way, who waits."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.scheduler.arbiter import explain, waiting
from services.scheduler.arbiter.commands import LoseSlot, MeasureCard
from shared.events import lease, model
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, only, reason, some, started


@covers("lease.order", "lease.interactive")
def test_a_run_ends_an_interactive_lease_on_its_slot_at_once_also_when_it_needs_nothing_of_it() -> None:
    world = started()
    world.ask("chat", INTERACTIVE, "primary", "std")
    facts = world.ask("run", RUN, "primary", "std")
    ended = only(facts, lease.LeasePreempted)
    assert (ended.lease_id, ended.by) == ("chat", "run")
    assert (world.status("run"), world.status("chat")) == ("granted", "preempted")
    assert world.types().index("lease.preempted") < world.types().index("lease.granted", world.types().index("lease.preempted"))
    assert not some(facts, lease.LeasePreemptRequested), "an interactive lease has no grace"


@covers("lease.interactive")
def test_an_interactive_lease_on_another_slot_of_the_card_stays_beside_a_run_that_fits() -> None:
    world = started()
    world.put("art", "tiny-chat", mib=1_000)
    world.probe("art")
    world.ask("chat", INTERACTIVE, "art", "tiny-chat")
    world.ask("run", RUN, "primary", "std")
    assert (world.status("chat"), world.status("run")) == ("granted", "granted")


@covers("lease.order")
@pytest.mark.parametrize("priority", [RUN, BATCH])
def test_an_interactive_lease_displaces_nobody_and_is_refused_while_the_slot_is_in_use(priority: lease.Priority) -> None:
    world = started()
    world.ask("user", priority, "primary", "std")
    world.ask("chat", INTERACTIVE, "primary", "std")
    assert (world.status("user"), world.status("chat")) == ("granted", "refused")
    assert "user" in reason(world, "chat")


@covers("lease.interactive")
@pytest.mark.parametrize(("slot", "name"), [("primary", "mid"), ("secondary", "coder")])
def test_an_interactive_lease_loads_nothing_and_waits_for_nothing(slot: str, name: str) -> None:
    world = started()
    facts = world.ask("chat", INTERACTIVE, slot, name)
    assert world.status("chat") == "refused"
    assert only(facts, lease.LeaseRefused).code == "not_resident"
    assert not some(facts, model.ModelLoading)


@covers("lease.interactive")
def test_a_chat_is_refused_and_not_let_in_for_a_moment_where_a_run_waits_for_the_slot() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    facts = world.ask("chat", INTERACTIVE, "primary", "std")
    assert only(facts, lease.LeaseRefused).code == "slot_in_use"
    assert not some(facts, lease.LeaseGranted)


@covers("lease.grace", "lease.effects")
def test_batch_work_is_asked_to_release_and_the_run_comes_when_it_does() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    facts = world.ask("run", RUN, "primary", "big")
    asked = only(facts, lease.LeasePreemptRequested)
    assert (asked.lease_id, asked.deadline_at) == ("job", world.now + timedelta(seconds=30))
    assert (world.status("job"), world.status("run")) == ("granted", "waiting")
    assert "mid" in world.resident("primary"), "its model stays until it has released"
    world.pass_time(10)
    world.release("job")
    assert world.status("run") == "granted"
    assert world.resident("primary") == {"embed", "big"}


@covers("lease.grace")
def test_batch_work_that_does_not_release_is_ended_when_its_grace_is_over_and_not_before() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    world.pass_time(29)
    assert (world.status("job"), world.status("run")) == ("granted", "waiting")
    world.pass_time(1)
    assert (world.status("job"), world.status("run")) == ("preempted", "granted")
    assert world.violations() == []


@covers("lease.grace")
def test_the_grace_runs_from_the_first_run_that_asked() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    world.pass_time(20)
    world.ask("late", RUN, "primary", "big")
    world.pass_time(10)
    assert world.status("job") == "preempted"


@covers("lease.grace")
def test_batch_work_goes_on_where_the_run_that_asked_it_to_go_is_cancelled() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    facts = world.end_run("run-run")
    assert only(facts, lease.LeasePreemptWithdrawn).lease_id == "job"
    world.pass_time(60)
    assert world.status("job") == "granted"


@covers("lease.grace")
def test_of_several_batch_jobs_one_that_need_not_go_after_all_is_told_so() -> None:
    """Both were asked; the run has its place with the first release, and the other one only uses what is loaded."""
    world = started()
    world.put("primary", "tiny")  # by hand, so it stays
    world.probe("primary")
    world.ask("light", BATCH, "primary", "std")
    world.ask("heavy", BATCH, "primary", "mid")
    facts = world.ask("run", RUN, "primary", "mid", "std")
    assert [each.lease_id for each in some(facts, lease.LeasePreemptRequested)] == ["heavy"], "a light one may stay beside a run"
    world.release("heavy")
    assert (world.status("run"), world.status("light")) == ("granted", "granted")


@covers("lease.grace", "lease.plan")
def test_batch_work_goes_on_where_room_came_from_elsewhere() -> None:
    world = started()
    world.do(MeasureCard("gpu0", 8_500 + 7_000))  # another program has 7,000
    world.ask("light", BATCH, "primary", "std")
    facts = world.ask("run", RUN, "primary", "mid")
    assert only(facts, lease.LeasePreemptRequested).lease_id == "light"
    facts = world.do(MeasureCard("gpu0", 8_500))
    assert only(facts, lease.LeasePreemptWithdrawn).lease_id == "light"
    world.pass_time(60)
    assert (world.status("run"), world.status("light")) == ("granted", "granted")


@covers("lease.order")
def test_a_run_is_refused_with_the_arithmetic_where_only_another_run_would_have_to_go() -> None:
    world = started()
    world.ask("first", RUN, "primary", "big")
    world.ask("second", RUN, "primary", "mid")
    assert (world.status("first"), world.status("second")) == ("granted", "refused")
    assert "run lease of first" in reason(world, "second")
    assert "MiB are missing" in reason(world, "second")


@covers("lease.beside_run")
def test_batch_work_that_would_load_waits_while_a_run_is_live_on_the_card_even_where_it_fits() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std")
    world.ask("job", BATCH, "primary", "tiny")
    assert world.status("job") == "waiting"
    told = explain(world.state, "job")
    assert told is not None
    assert (told.code, told.waits_for) == ("run_live", ("run",))
    world.end_run("run-run")
    assert world.status("job") == "granted"


@covers("lease.beside_run")
def test_batch_work_that_would_start_a_service_waits_while_a_run_is_live_on_the_card() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std")
    world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=4_000)
    assert world.status("painter") == "waiting"
    world.end_run("run-run")
    assert world.status("painter") == "granted"


@covers("lease.beside_run")
def test_batch_work_on_a_loaded_model_without_a_service_is_granted_beside_a_run() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std")
    world.ask("judge", BATCH, "primary", "std")
    assert world.status("judge") == "granted"
    world.ask("other", RUN, "primary", "std")
    assert (world.status("judge"), world.status("other")) == ("granted", "granted"), "nor is it sent away by the next one"


@covers("lease.beside_run")
def test_batch_work_on_another_card_does_not_wait_for_a_run() -> None:
    world = started()
    world.ask("run", RUN, "primary", "std")
    world.ask("job", BATCH, "secondary", "coder")
    assert world.status("job") == "granted"


@covers("lease.beside_run", "lease.order")
def test_batch_work_on_loaded_models_cannot_keep_a_run_waiting_by_coming_again_and_again() -> None:
    world = started()
    world.ask("first", BATCH, "primary", "std")
    world.ask("run", RUN, "primary", "big")  # std must go
    assert world.status("run") == "waiting"
    world.ask("next", BATCH, "primary", "std")
    told = explain(world.state, "next")
    assert told is not None
    assert told.code == "behind_run"
    world.release("first")
    assert (world.status("run"), world.status("next")) == ("granted", "waiting")
    assert world.resident("primary") == {"embed", "big"}


@covers("lease.order")
def test_batch_work_that_loads_leaves_the_card_to_a_run_that_fits_beside_it() -> None:
    world = started()
    world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=2_000)
    facts = world.ask("run", RUN, "primary", "std")
    assert only(facts, lease.LeasePreemptRequested).lease_id == "painter"


@covers("lease.queue")
def test_batch_work_is_served_in_order_of_arrival_and_runs_before_it() -> None:
    world = started()
    world.ask("busy", RUN, "primary", "big")
    for name in ("a", "b"):
        world.ask(name, BATCH, "primary", "mid")
    assert [(each.lease_id, each.position) for each in waiting(world.state)] == [("a", 1), ("b", 2)]
    world.end_run("run-busy")
    assert (world.status("a"), world.status("b")) == ("granted", "granted"), "the second one uses what the first had loaded"


@covers("lease.queue")
def test_whoever_waits_is_told_the_holder_and_its_position() -> None:
    world = started()
    world.ask("busy", RUN, "primary", "big", holder="Team Alpha")
    world.ask("a", BATCH, "primary", "mid")
    facts = world.ask("b", BATCH, "primary", "tiny")
    queued = only(facts, lease.LeaseQueued)
    assert queued.position == 2
    assert queued.code == "behind_batch"
    told = explain(world.state, "a")
    assert told is not None
    assert "Team Alpha" in told.reason


@covers("lease.queue", "lease.unknown")
def test_batch_work_for_a_server_that_is_off_keeps_nobody_else_waiting() -> None:
    world = started()
    world.do(LoseSlot("primary", "connection refused"))
    world.ask("stuck", BATCH, "primary", "mid")
    world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=2_000)
    assert (world.status("stuck"), world.status("painter")) == ("waiting", "granted")


@covers("lease.queue")
def test_a_request_that_waited_as_long_as_it_may_expires() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.ask("job", BATCH, "primary", "mid", wait=timedelta(seconds=50))
    for _ in range(5):
        world.pass_time(10)
    assert world.status("job") == "expired"
    assert world.status("run") == "granted"


@covers("lease.queue")
def test_a_request_that_is_not_to_wait_is_refused_with_the_reason_it_would_have_waited_for() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    world.ask("job", BATCH, "primary", "mid", wait=timedelta())
    assert world.status("job") == "refused"
    assert "run" in reason(world, "job")


@covers("lease.resident_run")
def test_a_resident_only_run_lease_loads_nothing_and_is_refused_where_its_model_is_not_loaded() -> None:
    world = started()
    world.ask("run", RUN, "primary", "mid", resident_only=True)
    assert world.status("run") == "refused"
    assert world.loads == ["std"], "only the standard set was loaded, at the start"


@covers("lease.resident_run", "lease.interactive")
def test_a_resident_only_run_lease_keeps_chats_out_and_a_card_hold_waiting_like_any_other() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")  # heavy
    facts = world.ask("run", RUN, "primary", "std", resident_only=True)
    assert world.status("run") == "granted"
    assert not some(facts, lease.LeasePreemptRequested), "it asks nobody to go"
    world.ask("chat", INTERACTIVE, "primary", "std")
    assert world.status("chat") == "refused"
