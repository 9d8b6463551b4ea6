"""The gateway as a process's parts on a real server: the log, blobs, rpc and live text are NATS."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
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
from shared.eventlog import NatsEventLog
from shared.events.envelope import Event, Fact
from shared.events.run import Noted, RunCompleted, RunFailed, RunStarted, RunSubmitted
from shared.ids import new_id
from shared.process import Process, opened
from shared.subjects import Aggregate
from shared.template import parse_template
from tests.conftest import free_port
from tests.requirements import covers
from tests.support.waiting import LOOK_EVERY_S

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


async def end_run(log: NatsEventLog, run_id: str, *events: Event, notes: int = 0) -> None:
    """What the orchestrator would write."""
    aggregate = Aggregate("run", run_id)
    newest = await log.last(aggregate.filter)
    assert newest is not None
    noted = [Noted(key=f"n{number}", tag="T", text="x") for number in range(notes)]
    last = events or (RunCompleted(reply="Done."),)
    await log.append(aggregate, [RunStarted(owner="o", engine="e"), *noted, *last], after=newest.seq, cause=newest)


@covers("api.submit", "run.pins")
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


@covers("api.submit.idempotent")
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
    await end_run(stack.own.log, submission.run_guid)
    async with asyncio.timeout(5):
        run = await waiting
    assert (run.status, run.response, run.project_id) == ("completed", "Done.", submission.project_id)
    assert submission.run_guid in [each.run_guid for each in await stack.client.runs(limit=5)]


@covers("api.events")
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
            await asyncio.sleep(LOOK_EVERY_S)
        await end_run(stack.own.log, run_id)
        await reading
    assert [each for each in seen if each != "Hel"] == ["run.submitted", "run.started", "run.completed"]


async def test_a_hundred_facts_reach_five_streams_each_once_and_in_order(stack: Stack) -> None:
    submission = await stack.client.submit("quick-script", "Hi.", project="p")

    async def read() -> list[int]:
        return [item.seq async for item in stack.client.events(submission.run_guid) if isinstance(item, Fact)]

    readers = [asyncio.create_task(read()) for _ in range(5)]
    await end_run(stack.own.log, submission.run_guid, notes=97)
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


@covers("api.token")
async def test_a_token_of_the_settings_is_required(nats_url: str, tmp_path: Path) -> None:
    settings = Settings.model_validate({"nats": {"url": nats_url}, "data_dir": tmp_path, "gateway": {"token": SecretStr("t")}})
    async with opened("gateway", settings) as own:
        app = web.build(compose(own))
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as http:
            assert (await http.get("/api/runs")).status_code == 401


# ---- the process itself, and the verbs that talk to it


class GatewayProcess:
    """`python -m services.gateway.app`, with settings of its own."""

    def __init__(self, nats_url: str, folder: Path) -> None:
        self.port = free_port()
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")},
            "AETHERIUM_NATS__URL": nats_url,
            "AETHERIUM_DATA_DIR": str(folder),
            "AETHERIUM_GATEWAY__PORT": str(self.port),
        }
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.gateway.app", env=self.env, stderr=PIPE)
        async with httpx.AsyncClient(trust_env=False) as http, asyncio.timeout(60):
            while True:
                with suppress(httpx.TransportError):
                    if (await http.get(f"http://127.0.0.1:{self.port}/readyz")).is_success:
                        return
                await asyncio.sleep(LOOK_EVERY_S)

    async def stop(self, number: int) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        async with asyncio.timeout(10):
            await self.process.communicate()
        assert self.process.returncode is not None
        return self.process.returncode

    async def verb(self, *arguments: str) -> tuple[int, str]:
        """Run a verb of the command line against it."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "aetherium", *arguments, env=self.env, stdout=PIPE, stderr=STDOUT
        )
        async with asyncio.timeout(60):
            out, _ = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode()


@pytest.fixture
async def running(nats_url: str, bus: Bus, tmp_path: Path) -> AsyncIterator[GatewayProcess]:
    service = await rpc.serve(bus, "tools", {"catalogue": _catalogue})
    gateway = GatewayProcess(nats_url, tmp_path)
    await gateway.start()
    yield gateway
    assert gateway.process is not None
    if gateway.process.returncode is None:
        assert await gateway.stop(signal.SIGTERM) == 0
    await service.stop()


@covers("api.events.resume")
async def test_a_stream_outlives_a_killed_gateway(running: GatewayProcess, nats_log: NatsEventLog) -> None:
    async with GatewayClient(f"http://127.0.0.1:{running.port}") as client:
        submission = await client.submit("quick-script", "Hi.", project="p", key=new_id())
        seen: list[int] = []
        first = asyncio.Event()

        async def read() -> None:
            async for item in client.events(submission.run_guid):
                assert isinstance(item, Fact)
                seen.append(item.seq)
                first.set()

        reading = asyncio.create_task(read())
        async with asyncio.timeout(60):
            await first.wait()
            await running.stop(signal.SIGKILL)
            await end_run(nats_log, submission.run_guid, notes=5)
            await running.start()
            await reading
    assert seen == [fact.seq for fact in await nats_log.read(subjects.of_run(submission.run_guid))]
    assert len(seen) == 8


