"""What a log promises, on its in-memory twin and on a real server alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from shared import subjects
from shared.bus import Bus, connect
from shared.errors import BadInput, Conflict, NotFound
from shared.eventlog import MAX_BODY, EventLog, NatsEventLog, Write, ensure_streams
from shared.events.envelope import Event, Fact, Unknown
from shared.events.llm import LlmCompleted
from shared.events.run import MessageAdded, RunStarted
from shared.ids import new_id
from shared.subjects import Aggregate
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryLog
from tests.conftest import NatsServer
from tests.contract.proxy import Proxy, proxied
from tests.requirements import covers
from tests.support.waiting import until


@pytest.fixture(params=["memory", "nats"])
def log(request: pytest.FixtureRequest) -> EventLog:
    return MemoryLog() if request.param == "memory" else request.getfixturevalue("nats_log")


@pytest.fixture
def run() -> Aggregate:
    """An aggregate of this test's own."""
    return Aggregate("run", new_id())


def said(*texts: str) -> list[Event]:
    return [MessageAdded(key=text, agent="a", role="user", content=text) for text in texts]


def texts(facts: Sequence[Fact]) -> list[str]:
    return [fact.event.content for fact in facts if isinstance(fact.event, MessageAdded)]


async def some(log: EventLog, count: int, *filters: str, after: int) -> list[Fact]:
    """The first facts of a follower."""
    found: list[Fact] = []
    async with asyncio.timeout(10):
        async for fact in log.follow(*filters, after=after):
            found.append(fact)
            if len(found) == count:
                break
    return found


class Novel(Event):
    """A fact of a newer engine: its type is set after the class was made, so no reader knows it."""

    colour: str


Novel.TYPE = "run.novel"


# ---- append


async def test_an_append_gives_the_facts_as_they_are_read_back(log: EventLog, run: Aggregate) -> None:
    stored = await log.append(run, said("one", "two"), after=0)
    assert stored == await log.read(run.filter)
    assert [fact.seq for fact in stored] == [stored[0].seq, stored[0].seq + 1]
    assert texts(stored) == ["one", "two"]
    assert all(fact.aggregate == run and fact.type == "run.message_added" and fact.time.tzinfo is not None for fact in stored)
    assert len({fact.id for fact in stored}) == 2


