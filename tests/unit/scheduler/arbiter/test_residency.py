"""Bringing models in: what goes for them, what never does, and a backend that fails, lies or says nothing."""

from __future__ import annotations

from datetime import timedelta

import pytest

from services.scheduler.arbiter import State, fold
from services.scheduler.arbiter.commands import (
    FailLoad,
    FinishLoad,
    FinishUnload,
    LoseSlot,
    MeasureCard,
    NeedModel,
    ObserveSlot,
    Seen,
    Sweep,
)
from services.scheduler.slots import catalogue
from shared.events import card, lease, model
from shared.scheduler_settings import CardSettings, ModelSettings, SlotSettings
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, box, only, reason, some, started


@covers("lease.plan", "lease.loads")
def test_only_what_is_missing_is_loaded_and_only_what_the_shortfall_requires_goes() -> None:
    world = started()
    world.ask("warm", BATCH, "primary", "tiny")
    world.release("warm")
    facts = world.ask("run", RUN, "primary", "mid", "std")
    assert [each.model for each in some(facts, model.ModelLoading)] == ["mid"]
    assert not some(facts, model.ModelUnloading)
    assert world.resident("primary") == {"embed", "std", "mid", "tiny"}, "a model that may stay beside is left and is no failure"


@covers("lease.plan", "lease.protected")
def test_the_standard_set_goes_for_a_run_that_does_not_fit_beside_it_and_the_embedding_model_never() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big")
    assert world.status("run") == "granted"
    assert world.resident("primary") == {"embed", "big"}


@covers("lease.plan", "lease.protected")
def test_a_run_that_cannot_fit_beside_the_embedding_model_is_refused_with_the_arithmetic() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big", "mid")
    words = reason(world, "run")
    assert "embed (500 MiB, the embedding model)" in words
    assert f"{20_000 + 9_000 + 500 - 24_000} MiB are missing" in words
    assert "std" in world.resident("primary"), "nothing was unloaded for a plan that cannot fit"


@covers("lease.protected")
def test_a_model_that_somebody_loaded_by_hand_is_never_unloaded() -> None:
    world = started()
    world.put("primary", "mid", mib=9_000)
    world.probe("primary")
    world.ask("run", RUN, "primary", "big")
    assert world.status("run") == "refused"
    assert "mid (9000 MiB, not loaded by the engine)" in reason(world, "run")
    assert "mid" in world.resident("primary")


@covers("lease.protected")
def test_an_embedding_model_is_known_under_any_spelling() -> None:
    world = World(catalogue(box(embedding_models=("Embed",))))
    world.put("primary", "acme/embed@f16", mib=9_000)
    world.probe()
    world.ask("run", RUN, "primary", "big")
    assert world.status("run") == "refused"
    assert "the embedding model" in reason(world, "run")


@covers("lease.protected")
def test_a_model_that_answers_goes_only_when_its_call_has_ended() -> None:
    world = started()
    world.answering["primary", "std"] = 1
    facts = world.ask("run", RUN, "primary", "big")
    assert not some(facts, model.ModelUnloading)
    assert only(facts, lease.LeaseQueued).code == "answering"
    del world.answering["primary", "std"]
    world.do(Sweep())
    assert world.status("run") == "granted"


@covers("lease.protected")
def test_a_model_that_is_loading_for_one_lease_is_not_unloaded_for_another() -> None:
    world = started()
    world.auto = False
    loading = only(world.ask("job", BATCH, "primary", "mid"), model.ModelLoading)
    facts = world.ask("run", RUN, "primary", "big")
    assert not some(facts, model.ModelUnloading)
    facts = world.release("job")
    assert not some(facts, model.ModelUnloading), "nobody holds it any more, and it is still loading"
    world.auto = True
    world.finish(loading)
    assert world.status("run") == "granted"
    assert world.violations() == []


@covers("lease.loads")
def test_loads_of_one_slot_come_one_after_another_and_a_model_that_two_want_is_loaded_once() -> None:
    world = started()
    world.auto = False
    first = world.ask("a", RUN, "primary", "mid", "tiny")
    second = world.ask("b", RUN, "primary", "mid")
    assert [each.model for each in some([*first, *second], model.ModelLoading)] == ["mid"]
    facts = world.finish(only(first, model.ModelLoading))
    assert world.status("b") == "granted"
    assert [each.model for each in some(facts, model.ModelLoading)] == ["tiny"]


