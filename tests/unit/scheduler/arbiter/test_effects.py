"""What a decision asks of the world, and what a new process still owes it."""

from __future__ import annotations

from datetime import timedelta

from services.scheduler.arbiter import Load, Notify, Unload, effects, next_at, owed
from services.scheduler.arbiter.commands import FinishLoad, FinishUnload, HoldCard, LoseSlot, Seen
from shared.events import lease
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, INTERACTIVE, RUN, World, started


def told(world: World, given: list[object]) -> list[tuple[str, str]]:
    return [(each.lease_id, each.what) for each in given if isinstance(each, Notify)]


@covers("lease.effects")
def test_loads_and_unloads_are_asked_for_one_step_at_a_time_and_acknowledged_by_the_backends_answers() -> None:
    world = started()
    world.auto = False
    first = effects(world.ask("run", RUN, "primary", "big", context_tokens=8_192))
    assert [(type(each), each.model) for each in first if not isinstance(each, Notify)] == [(Unload, "std")]
    assert owed(world.state) == first
    world.take("primary", "std")
    second = effects(world.do(FinishUnload("primary", "std")))
    assert second == [Load("primary", "big", 8_192, world.now + timedelta(seconds=600))]
    assert owed(world.state) == second
    world.put("primary", "big")
    third = effects(world.do(FinishLoad("primary", "big", world.listing("primary"))))
    assert told(world, [*third]) == [("run", "granted")]
    assert owed(world.state) == []


@covers("lease.effects")
def test_holders_are_told_of_waits_grants_wishes_and_ends() -> None:
    world = started()
    heard = told(world, [*effects(world.ask("job", BATCH, "primary", "mid"))])
    heard += told(world, [*effects(world.ask("run", RUN, "primary", "big"))])
    heard += told(world, [*effects(world.end_run("run-run"))])
    heard += told(world, [*effects(world.ask("chat", INTERACTIVE, "primary", "mid"))])
    heard += told(world, [*effects(world.pass_time(121))])
    assert heard == [
        ("job", "granted"),
        ("run", "queued"),
        ("job", "release_wanted"),
        ("run", "ended"),
        ("job", "release_withdrawn"),
        ("chat", "ended"),
        ("job", "ended"),
    ]


@covers("lease.effects")
def test_a_notice_carries_the_words_for_the_holder() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    notices = [each for each in effects(world.ask("run", RUN, "primary", "big", holder="Team Alpha")) if isinstance(each, Notify)]
    wish = next(each.fact for each in notices if each.what == "release_wanted")
    assert isinstance(wish, lease.LeasePreemptRequested)
    assert wish.reason.startswith("Team Alpha needs card gpu0: release by ")


@covers("lease.effects", "lease.loads")
def test_a_load_that_somebody_else_began_is_not_owed_and_a_superfluous_copy_is() -> None:
    world = started()
    world.auto = False
    world.loaded["primary"]["mid"] = Seen("mid", "loading")
    world.put("primary", "std:2")
    world.probe("primary")
    assert owed(world.state) == [Unload("primary", "std", "std:2", world.now + timedelta(seconds=60))]


@covers("lease.effects", "lease.unknown")
def test_a_slot_that_went_silent_is_owed_its_load_until_that_is_over() -> None:
    world = started()
    world.auto = False
    world.ask("run", RUN, "primary", "mid")
    world.do(LoseSlot("primary", "status 502"))
    assert [each.model for each in owed(world.state)] == ["mid"]
    world.pass_time(601)
    assert owed(world.state) == []


@covers("lease.effects", "lease.expiry")
def test_the_next_sweep_is_due_at_the_first_thing_that_time_decides() -> None:
    world = started()
    assert next_at(world.state, world.now) is None
    world.ask("job", BATCH, "primary", "mid")
    assert next_at(world.state, world.now) == world.now + timedelta(seconds=120)
    world.ask("run", RUN, "primary", "big")
    assert next_at(world.state, world.now) == world.now + timedelta(seconds=30), "the end of the grace"
    world.do(HoldCard("hold", "a game", "gpu1", ttl=timedelta(seconds=20)))
    assert next_at(world.state, world.now) == world.now + timedelta(seconds=20)


@covers("lease.effects")
def test_sweeping_whenever_it_is_due_brings_every_lease_to_its_end() -> None:
    world = started()
    world.ask("job", BATCH, "primary", "mid")
    world.ask("run", RUN, "primary", "big")
    for _ in range(20):
        due = next_at(world.state, world.now)
        if due is None:
            break
        world.pass_time((due - world.now).total_seconds())
    world.pass_time(0)
    assert list(world.state.leases()) == []
    assert world.resident("primary") == {"embed", "std"}


@covers("lease.loads")
def test_a_swarm_that_asks_at_once_causes_one_load() -> None:
    world = started()
    world.auto = False
    asked = [effects(world.ask(f"agent-{number}", RUN, "primary", "mid")) for number in range(4)]
    assert [each.model for given in asked for each in given if isinstance(each, Load)] == ["mid"]
    world.put("primary", "mid", "mid:2")
    world.do(FinishLoad("primary", "mid", world.listing("primary")))
    assert all(world.status(f"agent-{number}") == "granted" for number in range(4))
    assert {need.name for each in world.state.leases() for need in each.asked.models} == {"mid"}, "nothing is sent to the copy's id"
