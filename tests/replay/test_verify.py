"""Audit: `replay --verify` re-executes a run from its log alone and names the first fact that disagrees."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from shared.events import run
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted
from shared.events.tool import ToolCompleted
from tests.replay.test_crash import undisturbed
from tests.requirements import covers
from tests.support.world import RUN, World


async def check(world: World, facts: list[Fact]) -> int | None:
    return (await verify(RUN, facts, world.template, TOPOLOGIES["single"])).diverged_at


@pytest.fixture
async def world(tmp_path: Path) -> World:
    return await undisturbed(tmp_path)


@covers("run.verify")
async def test_a_finished_run_is_verified_from_its_log_alone(world: World) -> None:
    verdict = await verify(RUN, world.log.facts, world.template, TOPOLOGIES["single"])
    assert (verdict.facts, verdict.diverged_at) == (len(world.log.facts), None)


@covers("run.verify.names_edit")
async def test_an_edited_tool_result_is_reported_by_its_sequence(world: World) -> None:
    results = [fact for fact in world.log.facts if isinstance(fact.event, ToolCompleted)]
    said = [fact for fact in results if fact.event.tool != "list_files"]  # type: ignore[union-attr]
    assert len(said) == 8
    for fact in said:
        edited = fact.event.model_copy(update={"content": "something else"})
        assert await check(world, world.log.with_body(fact.seq, edited).facts) == fact.seq


async def test_an_edited_answer_of_the_model_is_reported_by_its_sequence_or_by_what_followed(world: World) -> None:
    for fact in world.log.facts:
        if isinstance(fact.event, LlmCompleted):
            edited = fact.event.model_copy(update={"content": "Edited."})
            assert await check(world, world.log.with_body(fact.seq, edited).facts) == fact.seq


@covers("run.verify.names_edit")
async def test_an_edited_call_of_the_model_is_reported(world: World) -> None:
    first = next(fact for fact in world.log.facts if isinstance(fact.event, LlmCompleted))
    assert isinstance(first.event, LlmCompleted)
    calls = (first.event.tool_calls[0].model_copy(update={"arguments": {"what": "z"}}), *first.event.tool_calls[1:])
    edited = world.log.with_body(first.seq, first.event.model_copy(update={"tool_calls": calls}))
    request = next(fact for fact in world.log.facts if isinstance(fact.event, run.ToolRequested) and fact.seq > first.seq)
    assert await check(world, edited.facts) == request.seq


@covers("run.verify.names_edit")
async def test_an_edited_message_of_the_engine_is_reported_by_its_sequence(world: World) -> None:
    for fact in world.log.facts:
        if isinstance(fact.event, run.MessageAdded):
            edited = fact.event.model_copy(update={"content": "Do something else."})
            assert await check(world, world.log.with_body(fact.seq, edited).facts) == fact.seq


@covers("run.verify.names_edit")
async def test_a_removed_fact_is_reported(world: World) -> None:
    request = next(fact for fact in world.log.facts if isinstance(fact.event, run.LlmRequested) and fact.event.turn == 2)
    assert await check(world, [fact for fact in world.log.facts if fact is not request]) is not None


@covers("run.verify.names_edit")
async def test_an_edited_ending_is_reported_by_its_sequence(world: World) -> None:
    edited = world.terminal.event.model_copy(update={"reply": "Nothing was done."})
    assert await check(world, world.log.with_body(world.terminal.seq, edited).facts) == world.terminal.seq


async def test_a_run_that_is_still_under_way_agrees_with_what_its_log_holds(world: World) -> None:
    for cut in range(1, len(world.log.facts)):
        assert await check(world, world.log.facts[:cut]) is None
