"""Bad input is refused with a problem that names what to mend."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway import submission
from services.gateway.body import parse
from services.gateway.core import Policy
from services.gateway.problems import MEDIA_TYPE, Malformed, body_of
from services.gateway.requests import RunFromTemplate
from services.gateway.submission import Limits
from shared.errors import ServiceUnavailable
from shared.events.content import Budgets
from shared.events.envelope import Fact
from tests.requirements import covers
from tests.unit.gateway.conftest import ASK, World, opened

PATH = "/api/orchestrator/run-from-template"
JSON = {"content-type": "application/json"}


def problem(answer: httpx.Response, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == MEDIA_TYPE
    body = answer.json()
    assert (body["status"], body["type"]) == (status, f"urn:aetherium:problem:{body['code']}")
    assert body["title"]
    assert body["detail"]
    return body


@covers("api.problems")
@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"message": ""}, "message"),
        ({"message": " \n\t"}, "message"),
        ({"message": None}, "message"),
        ({"message": 5}, "message"),
        ({"projectName": ""}, "projectName"),
        ({"extra": 1}, "extra"),
        ({"template_id": "x"}, "template_id"),
        ({"overrides": {"temperature": 3}}, "overrides.temperature"),
        ({"overrides": {"budgets": {"modelCalls": 0}}}, "overrides.budgets.modelCalls"),
        ({"overrides": {"budgets": {"calls": 1}}}, "overrides.budgets.calls"),
        ({"overrides": {"modelId": ""}}, "overrides.modelId"),
    ],
)
async def test_a_wrong_field_is_named_by_its_path(world: World, change: dict[str, Any], field: str) -> None:
    body = problem(await world.client.post(PATH, json={**ASK, **change}), 422)
    assert body["field"] == field
    assert body["detail"].startswith(f"{field}: ")
    assert world.log.facts == []


async def test_a_missing_field_is_named(world: World) -> None:
    assert problem(await world.client.post(PATH, json={"templateId": "quick-script", "projectName": "p"}), 422)["field"] == "message"


async def test_an_unknown_field_lists_the_known_ones(world: World) -> None:
    assert "sourceAgent" in problem(await world.client.post(PATH, json={**ASK, "sorceAgent": "x"}), 422)["detail"]


@covers("api.problems")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b'{"message": "x",\n "projectName": }', "line 2, column 17"),
        (b"", "line 1, column 1"),
        (b"[1]", "must be a JSON object"),
        (b'{"message": NaN}', "NaN is no JSON number"),
        (b'{"message": "\xff"}', "byte 13"),
        (b'{"a":' + b"[" * 30_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is not JSON"),
    ],
)
async def test_malformed_json_names_the_position(world: World, content: bytes, says: str) -> None:
    body = problem(await world.client.post(PATH, content=content, headers=JSON), 400)
    assert body["code"] == "input.malformed"
    assert says in body["detail"]


async def test_a_body_of_another_kind_is_refused(world: World) -> None:
    for headers in ({"content-type": "text/plain"}, {"content-type": "application/x-www-form-urlencoded"}):
        body = problem(await world.client.post(PATH, content=json.dumps(ASK), headers=headers), 415)
        assert body["field"] == "Content-Type"


@covers("api.problems")
async def test_an_unknown_template_lists_those_that_exist(world: World) -> None:
    body = problem(await world.client.post(PATH, json={**ASK, "templateId": "nope"}), 404)
    assert body["field"] == "templateId"
    assert "quick-script" in body["known"]
    assert "quick-script" in body["detail"]


async def test_an_over_long_message_is_refused_with_the_limit(world: World) -> None:
    body = problem(await world.client.post(PATH, json={**ASK, "message": "x" * 1001}), 413)
    assert (body["field"], body["limit"]) == ("message", 1000)
    assert "1000" in body["detail"]


async def test_a_message_of_too_many_bytes_is_refused_before_the_log_sees_it(tmp_path: Path) -> None:
    async with opened(tmp_path, Policy(max_body_bytes=5_000_000)) as wide:
        wide.gateway.submitter.limits = Limits("e", Budgets(), 300_000)
        body = problem(await wide.client.post(PATH, json={**ASK, "message": "é" * 150_000}), 413)
        assert str(200 * 1024) in body["detail"]
        assert wide.log.facts == []


@covers("api.problems")
async def test_an_over_long_body_is_refused_with_the_number(world: World) -> None:
    body = problem(await world.client.post(PATH, json={**ASK, "message": "x" * 60_000}), 413)
    assert body["limit"] == 50_000
    assert "50000" in body["detail"]


async def test_a_body_of_unknown_length_is_refused_while_it_is_read(world: World) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        for _ in range(1000):
            sent += 10_000
            yield b"x" * 10_000

    problem(await world.client.post(PATH, content=endless(), headers=JSON), 413)
    assert sent <= 70_000


@pytest.mark.parametrize("key", ["", " ", "k" * 256, "naïve"])
async def test_an_unfit_idempotency_key_is_refused(world: World, key: str) -> None:
    answer = await world.client.post(PATH, json=ASK, headers=httpx.Headers({"Idempotency-Key": key.encode()}, encoding="utf-8"))
    assert problem(answer, 422)["field"] == "Idempotency-Key"


async def test_a_tools_service_that_is_away_is_named_and_nothing_is_stored(world: World) -> None:
    class Away:
        async def digest(self) -> str:
            raise ServiceUnavailable("the tools service has not answered for 5 s: see 'aetherium status'", service="tools")

    world.gateway.submitter.catalogue = Away()
    answer = await world.client.post(PATH, json=ASK)
    assert "aetherium status" in problem(answer, 503)["detail"]
    assert answer.headers["Retry-After"]
    assert world.log.facts == []


async def test_a_log_that_does_not_answer_is_told_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "PATIENCE_S", 0.05)

    async def never(writes: object) -> list[list[Fact]]:
        return await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(world.log, "commit", never)
    answer = await world.client.post(PATH, json=ASK)
    assert "Idempotency-Key" in problem(answer, 503)["detail"]


async def test_an_unknown_path_and_a_wrong_method_are_problems(world: World) -> None:
    problem(await world.client.get("/api/nope"), 404)
    problem(await world.client.delete("/api/runs"), 405)


async def test_a_wrong_parameter_is_named(world: World) -> None:
    assert problem(await world.client.get("/api/runs?limit=0"), 422)["field"] == "limit"
    assert problem(await world.client.get("/api/orchestrator/runs/x/logs"), 422)["field"] == "projectId"


@covers("api.problems.bug")
async def test_a_bug_is_a_problem_without_inner_detail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret inside")

    monkeypatch.setattr(world.gateway, "library", broken)
    body = problem(await world.client.get("/api/templates"), 500)
    assert "secret" not in json.dumps(body)


@covers("api.token")
async def test_with_a_token_everything_but_health_needs_it(tmp_path: Path) -> None:
    async with opened(tmp_path, Policy(token="s3cret")) as world:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic s3cret"}, {"Authorization": "Bearer"}):
            answer = await world.client.get("/api/runs", headers=headers)
            problem(answer, 401)
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        assert (await world.client.get("/metrics")).status_code == 401
        assert (await world.client.get("/healthz")).status_code == 200
        assert (await world.client.get("/api/runs", headers={"Authorization": "bearer s3cret"})).status_code == 200


@covers("api.token")
@pytest.mark.parametrize(
    ("host", "allowed"),
    [("127.0.0.1:5257", True), ("localhost", True), ("[::1]:5257", True), ("evil.example", False), ("10.0.0.7:5257", False)],
)
async def test_without_a_token_only_this_machine_is_answered_under_its_own_name(world: World, host: str, allowed: bool) -> None:
    answer = await world.client.get("/api/runs", headers={"Host": host})
    assert answer.status_code == (200 if allowed else 403)


async def test_a_gateway_behind_a_bind_to_all_addresses_takes_any_host(tmp_path: Path) -> None:
    async with opened(tmp_path, Policy(token="t", loopback_only=False)) as world:
        headers = {"Host": "engine.example", "Authorization": "Bearer t"}
        assert (await world.client.get("/api/runs", headers=headers)).status_code == 200


def test_none_is_left_out_of_a_problem_and_no_member_overrides_its_own() -> None:
    assert body_of(404, "c", "d", {"field": None, "status": 1}) == {
        "type": "urn:aetherium:problem:c",
        "title": "Not Found",
        "status": 404,
        "detail": "d",
        "code": "c",
    }


def test_a_byte_order_mark_is_not_an_error() -> None:
    assert parse(b"\xef\xbb\xbf" + json.dumps(ASK).encode(), RunFromTemplate).template_id == "quick-script"
    with pytest.raises(Malformed):
        parse(b"nul", RunFromTemplate)
