"""Runs over HTTP: submission, its answer, idempotency, cancelling, and what can be read."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from services.gateway.requests import RunFromTemplate
from shared import subjects
from shared.events.content import Usage
from shared.events.llm import LlmCompleted
from shared.events.project import ProjectCreated
from shared.events.run import (
    LlmRequested,
    MessageAdded,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunParked,
    RunStarted,
    RunSubmitted,
    StepStarted,
)
from shared.events.signal import CancelRequested
from shared.subjects import Aggregate
from shared.template import parse_template
from shared.transcript import reference
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.gateway.conftest import ASK, World, put

FROM_TEMPLATE = "/api/orchestrator/run-from-template"


def event_of(world: World, seq: int) -> RunSubmitted:
    event = world.log.facts[seq - 1].event
    assert isinstance(event, RunSubmitted)
    return event


@covers("api.submit")
async def test_the_answer_comes_when_the_run_is_final(world: World) -> None:
    asking = asyncio.create_task(world.client.post(FROM_TEMPLATE, json=ASK))
    run_id = (await world.submitted())[0].scope
    assert not asking.done()
    await world.finish(run_id, RunCompleted(reply="Here it is."))
    answer = await asking
    assert answer.status_code == 200
    assert answer.json() == {
        "success": True,
        "projectId": 1,
        "runGuid": run_id,
        "status": "completed",
        "message": "Project created and build completed.",
        "response": "Here it is.",
    }


@pytest.mark.parametrize(
    ("event", "status", "reason"),
    [
        (RunFailed(code="x", reason="no model"), "failed", "no model"),
        (RunCancelled(reason="enough"), "cancelled", "enough"),
        (RunParked(reason="a bug"), "parked", "a bug"),
    ],
)
async def test_a_run_that_did_not_succeed_says_why(world: World, event: RunFailed, status: str, reason: str) -> None:
    asking = asyncio.create_task(world.client.post(FROM_TEMPLATE, json=ASK))
    await world.finish((await world.submitted())[0].scope, event)
    body = (await asking).json()
    assert (body["success"], body["status"], body["reason"]) == (False, status, reason)


@covers("api.submit", "run.pins")
async def test_without_waiting_the_run_is_queued_and_everything_is_pinned(world: World) -> None:
    overrides = {"modelId": "m", "temperature": 0.5, "seed": 7, "budgets": {"modelCalls": 3, "wallS": 9}}
    answer = await world.client.post(f"{FROM_TEMPLATE}?wait=false", json={**ASK, "description": "d", "overrides": overrides})
    assert answer.status_code == 202
    assert (answer.json()["status"], answer.json()["success"]) == ("queued", False)
    project, submitted = world.log.facts
    assert project.event == ProjectCreated(name="p", template_id="quick-script", description="d")
    event = event_of(world, submitted.seq)
    assert (event.model, event.sampling.temperature, event.sampling.seed) == ("m", 0.5, 7)
    assert (event.budgets.model_calls, event.budgets.wall_s, event.budgets.tool_calls) == (3, 9, 500)
    assert (event.pins.tools, event.pins.engine, event.pins.template) == ("tools-digest", "test-engine", event.template.sha256)
    assert parse_template(await world.gateway.blobs.get(event.template), "blob").id == "quick-script"


async def test_a_run_on_an_existing_project_uses_its_template(world: World) -> None:
    await world.start_run()
    answer = await world.client.post("/api/orchestrator/run?wait=false", json={"projectId": 1, "message": "More."})
    assert (answer.status_code, answer.json()["projectId"]) == (202, 1)
    assert event_of(world, 3).template_id == "quick-script"
    unknown = await world.client.post("/api/orchestrator/run", json={"projectId": 77, "message": "More."})
    assert (unknown.status_code, unknown.json()["field"]) == (404, "projectId")


async def test_project_numbers_go_on_after_a_restart_and_past_those_of_another_gateway(world: World) -> None:
    await world.log.append(Aggregate("project", "41"), [ProjectCreated(name="x", template_id="t")], after=0)
    await world.gateway.start()
    world.gateway.index.newest_project = 40  # as if it had not been seen yet: the log decides
    answer = await world.client.post(f"{FROM_TEMPLATE}?wait=false", json=ASK)
    assert answer.json()["projectId"] == 42


@covers("api.submit.idempotent")
async def test_a_repeated_key_gives_the_same_run_and_stores_nothing(world: World) -> None:
    key = {"Idempotency-Key": "build-1"}
    first = await world.client.post(f"{FROM_TEMPLATE}?wait=false", json=ASK, headers=key)
    stored = len(world.log.facts)
    await world.finish(first.json()["runGuid"])
    again = await world.client.post(FROM_TEMPLATE, json=ASK, headers=key)
    assert (again.status_code, again.headers["Idempotent-Replayed"]) == (200, "true")
    assert (again.json()["runGuid"], again.json()["response"]) == (first.json()["runGuid"], "Done.")
    assert len(world.log.facts) == stored + 2
    other = await world.client.post(FROM_TEMPLATE, json={**ASK, "message": "Else."}, headers=key)
    assert (other.status_code, other.json()["code"], other.json()["field"]) == (422, "input.key_reused", "Idempotency-Key")


async def test_ten_requests_at_once_with_one_key_make_one_run(world: World) -> None:
    posts = [world.client.post(f"{FROM_TEMPLATE}?wait=false", json=ASK, headers={"Idempotency-Key": "k"}) for _ in range(10)]
    answers = await asyncio.gather(*posts)
    assert len({answer.json()["runGuid"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 9 + [202]
    assert len(await world.log.read(subjects.every("run.submitted"))) == 1
    assert len(await world.log.read(subjects.every("project.created"))) == 1


async def test_ten_requests_at_once_get_ten_projects(world: World) -> None:
    answers = await asyncio.gather(*(world.client.post(f"{FROM_TEMPLATE}?wait=false", json=ASK) for _ in range(10)))
    assert sorted(answer.json()["projectId"] for answer in answers) == list(range(1, 11))


async def test_half_an_emoji_and_a_null_character_are_stored_as_a_visible_mark(world: World) -> None:
    raw = b'{"templateId":"quick-script","projectName":"p","message":"cut \\ud83d \\u0000 \\ud83d\\ude00 \\\\u0000"}'
    answer = await world.client.post(f"{FROM_TEMPLATE}?wait=false", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 202
    assert event_of(world, 2).message == "cut \ufffd \ufffd 😀 \\u0000"


@covers("api.cancel")
async def test_cancelling_records_the_wish_once(world: World) -> None:
    run_id = await world.start_run()
    for _ in range(2):
        answer = await world.client.post(f"/api/runs/{run_id}/cancel", json={"reason": "wrong task"})
        assert answer.status_code == 202
    wishes = await world.log.read(subjects.every("signal.cancel_requested"))
    assert [wish.event for wish in wishes] == [CancelRequested(reason="wrong task")]
    assert (await world.client.get(f"/api/runs/{run_id}")).json()["cancelRequested"] is True


@covers("api.cancel")
async def test_a_project_is_cancelled_by_number_and_with_no_body(world: World) -> None:
    run_id = await world.start_run()
    answer = await world.client.post("/api/orchestrator/runs/1/cancel")
    assert (answer.status_code, answer.json()["runGuids"]) == (202, [run_id])
    assert (await world.client.post("/api/orchestrator/runs/9/cancel")).status_code == 404


async def test_a_run_that_has_ended_cannot_be_cancelled(world: World) -> None:
    run_id = await world.start_run()
    await world.finish(run_id)
    for path in (f"/api/runs/{run_id}/cancel", "/api/orchestrator/runs/1/cancel"):
        answer = await world.client.post(path)
        assert (answer.status_code, answer.json()["code"]) == (409, "run.already_over")
    assert not await world.log.read(subjects.every("signal.cancel_requested"))


@covers("api.status")
async def test_a_run_shows_its_fold_and_its_workspace(world: World) -> None:
    run_id = await world.start_run(sourceAgent="ci")
    await put(
        world.log,
        run_id,
        RunStarted(owner="o", engine="e"),
        StepStarted(key="agent", agent="coder", title="Write"),
        LlmRequested(key="k", call_id="c1", agent="coder", turn=1),
        LlmCompleted(call_id="c1", content="hm", usage=Usage(prompt_tokens=5, completion_tokens=2)),
    )
    await world.folded()
    body = (await world.client.get(f"/api/orchestrator/runs/1/{run_id}")).json()
    assert (body["runGuid"], body["status"], body["sourceAgent"], body["turns"], body["seq"]) == (run_id, "running", "ci", 1, 6)
    assert body["usage"] == {"promptTokens": 5, "completionTokens": 2, "cachedTokens": 0}
    assert body["steps"][0]["title"] == "Write"
    assert body["workspace"].endswith("/workspaces/1")
    assert (await world.client.get(f"/api/orchestrator/runs/2/{run_id}")).status_code == 404


async def test_runs_are_listed_newest_first_and_filtered(world: World) -> None:
    first, second = await world.start_run(), await world.start_run()
    await world.finish(first)
    await world.folded()

    async def ids(query: str) -> list[str]:
        return [run["runGuid"] for run in (await world.client.get(f"/api/runs{query}")).json()["runs"]]

    assert await ids("") == [second, first]
    assert await ids("?limit=1") == [second]
    assert await ids("?projectId=1") == [first]
    assert await ids("?status=completed") == [first]
    assert await ids(f"?prefix={second[:8]}") == [second]
    assert (await world.client.get("/api/runs?status=odd")).json()["field"] == "status"


@covers("api.status")
async def test_the_build_log_is_text_or_json(world: World) -> None:
    run_id = await world.start_run()
    await world.finish(run_id)
    text = (await world.client.get("/api/orchestrator/runs/1/logs")).text
    assert [line.split("  ")[1] for line in text.splitlines()] == ["submitted: Write primes.py.", "started by o", "completed"]
    lines = (await world.client.get(f"/api/runs/{run_id}/logs", headers={"Accept": "application/json"})).json()["lines"]
    assert [line["seq"] for line in lines] == [2, 3, 4]


@covers("api.status", "run.prompt_rebuilt")
async def test_the_prompt_of_a_call_is_rebuilt(world: World) -> None:
    run_id = await world.start_run()
    said = (await put(world.log, run_id, MessageAdded(key="u", agent="coder", role="user", content="Hi.")))[0]
    asked = (await put(world.log, run_id, LlmRequested(key="k", call_id="c1", agent="coder", adds=(reference(said),))))[0]
    body = (await world.client.get(f"/api/runs/{run_id}/prompt/c1")).json()
    assert body == {"runGuid": run_id, "callId": "c1", "seq": asked.seq, "messages": [{"role": "user", "content": "Hi."}], "tools": []}
    assert (await world.client.get(f"/api/runs/{run_id}/prompt/c2")).json()["field"] == "callId"


@covers("api.problems")
@pytest.mark.parametrize("run_id", ["nope", "*", ">", "1", "a.b"])
async def test_an_unknown_run_is_not_found_and_no_wildcard_finds_another(world: World, run_id: str) -> None:
    await world.start_run()  # also makes project "1", whose facts must not pass for a run's
    for method, path in (("GET", ""), ("GET", "/events"), ("GET", "/logs"), ("GET", "/prompt/c"), ("POST", "/cancel")):
        answer = await world.client.request(method, f"/api/runs/{run_id}{path}")
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (404, "input.not_found", "runGuid")


async def test_a_caller_that_leaves_does_not_stop_the_run(world: World, url: str) -> None:
    async with httpx.AsyncClient(trust_env=False) as client:
        asking = asyncio.create_task(client.post(f"{url}{FROM_TEMPLATE}", json=ASK))
        run_id = (await world.submitted())[0].scope
        await until(lambda: world.gateway.index.is_awaited(run_id))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: not world.gateway.index.is_awaited(run_id))  # the handler has noticed and let go
    assert not await world.log.read(subjects.every("signal.cancel_requested"))
    assert (await world.client.get(f"/api/runs/{run_id}")).json()["status"] == "queued"


def test_two_kinds_of_request_with_the_same_message_have_different_digests() -> None:
    one = RunFromTemplate.model_validate(ASK)
    assert one.digest() == RunFromTemplate.model_validate(dict(reversed(ASK.items()))).digest()
    assert one.digest() != RunFromTemplate.model_validate({**ASK, "sourceAgent": "ci"}).digest()
