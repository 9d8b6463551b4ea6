"""A run is cut after each of its facts in turn, resumed, and must end as if nothing had happened."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from shared.events import run
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted, LlmDispatched
from shared.events.tool import ToolStarted
from shared.runstate import Status, fold
from tests.requirements import covers
from tests.support.world import RUN, Turn, World

# Two calls that read run beside each other, then two with effects in order, then a file and an answer.
WORK = (
    Turn(calls=[("peek", '{"what":"a"}'), ("peek", '{"what":"b"}'), ("append_line", '{"line":"one"}'), ("append_line", '{"line":"two"}')]),
    Turn(calls=[("write_file", '{"path":"notes.txt","content":"hello"}'), ("append_line", '{"line":"three"}')]),
    Turn(calls=[("read_file", '{"path":"notes.txt"}'), ("peek", '{"what":"c"}')]),
    Turn(content="All done."),
)
RESUMPTION = (run.RunResumed,)


def substance(fact: Fact) -> tuple[str, Any]:
    """What of a fact must be equal in every life of a run: not its id, time, duration or sequence numbers."""
    data = fact.event.model_dump(mode="json")
    for volatile in ("owner", "adds", "seen", "extends", "tools_seq", "duration_ms", "queued_ms", "first_token_ms", "fires_at", "position"):
        data.pop(volatile, None)
    return fact.type, data


def comparable(facts: list[Fact]) -> Counter[str]:
    """The facts of a run as a bag: siblings that run beside each other may be stored in either order."""
    once = [fact for fact in facts if not isinstance(fact.event, (*RESUMPTION, LlmDispatched, ToolStarted)) and fact.type != "llm.queued"]
    return Counter(repr(substance(fact)) for fact in once)


async def undisturbed(folder: Path) -> World:
    world = World(folder, WORK)
    await world.submit()
    await world.live()
    return world


@covers("run.complete")
async def test_a_run_completes_and_its_effects_happen_once(tmp_path: Path) -> None:
    world = await undisturbed(tmp_path)
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert world.terminal.event.reply == "All done."
    assert world.terminal.event.files == ("notes.txt",)
    assert world.effects == {"one": 1, "two": 1, "three": 1}
    assert fold(RUN, world.log.facts).status is Status.COMPLETED


@covers("run.resume.after_crash", "tool.at_most_once")
async def test_a_run_cut_after_any_fact_and_resumed_ends_as_the_undisturbed_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "whole").mkdir()
    whole = await undisturbed(tmp_path / "whole")
    expected, size = comparable(whole.log.facts), len(whole.log.facts)
    interrupted = 0
    for cut in range(2, size + 1):
        folder = tmp_path / str(cut)
        folder.mkdir()
        world = World(folder, WORK)
        await world.submit()
        world.reopen(crash_at=cut)
        await world.live()
        world.reopen()
        await world.live()
        facts = world.log.facts
        assert max(world.effects.values()) == 1, f"cut after fact {cut}: an effect was repeated: {world.effects}"
        answered = Counter(fact.event.call_id for fact in facts if isinstance(fact.event, LlmCompleted))
        assert set(answered.values()) == {1}, f"cut after fact {cut}: a finished model call was repeated"
        finished = {fact.event.call_id for fact in facts[:cut] if isinstance(fact.event, LlmCompleted)}
        assert len(world.backends[-1].calls) <= len(answered) - len(finished), f"cut after {cut}: a finished call was made again"
        if any(fact.type == "tool.interrupted" for fact in facts):
            interrupted += 1  # the process died inside a call that may not run twice: the model was told, and went on
            assert isinstance(world.terminal.event, run.RunCompleted)
        else:
            assert comparable(facts) == expected, f"cut after fact {cut}"
        verdict = await verify(RUN, facts, world.template, TOPOLOGIES["single"])
        assert verdict.diverged_at is None, f"cut after fact {cut}: {verdict.message}"
    assert interrupted == 3  # once inside each of the three calls that may not be repeated
    with capsys.disabled():
        print(f"\ncrash matrix: {size - 1} cuts of a run of {size} facts, {interrupted} inside a call that may not be repeated")


@covers("run.resume.repeatedly")
async def test_a_run_cut_twice_resumes_twice(tmp_path: Path) -> None:
    world = World(tmp_path, WORK)
    await world.submit()
    for cut in (9, 17, 25):
        world.reopen(crash_at=cut)
        await world.live()
    world.reopen()
    await world.live()
    assert isinstance(world.terminal.event, run.RunCompleted)
    assert max(world.effects.values()) == 1