@covers("log.envelope.cloudevents")
async def test_a_fact_names_what_caused_it_and_carries_its_trace_on(log: EventLog, run: Aggregate) -> None:
    (cause,) = await log.append(run, said("one"), after=0)
    cause = replace(cause, traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    await log.append(run, said("two"), after=cause.seq, cause=cause)
    last = await log.last(run.filter)
    assert last is not None
    assert (last.causation_id, last.traceparent) == (cause.id, cause.traceparent)


@covers("log.append.conflict")
@pytest.mark.parametrize("after", [-1, 1])
async def test_an_append_after_another_sequence_is_a_conflict_and_stores_nothing(log: EventLog, run: Aggregate, after: int) -> None:
    first, last = await log.append(run, said("one", "two"), after=0)
    with pytest.raises(Conflict) as refused:
        await log.append(run, said("late"), after=first.seq if after > 0 else 0)
    assert refused.value.details["aggregate"] == str(run)
    assert texts(await log.read(run.filter)) == ["one", "two"]
    await log.append(run, said("three"), after=last.seq)


@covers("log.append.conflict")
async def test_an_append_that_expects_a_fact_where_there_is_none_stores_nothing(log: EventLog, run: Aggregate) -> None:
    append = asyncio.create_task(log.append(run, said("one"), after=10**9))
    done, _ = await asyncio.wait({append}, timeout=0.3)
    # A conflict, or a wait for a log that has not got so far: in no case a fact.
    assert not done or isinstance(append.exception(), Conflict)
    append.cancel()
    assert await log.read(run.filter) == []


async def test_aggregates_of_one_scope_have_sequences_of_their_own(log: EventLog, run: Aggregate) -> None:
    await log.append(run, said("one"), after=0)
    await log.append(Aggregate("llm", run.scope), [LlmCompleted(call_id="c")], after=0)
    assert [fact.type for fact in await log.read(subjects.of_run(run.scope))] == ["run.message_added", "llm.completed"]


@covers("log.append.atomic")
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_of_events_of_which_one_is_too_large_none_is_stored(log: EventLog, run: Aggregate, place: int) -> None:
    events = said("one", "two", "three")
    events[place] = said("x" * (MAX_BODY + 1))[0]
    with pytest.raises(BadInput, match=rf"run.message_added of {run} has \d+ bytes; a fact holds at most {MAX_BODY}") as refused:
        await log.append(run, events, after=0)
    assert refused.value.details["field"] == "run.message_added"
    assert await log.read(run.filter) == []
    await log.append(run, said("fits"), after=0)


async def test_a_body_of_just_the_limit_is_stored_whole(log: EventLog, run: Aggregate) -> None:
    size = MAX_BODY - len(b'{"key":"k","agent":"a","role":"user","content":""}')
    await log.append(run, [MessageAdded(key="k", agent="a", role="user", content="y" * size)], after=0)
    assert [len(text) for text in texts(await log.read(run.filter))] == [size]


async def test_nothing_to_append_and_a_fact_of_another_domain_are_bugs_of_the_caller(log: EventLog, run: Aggregate) -> None:
    with pytest.raises(ValueError, match="nothing to append"):
        await log.append(run, [], after=0)
    with pytest.raises(ValueError, match=r"llm.completed is not a fact of run"):
        await log.append(run, [*said("one"), LlmCompleted(call_id="c")], after=0)
    assert await log.read(run.filter) == []


async def test_texts_come_back_as_they_were(log: EventLog, run: Aggregate) -> None:
    odd = 'tab\t quote" back\\slash line\nfeed \x01 \u0085 \u2028 ünï 😀 \\u0000'
    await log.append(run, said(odd), after=0)
    assert texts(await log.read(run.filter)) == [odd]


# ---- commit


@covers("log.append.atomic")
async def test_a_commit_over_several_aggregates_stores_all_or_none(log: EventLog, run: Aggregate) -> None:
    other, third = Aggregate("run", new_id()), Aggregate("run", new_id())
    (taken,) = await log.append(other, said("before"), after=0)
    with pytest.raises(Conflict):
        await log.commit([Write(run, said("a"), 0), Write(other, said("b"), 0), Write(third, said("c"), 0)])
    assert [await log.read(each.filter) for each in (run, third)] == [[], []]
    rows = await log.commit([Write(run, said("a", "a2"), 0), Write(other, said("b"), taken.seq), Write(third, said("c"), 0)])
    assert [texts(row) for row in rows] == [["a", "a2"], ["b"], ["c"]]
    assert [await log.read(each.filter, after=taken.seq) for each in (run, other, third)] == rows


async def test_a_long_commit_is_one(log: EventLog, run: Aggregate) -> None:
    stored = await log.append(run, said(*(f"{n}" for n in range(250))), after=0)
    assert stored == await log.read(run.filter)
    assert texts(stored) == [f"{n}" for n in range(250)]


@covers("log.append.together")
async def test_fifty_writers_at_once_lose_nothing_and_keep_their_order(log: EventLog) -> None:
    runs = [Aggregate("run", new_id()) for _ in range(50)]

    async def write(aggregate: Aggregate) -> list[int]:
        seqs = [0]
        for n in range(4):
            seqs += [fact.seq for fact in await log.append(aggregate, said(f"{n}a", f"{n}b"), after=seqs[-1])]
        return seqs[1:]

    async with asyncio.timeout(20):
        written = await asyncio.gather(*(write(each) for each in runs))
    for aggregate, seqs in zip(runs, written, strict=True):
        facts = await log.read(aggregate.filter)
        assert [fact.seq for fact in facts] == seqs == sorted(seqs)
        assert texts(facts) == [f"{n}{part}" for n in range(4) for part in "ab"]
    assert len({seq for seqs in written for seq in seqs}) == 400


@covers("log.append.conflict")
async def test_writers_of_one_aggregate_take_turns_by_conflict(log: EventLog, run: Aggregate) -> None:
    async def write(text: str) -> int:
        conflicts = 0
        while True:
            newest = await log.last(run.filter)
            await asyncio.sleep(0)  # time for another to be quicker
            try:
                await log.append(run, said(text), after=newest.seq if newest else 0)
            except Conflict:
                conflicts += 1
            else:
                return conflicts

    async with asyncio.timeout(20):
        conflicts = await asyncio.gather(*(write(f"{n}") for n in range(10)))
    assert sorted(texts(await log.read(run.filter)), key=int) == [f"{n}" for n in range(10)]
    assert sum(conflicts) > 0


@covers("log.append.together")
async def test_a_stale_writer_does_not_fail_those_beside_it(log: EventLog) -> None:
    runs = [Aggregate("run", new_id()) for _ in range(20)]
    for stale in runs[::4]:
        await log.append(stale, said("first"), after=0)
    outcomes = await asyncio.gather(*(log.append(each, said("mine"), after=0) for each in runs), return_exceptions=True)
    assert [isinstance(each, Conflict) for each in outcomes] == [place % 4 == 0 for place in range(20)]
    for place, each in enumerate(runs):
        assert texts(await log.read(each.filter)) == (["first"] if place % 4 == 0 else ["mine"])


@covers("log.append.together")
async def test_a_caller_that_gives_up_does_not_fail_those_beside_it(log: EventLog) -> None:
    runs = [Aggregate("run", new_id()) for _ in range(10)]
    appends = [asyncio.create_task(log.append(each, said("mine"), after=0)) for each in runs]
    await asyncio.sleep(0)
    appends[3].cancel()
    outcomes = await asyncio.gather(*appends, return_exceptions=True)
    assert [place for place, each in enumerate(outcomes) if isinstance(each, BaseException)] in ([3], [])
    for place, each in enumerate(runs):
        if place != 3:
            assert texts(await log.read(each.filter)) == ["mine"]


# ---- read


async def test_a_read_starts_after_a_sequence(log: EventLog, run: Aggregate) -> None:
    stored = await log.append(run, said("one", "two", "three"), after=0)
    assert texts(await log.read(run.filter, after=stored[0].seq)) == ["two", "three"]
    assert await log.read(run.filter, after=stored[-1].seq) == []
    assert await log.read(Aggregate("run", new_id()).filter) == []


@covers("log.read.order")
async def test_a_read_of_more_than_a_page_is_whole_and_in_order(log: EventLog, run: Aggregate) -> None:
    seq = 0
    for start in range(0, 2400, 200):
        seq = (await log.append(run, said(*(f"{n}" for n in range(start, start + 200))), after=seq))[-1].seq
    assert texts(await log.read(run.filter)) == [f"{n}" for n in range(2400)]


@covers("log.read.order")
async def test_a_fact_is_found_by_its_sequence(log: EventLog, run: Aggregate) -> None:
    stored = await log.append(run, said("one", "two"), after=0)
    assert [await log.get(fact.seq) for fact in stored] == stored
    assert await log.get(stored[0].seq) == stored[0], "a second time as well"
    with pytest.raises(NotFound, match="holds no fact"):
        await log.get(10**9)


async def test_the_last_fact_is_the_newest_that_matches(log: EventLog, run: Aggregate) -> None:
    assert await log.last(run.filter) is None
    stored = await log.append(run, [*said("one"), RunStarted(owner="o", engine="e")], after=0)
    assert await log.last(run.filter) == stored[1]
    assert await log.last(subjects.fact("run", run.scope, "message_added")) == stored[0]
    assert await log.last_seq() >= stored[1].seq


async def test_a_fact_of_an_unknown_type_is_readable(log: EventLog, run: Aggregate) -> None:
    await log.append(run, [*said("one"), Novel(colour="red"), *said("two")], after=0)
    facts = await log.read(run.filter)
    assert [fact.type for fact in facts] == ["run.message_added", "run.novel", "run.message_added"]
    assert facts[1].event == Unknown(type="run.novel", data={"colour": "red"})
    reader = NatsEventLog(log.bus, "reader") if isinstance(log, NatsEventLog) else log  # the writer remembers what it wrote
    assert await reader.get(facts[1].seq) == facts[1] == (await some(log, 2, run.filter, after=0))[1]


# ---- follow


@covers("log.follow.no_gap")
async def test_a_follower_gets_history_and_what_comes_without_gap_or_double(log: EventLog, run: Aggregate) -> None:
    seq = (await log.append(run, said(*(f"{n}" for n in range(100))), after=0))[-1].seq
    following = asyncio.create_task(some(log, 300, run.filter, after=0))
    for n in range(100, 300):
        (fact,) = await log.append(run, said(f"{n}"), after=seq)
        seq = fact.seq
    facts = await following
    assert texts(facts) == [f"{n}" for n in range(300)]
    assert facts == await log.read(run.filter)


async def test_a_follower_starts_after_a_sequence(log: EventLog, run: Aggregate) -> None:
    stored = await log.append(run, said("one", "two", "three"), after=0)
    assert await some(log, 2, run.filter, after=stored[0].seq) == stored[1:]
    following = asyncio.create_task(some(log, 1, run.filter, after=stored[-1].seq))
    await asyncio.sleep(0)
    (fact,) = await log.append(run, said("four"), after=stored[-1].seq)
    assert await following == [fact]


async def test_a_follower_of_several_filters_gets_each_fact_once_and_in_order(log: EventLog, run: Aggregate) -> None:
    other = Aggregate("run", new_id())
    for n in range(3):
        for each in (run, other, Aggregate("llm", run.scope)):
            newest = await log.last(each.filter)
            events = said(f"{n}") if each.domain == "run" else [LlmCompleted(call_id=f"{n}")]
            await log.append(each, events, after=newest.seq if newest else 0)
    facts = await some(log, 6, run.filter, other.filter, after=0)
    assert [fact.aggregate for fact in facts] == [run, other] * 3
    assert [fact.seq for fact in facts] == sorted({fact.seq for fact in facts})


async def test_followers_of_one_aggregate_each_get_everything(log: EventLog, run: Aggregate) -> None:
    followers = [asyncio.create_task(some(log, 3, run.filter, after=0)) for _ in range(5)]
    stored = await log.append(run, said("one", "two", "three"), after=0)
    assert await asyncio.gather(*followers) == [stored] * 5


# ---- the real server only: the wire, and what gets lost on it


@covers("log.envelope.cloudevents")
async def test_a_fact_is_a_cloud_event_on_the_wire(bus: Bus, run: Aggregate) -> None:
    log = NatsEventLog(bus, "aetherium/test-0", FakeClock(datetime(2026, 5, 4, 3, 2, 1, 7, tzinfo=UTC)), trace=lambda: "00-aa-bb-01")
    (cause,) = await log.append(run, said("one"), after=0)
    (fact,) = await log.append(run, said("two"), after=cause.seq, cause=cause)
    message = await bus.client.jetstream().get_msg(subjects.STREAM, fact.seq, direct=True)
    assert message.subject == f"aetherium.evt.run.{run.scope}.message_added"
    assert message.data == b'{"key":"two","agent":"a","role":"user","content":"two"}'
    sent = {name: value for name, value in (message.headers or {}).items() if not name.startswith("Nats-") or name == "Nats-Msg-Id"}
    assert sent == {
        "Nats-Msg-Id": fact.id,
        "ce-specversion": "1.0",
        "ce-id": fact.id,
        "ce-type": "run.message_added",
        "ce-source": "aetherium/test-0",
        "ce-subject": run.scope,
        "ce-time": "2026-05-04T03:02:01.000007Z",
        "ce-dataschema": "/schemas/run.message_added/v1",
        "ce-causationid": cause.id,
        "content-type": "application/json",
        "traceparent": "00-aa-bb-01",
    }


@pytest.mark.parametrize("count", [1, 3])
async def test_the_same_messages_sent_twice_are_stored_once(nats_log: NatsEventLog, run: Aggregate, count: int) -> None:
    pending = nats_log._prepare([Write(run, said(*"abc"[:count]), 0)])
    first = await nats_log._publish(pending.messages)
    again = await nats_log._publish(pending.messages)
    assert again in (None, first), "a duplicate is refused, or named by its first sequence"
    assert await nats_log._landed(pending) == first
    facts = await nats_log.read(run.filter)
    assert (facts[0].seq, texts(facts)) == (first, list("abc"[:count]))


@pytest.fixture
async def proxy(nats_server: NatsServer) -> AsyncIterator[Proxy]:
    async with proxied(nats_server.port) as opened:
        yield opened


@covers("log.append.lost_ack")
@pytest.mark.parametrize("together", [1, 3])
async def test_an_append_whose_answer_is_lost_is_found_again_and_not_stored_twice(proxy: Proxy, bus: Bus, together: int) -> None:
    direct = NatsEventLog(bus, "direct")
    behind = await connect(f"nats://127.0.0.1:{proxy.port}", "behind")
    log = NatsEventLog(behind, "test", ack_timeout_s=0.3)
    runs = [Aggregate("run", new_id()) for _ in range(together)]

    async def is_stored(aggregate: Aggregate) -> bool:
        return len(await direct.read(aggregate.filter)) == 2

    proxy.deaf = True
    appends = [asyncio.create_task(log.append(each, said("one", "two"), after=0)) for each in runs]
    async with asyncio.timeout(10):
        for each in runs:
            await until(lambda each=each: is_stored(each))
        proxy.deaf = False
        proxy.cut()
        stored = await asyncio.gather(*appends)
    assert proxy.lost > 0
    for each, facts in zip(runs, stored, strict=True):
        assert facts == await direct.read(each.filter)
        assert texts(facts) == ["one", "two"]
    await behind.close()


@covers("log.append.lost_ack")
async def test_a_lost_answer_is_told_from_a_conflict_with_another_writer(proxy: Proxy, bus: Bus, run: Aggregate) -> None:
    direct = NatsEventLog(bus, "direct")
    behind = await connect(f"nats://127.0.0.1:{proxy.port}", "behind")
    log = NatsEventLog(behind, "test", ack_timeout_s=0.3)
    (taken,) = await direct.append(run, said("theirs"), after=0)
    proxy.deaf = True
    append = asyncio.create_task(log.append(run, said("mine"), after=0))
    async with asyncio.timeout(10):
        await until(lambda: proxy.lost)
        proxy.deaf = False
        proxy.cut()
        with pytest.raises(Conflict):
            await append
    assert await direct.read(run.filter) == [taken]
    await behind.close()


@covers("log.follow.no_gap")
async def test_a_follower_outlives_a_cut_connection(proxy: Proxy, bus: Bus, run: Aggregate) -> None:
    direct = NatsEventLog(bus, "direct")
    behind = await connect(f"nats://127.0.0.1:{proxy.port}", "behind")
    found: list[Fact] = []
    seq = 0
    async with asyncio.timeout(20), aclosing(NatsEventLog(behind, "test").follow(run.filter, after=0)) as facts:
        for n in range(4):
            for part in range(10):
                (fact,) = await direct.append(run, said(f"{n}.{part}"), after=seq)
                seq = fact.seq
            proxy.deaf = n % 2 == 1
            while not proxy.deaf and len(found) < 10 * (n + 1):
                found.append(await anext(facts))
            proxy.deaf = False
            proxy.cut()
        while len(found) < 40:
            found.append(await anext(facts))
    assert texts(found) == [f"{n}.{part}" for n in range(4) for part in range(10)]
    await behind.close()


@covers("log.append.outage")
async def test_facts_survive_a_killed_server_and_appends_wait_for_it(own_nats_server: NatsServer, run: Aggregate) -> None:
    bus = await connect(own_nats_server.url, "test")
    await ensure_streams(bus)
    log = NatsEventLog(bus, "test")
    stored = await log.append(run, said("one"), after=0)
    own_nats_server.kill()
    await until(lambda: not bus.client.is_connected)
    append = asyncio.create_task(log.append(run, said("two"), after=stored[-1].seq))
    await asyncio.sleep(0)
    own_nats_server.start()
    async with asyncio.timeout(10):
        stored += await append
        assert await log.read(run.filter) == stored
    await bus.close()


@covers("log.unreadable")
async def test_a_message_that_cannot_be_read_stops_no_follower_and_is_no_silent_hole(
    nats_log: NatsEventLog, bus: Bus, run: Aggregate
) -> None:
    await nats_log.append(run, said("one"), after=0)
    await bus.client.request(subjects.fact("run", run.scope, "message_added"), b"{", timeout=2)
    newest = await nats_log.last_seq()
    facts = await some(nats_log, 2, run.filter, after=0)
    assert isinstance(facts[1].event, Unknown)
    assert facts[1].event.problem
    assert (facts[1].seq, facts[1].aggregate, facts[1].type) == (newest, run, "run.message_added")
    with pytest.raises(ValueError, match="JSON"):
        await nats_log.read(run.filter)