async def test_sigterm_ends_open_streams_and_the_process_at_once(running: GatewayProcess) -> None:
    async with GatewayClient(f"http://127.0.0.1:{running.port}") as client:
        stream = client.events(types="project.created")
        async with asyncio.timeout(10):
            await client.submit("quick-script", "Hi.", project="p")
            await anext(stream)
            assert await running.stop(signal.SIGTERM) == 0
        await stream.aclose()


async def test_a_port_that_is_taken_stops_the_start_with_its_name(running: GatewayProcess) -> None:
    second = await asyncio.create_subprocess_exec(sys.executable, "-m", "services.gateway.app", env=running.env, stderr=PIPE)
    async with asyncio.timeout(60):
        _, said = await second.communicate()
    assert second.returncode == 2
    assert f"127.0.0.1:{running.port}" in said.decode()


@covers("cli.verbs")
async def test_the_verbs_start_list_show_cancel_export_and_replay_a_run(
    running: GatewayProcess, nats_log: NatsEventLog, tmp_path: Path
) -> None:
    code, said = await running.verb("run", "quick-script", "Say hi.", "--no-watch")
    assert code == 0, said
    run_id = said.strip()
    code, said = await running.verb("cancel", run_id[:13], "--reason", "enough")
    assert (code, run_id in said) == (0, True)
    await end_run(nats_log, run_id)
    code, said = await running.verb("runs", "--limit", "5")
    assert (code, run_id in said) == (0, True)
    code, said = await running.verb("show", run_id[:13])
    assert code == 0, said
    assert "cancel requested: enough" in said
    assert "completed" in said
    code, said = await running.verb("events", "tail", "--run", run_id[:13], "--types", "run.*")
    assert [line.split()[3] for line in said.splitlines()] == ["run.submitted", "run.started", "run.completed"]
    file = tmp_path / "run.jsonl"
    code, said = await running.verb("events", "export", run_id[:13], "--out", str(file))
    assert code == 0, said
    rows = [orjson.loads(line) for line in file.read_bytes().splitlines()]
    assert [row["headers"]["ce-type"] for row in rows if "seq" in row] == [
        "run.submitted",
        "signal.cancel_requested",
        "run.started",
        "run.completed",
    ]
    assert not [name for row in rows for name in row.get("headers", {}) if name.startswith(("Nats-Expected", "Nats-Batch", "Nats-Seq"))]
    assert sum("blob" in row for row in rows) == 1, "the template comes along"
    code, said = await running.verb("replay", "--file", str(file), "--at", str(rows[0]["seq"]), "--json")
    assert orjson.loads(said)["status"] == "queued"
    code, said = await running.verb("replay", run_id[:13])
    assert [line.split()[2] for line in said.splitlines()][-1] == "run.completed"


async def test_run_shows_the_run_and_exits_by_how_it_ended(running: GatewayProcess, nats_log: NatsEventLog) -> None:
    after = await nats_log.last_seq()

    async def answer(event: Event) -> None:
        async for fact in nats_log.follow(subjects.every(RunSubmitted.TYPE), after=after):
            await end_run(nats_log, fact.scope, event)
            return

    answering = asyncio.create_task(answer(RunCompleted(reply="It is done.")))
    code, said = await running.verb("run", "quick-script", "Say hi.")
    await answering
    assert code == 0, said
    assert "started by o" in said
    assert "It is done." in said
    after = await nats_log.last_seq()
    answering = asyncio.create_task(answer(RunFailed(code="x", reason="no model")))
    code, said = await running.verb("run", "quick-script", "Say hi.", "--json")
    await answering
    assert code == 1
    assert orjson.loads(said)["reason"] == "no model"


async def test_an_unknown_run_or_template_or_no_engine_is_one_line(running: GatewayProcess) -> None:
    code, said = await running.verb("show", "zzz")
    assert (code, said) == (1, "aetherium: no run begins with 'zzz': see 'aetherium runs'\n")
    code, said = await running.verb("run", "nope", "Hi.")
    assert code == 1
    assert said.startswith("aetherium: no template 'nope'. Known: ")
    await running.stop(signal.SIGTERM)
    code, said = await running.verb("runs")
    assert (code, said.count("\n")) == (1, 1)
    assert "aetherium up" in said


@covers("api.subscriber")
async def test_the_example_subscriber_prints_completed_runs(nats_url: str, bus: Bus, nats_log: NatsEventLog) -> None:
    example = Path(__file__).parents[2] / "examples" / "subscribe.py"
    process = await asyncio.create_subprocess_exec(sys.executable, str(example), nats_url, stdout=PIPE)
    assert process.stdout is not None
    line = asyncio.create_task(process.stdout.readline())
    async with asyncio.timeout(15):
        while not line.done():  # it prints nothing until it is subscribed, so runs end until it is
            run_id = new_id()
            await nats_log.append(Aggregate("run", run_id), [RunCompleted(reply="42")], after=0)
            await asyncio.wait([line], timeout=0.2)
    assert line.result().decode().strip().endswith(" 42")
    process.kill()
    await process.wait()