@covers("lease.loads")
def test_a_load_that_somebody_else_began_is_awaited_and_not_asked_for_again() -> None:
    world = started()
    world.loaded["primary"]["mid"] = Seen("mid", "loading")
    world.probe("primary")
    facts = world.ask("run", RUN, "primary", "mid")
    assert not some(facts, model.ModelLoading)
    assert world.status("run") == "admitted"
    world.put("primary", "mid")
    world.probe("primary")
    assert world.status("run") == "granted"
    assert "mid" not in world.loads


@covers("lease.loads")
def test_a_stacked_copy_is_counted_and_unloaded_and_no_model_of_its_own() -> None:
    world = started()
    world.ask("run", RUN, "primary", "mid")
    world.put("primary", "mid:2")
    world.auto = False
    facts = world.probe("primary")
    assert world.state.slot("primary").models["mid"].total_mib == 18_000
    assert "mid:2" not in world.state.slot("primary").models
    dropped = only(facts, model.ModelUnloading)
    assert (dropped.model, dropped.instance, dropped.purpose) == ("mid", "mid:2", "duplicate")
    world.finish(dropped)
    assert world.state.slot("primary").models["mid"].total_mib == 9_000
    assert world.status("run") == "granted"


@covers("lease.loads", "relay.copies")
def test_a_copy_that_was_made_for_chat_clients_stays() -> None:
    primary = box().slots["primary"].model_copy(update={"interactive_copies": {"mid": "mid:2"}})
    world = started(slots={**box().slots, "primary": primary})
    world.ask("run", RUN, "primary", "mid")
    world.put("primary", "mid:2")
    world.auto = False
    assert not some(world.probe("primary"), model.ModelUnloading)
    world.put("primary", "mid:3")
    assert only(world.probe("primary"), model.ModelUnloading).instance == "mid:3"


@covers("lease.loads")
def test_a_stacked_copy_goes_only_when_no_call_may_be_on_it() -> None:
    world = started()
    world.ask("run", RUN, "primary", "mid")
    world.put("primary", "mid:2")
    world.answering["primary", "mid"] = 1
    assert not some(world.probe("primary"), model.ModelUnloading)


# ---- a backend that fails


@covers("lease.loads", "lease.queue")
def test_a_load_that_fails_is_not_asked_for_again_and_all_that_waited_for_it_hear_why() -> None:
    world = started()
    world.broken = {"mid"}
    world.ask("run", RUN, "primary", "mid")
    assert world.status("run") == "refused"
    assert world.loads.count("mid") == 1
    assert "not enough memory" in reason(world, "run")
    assert world.state.slot("primary").known, "the server answered, so what it holds is known"


@covers("lease.loads")
def test_a_model_that_did_not_land_fails_the_run_and_one_that_was_left_beside_it_does_not() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "mid")
    world.do(FinishLoad("primary", "mid", world.listing("primary")))
    assert world.status("run") == "refused"
    assert "does not list mid as loaded" in reason(world, "run")


@covers("lease.unknown")
def test_a_probe_after_the_load_that_does_not_answer_fails_the_run_and_leaves_the_slot_unknown_not_empty() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "mid")
    world.do(FinishLoad("primary", "mid", None))
    slot = world.state.slot("primary")
    assert world.status("run") == "refused"
    assert not slot.known
    assert "std" in slot.models


@covers("lease.unknown")
def test_nothing_is_loaded_unloaded_or_taken_for_granted_on_a_slot_that_does_not_answer() -> None:
    world = started()
    world.do(LoseSlot("primary", "status 502"))
    world.ask("run", RUN, "primary", "mid")
    world.ask("chat", INTERACTIVE, "primary", "std")
    world.ask("judge", BATCH, "primary", "std")
    assert (world.status("run"), world.status("chat"), world.status("judge")) == ("refused", "refused", "waiting")
    assert "status 502" in reason(world, "run")
    world.pass_time(1)
    assert world.loads == ["std"], "only what was loaded before"
    world.probe("primary")
    assert world.status("judge") == "granted"


@covers("lease.unknown")
def test_a_slot_that_was_never_probed_is_unknown_too() -> None:
    world = World()
    world.ask("run", RUN, "primary", "mid")
    assert "it has not been asked yet" in reason(world, "run")


