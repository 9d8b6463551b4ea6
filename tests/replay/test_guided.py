"""Guided turns end to end on the in-memory engine: a scripted small model that must be held to its work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from shared.events import run
from shared.template import Features
from tests.requirements import covers
from tests.support.world import RUN, Turn, World, node, template

MESSAGE = "Write notes.txt with three words."
TOOLS = ("list_files", "read_file", "write_file")
TEAM = template(nodes=(node(tools=TOOLS),), features=Features(constrained_turns="always"))
CONTENT = "```\none two three\n"


async def guided(
    folder: Path, *turns: str, cut: int | None = None, without: str | None = None, message: str = MESSAGE, tools: Sequence[str] = TOOLS
) -> World:
    team = template(nodes=(node(tools=tuple(tools)),), features=TEAM.features.without([without] if without else []))
    world = World(folder, [Turn(content=turn) for turn in turns], template=team, message=message)
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
@pytest.mark.parametrize("slip", [f"```json\n{WRITE}\n```", f"```json\n{WRITE}", DONE, f"```\n{DONE}"])
async def test_an_action_given_in_place_of_a_files_content_is_not_written_into_the_file(tmp_path: Path, slip: str) -> None:
    world = await guided(tmp_path, WRITE, slip, CONTENT, DONE, DONE)
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


# ---- each mechanism can be left out


def said(world: World) -> list[str]:
    return [fact.event.content for fact in world.log.facts if isinstance(fact.event, run.MessageAdded)]


def schemas(world: World) -> list[str]:
    return [str(call.response_format) for call in world.backends[0].calls if call.response_format]


async def test_without_listing_the_first_message_is_the_request_alone(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE, without="files_listed")
    assert MESSAGE in said(world)


async def test_without_text_apart_a_files_content_is_part_of_the_action(tmp_path: Path) -> None:
    write = '{"tool":"write_file","path":"notes.txt","content":"one two three\\n"}'
    world = await guided(tmp_path, write, DONE, DONE, without="text_apart")
    assert (tmp_path / "ws/1/notes.txt").read_text() == "one two three\n"
    assert "'content'" in schemas(world)[0]
    assert not any("fenced code block" in text for text in said(world))


async def test_without_the_gate_finish_is_offered_from_the_first_turn(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE, without="gated_finish")
    assert all("finish" in schema for schema in schemas(world))


async def test_without_narrowing_a_tool_may_name_any_path(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE, without="narrowed_paths")
    assert not any("enum" in schema for schema in schemas(world))
    assert any("enum" in schema for schema in schemas(await guided(tmp_path / "with", WRITE, CONTENT, DONE, DONE)))


async def test_without_the_bar_a_repeated_action_is_run_again(tmp_path: Path) -> None:
    look = '{"tool":"list_files"}'
    world = await guided(tmp_path, look, look, WRITE, CONTENT, DONE, DONE, without="repeats_barred")
    listings = [fact for fact in world.log.facts if isinstance(fact.event, run.ToolRequested) and fact.event.tool == "list_files"]
    assert len(listings) == 3


async def test_without_showing_a_named_file_is_not_read_before_the_first_turn(tmp_path: Path) -> None:
    (tmp_path / "ws/1").mkdir(parents=True)
    (tmp_path / "ws/1/a.txt").write_text("old\n")
    read, write = '{"tool":"read_file","path":"a.txt"}', '{"tool":"write_file","path":"notes.txt"}'
    world = await guided(tmp_path, read, write, CONTENT, DONE, DONE, without="named_shown", message="Copy a.txt to notes.txt.")
    requests = [fact.event.key for fact in world.log.facts if isinstance(fact.event, run.ToolRequested)]
    assert not any("show/a.txt" in key for key in requests)
    assert any("turn-1" in key for key in requests)


async def test_without_the_next_step_a_result_comes_alone(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE, without="next_step_named")
    assert "Go on with the request." in said(world)


async def test_without_the_check_of_form_a_broken_file_may_be_the_end(tmp_path: Path) -> None:
    write, broken, message = '{"tool":"write_file","path":"a.json"}', "```json\n{\n", "Write a.json with an empty object."
    world = await guided(tmp_path, write, broken, DONE, DONE, without="form_checked", message=message)
    assert isinstance(world.terminal.event, run.RunCompleted)
    held = await guided(tmp_path / "with", write, broken, write, "```json\n{}\n", DONE, DONE, message=message)
    assert any("is not valid JSON" in text for text in said(held))


async def test_without_rewriting_an_edit_names_the_old_text_and_the_new(tmp_path: Path) -> None:
    (tmp_path / "ws/1").mkdir(parents=True)
    (tmp_path / "ws/1/a.ini").write_text("port = 2\n")
    edit = '{"tool":"edit_file","path":"a.ini","old":"port = 2","new":"port = 5"}'
    message, tools = "In a.ini set the port to 5.", (*TOOLS, "edit_file")
    world = await guided(tmp_path, edit, DONE, DONE, without="edits_rewrite", message=message, tools=tools)
    assert (tmp_path / "ws/1/a.ini").read_text() == "port = 5\n"
    assert "'old'" in schemas(world)[0]


async def test_without_looking_over_the_first_finish_counts(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, without="looked_over")
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert not any("check your work" in text for text in said(world))


@covers("run.verify")
async def test_a_run_verified_without_a_mechanism_says_whether_it_changed_anything(tmp_path: Path) -> None:
    world = await guided(tmp_path, WRITE, CONTENT, DONE, DONE)

    async def agrees_without(name: str) -> bool:
        other = world.template.model_copy(update={"features": world.template.features.without([name])})
        return (await verify(RUN, world.log.facts, other, TOPOLOGIES["single"])).diverged_at is None

    assert {name for name in Features.model_fields if await agrees_without(name)} == {
        "reask",  # of native turns
        "repeats_barred",  # nothing was repeated
        "named_shown",  # no file was there
        "changes_shown",  # no command changed one
        "form_checked",  # what was made is whole
        "edits_rewrite",  # nothing was edited
    }


async def test_a_broken_promise_is_told_twice_and_then_let_go(tmp_path: Path) -> None:
    """A sentence may have been misread: the run must not turn on it until its turns are used up."""
    message, write, text = "Write only the number of moons to notes.txt.", WRITE, "```\nthere are two\n"
    again = ['{"tool":"write_file","path":"notes.txt"}', "```\nstill two\n", write, "```\ntwo of them\n", write, "```\nthe two\n"]
    world = await guided(tmp_path, write, text, *again, DONE, DONE, message=message)
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert sum("must hold only a number" in text for text in said(world)) == 2


async def test_a_file_of_its_own_may_be_corrected_to_a_shorter_one(tmp_path: Path) -> None:
    """What it wrote itself is no content that could be lost: a sentence where a number was wanted becomes the number."""
    edit, long, short = '{"tool":"edit_file","path":"notes.txt"}', "```\nthere are two of them\n", "```\n2\n"
    message, tools = "Write only the number of moons to notes.txt.", (*TOOLS, "edit_file")
    await guided(tmp_path, WRITE, long, edit, short, DONE, DONE, message=message, tools=tools)
    assert (tmp_path / "ws/1/notes.txt").read_text() == "2\n"
