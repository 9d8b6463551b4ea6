"""Guided turns end to end on the in-memory engine: a scripted small model that must be held to its work."""

from __future__ import annotations

from pathlib import Path

from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from shared.events import run
from shared.template import Features
from tests.requirements import covers
from tests.support.world import RUN, Turn, World, node, template

MESSAGE = "Write notes.txt with three words."
TEAM = template(nodes=(node(tools=("list_files", "read_file", "write_file")),), features=Features(constrained_turns="always"))
CONTENT = "```\none two three\n"


async def guided(folder: Path, *turns: str, cut: int | None = None) -> World:
    world = World(folder, [Turn(content=turn) for turn in turns], template=TEAM, message=MESSAGE)
    await world.submit()
    if cut is not None:
        world.reopen(crash_at=cut)
        await world.live()
        world.reopen()
    await world.live()
    verdict = await verify(RUN, world.log.facts, world.template, TOPOLOGIES["single"])
    assert verdict.diverged_at is None, verdict.message
    return world


WRITE, DONE = '{"tool":"write_file","path":"notes.txt"}', '{"tool":"finish","reply":"It is there."}'


@covers("model.guided")
async def test_a_guided_agent_writes_its_file_and_is_shown_it_before_the_end(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE)
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert world.terminal.event.reply == "It is there."
    assert (tmp_path / "ws/1/notes.txt").read_text() == "one two three\n"
    said = [fact.event.content for fact in world.log.facts if isinstance(fact.event, run.MessageAdded)]
    assert any("check your work" in text and "one two three" in text for text in said)


@covers("model.guided")
async def test_finish_is_offered_only_when_what_is_owed_is_there(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE)
    schemas = [str(call.response_format) for call in world.backends[0].calls if call.response_format]
    assert ["finish" in schema for schema in schemas] == [False, True, True]


@covers("model.guided")
async def test_a_repeated_action_is_not_run_again_and_not_offered_next(tmp_path: Path) -> None:
    look = '{"tool":"list_files"}'
    world = await guided(tmp_path, look, look, WRITE, CONTENT, DONE, DONE)
    listings = [fact for fact in world.log.facts if isinstance(fact.event, run.ToolRequested) and fact.event.tool == "list_files"]
    assert len(listings) == 2  # the engine's own look, and the first one
    assert "list_files" not in str(world.backends[0].calls[2].response_format)


@covers("model.guided")
async def test_an_action_given_in_place_of_a_files_content_is_not_written_into_the_file(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, f"```json\n{WRITE}\n```", CONTENT, DONE, DONE)
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert (tmp_path / "ws/1/notes.txt").read_text() == "one two three\n"


@covers("model.guided")
async def test_a_file_that_was_there_is_shown_beside_the_question_and_not_emptied_by_a_careless_answer(tmp_path: Path) -> None:
    old = "[web]\nport = 1\n[database]\nport = 2\n[mail]\nport = 3\n"
    (tmp_path / "ws/1").mkdir(parents=True)
    (tmp_path / "ws/1/a.ini").write_text(old)
    write, new = '{"tool":"write_file","path":"a.ini"}', old.replace("port = 2", "port = 5")
    turns = [Turn(content=turn) for turn in (write, "```\nport = 5\n", write, f"```\n{new}```", DONE, DONE)]
    world = World(tmp_path, turns, template=TEAM, message="In a.ini set the port of the database to 5.")
    await world.submit()
    await world.live()
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert (tmp_path / "ws/1/a.ini").read_text() == new
    said = [fact.event.content for fact in world.log.facts if isinstance(fact.event, run.MessageAdded)]
    assert any(text.startswith("Now give the whole new content of a.ini") and old.strip() in text for text in said)
    assert any("would lose most of its content" in text for text in said)


async def test_answers_that_are_no_action_are_sent_back_and_then_fail_the_run(tmp_path: Path) -> None:
    world = await guided(tmp_path, "I would write a file.")
    assert isinstance(world.terminal.event, run.RunFailed)
    assert world.terminal.event.code == "run.empty_response"


@covers("model.guided", "run.resume.after_crash")
async def test_a_guided_run_is_resumed_wherever_it_is_cut(tmp_path: Path) -> None:
    (tmp_path / "whole").mkdir()
    size = len((await guided(tmp_path / "whole", WRITE, CONTENT, DONE, DONE)).log.facts)
    for cut in range(2, size, 3):
        (tmp_path / str(cut)).mkdir()
        world = await guided(tmp_path / str(cut), WRITE, CONTENT, DONE, DONE, cut=cut)
        assert isinstance(world.terminal.event, run.RunCompleted)
        assert (tmp_path / str(cut) / "ws/1/notes.txt").read_text() == "one two three\n"
