"""Every way that a run ends is stated, bounded, and agreed with by a replay."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from services.orchestrator.durable.context import Run
from services.orchestrator.durable.execution import Outcome
from services.orchestrator.durable.verify import verify
from services.orchestrator.topologies import TOPOLOGIES
from services.scheduler.backends.base import ChatReply, ChatRequest, OnDelta
from services.scheduler.backends.faults import BackendBroken, BackendFault, ConnectionDropped
from shared.events import run, signal
from shared.events.content import Budgets
from shared.events.llm import LlmRetried
from shared.events.tool import ToolDenied
from shared.subjects import Aggregate
from shared.template import Features
from tests.requirements import covers
from tests.support import world as worlds
from tests.support.world import RUN, Turn, World, node, template

READ = Turn(calls=[("peek", '{"what":"x"}')])


async def lived(folder: Path, *turns: Turn, **over: object) -> World:
    world = World(folder, turns, **over)  # type: ignore[arg-type]
    await world.submit()
    await world.live()
    verdict = await verify(RUN, world.log.facts, world.template, TOPOLOGIES["single"])
    assert verdict.diverged_at is None, verdict.message
    return world


def failure(world: World) -> run.RunFailed:
    assert isinstance(world.terminal.event, run.RunFailed)
    return world.terminal.event


@covers("run.turn_cap")
async def test_the_turn_cap_ends_a_run_that_never_answers(tmp_path: Path) -> None:
    turns = [Turn(calls=[("peek", f'{{"what":"{n}"}}')]) for n in range(20)]
    world = await lived(tmp_path, *turns)
    assert failure(world).code == "run.turns_exhausted"
    assert len(world.backends[0].calls) == 10  # max_turns_per_agent, KS 6.8


@covers("run.loop_guard")
async def test_the_duplicate_call_guard_answers_first_and_stops_second(tmp_path: Path) -> None:
    world = await lived(tmp_path, READ)
    assert failure(world).code == "run.loop_detected"
    executed = [fact for fact in world.log.facts if fact.type == "tool.completed" and fact.event.tool == "peek"]  # type: ignore[union-attr]
    assert len(executed) == 3  # infinite_loop_threshold, then two more end the loop
    told = [fact.event for fact in world.log.facts if isinstance(fact.event, run.MessageAdded) and fact.event.role == "tool"]
    assert len(told) == 2
    assert "Do something else" in told[0].content


async def test_key_order_and_spaces_do_not_hide_a_repeated_call(tmp_path: Path) -> None:
    turns = [Turn(calls=[("write_file", f'{{ "path": "a"{" " * n}, "content": "b" }}')]) for n in range(6)]
    world = await lived(tmp_path, *turns)
    assert failure(world).code == "run.loop_detected"


@covers("run.empty_turn")
async def test_an_empty_answer_is_asked_again_and_then_fails_the_run(tmp_path: Path) -> None:
    world = await lived(tmp_path, Turn(content=" \n ", reasoning="long thoughts"))
    assert failure(world).code == "run.empty_response"
    assert "reasoning" in failure(world).reason
    assert len(world.backends[0].calls) == 3


@covers("run.owed_files")
async def test_files_that_the_request_names_are_owed(tmp_path: Path) -> None:
    write = Turn(calls=[("write_file", '{"path":"out.txt","content":"1"}')])
    said = Turn(content="I have written out.txt.")
    plain = template(features=Features(reask=False))
    world = await lived(tmp_path, said, write, Turn(content="Now it is there."), message="Make out.txt.", template=plain)
    assert isinstance(world.terminal.event, run.RunCompleted)
    sent_back = [
        fact.event for fact in world.log.facts if isinstance(fact.event, run.MessageAdded) and fact.event.key.endswith("sent-back")
    ]
    assert len(sent_back) == 1
    assert "out.txt is missing" in sent_back[0].content


@covers("model.reask")
async def test_a_turn_that_calls_nothing_though_a_call_is_due_is_asked_once_under_a_schema(tmp_path: Path) -> None:
    turns = [
        Turn(content="I will now write out.txt."),
        Turn(content='{"tool":"write_file","path":"out.txt"}'),
        Turn(content="```\n1\n```"),
        Turn(content="It is written."),
    ]
    world = await lived(tmp_path, *turns, message="Make out.txt.")
    assert isinstance(world.terminal.event, run.RunCompleted)
    asked = [bool(call.response_format) for call in world.backends[0].calls]
    assert asked == [False, True, False, False]
    assert (tmp_path / "ws/1/out.txt").read_text() == "1\n"


@covers("run.owed_files")
async def test_single_gate_gives_two_repairs_and_then_fails(tmp_path: Path) -> None:
    """KS 6.1, `[SINGLE-GATE]`: a node still owing after two repair turns fails its step and the run."""
    owing = template(nodes=(node(required_output=("report.md",)),))
    world = await lived(tmp_path, Turn(content="Done."), template=owing)
    assert failure(world).code == "run.owed_output_missing"
    assert "report.md" in failure(world).reason
    gates = [fact.event for fact in world.log.facts if isinstance(fact.event, run.Noted) and fact.event.tag == "SINGLE-GATE"]
    assert len(gates) == 2
    assert any(fact.type == "run.step_failed" for fact in world.log.facts)


@covers("run.budget")
@pytest.mark.parametrize(
    ("budget", "name"), [(Budgets(model_calls=2), "model_calls"), (Budgets(tool_calls=2), "tool_calls"), (Budgets(tokens=140), "tokens")]
)
async def test_a_hard_budget_is_reserved_before_the_call_and_never_exceeded(tmp_path: Path, budget: Budgets, name: str) -> None:
    turns = [Turn(calls=[("peek", f'{{"what":"{n}"}}')]) for n in range(9)]
    world = await lived(tmp_path, *turns, budgets=budget)
    assert failure(world).code == "run.budget_exhausted"
    (refused,) = [fact.event for fact in world.log.facts if isinstance(fact.event, run.BudgetRefused)]
    assert refused.budget == name
    requested = [fact for fact in world.log.facts if isinstance(fact.event, run.ToolRequested)]
    assert len(world.backends[0].calls) <= (budget.model_calls or 9)
    assert len(requested) <= (budget.tool_calls or 99)


@covers("run.budget")
async def test_a_budget_four_fifths_spent_is_noted_once(tmp_path: Path) -> None:
    turns = [*(Turn(calls=[("peek", f'{{"what":"{n}"}}')]) for n in range(4)), Turn(content="Done.")]
    world = await lived(tmp_path, *turns, budgets=Budgets(model_calls=5))
    notes = [fact.event.text for fact in world.log.facts if isinstance(fact.event, run.Noted) and fact.event.tag == "BUDGET"]
    assert notes == ["model_calls: 4 of 5 used"]


@covers("tool.layers")
async def test_a_tool_outside_the_agents_list_is_denied_by_the_layer_that_holds_it(tmp_path: Path) -> None:
    """CC, the three-layer permission model: the connection layer, then the capability layer."""
    narrow = template(nodes=(node(mcp_servers=("workspace",), tools=("read_file", "append_line")),))
    turns = [Turn(calls=[("append_line", '{"line":"x"}'), ("write_file", '{"path":"a","content":"b"}')]), Turn(content="Then not.")]
    world = await lived(tmp_path, *turns, template=narrow)
    denied = {fact.event.tool: fact.event.layer for fact in world.log.facts if isinstance(fact.event, ToolDenied)}
    # A model is not even shown such tools: what it asked for is no call of its own catalogue.
    assert denied == {} or denied == {"append_line": "connection", "write_file": "capability"}
    assert world.effects == {}


@covers("run.cancel")
async def test_a_cancelled_run_stops_and_says_so(tmp_path: Path) -> None:
    world = World(tmp_path, [READ])
    await world.submit()
    await world.log.append(Aggregate("signal", RUN), [signal.CancelRequested(reason="changed my mind")], after=0)
    await world.live()
    assert isinstance(world.terminal.event, run.RunCancelled)
    assert world.terminal.event.reason == "changed my mind"
    assert (await verify(RUN, world.log.facts, world.template, TOPOLOGIES["single"])).diverged_at is None


@covers("run.deadline")
async def test_a_run_whose_wall_time_is_spent_ends_by_its_deadline(tmp_path: Path) -> None:
    world = World(tmp_path, [READ], budgets=Budgets(wall_s=0.001))
    await world.submit()
    await world.live()
    assert failure(world).code == "run.deadline_passed"
    assert (await verify(RUN, world.log.facts, world.template, TOPOLOGIES["single"])).diverged_at is None


async def test_an_unreadable_template_ends_the_run_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path, [READ])
    await world.submit()
    world.blobs.content.clear()
    await world.live()
    assert failure(world).code == "run.unrunnable"


@covers("run.poison")
async def test_a_run_that_only_ever_kills_the_engine_is_ended_as_poison(tmp_path: Path) -> None:
    world = World(tmp_path, [READ])
    await world.submit()
    for _ in range(6):
        world.reopen(crash_at=len(world.log.facts) + 1)  # dies right after taking the run over
        await world.live()
    world.reopen()
    await world.live()
    assert failure(world).code == "run.poison"


# ---- the model's side


class Failing(worlds.ScriptedBackend):
    """Fails a number of times before it answers as scripted."""

    def __init__(self, fault: BackendFault, times: int) -> None:
        super().__init__([Turn(content="At last.")])
        self.fault, self.times = fault, times

    async def chat(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        if self.times:
            self.times -= 1
            raise self.fault
        return await super().chat(request, on_delta)


@covers("llm.retry_once")
@pytest.mark.parametrize(("times", "ends"), [(1, run.RunCompleted), (2, run.RunFailed)])
async def test_a_dropped_connection_is_retried_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, times: int, ends: type[run.RunCompleted | run.RunFailed]
) -> None:
    """KS 6.3: one retry after a short pause, then the failure reaches the caller."""
    monkeypatch.setattr(worlds, "ScriptedBackend", lambda _: Failing(ConnectionDropped("the connection dropped"), times))
    world = await lived(tmp_path)
    assert isinstance(world.terminal.event, ends)
    assert len([fact for fact in world.log.facts if isinstance(fact.event, LlmRetried)]) == 1


@covers("llm.server_fails")
async def test_a_broken_server_fails_the_run_with_the_servers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worlds, "ScriptedBackend", lambda _: Failing(BackendBroken("HTTP 500: out of memory"), 9))
    world = await lived(tmp_path)
    assert failure(world).code == "run.model_call_failed"
    assert "out of memory" in failure(world).reason


# ---- bugs park


@covers("run.parks_on_bug")
async def test_a_bug_parks_the_run_and_mended_code_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(ctx: Run) -> Outcome:
        raise ZeroDivisionError("a bug")

    world = World(tmp_path, [Turn(content="Done.")])
    await world.submit()
    monkeypatch.setitem(TOPOLOGIES, "single", broken)
    await world.live(engine="1.0+bad", until=run.RunParked)
    world.reopen()
    monkeypatch.undo()
    await world.live(engine="1.0+good")
    assert isinstance(world.terminal.event, run.RunCompleted)


@covers("run.non_determinism")
async def test_code_that_asks_for_something_else_than_the_log_holds_parks_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, [READ, Turn(content="Done.")])
    await world.submit()
    world.reopen(crash_at=14)
    await world.live()
    world.reopen()
    renamed = template(nodes=(node(system_prompt="Another prompt."),))
    submitted = world.log.facts[0].event
    world.log = world.log.with_body(1, submitted.model_copy(update={"template": await world.blobs.put(renamed.as_bytes())}))
    await world.live(until=run.RunParked)
    (parked,) = [fact.event for fact in world.log.facts if isinstance(fact.event, run.RunParked)]
    assert "message_added" in parked.reason
    assert "Another prompt." in parked.reason


# ---- log time


@covers("run.timer")
async def test_a_timer_is_a_fact_and_so_is_its_firing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times: list[timedelta] = []

    async def sleepy(ctx: Run) -> Outcome:
        here, before = ctx.at("nap"), ctx.now()
        await here.sleep("timer", 0.01)
        times.append(here.now() - before)
        return Outcome(here.fresh_id("x"))

    monkeypatch.setitem(TOPOLOGIES, "single", sleepy)
    world = World(tmp_path, [])
    await world.submit()
    await world.live()
    assert [fact.type for fact in world.log.facts[2:]] == ["run.timer_set", "run.timer_fired", "run.completed"]
    assert (await verify(RUN, world.log.facts, world.template, sleepy)).diverged_at is None
    assert times[0] == times[1] >= timedelta(seconds=0.01)  # the replay saw the same time


async def test_a_parked_run_can_still_be_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(ctx: Run) -> Outcome:
        raise ZeroDivisionError("a bug")

    monkeypatch.setitem(TOPOLOGIES, "single", broken)
    world = World(tmp_path, [])
    await world.submit()
    await world.live(until=run.RunParked)
    world.reopen()
    await world.log.append(Aggregate("signal", RUN), [signal.CancelRequested()], after=0)
    await world.live()
    assert isinstance(world.terminal.event, run.RunCancelled)
