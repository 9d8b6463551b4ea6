"""Event streams: ids of the log, resume without gap or double, and nothing lost to a slow reader (case RW-39)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.gateway import feed, resume, wire
from services.gateway.core import Policy
from services.gateway.feed import Item, Subscriber
from shared.errors import BadInput, NotFound
from shared.events.content import BlobRef, Pins
from shared.events.envelope import Fact, Unknown
from shared.events.run import Noted, RunCompleted, RunStarted, RunSubmitted, StepCompleted
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.gateway.conftest import MemoryLive, World, make_gateway, opened, put, served


@dataclass
class Received:
    """What one client was sent."""

    events: list[dict[str, str]] = field(default_factory=list[dict[str, str]])

    @property
    def seqs(self) -> list[int]:
        return [int(event["id"]) for event in self.events if event.get("id")]

    @property
    def kinds(self) -> list[str]:
        return [event["event"] for event in self.events]


@asynccontextmanager
async def reading(url: str, headers: dict[str, str] | None = None) -> AsyncIterator[AsyncIterator[dict[str, str]]]:
    async with (
        httpx.AsyncClient(trust_env=False, timeout=5) as client,
        client.stream("GET", url, headers=headers or {}) as answer,
    ):
        assert answer.status_code == 200, (await answer.aread()).decode()
        assert answer.headers["content-type"].startswith("text/event-stream")

        async def events() -> AsyncIterator[dict[str, str]]:
            event: dict[str, str] = {}
            async for line in answer.aiter_lines():
                if line.startswith(":"):
                    event["comment"] = line
                elif line:
                    name, _, value = line.partition(":")
                    event[name] = value.removeprefix(" ")
                elif event:
                    yield event
                    event = {}

        async with aclosing(events()) as source:
            yield source


async def read_all(url: str, headers: dict[str, str] | None = None, *, count: int | None = None) -> Received:
    """What comes until the stream ends, or the first `count` events."""
    received = Received()
    async with asyncio.timeout(5), reading(url, headers) as events:
        async for event in events:
            if "event" in event:
                received.events.append(event)
            if count is not None and len(received.events) == count:
                break
    return received


def note(number: int) -> Noted:
    return Noted(key=f"n{number}", tag="T", text=str(number))


async def write(log: MemoryLog, run_id: str, *, first: int, last: int) -> None:
    """Facts until the sequence `last` is stored; one between each two turns of the loop."""
    for number in range(first, last + 1):
        await put(log, run_id, note(number))
        await asyncio.sleep(0)


async def run_of(log: MemoryLog, run_id: str, facts: int) -> None:
    """A run whose facts have the sequences 1 to `facts`."""
    submitted = RunSubmitted(project_id=1, template_id="t", template=BlobRef(sha256="x", size=1), message="m", pins=Pins(template="x"))
    await put(log, run_id, submitted)
    await write(log, run_id, first=2, last=facts)


@covers("api.events")
async def test_history_comes_first_then_what_happens_and_the_stream_ends_with_the_run(world: World, url: str) -> None:
    await run_of(world.log, "r1", 3)
    reader = asyncio.create_task(read_all(f"{url}/api/runs/r1/events"))
    await write(world.log, "r1", first=4, last=6)
    await put(world.log, "r1", RunCompleted(reply="ok"))
    received = await reader
    assert received.seqs == [1, 2, 3, 4, 5, 6, 7]
    assert (received.kinds[0], received.kinds[-1]) == ("run.submitted", "run.completed")
    data: dict[str, Any] = json.loads(received.events[-1]["data"])
    assert (data["seq"], data["type"], data["runGuid"], data["data"]["reply"]) == (7, "run.completed", "r1", "ok")
    assert set(data) >= {"seq", "id", "type", "time", "source", "runGuid", "data"}


@covers("api.events.resume")
async def test_a_client_that_comes_back_gets_every_fact_once_while_others_are_written(world: World, url: str) -> None:
    address = f"{url}/api/runs/r1/events"
    await run_of(world.log, "r1", 40)
    assert (await read_all(address, count=40)).seqs == list(range(1, 41))
    readers = [asyncio.create_task(read_all(address, {"Last-Event-ID": str(last)})) for last in (40, 10)]
    await write(world.log, "r1", first=41, last=99)
    await put(world.log, "r1", RunCompleted())
    back, second = await asyncio.gather(*readers)
    assert back.seqs == list(range(41, 101))
    assert second.seqs == list(range(11, 101))


async def test_the_id_may_stand_in_the_query_for_clients_that_cannot_set_headers(world: World, url: str) -> None:
    await run_of(world.log, "r1", 5)
    await put(world.log, "r1", RunCompleted())
    assert (await read_all(f"{url}/api/runs/r1/events?lastEventId=4")).seqs == [5, 6]


@covers("api.events.resume")
async def test_ids_are_the_same_after_a_restart_of_the_gateway(world: World, url: str, tmp_path: Path) -> None:
    await run_of(world.log, "r1", 5)
    await put(world.log, "r1", RunCompleted())
    before = await read_all(f"{url}/api/runs/r1/events")
    async with opened(tmp_path, Policy(), world.log) as again, served(again.gateway) as other:
        assert await read_all(f"{other}/api/runs/r1/events") == before


@pytest.mark.parametrize("odd", ["abc", "-1", "1.5", "٣", "1" * 30, "0x1"])
@pytest.mark.parametrize("path", ["/api/runs/r1/events", "/api/events"])
async def test_an_id_that_is_no_sequence_is_refused(world: World, odd: str, path: str) -> None:
    await run_of(world.log, "r1", 3)
    headers = httpx.Headers({"Last-Event-ID": odd}, encoding="utf-8")
    answer = await world.client.get(path, headers=headers)
    assert (answer.status_code, answer.json()["field"]) == (400, "Last-Event-ID")


@pytest.mark.parametrize(
    ("last", "reason"),
    [("999999", "id_beyond_the_log"), ("4", "id_of_another_run")],
)
async def test_an_id_that_does_not_fit_resets_and_begins_anew(world: World, url: str, last: str, reason: str) -> None:
    await run_of(world.log, "r1", 3)
    await put(world.log, "r2", note(4))
    await put(world.log, "r1", RunCompleted())
    received = await read_all(f"{url}/api/runs/r1/events", {"Last-Event-ID": last})
    assert received.events[0]["event"] == "reset"
    assert received.events[0]["id"] == "", "an empty id makes a browser forget its cursor"
    assert json.loads(received.events[0]["data"])["reason"] == reason
    assert received.seqs == [1, 2, 3, 5]


async def test_an_empty_id_means_none(world: World, url: str) -> None:
    await run_of(world.log, "r1", 2)
    await put(world.log, "r1", RunCompleted())
    assert (await read_all(f"{url}/api/runs/r1/events", {"Last-Event-ID": ""})).seqs == [1, 2, 3]


class ForgetfulLog(MemoryLog):
    """A log whose first facts were removed by retention."""

    gone = 19

    async def read(self, subject_filter: str, *, after: int = 0) -> list[Fact]:
        return await super().read(subject_filter, after=max(after, self.gone))

    async def get(self, seq: int) -> Fact:
        if seq <= self.gone:
            raise NotFound(f"the log holds no fact {seq}", seq=seq)
        return await super().get(seq)

    async def last(self, subject_filter: str) -> Fact | None:
        found = await super().last(subject_filter)
        return found if found and found.seq > self.gone else None

    async def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]:
        async for fact in super().follow(*subject_filters, after=max(after, self.gone)):
            yield fact


@pytest.mark.parametrize("last", ["10", ""])
async def test_a_client_whose_history_is_gone_is_told_so_and_gets_what_is_left(tmp_path: Path, last: str) -> None:
    full = MemoryLog()
    await run_of(full, "r1", 30)
    await put(full, "r1", RunCompleted())
    log = ForgetfulLog(facts=full.facts, subjects=full.subjects)
    async with opened(tmp_path, Policy(), log) as world, served(world.gateway) as url:
        received = await read_all(f"{url}/api/runs/r1/events", {"Last-Event-ID": last})
    assert received.events[0]["event"] == "reset"
    assert json.loads(received.events[0]["data"])["reason"] == "history_gone"
    assert received.seqs == list(range(20, 32))


async def test_a_client_that_has_seen_the_end_is_told_to_stop(world: World, url: str) -> None:
    await run_of(world.log, "r1", 2)
    await put(world.log, "r1", RunCompleted())
    async with httpx.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"{url}/api/runs/r1/events", headers={"Last-Event-ID": "3"})
    assert answer.status_code == 204


async def test_the_whole_log_can_be_followed_by_type(world: World, url: str) -> None:
    run_id = await world.start_run()
    reader = asyncio.create_task(read_all(f"{url}/api/events?types=run.*,project.created", count=4))
    signal = await world.client.post(f"/api/runs/{run_id}/cancel")
    assert signal.status_code == 202
    await world.finish(run_id)
    received = await reader
    assert received.kinds == ["project.created", "run.submitted", "run.started", "run.completed"]
    assert received.seqs == [1, 2, 4, 5], "the signal at 3 was not asked for"
    assert json.loads(received.events[0]["data"])["runGuid"] is None


async def test_a_follower_of_the_whole_log_resumes_too(world: World, url: str) -> None:
    await run_of(world.log, "r1", 6)
    reader = asyncio.create_task(read_all(f"{url}/api/events", {"Last-Event-ID": "4"}, count=4))
    await write(world.log, "r2", first=7, last=8)
    assert (await reader).seqs == [5, 6, 7, 8]


@pytest.mark.parametrize("types", ["run.>", "Run.*", "a b", ",", "run..x"])
def test_a_glob_that_can_match_no_type_is_refused(types: str) -> None:
    with pytest.raises(BadInput) as refused:
        resume.by_types(types)
    assert refused.value.details["field"] == "types"


async def test_text_being_written_comes_only_when_asked_for_and_without_an_id(world: World, url: str) -> None:
    await run_of(world.log, "r1", 1)
    reader = asyncio.create_task(read_all(f"{url}/api/runs/r1/events?live=true"))
    silent = asyncio.create_task(read_all(f"{url}/api/runs/r1/events"))
    await until(lambda: world.live.takers.get("r1"))
    world.live.takers["r1"][0](b'{"callId":"c","text":"Hel"}')
    await until(lambda: not any(subscriber.queue for subscriber in world.gateway.feed.subscribers))
    await put(world.log, "r1", RunCompleted())
    received = await reader
    assert received.kinds == ["run.submitted", "llm.delta", "run.completed"]
    assert "id" not in received.events[1]
    assert json.loads(received.events[1]["data"]) == {"callId": "c", "text": "Hel"}
    assert (await silent).kinds == ["run.submitted", "run.completed"]
    assert not world.live.takers["r1"], "the subscription ends with the stream"


async def test_a_quiet_stream_is_kept_alive_and_let_go_when_the_client_leaves(tmp_path: Path) -> None:
    async with opened(tmp_path, Policy(keep_alive_s=0.01)) as world, served(world.gateway) as url:
        await run_of(world.log, "r1", 1)
        async with asyncio.timeout(5), reading(f"{url}/api/runs/r1/events") as events:
            comments = 0
            async for event in events:
                comments += "comment" in event
                if comments == 2:
                    break
        await until(lambda: not world.gateway.feed.subscribers)


async def drain(source: AsyncIterator[bytes], until: int) -> list[int]:
    seqs: list[int] = []
    async for page in source:
        seqs += [int(line[4:]) for line in page.decode().splitlines() if line.startswith("id: ")]
        if seqs and seqs[-1] >= until:
            break
    return seqs


@covers("api.events.slow_reader")
async def test_a_reader_too_slow_for_its_queue_loses_nothing(tmp_path: Path) -> None:
    log = MemoryLog()
    gateway = make_gateway(log, tmp_path, MemoryLive(), Policy())
    await run_of(log, "r1", 5)
    with gateway.feed.subscribed("r1", lambda _fact: True, limit=3) as subscriber:
        source = feed.stream(subscriber, lambda after: gateway.history_of_run("r1", after), after=0, ends_with_run=True)
        async with asyncio.timeout(5), aclosing(source):
            assert await drain(_one(source), 5) == [1, 2, 3, 4, 5]
            await write(log, "r1", first=6, last=20)  # far more than fits, while nobody reads
            for fact in log.facts[5:]:
                gateway.feed.publish(fact)
            assert subscriber.overflowed
            assert await drain(_one(source), 20) == list(range(6, 21))
            await put(log, "r1", RunCompleted())
            gateway.feed.publish(log.facts[-1])
            assert await drain(source, 21) == [21]


async def _one(source: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The next page only, so that `source` stays open."""
    yield await anext(source)


