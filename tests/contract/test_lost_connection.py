"""What was on its way when the server died is lost: who waits learns it at once, and asks again only what is safe to ask twice."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from nats.aio.msg import Msg

from services.containers.app import told
from services.containers.runtime import ExecResult
from services.tools.containers_client import CommandLost, RemoteResult, RemoteRuntime
from shared import rpc
from shared.bus import Bus, connect
from shared.client import ConnectionLost
from shared.errors import NotFound
from shared.eventlog import NatsEventLog, ensure_streams
from shared.events import run
from shared.ids import new_id
from shared.inbox import Delivery, NatsInbox
from shared.subjects import Aggregate
from tests.conftest import NatsServer
from tests.requirements import covers
from tests.support.waiting import until

SLOW_S = 30.0  # the bound of what is asked here; every test ends long before


@pytest.fixture
async def ours(own_nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await connect(own_nats_server.url, "ours")
    await ensure_streams(bus)
    yield bus
    await bus.close()


@pytest.fixture
async def theirs(own_nats_server: NatsServer) -> AsyncIterator[Bus]:
    bus = await connect(own_nats_server.url, "theirs")
    yield bus
    await bus.close()


async def restart(server: NatsServer, *clients: Bus) -> None:
    """Kill the server and start it again; returns when the clients are back."""
    before = [client.link.reconnects for client in clients]
    server.kill()
    await asyncio.to_thread(server.start)
    await until(lambda: all(client.link.reconnects > was for client, was in zip(clients, before, strict=True)))


async def answering(bus: Bus, subject: str, answer: Callable[[int], bool]) -> list[int]:
    """Answer requests of which `answer` approves; gives the list that counts them."""
    asked: list[int] = []

    async def take(message: Msg) -> None:
        asked.append(len(asked) + 1)
        if answer(len(asked)):
            await message.respond(b"here")

    await bus.client.subscribe(subject, cb=take)  # pyright: ignore[reportUnknownMemberType]
    await bus.client.flush()
    return asked


@covers("log.append.outage")
async def test_a_request_ends_with_its_connection_and_not_with_its_time_bound(own_nats_server: NatsServer, ours: Bus, theirs: Bus) -> None:
    asked = await answering(theirs, "slow", lambda _: False)
    async with asyncio.timeout(SLOW_S / 2):
        request = asyncio.create_task(ours.client.request("slow", b"", timeout=SLOW_S))
        await until(lambda: asked)
        own_nats_server.kill()
        with pytest.raises(ConnectionLost):
            await request


async def test_what_is_safe_to_ask_twice_is_asked_again_once_the_server_is_back(
    own_nats_server: NatsServer, ours: Bus, theirs: Bus
) -> None:
    asked = await answering(theirs, "slow", lambda count: count > 1)
    async with asyncio.timeout(SLOW_S / 2):
        request = asyncio.create_task(ours.ask("slow", b"", timeout_s=SLOW_S))
        await until(lambda: asked)
        await restart(own_nats_server, theirs)
        assert (await request).data == b"here"
    assert len(asked) == 2


async def test_a_read_that_the_server_died_under_is_read_again(own_nats_server: NatsServer, ours: Bus) -> None:
    log = NatsEventLog(ours, "test")
    aggregate = Aggregate("run", new_id())
    stored = await log.append(aggregate, [run.Noted(key=str(number), tag="T", text="t") for number in range(3)], after=0)
    assert own_nats_server.process is not None
    async with asyncio.timeout(8):  # a read that was only lost is waited for 10 s
        own_nats_server.process.send_signal(signal.SIGSTOP)
        reading = asyncio.create_task(log.read(aggregate.filter))
        await until(lambda: ours.link.waiting)
        await restart(own_nats_server, ours)
        assert await reading == stored


@covers("inbox.recover")
async def test_a_request_stored_after_a_restart_of_the_server_is_delivered_at_once(own_nats_server: NatsServer, ours: Bus) -> None:
    log, delivered = NatsEventLog(ours, "test"), asyncio.Queue[int]()

    async def handle(delivery: Delivery) -> bool:
        delivered.put_nowait(delivery.fact.seq)
        return True

    inbox = asyncio.create_task(NatsInbox(ours, log, "worker", ("aetherium.evt.run.*.noted",)).run(handle))
    try:
        for _ in range(2):
            (stored,) = await log.append(Aggregate("run", new_id()), [run.Noted(key="k", tag="T", text="t")], after=0)
            async with asyncio.timeout(4):
                assert await delivered.get() == stored.seq
            await restart(own_nats_server, ours)
    finally:
        inbox.cancel()
        await asyncio.gather(inbox, return_exceptions=True)


class Commands:
    """A stand-in for the containers service: commands that end when they are told to."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.over = asyncio.Event()
        self.forgets = False

    def verbs(self) -> dict[str, rpc.Verb]:
        async def execute(ask: dict[str, Any]) -> dict[str, Any]:
            self.started.append(ask["exec_id"])
            await self.over.wait()
            return told(ExecResult(0, "done"))

        async def result(ask: dict[str, Any]) -> dict[str, Any]:
            if self.forgets or ask["exec_id"] not in self.started:
                raise NotFound("no such command was started here")
            await self.over.wait()
            return told(ExecResult(0, "done"))

        async def kill(_: dict[str, Any]) -> dict[str, Any]:
            return {}

        return {"exec": execute, "result": result, "kill": kill}