@covers("lease.unknown")
def test_models_of_an_unknown_slot_still_count_on_the_card_that_it_shares() -> None:
    world = started()
    world.put("art", "painter", mib=4_000)
    world.probe("art")
    world.do(LoseSlot("art", "status 500"))
    world.ask("run", RUN, "primary", "big")
    assert world.status("run") == "refused"
    assert "painter (4000 MiB" in reason(world, "run")


@covers("lease.unknown", "lease.queue")
def test_a_backend_that_vanishes_mid_load_fails_the_run_and_its_model_is_the_engines_when_it_lands_after_all() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "mid")
    world.do(FailLoad("primary", "mid", "connection_lost", "the connection broke", unknown=True))
    assert world.status("run") == "refused"
    assert not world.state.slot("primary").known
    world.put("primary", "mid")
    world.auto = True
    world.probe("primary")
    assert world.state.slot("primary").models["mid"].ours
    world.ask("next", RUN, "primary", "big")
    assert world.status("next") == "granted", "so it may be unloaded"


@covers("lease.unknown", "lease.queue")
def test_a_load_that_never_comes_back_ends_in_time() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "mid")
    world.pass_time(599)
    assert world.status("run") == "admitted"
    world.pass_time(2)
    assert world.status("run") == "refused"
    assert not world.state.slot("primary").known


@covers("lease.unknown")
def test_an_unload_that_fails_leaves_the_slot_unknown_and_the_run_refused() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "big")
    world.fail_unload("primary", "std")
    assert world.status("run") == "refused"
    assert not world.state.slot("primary").known
    assert "std" in world.state.slot("primary").models


@covers("lease.unknown")
@pytest.mark.parametrize(
    ("priority", "resident_only", "status"), [(RUN, False, "granted"), (RUN, True, "lost"), (INTERACTIVE, True, "lost")]
)
def test_a_model_that_left_by_another_hand_is_brought_back_for_a_lease_that_loads_and_else_the_lease_is_lost(
    priority: lease.Priority, resident_only: bool, status: str
) -> None:
    world = started()
    world.ask("user", priority, "primary", "std", resident_only=resident_only)
    world.take("primary", "std")
    world.probe("primary")
    assert world.status("user") == status


@covers("lease.beside_run", "lease.unknown")
def test_batch_work_beside_a_run_does_not_load_its_lost_model_again() -> None:
    world = started()
    world.ask("run", RUN, "primary", "tiny")
    world.ask("judge", BATCH, "primary", "std")
    world.take("primary", "std")
    world.probe("primary")
    assert world.status("judge") == "lost"
    assert world.loads.count("std") == 1


@covers("lease.unknown")
def test_a_slot_that_stays_silent_is_told_once() -> None:
    world = started()
    assert some(world.do(LoseSlot("primary", "status 502")), model.SlotUnknown)
    assert world.do(LoseSlot("primary", "status 502")) == []


@covers("lease.protected")
def test_a_model_whose_load_failed_and_that_was_seen_not_to_be_there_is_foreign_when_somebody_else_loads_it() -> None:
    world = started()
    world.broken = {"mid"}
    world.ask("run", RUN, "primary", "mid")
    world.probe("primary")
    world.put("primary", "mid")
    world.probe("primary")
    assert not world.state.slot("primary").models["mid"].ours


@covers("lease.fold", "lease.unknown")
def test_a_sweep_completes_what_a_crash_cut_short() -> None:
    """The listing without the model was stored, and that its lease is lost was not."""
    world = started()
    world.ask("user", RUN, "primary", "std", resident_only=True)
    world.take("primary", "std")
    seen = only(world.probe("primary"), model.ModelsObserved)
    kept = [fact.event for fact in world.facts if fact.type != "lease.lost"]
    assert kept[-1] == seen
    world.state = fold(State(world.known), kept)
    assert only(world.do(Sweep()), lease.LeaseLost).lease_id == "user"


# ---- one context size for each instance


@covers("lease.context")
def test_clients_that_ask_for_different_context_sizes_cause_one_load() -> None:
    """planner 65536, worker none, ping none, planner 65536, worker 8192: one load, and every call has that size."""
    world = started()
    for number, tokens in enumerate([65_536, None, None, 65_536, 8_192]):
        world.ask(f"call-{number}", RUN, "primary", "mid", run_id="run", context_tokens=tokens)
        assert world.status(f"call-{number}") == "granted"
        world.release(f"call-{number}")
    assert world.loads.count("mid") == 1
    assert world.state.slot("primary").models["mid"].context_tokens == 65_536