async def test_facts_stored_between_subscribing_and_reading_come_once(tmp_path: Path) -> None:
    log = MemoryLog()
    gateway = make_gateway(log, tmp_path, MemoryLive(), Policy())
    await run_of(log, "r1", 3)

    async def late(after: int) -> Any:
        await write(log, "r1", first=4, last=5)  # stored and published after the subscription, before the read
        for fact in log.facts[3:]:
            gateway.feed.publish(fact)
        async for fact in gateway.history_of_run("r1", after):
            yield fact
        await put(log, "r1", RunCompleted())  # and one after the read
        gateway.feed.publish(log.facts[-1])

    with gateway.feed.subscribed("r1", lambda _fact: True) as subscriber:
        async with asyncio.timeout(5), aclosing(feed.stream(subscriber, late, after=0, ends_with_run=True)) as source:
            assert await drain(source, 6) == [1, 2, 3, 4, 5, 6]


def test_deltas_never_push_out_facts() -> None:
    subscriber = Subscriber(lambda _fact: True, limit=2)
    for item in (Item(1, b"a"), Item(None, b"x"), Item(None, b"y")):
        subscriber.put(item)
    assert not subscriber.overflowed
    subscriber.put(Item(2, b"b"))
    assert subscriber.overflowed, "the fact is read from the log instead"


