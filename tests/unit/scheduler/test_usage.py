"""Where a card's time went: by run and agent, and in sum the wall time."""

from __future__ import annotations

import json
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler import usage_report
from services.scheduler.usage import CardUsage, Who, usage
from shared.events import llm, run
from shared.events.content import Sampling
from tests.requirements import covers
from tests.unit.scheduler.arbiter.world import BATCH, RUN, World, started


def call(world: World, call_id: str, run_id: str, agent: str, name: str = "std") -> None:
    asked = run.LlmRequested(key=call_id, call_id=call_id, agent=agent, turn=1, adds=(), sampling=Sampling())
    world.note(asked, scope=run_id)
    world.note(llm.LlmDispatched(call_id=call_id, slot="primary", model=name), scope=run_id)


def answer(world: World, call_id: str, run_id: str) -> None:
    world.note(llm.LlmCompleted(call_id=call_id), scope=run_id)


def account(world: World, card: str = "gpu0") -> CardUsage:
    return usage(world.facts, until=world.now)[card]


def seconds(found: CardUsage) -> dict[Who, float]:
    return {who: spent for who, spent in found.seconds.items() if spent}


@covers("lease.usage")
def test_a_call_is_its_agents_time_and_what_is_reserved_and_unused_is_its_runs() -> None:
    world = started()
    world.ask("lease", RUN, "primary", "std", run_id="r1")
    world.now += timedelta(seconds=5)
    call(world, "c1", "r1", "coder")
    world.now += timedelta(seconds=20)
    answer(world, "c1", "r1")
    world.now += timedelta(seconds=3)
    world.release("lease")
    world.now += timedelta(seconds=2)
    found = account(world)
    assert seconds(found) == {Who("gpu", "r1", "coder"): 20, Who("held", "r1"): 8, Who("idle"): 2}
    assert found.wall_s == 30
    assert found.of_run("r1", "gpu") == 20


@covers("lease.usage")
def test_the_account_reads_as_a_table_and_as_json_of_all_runs_or_one() -> None:
    world = started()
    world.ask("lease", RUN, "primary", "std", run_id="run-one")
    call(world, "c1", "run-one", "coder")
    world.now += timedelta(seconds=30)
    answer(world, "c1", "run-one")
    world.now += timedelta(seconds=10)
    world.release("lease")
    world.ask("job", BATCH, "primary", "std", holder="nightly")
    world.now += timedelta(seconds=10)
    found = usage(world.facts, until=world.now)
    text = usage_report.as_text(found).splitlines()
    assert text[0] == "gpu0  50.0 s in all  answering 60%, held, unused 40%"
    assert [line.split() for line in text[1:4]] == [
        ["30.0", "s", "answering", "run", "run-one,", "coder"],
        ["10.0", "s", "held,", "unused", "run", "run-one"],
        ["10.0", "s", "held,", "unused", "nightly"],
    ]
    whole, one = (json.loads(usage_report.as_json(found, run))["cards"][0] for run in ("", "run-"))
    assert sum(line["seconds"] for line in whole["lines"]) == whole["wallS"] == 50
    assert {line["runGuid"] for line in one["lines"]} == {"run-one"}
    assert "scheduler.slots" in usage_report.as_text({})


@covers("lease.usage")
def test_calls_at_the_same_time_share_it() -> None:
    world = started()
    call(world, "c1", "r1", "coder")
    world.now += timedelta(seconds=10)
    call(world, "c2", "r2", "writer")
    world.now += timedelta(seconds=10)
    answer(world, "c1", "r1")
    world.now += timedelta(seconds=10)
    assert seconds(account(world)) == {Who("gpu", "r1", "coder"): 15, Who("gpu", "r2", "writer"): 15}


@covers("lease.usage")
def test_swaps_are_charged_to_whoever_they_were_made_for_and_a_restore_to_the_engine() -> None:
    world = started()
    world.auto = False
    facts = world.ask("lease", RUN, "primary", "big", run_id="r1")
    world.now += timedelta(seconds=4)
    facts = world.finish(facts[-1])
    world.now += timedelta(seconds=40)
    world.finish(facts[-1])
    world.end_run("r1")
    restoring = world.pass_time(0)
    world.now += timedelta(seconds=3)
    world.finish(restoring[-1])
    found = account(world)
    assert found.of_run("r1", "swap") == 44
    assert seconds(found)[Who("swap", holder="restore")] == 3


@covers("lease.usage")
def test_a_load_of_batch_work_is_charged_to_its_holder_and_a_hold_to_its_own() -> None:
    world = started()
    world.auto = False
    world.ask("job", BATCH, "secondary", "coder", holder="nightly")
    world.now += timedelta(seconds=7)
    assert seconds(account(world, "gpu1")) == {Who("swap", holder="nightly"): 7}


@covers("lease.usage")
def test_no_facts_are_no_account_and_other_domains_open_none() -> None:
    assert usage([]) == {}
    world = World()
    call(world, "c1", "r1", "coder")
    assert usage(world.facts) == {}


@covers("lease.usage")
@given(st.lists(st.tuples(st.sampled_from(["ask", "end", "call", "answer", "big", "sweep"]), st.floats(0, 90)), max_size=25))
def test_the_lines_of_an_account_sum_to_the_wall_time(acts: list[tuple[str, float]]) -> None:
    world = started()
    for number, (act, passed) in enumerate(acts):
        world.now += timedelta(seconds=passed)
        match act:
            case "ask" | "big":
                world.ask(f"l{number}", RUN, "primary", "big" if act == "big" else "std", run_id=f"r{number % 3}")
            case "end":
                world.end_run(f"r{number % 3}")
            case "call":
                call(world, f"c{number % 3}", f"r{number % 3}", "coder")
            case "answer":
                answer(world, f"c{number % 3}", f"r{number % 3}")
            case _:
                world.pass_time(0)
    for found in usage(world.facts, until=world.now).values():
        assert sum(found.seconds.values()) == pytest.approx(found.wall_s, abs=1e-6)
        assert all(spent >= 0 for spent in found.seconds.values())