@covers("lease.context")
def test_more_than_the_pinned_context_is_one_planned_reload_recorded_with_old_and_new_size() -> None:
    world = started()
    world.ask("small", RUN, "primary", "mid", context_tokens=8_192)
    world.release("small")
    facts = world.ask("large", RUN, "primary", "mid", context_tokens=65_536)
    gone, came = only(facts, model.ModelUnloading), only(facts, model.ModelLoading)
    assert (gone.purpose, gone.context_tokens, came.context_tokens) == ("reload", 8_192, 65_536)
    assert world.status("large") == "granted"
    world.ask("again", RUN, "primary", "mid", context_tokens=8_192)
    assert world.loads.count("mid") == 2, "a smaller one takes it as it is"


@covers("lease.context", "lease.protected")
def test_a_model_under_another_runs_lease_is_not_reloaded_for_a_larger_context() -> None:
    world = started()
    world.ask("small", RUN, "primary", "mid", context_tokens=8_192)
    world.ask("large", RUN, "primary", "mid", context_tokens=65_536)
    assert (world.status("small"), world.status("large")) == ("granted", "refused")
    assert "too small a context" in reason(world, "large")


# ---- what else is on the card


def shared(outside: int) -> World:
    """A card of 24 GB with a model X of 8 GB that nobody holds any more, beside a program that has 0.6 GB."""
    slots = {
        "primary": SlotSettings(
            card="gpu0", models={"X": ModelSettings(mib=8_192), "Y": ModelSettings(mib=11_264), "Z": ModelSettings(mib=20_480)}
        )
    }
    world = World(catalogue(box(cards={"gpu0": CardSettings(size_mib=24_576)}, slots=slots, embedding_models=())))
    world.probe()
    world.ask("x", RUN, "primary", "X")
    world.release("x")
    world.do(MeasureCard("gpu0", 8_192 + outside))
    return world


@covers("lease.plan")
@pytest.mark.parametrize(("wanted", "status"), [("Y", "granted"), ("Z", "refused")])
def test_memory_that_another_program_took_during_an_unload_is_planned_with_and_not_waited_for(wanted: str, status: str) -> None:
    """The program grows from 0.6 to 6 GB while X is unloaded; the unload is done when its server says so."""
    world = shared(outside=614)
    world.auto = False
    world.ask("y", RUN, "primary", wanted) if wanted == "Z" else world.ask("y", RUN, "primary", "X", wanted)
    for unloading in some([fact.event for fact in world.facts], model.ModelUnloading):
        world.take("primary", unloading.model)
        world.do(FinishUnload("primary", unloading.model, used_mib=6_144))
    for loading in some([fact.event for fact in world.facts], model.ModelLoading)[1:]:
        world.finish(loading)
    assert world.status("y") == status
    if status == "refused":
        assert "6144 MiB by programs outside the engine" in reason(world, "y")
        assert not some([fact.event for fact in world.facts], model.ModelLoading)[1:]


@covers("lease.plan")
def test_a_card_is_not_measured_while_models_come_or_go_on_it() -> None:
    world = started()
    world.auto = False
    loading = only(world.ask("run", RUN, "primary", "mid"), model.ModelLoading)
    assert world.do(MeasureCard("gpu0", 12_000)) == []
    world.finish(loading)
    assert only(world.do(MeasureCard("gpu0", 17_500 + 300)), card.CardMeasured).outside_mib == 300
    assert world.do(MeasureCard("gpu0", 17_500 + 300)) == [], "what is known is no fact"


@covers("lease.plan")
def test_a_measurement_that_nobody_can_repeat_is_forgotten_even_while_models_come_or_go() -> None:
    world = started()
    world.do(MeasureCard("gpu0", 8_500 + 7_000, 24_000))
    world.auto = False
    loading = only(world.ask("run", RUN, "primary", "tiny"), model.ModelLoading)
    fact = only(world.do(MeasureCard("gpu0", None)), card.CardMeasured)
    assert (fact.used_mib, fact.outside_mib) == (None, None)
    on = world.state.card("gpu0")
    assert (on.used_mib, on.outside_mib, on.size_mib) == (None, None, 24_000)
    assert world.do(MeasureCard("gpu0", None)) == []
    world.finish(loading)
    assert world.status("run") == "granted"