@covers("shell.once")
async def test_a_command_whose_answer_is_lost_is_not_started_again_and_its_result_is_fetched(
    own_nats_server: NatsServer, ours: Bus, theirs: Bus, tmp_path: Path
) -> None:
    commands = Commands()
    await rpc.serve(theirs, "containers", commands.verbs())
    async with asyncio.timeout(SLOW_S / 2):
        running = asyncio.create_task(RemoteRuntime(ours).exec(1, "call_1", "true", SLOW_S, tmp_path))
        await until(lambda: commands.started)
        await restart(own_nats_server, ours, theirs)
        commands.over.set()
        assert await running == RemoteResult(0, "done", False, 0)
    assert commands.started == ["call_1"]


async def test_a_command_that_the_service_no_longer_knows_is_reported_as_uncertain(
    own_nats_server: NatsServer, ours: Bus, theirs: Bus, tmp_path: Path
) -> None:
    commands = Commands()
    await rpc.serve(theirs, "containers", commands.verbs())
    async with asyncio.timeout(SLOW_S / 2):
        running = asyncio.create_task(RemoteRuntime(ours).exec(1, "call_1", "true", SLOW_S, tmp_path))
        await until(lambda: commands.started)
        commands.forgets = True
        await restart(own_nats_server, ours, theirs)
        with pytest.raises(CommandLost, match="may or may not have done its work"):
            await running
    assert commands.started == ["call_1"]


async def test_a_command_waits_for_a_service_that_is_not_there_yet(ours: Bus, theirs: Bus, tmp_path: Path) -> None:
    commands = Commands()
    commands.over.set()
    with pytest.raises(rpc.NobodyListens):
        await rpc.call(ours, "containers", "exec")
    async with asyncio.timeout(SLOW_S / 2):
        running = asyncio.create_task(RemoteRuntime(ours).exec(1, "call_1", "true", SLOW_S, tmp_path))
        await rpc.serve(theirs, "containers", commands.verbs())
        assert (await running).output == "done"


async def test_a_service_call_whose_answer_is_lost_says_that_it_may_have_been_done(
    own_nats_server: NatsServer, ours: Bus, theirs: Bus
) -> None:
    asked = await answering(theirs, "aetherium.rpc.slow.work", lambda _: False)
    call = asyncio.create_task(rpc.call(ours, "slow", "work", timeout_s=SLOW_S))
    await until(lambda: asked)
    own_nats_server.kill()
    with pytest.raises(rpc.AnswerLost):
        await call