def test_a_fact_is_encoded_once_for_all_subscribers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gateway = make_gateway(MemoryLog(), tmp_path, MemoryLive(), Policy())
    fact = Fact(1, "i", MemoryLog().clock.now(), "s", Aggregate("run", "r1"), note(1))
    with (
        gateway.feed.subscribed("r1", lambda _fact: True) as one,
        gateway.feed.subscribed(None, lambda _fact: True) as two,
        gateway.feed.subscribed("r2", lambda _fact: True) as other,
        gateway.feed.subscribed(None, lambda _fact: False) as unwilling,
    ):
        gateway.feed.publish(fact)
        assert one.queue[0].content is two.queue[0].content
        assert not other.queue
        assert not unwilling.queue


def test_a_fact_of_a_newer_engine_is_passed_on_as_it_is(tmp_path: Path) -> None:
    log = MemoryLog()
    fact = Fact(9, "i", log.clock.now(), "s", Aggregate("run", "r1"), Unknown(type="run.dreamt", data={"of": "sheep\nand\n\nmore"}))
    text = wire.event_of(fact).decode()
    assert text.startswith("id: 9\nevent: run.dreamt\ndata: {")
    assert text.count("\n") == 4, "no line break inside the data"
    assert json.loads(text.splitlines()[2].removeprefix("data: "))["data"] == {"of": "sheep\nand\n\nmore"}


async def test_a_fact_that_cannot_be_folded_stops_neither_the_feed_nor_other_runs(tmp_path: Path) -> None:
    gateway = make_gateway(MemoryLog(), tmp_path, MemoryLive(), Policy())
    clock = MemoryLog().clock
    gateway.feed.publish(Fact(1, "a", clock.now(), "s", Aggregate("run", "r1"), StepCompleted(key="never started")))
    gateway.feed.publish(Fact(2, "b", clock.now(), "s", Aggregate("run", "r2"), RunStarted(owner="o", engine="e")))
    assert gateway.index.seq == 2
    assert gateway.index.runs["r2"].status == "running"