@covers("lease.plan")
def test_services_are_planned_with_by_the_lease_that_they_run_under() -> None:
    world = started()
    world.ask("painter", BATCH, "art", services=("comfyui",), services_mib=12_000)
    world.ask("second", BATCH, "primary", "mid")
    assert world.status("second") == "granted", "the standard set went for it"
    assert world.resident("primary") == {"embed", "mid"}
    world.ask("third", BATCH, "art", services=("tts",), services_mib=4_000)
    assert world.status("third") == "waiting"


# ---- models that take turns


def turn(world: World, name: str) -> None:
    """As the scheduler asks: again whenever a load or unload has ended, until there is nothing to do."""
    while world.do(NeedModel("run", name)):
        pass


@covers("lease.turns")
def test_models_that_do_not_fit_together_take_turns_under_one_lease() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big", "std", rotates=True)
    assert world.status("run") == "granted"
    turn(world, "big")
    assert world.resident("primary") == {"embed", "big"}
    turn(world, "std")
    assert world.resident("primary") == {"embed", "std"}
    assert world.violations() == []


@covers("lease.turns", "lease.protected")
def test_a_turn_waits_for_the_calls_of_the_model_before() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big", "std", rotates=True)
    world.answering["primary", "std"] = 1
    assert world.do(NeedModel("run", "big")) == []
    del world.answering["primary", "std"]
    turn(world, "big")
    assert world.resident("primary") == {"embed", "big"}


@covers("lease.turns")
def test_memory_for_the_largest_of_them_is_set_aside_from_the_start() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big", "std", rotates=True)
    world.ask("second", RUN, "primary", "mid")
    assert world.status("second") == "refused"
    assert "20000 MiB for models that take turns" in reason(world, "second")


@covers("lease.turns", "lease.protected")
def test_what_is_set_aside_for_a_run_is_pinned_by_nobody_though_it_is_loaded() -> None:
    """Found by teams, a chat client and a batch job at once: a batch lease on a loaded model took the room that a run was to get."""
    world = started()
    world.ask("run", RUN, "primary", "big", rotates=True)  # granted; std is still loaded, and must go when big has its turn
    world.ask("job", BATCH, "primary", "std")
    world.ask("other", RUN, "primary", "std", resident_only=True)
    assert (world.status("run"), world.status("job"), world.status("other")) == ("granted", "waiting", "waiting")
    turn(world, "big")
    assert world.resident("primary") == {"embed", "big"}
    world.end_run("run-run")
    assert world.violations() == []


@covers("lease.turns", "lease.queue")
def test_batch_work_waits_for_what_is_set_aside_for_a_run_instead_of_being_refused() -> None:
    world = started()
    world.ask("run", RUN, "primary", "big", rotates=True)
    world.ask("job", BATCH, "primary", "mid")  # 9,000 MiB beside 20,000 of 24,000
    assert world.status("job") == "waiting"
    world.end_run("run-run")
    assert world.status("job") == "granted"
    world.ask("more", BATCH, "primary", "huge")
    assert world.status("more") == "refused"  # that fits on no empty card either


@covers("lease.verify")
def test_the_check_finds_a_lease_that_was_granted_on_what_is_set_aside() -> None:
    world = started()
    world.ask("run", RUN, "primary", "mid")  # its facts say how large the card is
    world.ask("turns", RUN, "primary", "tiny", rotates=True)
    about = {"lease_id": "job", "holder": "job", "priority": BATCH, "slot": "primary", "card": "gpu0", "at": world.now}
    large = (lease.ModelNeed(name="other", mib=20_000),)
    world.note(
        lease.LeaseRequested(**about, models=large, wait_until=world.now), lease.LeaseGranted(**about, models=large, expires_at=world.now)
    )
    assert [each.rule for each in world.violations()] == ["leases.fit"]


@covers("lease.loads")
def test_a_load_that_was_confirmed_by_a_probe_is_not_confirmed_twice() -> None:
    world = started()
    world.auto = False
    loading = only(world.ask("run", RUN, "primary", "mid"), model.ModelLoading)
    world.put("primary", "mid", context_tokens=None)
    world.probe("primary")
    assert world.status("run") == "granted"
    assert world.do(FinishLoad("primary", loading.model, world.listing("primary"))) == []


@covers("lease.loads")
def test_a_listing_that_says_nothing_new_is_no_fact() -> None:
    world = started()
    assert world.do(ObserveSlot("primary", world.listing("primary"))) == []
    world.now += timedelta(seconds=5)
    assert world.do(Sweep()) == []
