"""The row of a run is the outcome of the one fold, whatever the projection remembers of the run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.recorder.projections.runs import Runs, row
from shared import subjects
from shared.events import llm, run, signal, tool
from shared.events.content import BlobRef, Pins, Usage
from shared.events.envelope import Event, Fact
from shared.events.project import ProjectCreated
from shared.runstate import fold
from shared.subjects import Aggregate
from shared.testing.memory import MemoryLog

SUBMITTED = run.RunSubmitted(project_id=1, template_id="t", template=BlobRef(sha256="a", size=1), message="m", pins=Pins(template="t"))
STORY: tuple[Event, ...] = (
    SUBMITTED,
    run.RunStarted(owner="o", engine="e"),
    run.LlmRequested(key="1", call_id="c1", agent="a", turn=1),
    llm.LlmCompleted(call_id="c1", usage=Usage(prompt_tokens=7, completion_tokens=2)),
    run.ToolRequested(key="2", call_id="c2", agent="a", tool="t"),
    tool.ToolCompleted(call_id="c2", tool="t"),
    run.RunParked(reason="a bug"),
    run.RunResumed(owner="p", engine="e"),
    run.RunCompleted(reply="done"),
    signal.CancelRequested(),
    tool.ToolInterrupted(call_id="c3", tool="t", message="late"),
)


@dataclass
class CountingLog:
    """A log that counts how often a run's history was asked for."""

    log: MemoryLog
    reads: list[str] = field(default_factory=list[str])

    def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]:
        self.reads += subject_filters
        return self.log.follow(*subject_filters, after=after)


async def a_log(runs: int = 1) -> MemoryLog:
    log = MemoryLog()
    for event in STORY:
        for number in range(runs):
            aggregate = Aggregate(event.TYPE.partition(".")[0], f"run-{number}")
            newest = await log.last(aggregate.filter)
            await log.append(aggregate, [event], after=newest.seq if newest else 0)
    return log


async def expected(log: MemoryLog, upto: int) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for scope in {fact.scope for fact in log.facts[:upto]}:
        facts = [fact for fact in await log.read(subjects.of_run(scope)) if fact.seq <= upto]
        found[scope] = row(fold(scope, facts))
    return found


@given(st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=1, max_size=40), st.integers(1, 4))
async def test_rows_are_those_of_the_fold_after_any_batch_and_any_loss_of_memory(cuts: list[tuple[int, bool]], remembered: int) -> None:
    log = await a_log(runs=3)
    runs, at, rows = Runs(log, remembered=remembered), 0, dict[str, dict[str, Any]]()
    for size, forgets in cuts:
        for change in await runs.changes(log.facts[at : at + size]):
            rows[change.values["run_id"]] = dict(change.values)
        at = min(at + size, len(log.facts))
        assert rows == await expected(log, at)
        if forgets:
            runs.forget()


async def test_a_running_run_costs_no_read_and_one_row_a_batch() -> None:
    log = CountingLog(await a_log())
    runs = Runs(log)
    assert len(await runs.changes(log.log.facts[:4])) == 1
    assert len(await runs.changes(log.log.facts[4:9])) == 1
    assert log.reads == []
    await runs.changes(log.log.facts[9:])  # after its end it was let go
    assert log.reads == [subjects.of_run("run-0")]


async def test_facts_of_other_domains_are_not_of_a_run() -> None:
    log = MemoryLog()
    facts = await log.append(Aggregate("project", "7"), [ProjectCreated(name="n", template_id="t")], after=0)
    assert await Runs(log).changes(facts) == []
