"""The gateway as a process's parts on a real server: the log, blobs, rpc and live text are NATS."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import orjson
import pytest
from pydantic import SecretStr

from aetherium.client import Delta, GatewayClient
from services.gateway import web
from services.gateway.app import compose, listen, server_of
from services.gateway.core import Gateway
from services.gateway.requests import RunFromTemplate
from shared import rpc, subjects
from shared.bus import Bus
from shared.config import Settings
from shared.events.envelope import Fact
from shared.events.run import Noted, RunCompleted, RunStarted, RunSubmitted
from shared.ids import new_id
from shared.process import Process, opened
from shared.subjects import Aggregate
from shared.template import parse_template

ASK = {"templateId": "quick-script", "projectName": "p", "message": "Write primes.py."}


@dataclass
class Stack:
    own: Process
    gateway: Gateway
    url: str
    client: GatewayClient


@pytest.fixture
async def stack(nats_url: str, tmp_path: Path) -> AsyncIterator[Stack]:
    settings = Settings.model_validate({"nats": {"url": nats_url}, "data_dir": tmp_path})
    async with opened("gateway", settings) as own:
        service = await rpc.serve(own.bus, "tools", {"catalogue": _catalogue})
        gateway = compose(own)
        await gateway.start()
        listener = listen("127.0.0.1", 0)
        server = server_of(gateway, web.nothing_missing)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        serving, following = asyncio.create_task(server.serve([listener])), asyncio.create_task(gateway.feed.run())
        async with GatewayClient(url) as client:
            yield Stack(own, gateway, url, client)
        gateway.feed.close()
        server.should_exit = True
        await serving
        following.cancel()
        with suppress(asyncio.CancelledError):
            await following
        await service.stop()


async def _catalogue(_asked: dict[str, object]) -> dict[str, object]:
    return {"digest": "the-tools", "tools": []}


async def finish(own: Process, run_id: str, notes: int = 0) -> None:
    aggregate = Aggregate("run", run_id)
    newest = await own.log.last(aggregate.filter)
    assert newest is not None
    noted = [Noted(key=f"n{number}", tag="T", text="x") for number in range(notes)]
    await own.log.append(
        aggregate, [RunStarted(owner="o", engine="e"), *noted, RunCompleted(reply="Done.")], after=newest.seq, cause=newest
    )


async def test_a_submission_is_one_atomic_pair_of_facts_with_a_trace_and_pins(stack: Stack) -> None:
    trace = "00-" + "ab" * 16 + "-" + "cd" * 8 + "-01"
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"{stack.url}/api/orchestrator/run-from-template?wait=false", json=ASK, headers={"traceparent": trace})
    body = answer.json()
    (submitted,) = await stack.own.log.read(subjects.of_run(body["runGuid"]))
    created = await stack.own.log.last(Aggregate("project", str(body["projectId"])).filter)
    assert created is not None
    assert submitted.seq == created.seq + 1
    assert submitted.traceparent == created.traceparent == trace
    assert isinstance(submitted.event, RunSubmitted)
    assert submitted.event.pins.tools == "the-tools"
    assert parse_template(await stack.own.blobs.get(submitted.event.template), "blob").id == "quick-script"


async def test_a_submission_without_a_trace_begins_one(stack: Stack) -> None:
    submission = await stack.client.submit("quick-script", "Hi.", project="p")
    (submitted,) = await stack.own.log.read(subjects.of_run(submission.run_guid))
    assert submitted.traceparent
    assert submitted.traceparent.startswith("00-")


async def test_the_same_key_on_two_gateways_at_once_makes_one_run(stack: Stack) -> None:
    second = compose(stack.own)
    await second.start()
    ask, key = RunFromTemplate.model_validate(ASK), new_id()
    accepted = await asyncio.gather(
        *(each.submitter.submit(ask, each.library(), key=key, trace=None) for each in (stack.gateway, second) for _ in range(5))
    )
    assert len({each.run_id for each in accepted}) == 1
    assert sum(not each.is_replay for each in accepted) == 1
    assert len(await stack.own.log.read(subjects.of_run(accepted[0].run_id))) == 1


async def test_the_client_waits_for_the_end_and_reads_the_run(stack: Stack) -> None:
    submission = await stack.client.submit("quick-script", "Hi.", project="p")
    waiting = asyncio.create_task(stack.client.wait(submission.run_guid))
    await finish(stack.own, submission.run_guid)
    async with asyncio.timeout(5):
        run = await waiting
    assert (run.status, run.response, run.project_id) == ("completed", "Done.", submission.project_id)
    assert submission.run_guid in [each.run_guid for each in await stack.client.runs(limit=5)]


async def test_the_client_streams_facts_and_text_to_the_end(stack: Stack, bus: Bus) -> None:
    submission = await stack.client.submit("quick-script", "Hi.", project="p")
    run_id = submission.run_guid
    seen: list[str] = []

    async def read() -> None:
        async for item in stack.client.events(run_id, live=True):
            seen.append(item.text if isinstance(item, Delta) else item.type if isinstance(item, Fact) else "reset")

    reading = asyncio.create_task(read())
    async with asyncio.timeout(5):
        while "Hel" not in seen:
            await bus.client.publish(subjects.live(run_id, "c1"), orjson.dumps({"callId": "c1", "text": "Hel"}))
            await asyncio.sleep(0.02)
        await finish(stack.own, run_id)
        await reading
    assert [each for each in seen if each != "Hel"] == ["run.submitted", "run.started", "run.completed"]


async def test_a_hundred_facts_reach_five_streams_each_once_and_in_order(stack: Stack) -> None:
    submission = await stack.client.submit("quick-script", "Hi.", project="p")

    async def read() -> list[int]:
        return [item.seq async for item in stack.client.events(submission.run_guid) if isinstance(item, Fact)]

    readers = [asyncio.create_task(read()) for _ in range(5)]
    await finish(stack.own, submission.run_guid, notes=97)
    async with asyncio.timeout(10):
        received = await asyncio.gather(*readers)
    stored = [fact.seq for fact in await stack.own.log.read(subjects.of_run(submission.run_guid))]
    assert len(stored) == 100
    assert received == [stored] * 5


async def test_the_client_follows_the_whole_log_by_type(stack: Stack) -> None:
    after = await stack.own.log.last_seq()
    submission = await stack.client.submit("quick-script", "Hi.", project="p")
    async with asyncio.timeout(5):
        async for item in stack.client.events(types="run.submitted", after=after):
            assert isinstance(item, Fact)
            assert item.scope == submission.run_guid
            break


async def test_a_token_of_the_settings_is_required(nats_url: str, tmp_path: Path) -> None:
    settings = Settings.model_validate({"nats": {"url": nats_url}, "data_dir": tmp_path, "gateway": {"token": SecretStr("t")}})
    async with opened("gateway", settings) as own:
        app = web.build(compose(own))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            assert (await http.get("/api/runs")).status_code == 401
