"""The recorder on a real PostgreSQL: every fact is in the read models once, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

import pytest
from psycopg_pool import AsyncConnectionPool

from services.recorder import metrics
from services.recorder.lane import Lane
from services.recorder.projections import Change, all_projections
from services.recorder.rebuild import Progress, RebuildFailed, rebuild
from services.recorder.tables import REBUILD_LOCK, Moved, Tables, dump
from shared import subjects
from shared.bus import connect
from shared.db import open_pool
from shared.errors import Conflict
from shared.eventlog import NatsEventLog, ensure_streams
from shared.events import decision, llm, run, tool
from shared.events.content import Usage
from shared.events.envelope import Fact
from shared.ids import new_id
from shared.runstate import Status, fold
from shared.testing.memory import MemoryLog
from tests.conftest import NatsServer
from tests.integration.conftest import PostgresServer
from tests.integration.recorder_world import a_history, a_run, append, recorder_of, rows, running, submitted, until_recorded
from tests.requirements import covers
from tests.support.waiting import LOOK_EVERY_S, until


async def recorded(log: MemoryLog, pool: AsyncConnectionPool, schema: str) -> dict[str, list[str]]:
    """What an undisturbed recorder makes of a log: every fact by itself, in a schema apart."""
    tables = Tables(pool, schema)
    await tables.prepare()
    lane = Lane(all_projections(log), 0)
    await tables.positions(lane.names)
    for fact in await log.read(subjects.EVENTS):
        await lane.write(tables, [fact])
    return dict(await dump(tables))


@covers("recorder.projections")
async def test_a_run_is_in_every_read_model(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    (run_id,) = await a_history(log, runs=1)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    state = fold(run_id, await log.read(subjects.of_run(run_id)))
    (row,) = await rows(tables, "runs")
    same = [each.name for each in fields(state) if each.name in row and each.name not in ("status", "files", "steps")]
    assert {name: row[name] for name in same} == {name: getattr(state, name) for name in same}
    assert (row["status"], row["files"], row["steps"], row["steps_done"]) == (Status.COMPLETED, ["primes.py"], 1, 1)
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_tokens"]) == (100, 20, 50)
    (project,) = await rows(tables, "projects")
    assert (project["project_id"], project["name"], project["template_id"]) == (1, "One", "quick-script")
    (step,) = await rows(tables, "steps")
    assert (step["key"], step["agent"], step["status"], step["files"]) == ("step-1", "coder", "completed", ["primes.py"])


async def test_a_conversation_has_one_row_for_each_message(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    (run_id,) = await a_history(log, runs=1)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    said = sorted(await rows(tables, "conversation", run_id), key=lambda row: row["seq"])
    assert [(row["role"], row["content"][:11]) for row in said] == [
        ("user", "write prime"),
        ("assistant", "I write it."),
        ("tool", "x" * 11),
        ("tool", "y" * 11),
        ("tool", "delete_file"),
    ]
    assert {row["agent"] for row in said} == {"coder"}
    assert [row["call_id"] for row in said] == [None, "llm_1", "call_1", "call_2", "call_3"]
    assert said[1]["prompt_tokens"] == 100
    assert said[1]["tool_calls"][0]["function"] == {"name": "write_file", "arguments": '{"path":"primes.py"}'}


@covers("recorder.projections")
async def test_the_audit_tells_what_each_call_was_asked_and_how_it_ended(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    (run_id,) = await a_history(log, runs=1)
    await append(log, run_id, run.ToolRequested(key="k4", call_id="call_4", agent="coder", tool="fetch"))
    await append(log, run_id, tool.ToolFailed(call_id="call_4", tool="fetch", code="tool.timeout", message="120 s passed"))
    await append(log, run_id, run.ToolRequested(key="k5", call_id="call_5", agent="coder", tool="fetch"))
    await append(log, run_id, tool.ToolInterrupted(call_id="call_5", tool="fetch", message="the process died"))
    await append(log, run_id, run.ToolRequested(key="k6", call_id="call_6", agent="coder", tool="fetch"))
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    audit = {row["call_id"]: row for row in await rows(tables, "tool_audit", run_id)}
    assert {call: row["verdict"] for call, row in audit.items()} == {
        "call_1": "completed",
        "call_2": "completed",
        "call_3": "denied",
        "call_4": "failed",
        "call_5": "interrupted",
        "call_6": "requested",
    }
    assert audit["call_1"]["arguments"] == {"path": "primes.py"}
    assert (len(audit["call_1"]["result"]), audit["call_1"]["result_chars"]) == (2000, 5000)
    assert audit["call_1"]["files"] == ["primes.py"]
    assert audit["call_1"]["changes"] == [{"path": "primes.py", "before_sha256": None, "after_sha256": "a" * 64}]
    assert (len(audit["call_2"]["result"]), audit["call_2"]["is_error"]) == (5000, True), "an elevated call's result is kept whole"
    assert (audit["call_3"]["layer"], audit["call_4"]["code"]) == ("permissions", "tool.timeout")


@covers("decisions.logged")
async def test_each_decision_is_a_row_with_whose_word_held_and_why(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    asked = {"at": datetime(2026, 1, 2, tzinfo=UTC), "caller": "verifier", "question": "Retry?", "options": ("yes", "no"), "fallback": "no"}
    by_model = {"choice": "yes", "source": "model", "outcome": "decided", "confidence": 0.9, "slot": "primary", "model": "std"}
    await append(log, "d1", decision.DecisionConcluded(**asked, **by_model, usage=Usage(prompt_tokens=50), run_id="run-1"))
    await append(
        log, "d2", decision.DecisionConcluded(**asked, choice="no", source="rule", outcome="timeout", reason="no answer within 10 s")
    )
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    first, second = sorted(await rows(tables, "decision_logs"), key=lambda row: row["seq"])
    assert (first["decision_id"], first["choice"], first["source"], first["confidence"]) == ("d1", "yes", "model", 0.9)
    assert (first["options"], first["run_id"], first["prompt_tokens"], first["tier"]) == (["yes", "no"], "run-1", 50, 0)
    assert (second["choice"], second["outcome"], second["reason"]) == ("no", "timeout", "no answer within 10 s")
    assert (second["confidence"], second["run_id"]) == (None, None)


async def test_model_calls_show_what_they_took(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    (run_id,) = await a_history(log, runs=1)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    first, second = sorted(await rows(tables, "llm_calls", run_id), key=lambda row: row["call_id"])
    assert (first["status"], first["model"], first["requested_model"], first["attempts"], first["retries"]) == (
        "completed",
        "small",
        "small",
        2,
        1,
    )
    assert (first["first_token_ms"], first["duration_ms"], first["tool_calls"], first["finish_reason"]) == (40, 90, 1, "stop")
    assert (second["status"], second["code"], second["failure"]) == ("failed", "llm.timeout", "no answer in 600 s")


@pytest.mark.parametrize("seed", range(3))
async def test_rows_do_not_depend_on_how_facts_are_cut_into_batches(pool: AsyncConnectionPool, seed: int) -> None:
    log, tables, chance = MemoryLog(), Tables(pool), random.Random(seed)
    await a_history(log)
    facts, lane = await log.read(subjects.EVENTS), Lane(all_projections(log), 0)
    await tables.prepare()
    await tables.positions(lane.names)
    while facts:
        size = chance.randint(1, 40)
        await lane.write(tables, facts[:size])
        facts = facts[size:]
        if chance.random() < 0.5:  # a new process remembers nothing
            lane = Lane(all_projections(log), lane.position)
    assert await dump(tables) == await recorded(log, pool, "apart")


class Crash(BaseException):
    """The process died here. Not an Exception, so that nothing goes on after it."""


class Dies:
    """A projection in whose midst the process dies at a given fact, once."""

    name = "dies"

    def __init__(self, at: int) -> None:
        self.at = at

    async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
        if any(fact.seq == self.at for fact in facts):
            raise Crash
        return []

    def forget(self) -> None:
        pass


@covers("recorder.exactly_once")
@pytest.mark.parametrize("at", [1, 2, 17, 50])
async def test_a_recorder_that_is_killed_goes_on_without_gap_or_double(pool: AsyncConnectionPool, at: int) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log)
    with pytest.raises(BaseExceptionGroup) as died:
        await recorder_of(log, pool, extra=(Dies(at),)).run()
    assert died.group_contains(Crash)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    found = dict(await dump(tables))
    found["positions"] = [row for row in found["positions"] if "dies" not in row]
    assert found == await recorded(log, pool, "apart")


async def test_of_two_recorders_one_writes_and_the_other_takes_over(pool: AsyncConnectionPool, database_dsn: str) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log, runs=1)
    async with open_pool(database_dsn) as other_pool:
        first, second = recorder_of(log, pool), recorder_of(log, other_pool)
        async with running(second) as standing_by:
            async with running(first):
                await until_recorded(log, tables)
                await until(lambda: not first.problems and not second.problems)
                await a_history_more(log)
                await until_recorded(log, tables)
                assert not standing_by.done()
            await a_history_more(log)
            await until_recorded(log, tables)
    assert await dump(tables) == await recorded(log, pool, "apart")


async def a_history_more(log: MemoryLog) -> None:
    run_id = new_id()
    await append(log, run_id, *a_run())


@covers("recorder.exactly_once")
async def test_of_two_writers_at_once_one_stores_the_facts_and_the_other_nothing(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log)
    facts = await log.read(subjects.EVENTS)
    await tables.prepare()
    lanes = [Lane(all_projections(log), 0) for _ in range(2)]
    await tables.positions(lanes[0].names)
    outcomes = await asyncio.gather(*(lane.write(tables, facts) for lane in lanes), return_exceptions=True)
    assert sorted(type(each) for each in outcomes if each) == [Moved]
    assert await dump(tables) == await recorded(log, pool, "apart")


class Fails:
    """A projection with a bug that meets a certain kind of fact, until it is mended."""

    name = "fails"

    def __init__(self) -> None:
        self.mended = False
        self.seen: list[int] = []

    async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
        if not self.mended and any(isinstance(fact.event, llm.LlmFailed) for fact in facts):
            raise KeyError("step-9")
        return [Change("SELECT %(seqs)s::bigint[]", {"seqs": [fact.seq for fact in facts]})]

    def forget(self) -> None:
        pass


@covers("recorder.stuck")
async def test_a_projection_that_fails_is_named_and_tried_again_while_the_others_go_on(pool: AsyncConnectionPool) -> None:
    log, tables, fails = MemoryLog(), Tables(pool), Fails()
    await a_history(log, runs=1)
    bad = next(fact.seq for fact in log.facts if isinstance(fact.event, llm.LlmFailed))
    recorder = recorder_of(log, pool, extra=(fails,))
    async with running(recorder):
        await until_recorded(log, tables)
        await until(lambda: "projection fails" in recorder.problems)
        assert f"cannot handle fact {bad} (llm.failed): KeyError('step-9')" in (await recorder.missing())["projection fails"]
        assert (await tables.positions(["fails"]))["fails"] == bad - 1
        assert metrics.STUCK.labels("fails")._value.get() == 1
        await a_history_more(log)  # the others follow what comes later as well
        await until_recorded(log, tables)
        fails.mended = True
        await until(lambda: not recorder.problems)
        assert (await tables.positions(["fails"]))["fails"] == await log.last_seq()
        await a_history_more(log)
        await until_recorded(log, tables)
    assert (await tables.positions(["fails"]))["fails"] == await log.last_seq()


async def test_a_stuck_projection_is_taken_up_where_it_stood_after_a_restart(pool: AsyncConnectionPool) -> None:
    log, tables, fails = MemoryLog(), Tables(pool), Fails()
    await a_history(log, runs=1)
    async with running(recorder_of(log, pool, extra=(fails,))) as first:
        await until_recorded(log, tables)
        assert not first.done()
    fails.mended = True
    recorder = recorder_of(log, pool, extra=(fails,))
    async with running(recorder):
        await until(lambda: not recorder.problems)
    assert (await tables.positions(["fails"]))["fails"] == await log.last_seq()


async def test_a_statement_that_postgres_refuses_is_a_bug_and_not_an_outage(pool: AsyncConnectionPool) -> None:
    class Refused(Fails):
        async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
            return [] if self.mended else [Change("INSERT INTO nowhere VALUES (1)", {})]

    log, tables, refused = MemoryLog(), Tables(pool), Refused()
    await a_history(log, runs=1)
    recorder = recorder_of(log, pool, extra=(refused,))
    async with running(recorder):
        await until_recorded(log, tables)
        await until(lambda: "UndefinedTable" in recorder.problems.get("projection fails", ""))
        refused.mended = True
        await until(lambda: not recorder.problems)


async def test_values_that_cannot_be_stored_are_replaced_and_counted(pool: AsyncConnectionPool) -> None:
    log, tables, run_id = MemoryLog(), Tables(pool), new_id()
    before = metrics.MENDED._value.get()
    hostile = {"a\x00b": ["\x00", float("inf")], "big": 10**30, "kept": "\x01 \\u0000 😀"}
    await append(log, run_id, submitted("done \x00 ok"))
    # As an older engine could have written it: the fields of events are cleaned where they enter today.
    log.facts.append(log.facts[-1])
    log.subjects.append(subjects.fact("run", run_id, "tool_requested"))
    event = run.ToolRequested(key="k" * 5000, call_id="c" * 5000, agent="\ud83d", tool="t", arguments=hostile)
    log.facts[-1] = Fact(2, "id", log.facts[0].time, "test", log.facts[0].aggregate, event)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    (row,) = await rows(tables, "runs")
    assert row["message"] == "done \ufffd ok"
    (call,) = await rows(tables, "tool_audit")
    assert call["agent"] == "\ufffd"
    assert call["arguments"] == {"a\ufffdb": ["\ufffd", None], "big": 10**30, "kept": "\x01 \\u0000 😀"}
    assert metrics.MENDED._value.get() >= before + 4


@covers("recorder.outage")
async def test_a_recorder_outlives_its_database(own_postgres_server: PostgresServer) -> None:
    log, server = MemoryLog(), own_postgres_server
    async with open_pool(server.dsn) as pool:
        tables, recorder = Tables(pool), recorder_of(log, pool)
        await a_history(log, runs=1)
        async with running(recorder):
            await until_recorded(log, tables)
            await server.kill_inside()
            await a_history_more(log)
            await until(lambda: "postgres" in recorder.problems)
            assert "postgres" in await recorder.missing()
            await server.start_inside()
            await until_recorded(log, tables, timeout=20)
            await until(lambda: not recorder.problems)
        assert await dump(tables) == await recorded(log, pool, "apart")


@covers("recorder.outage")
async def test_a_recorder_outlives_the_log_server_and_gets_past_what_nobody_can_read(
    pool: AsyncConnectionPool, own_nats_server: NatsServer
) -> None:
    bus = await connect(own_nats_server.url, "test")
    await ensure_streams(bus)
    log, tables = NatsEventLog(bus, "test"), Tables(pool)
    (run_id,) = await a_history(log, runs=1)
    recorder, before = recorder_of(log, pool), metrics.UNREADABLE._value.get()
    async with running(recorder):
        await until_recorded(log, tables)
        own_nats_server.kill()
        await until(lambda: not bus.client.is_connected)
        own_nats_server.start()
        await until(lambda: bus.client.is_connected)
        for body in (b"{", b'{"key":1}', b'{"key":"k","agent":"a","role":"user","content":"cut \\ud83d"}'):
            await bus.client.request(subjects.fact("run", run_id, "message_added"), body, timeout=2)
        await bus.client.request("aetherium.evt.two.ü", b"{}", timeout=2)
        await append(log, new_id(), *a_run())
        # A late fact of a run that is over: its state is folded again, over what cannot be read.
        await append(log, run_id, tool.ToolInterrupted(call_id="call_9", tool="fetch", message="late"))
        await until_recorded(log, tables, timeout=10)
        assert not await recorder.missing()
    assert metrics.UNREADABLE._value.get() == before + 4
    assert [row["tool_calls_done"] for row in await rows(tables, "runs", run_id)] == [4]
    await bus.close()


@covers("recorder.rebuild")
async def test_a_rebuild_equals_the_tables_that_followed_live(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    live, said = await dump(tables), list[Progress]()
    async with pool.connection() as connection:  # what a rebuild is for: tables that are not what the log says
        await connection.execute("DELETE FROM read_models.steps")
        await connection.execute("UPDATE read_models.runs SET status = 'wrong'")
    done = await rebuild(log, pool, report=said.append)
    assert await dump(tables) == live
    assert (done.swapped, done.facts, done.position) == (True, len(log.facts), len(log.facts))
    async with pool.connection() as connection:
        left = await connection.execute("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'read_models%'")
        assert await left.fetchall() == [("read_models",)]


async def test_a_rebuild_may_run_beside_the_recorder(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log, runs=1)
    recorder = recorder_of(log, pool)
    async with running(recorder):
        await until_recorded(log, tables)

        async def keep_writing() -> None:
            for _ in range(6):
                await a_history_more(log)
                await asyncio.sleep(LOOK_EVERY_S)

        writing = asyncio.create_task(keep_writing())
        for _ in range(3):
            await rebuild(log, pool)
        await writing
        await until_recorded(log, tables)
        await a_history_more(log)
        await until_recorded(log, tables)
        await until(lambda: not recorder.problems)
    assert await dump(tables) == await recorded(log, pool, "apart")


async def test_a_rebuild_that_fails_names_the_fact_and_leaves_the_tables(pool: AsyncConnectionPool) -> None:
    log, tables = MemoryLog(), Tables(pool)
    await a_history(log, runs=1)
    async with running(recorder_of(log, pool)):
        await until_recorded(log, tables)
    live = await dump(tables)
    bad = next(fact.seq for fact in log.facts if isinstance(fact.event, llm.LlmFailed))
    with pytest.raises(RebuildFailed, match=f"projection 'fails' cannot handle fact {bad} "):
        await rebuild(log, pool, projections=(*all_projections(log), Fails()))
    assert await dump(tables) == live


async def test_only_one_rebuild_runs_at_a_time(pool: AsyncConnectionPool) -> None:
    async with Tables(pool).exclusive(REBUILD_LOCK) as alone:
        assert alone
        with pytest.raises(Conflict, match="another rebuild"):
            await rebuild(MemoryLog(), pool)
