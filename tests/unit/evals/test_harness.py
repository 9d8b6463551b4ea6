"""The evaluation against a gateway of the test's own: what it asks for, what it makes of the answers, and what it shows."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
from rich.console import Console

from aetherium.client import GatewayClient
from aetherium.launcher.state import Model
from evals import harness
from evals.engine import CannotEvaluate, Target
from evals.harness import Evaluation, Plan
from evals.outcome import Failure
from evals.progress import Progress
from evals.task import Task
from shared.errors import BadInput, NotFound
from shared.events.envelope import Fact
from shared.events.run import LlmRequested
from shared.ids import new_id
from shared.subjects import Aggregate
from tests.unit.evals.test_task import TASK

AT = datetime(2026, 1, 2, tzinfo=UTC)
TASKS = tuple(Task.model_validate({**TASK, "id": name}) for name in ("one", "two"))


def event(seq: int, kind: str, **data: Any) -> bytes:
    body = {"seq": seq, "id": new_id(), "type": kind, "version": 1, "time": AT, "source": "s", "scope": "r", "data": data}
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), orjson.dumps(body))


ENDED = {"reply": "Done."}
STORY = [
    event(1, "run.started", owner="o", engine="0.1.0+abc"),
    event(2, "run.model_profiled", key="k", agent="a", model="tiny-1b", guided=True),
    event(3, "run.llm_requested", key="k", call_id="c", agent="a", turn=1),
]


@dataclass
class FakeGateway:
    """Answers as a gateway does; each run ends as `last` says, with its workspace in `folder`."""

    folder: Path
    last: bytes = event(4, "run.completed", **ENDED)
    status: dict[str, Any] = field(default_factory=dict[str, Any])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    cancelled: list[str] = field(default_factory=list[str])
    leaves: Sequence[str] = ("a.txt", "b.txt")

    def answer(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        if path.startswith("/api/templates/"):
            node = {"id": "w", "name": "W", "system_prompt": "p", "max_tokens": 800}
            return httpx.Response(200, json={"id": "t", "name": "T", "nodes": [node], "circuit_breaker": {"max_turns_per_agent": 12}})
        if path == "/api/orchestrator/run-from-template":
            self.asked.append(orjson.loads(request.content))
            return httpx.Response(202, json={"runGuid": self._guid, "projectId": len(self.asked), "status": "queued"})
        if path.endswith("/cancel"):
            self.cancelled.append(path.split("/")[3])
            return httpx.Response(202, json={})
        if path.endswith("/events"):
            return httpx.Response(200, content=b"".join([*STORY, self.last]))
        return httpx.Response(200, json=self._run())

    @property
    def _guid(self) -> str:
        return f"run-{len(self.asked)}"

    def _run(self) -> dict[str, Any]:
        workspace = self.folder / str(len(self.asked))
        workspace.mkdir(exist_ok=True)
        for name in self.leaves:
            (workspace / name).write_text("hello\n")
        ran = {"projectId": 1, "templateId": "t", "message": "m", "turns": 3, "toolCalls": 2, "workspace": str(workspace)}
        return {"runGuid": self._guid, "status": "completed", "startedAt": AT.isoformat(), "endedAt": AT.isoformat(), **ran, **self.status}


@dataclass
class Desk:
    gateway: FakeGateway
    out: io.StringIO = field(default_factory=io.StringIO)

    async def evaluated(self, **fields: Any) -> Evaluation:
        plan = Plan(**{"tasks": TASKS, **fields})
        transport = httpx.MockTransport(self.gateway.answer)
        async with GatewayClient("http://gateway", transport=transport) as client:
            target = Target(client, Model(source="configured", text=""))
            evaluation = await harness.begin(plan, target, Progress(Console(file=self.out, width=200, highlight=False)))
            await evaluation.make()
            return evaluation


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(FakeGateway(tmp_path))


async def test_each_run_begins_with_the_tasks_files_and_within_its_bounds(desk: Desk) -> None:
    await desk.evaluated(tasks=TASKS[:1], model="m", slot="fast", without=("reask", "constrained_turns"))
    (asked,) = desk.gateway.asked
    assert (asked["templateId"], asked["message"], asked["files"]) == ("file-worker", "Copy a.txt to b.txt.", {"a.txt": "hello\n"})
    assert asked["overrides"] == {
        "modelId": "m",
        "slot": "fast",
        "temperature": 0.0,
        "seed": 1,
        "budgets": {"wallS": 150.0},
        "features": {"reask": False, "constrainedTurns": "never"},
    }


async def test_the_report_knows_what_the_runs_told(desk: Desk) -> None:
    made = (await desk.evaluated()).report()
    assert [each.task for each in made.main.results] == ["one", "two"]
    assert made.main.passes == 2
    assert made.complete
    given = made.conditions
    assert (given.model, given.guided, given.engine) == ("tiny-1b", True, "0.1.0+abc")
    assert (given.max_turns, given.max_tokens, given.template) == (12, 800, "file-worker")
    assert desk.gateway.cancelled == []


async def test_a_wrong_workspace_fails_though_the_run_completed(desk: Desk) -> None:
    desk.gateway.leaves = ("a.txt",)
    made = (await desk.evaluated()).report()
    assert [each.failure for each in made.main.results] == [Failure.CLAIMED_DONE] * 2
    assert "claimed_done: b.txt is not a copy" in desk.out.getvalue()


async def test_every_attempt_has_a_seed_of_its_own(desk: Desk) -> None:
    made = (await desk.evaluated(repeat=3)).report()
    assert [each["overrides"]["seed"] for each in desk.gateway.asked] == [1, 1, 2, 2, 3, 3]
    assert [(each.task, each.attempt) for each in made.main.results][:3] == [("one", 1), ("two", 1), ("one", 2)]


async def test_a_mechanism_is_measured_by_one_more_pass_without_it(desk: Desk) -> None:
    made = (await desk.evaluated(without=("reask",), ablate=("reask", "hold_to_request"))).report()
    assert (made.main.without, [each.without for each in made.ablation]) == (("reask",), [("reask", "hold_to_request")])
    assert [each["overrides"]["features"] for each in desk.gateway.asked[2:]] == [{"reask": False, "holdToRequest": False}] * 2
    assert made.complete


async def test_an_earlier_report_can_be_the_first_pass(desk: Desk) -> None:
    earlier = (await desk.evaluated()).report()
    desk.gateway.asked.clear()
    made = (await desk.evaluated(tasks=TASKS[:1], first=earlier, ablate=("reask",))).report()
    assert made.main.results == earlier.main.results[:1]
    assert [each["overrides"]["features"] for each in desk.gateway.asked] == [{"reask": False}]
    assert (made.complete, made.conditions.engine) == (True, "0.1.0+abc")


async def test_a_report_of_other_conditions_is_no_first_pass(desk: Desk) -> None:
    earlier = (await desk.evaluated(tasks=TASKS[:1])).report()
    with pytest.raises(BadInput, match=r"made with temperature 0\.0, not 1\.0"):
        Plan(tasks=TASKS[:1], temperature=1.0, first=earlier).check()
    with pytest.raises(BadInput, match="no result of 'two'"):
        Plan(tasks=TASKS, first=earlier).check()


async def test_a_parked_run_is_cancelled_and_counts_as_the_engines_failure(desk: Desk) -> None:
    desk.gateway.last = event(4, "run.parked", reason="a bug")
    desk.gateway.status = {"status": "parked", "reason": "a bug"}
    made = (await desk.evaluated(tasks=TASKS[:1])).report()
    assert (made.main.results[0].failure, desk.gateway.cancelled) == (Failure.ENGINE_ERROR, ["run-1"])
    assert "the engine parked the run: a bug" in made.main.results[0].why


async def test_a_run_that_the_engine_does_not_end_is_given_up(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(harness, "GRACE_S", 0.2)
    desk.gateway.last = b""
    made = (await desk.evaluated(tasks=TASKS[:1], budget_s=0.1)).report()
    assert (made.main.results[0].failure, desk.gateway.cancelled) == (Failure.ENGINE_ERROR, ["run-1"])
    assert "did not end the run" in made.main.results[0].why


async def test_a_run_that_made_no_workspace_is_a_failure_and_one_elsewhere_cannot_be_judged(desk: Desk) -> None:
    gone = {"workspace": "/nowhere", "toolCalls": 0, "status": "failed", "code": "run.model_call_failed", "reason": "no model"}
    desk.gateway.status = gone
    made = (await desk.evaluated(tasks=TASKS[:1])).report()
    assert (made.main.results[0].failure, made.main.results[0].why) == (Failure.MODEL_ERROR, "it called no tool; no model")
    desk.gateway.status = {**gone, "toolCalls": 2}
    with pytest.raises(CannotEvaluate, match="not on this machine"):
        await desk.evaluated(tasks=TASKS[:1])


def test_what_was_measured_before_a_stop_is_a_report_that_is_not_complete(tmp_path: Path) -> None:
    client = GatewayClient("http://gateway", transport=httpx.MockTransport(FakeGateway(tmp_path).answer))
    template: Any = FakeGateway(tmp_path).answer(httpx.Request("GET", "http://gateway/api/templates/t")).json()
    known = harness.conditions.of_this_machine()
    evaluation = Evaluation(
        Plan(TASKS), Target(client, Model(source="local", text="")), Progress(Console(quiet=True)), harness.Template(**template), known
    )
    assert (evaluation.report().complete, evaluation.report().main.results) == (False, ())


def test_tasks_are_chosen_by_name_and_an_unknown_one_is_named() -> None:
    assert harness.chosen(TASKS, []) == TASKS
    assert harness.chosen(TASKS, ["two", "two"]) == (TASKS[1],)
    with pytest.raises(NotFound, match=r"no task 'three'\. Known: one, two"):
        harness.chosen(TASKS, ["three"])


def test_what_is_left_is_read_without_caches_and_links(tmp_path: Path) -> None:
    for name in ("a.txt", "b/c.txt", "__pycache__/x.pyc", "b/.pytest_cache/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "out").symlink_to("/etc")
    assert harness.files_of(tmp_path) == {"a.txt": b"a.txt", "b/c.txt": b"b/c.txt"}


# ---- the screen


@dataclass
class Shown:
    """A screen whose time the test owns."""

    at: float = 0.0
    out: io.StringIO = field(default_factory=io.StringIO)

    def progress(self) -> Progress:
        return Progress(Console(file=self.out, width=200, highlight=False), monotonic=lambda: self.at)


def test_a_task_that_takes_long_says_every_few_seconds_where_it_is() -> None:
    shown = Shown()
    progress = shown.progress()
    progress.begin("[1/2] one", "the run is submitted")
    progress.fact(Fact(1, "i", AT, "s", Aggregate("run", "r"), LlmRequested(key="k", call_id="c", agent="a", turn=4)))
    for second in range(1, 12):
        shown.at = float(second)
        progress.beat()
    assert shown.out.getvalue().splitlines() == [
        "    5.0 s  [1/2] one  turn 4  the model computes",
        "   10.0 s  [1/2] one  turn 4  the model computes",
    ]


def test_on_a_terminal_the_line_is_kept_current_and_never_wider_than_it() -> None:
    shown = Shown()
    progress = Progress(Console(file=shown.out, width=30, force_terminal=True, color_system=None), monotonic=lambda: shown.at)
    progress.begin("[1/2] one", "a very long wait for something")
    shown.at = 1.0
    progress.beat()
    lines = shown.out.getvalue().split("\r\x1b[2K")[1:]
    assert len(lines) == 2
    assert all(len(line) < 30 and "\n" not in line for line in lines)
    assert lines[1].startswith("    1.0 s  [1/2] one")
