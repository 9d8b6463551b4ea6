"""What must hold when the killing is over, whatever was killed: read from the log, the workspaces and PostgreSQL."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from psycopg.rows import dict_row

from services.orchestrator.verify import check
from services.recorder.projections.runs import row
from shared import subjects
from shared.blobs import Blobs
from shared.events.envelope import Fact
from shared.events.run import TERMINAL, RunCompleted, RunSubmitted, ToolRequested
from shared.events.tool import ToolFailed, ToolInterrupted
from shared.runstate import fold
from tests.chaos.workload import expected_lines, lines_in
from tests.support.waiting import LOOK_EVERY_S

RUN_DOMAINS = ("run", "llm", "tool", "signal")


@dataclass
class Findings:
    """Counts for the last line, and a sentence for everything that is wrong."""

    completed: int = 0
    interrupted: int = 0  # completed although a tool call of theirs was interrupted
    failed: int = 0  # ended with a stated reason
    duplicated: int = 0
    lost: int = 0
    problems: list[str] = field(default_factory=list[str])

    def wrong(self, sentence: str) -> None:
        self.problems.append(sentence)


def by_run(facts: Sequence[Fact]) -> dict[str, list[Fact]]:
    runs: dict[str, list[Fact]] = {}
    for fact in facts:
        if fact.aggregate.domain in RUN_DOMAINS:
            runs.setdefault(fact.scope, []).append(fact)
    return runs


def check_ends(found: Findings, submitted: Mapping[str, str], runs: Mapping[str, Sequence[Fact]]) -> None:
    """Every acknowledged submission is in the log, and ended once, in a way that says why."""
    for run_id in submitted:
        facts = runs.get(run_id, [])
        if not any(isinstance(fact.event, RunSubmitted) for fact in facts):
            found.lost += 1
            found.wrong(f"run {run_id} was acknowledged and is not in the log")
            continue
        ends = [fact for fact in facts if isinstance(fact.event, TERMINAL)]
        if len(ends) != 1:
            found.wrong(f"run {run_id} has {len(ends)} ends: {[(fact.seq, fact.type) for fact in ends]}")
            continue
        if isinstance(ends[0].event, RunCompleted):
            found.completed += 1
            found.interrupted += bool(_interrupted(facts))
        else:
            found.failed += 1
            found.wrong(f"run {run_id} ended as {ends[0].type}: {getattr(ends[0].event, 'reason', '')}")


def _interrupted(facts: Sequence[Fact]) -> list[Fact]:
    return [fact for fact in facts if isinstance(fact.event, ToolInterrupted | ToolFailed)]


def check_effects(found: Findings, run_id: str, kind: str, facts: Sequence[Fact], workspace: Path) -> None:
    """Each line at most once; one is missing only where the model was told that its call was interrupted."""
    lines = Counter(lines_in(workspace))
    twice = [line for line, times in lines.items() if times > 1]
    found.duplicated += len(twice)
    if twice:
        found.wrong(f"run {run_id}: effects were repeated: {twice}")
    unknown = {call.event.call_id for call in _interrupted(facts) if isinstance(call.event, ToolInterrupted | ToolFailed)}
    excused = [
        str(fact.event.arguments.get("command"))
        for fact in facts
        if isinstance(fact.event, ToolRequested) and fact.event.call_id in unknown
    ]
    for line in sorted(expected_lines(kind) - set(lines)):
        if not any(f"echo {line} " in command for command in excused):
            found.wrong(f"run {run_id}: the effect {line!r} is missing although its call was reported as done")
    if extra := set(lines) - expected_lines(kind):
        found.wrong(f"run {run_id}: effects that nobody asked for: {sorted(extra)}")


def check_shown(found: Findings, shown: Mapping[int, Fact], stored: Sequence[Fact]) -> None:
    """What a client was shown is in the log as it was shown, and it was shown everything."""
    log = {fact.seq: fact for fact in stored}
    for seq, fact in shown.items():
        if log.get(seq) != fact:
            found.lost += 1
            found.wrong(f"fact {seq} ({fact.type} of {fact.scope}) was shown to a client and is not in the log as it was")
    for seq in sorted(set(log) - set(shown)):
        found.lost += 1
        found.wrong(
            f"fact {seq} ({log[seq].type} of {log[seq].scope}) is in the log and was never shown to a client that followed all of it"
        )


async def check_replay(found: Findings, runs: Mapping[str, Sequence[Fact]], blobs: Blobs) -> None:
    """Each run's code agrees with its log."""
    templates: dict[str, bytes] = {}
    for run_id, facts in runs.items():
        submitted = next((fact.event for fact in facts if isinstance(fact.event, RunSubmitted)), None)
        if submitted is None:
            continue
        ref = submitted.template
        if ref.sha256 not in templates:
            templates[ref.sha256] = await blobs.get(ref)
        verdict = await check(list(facts), {ref.sha256: templates[ref.sha256]})
        if verdict.diverged_at is not None:
            found.wrong(f"run {run_id}: replay diverges at {verdict.diverged_at}: {verdict.message}")


async def check_rows(found: Findings, dsn: str, runs: Mapping[str, Sequence[Fact]], newest: int) -> None:
    """Each run's row is the fold of its facts, once the recorder has caught up."""
    async with await psycopg.AsyncConnection[dict[str, Any]].connect(dsn, autocommit=True, row_factory=dict_row) as connection:
        await _caught_up(connection, newest)
        cursor = await connection.execute("SELECT * FROM read_models.runs")
        stored = {each["run_id"]: each for each in await cursor.fetchall()}
    for run_id, facts in runs.items():
        wanted = row(fold(run_id, facts))
        have = stored.get(run_id, {})
        differs = {name: (have.get(name), value) for name, value in wanted.items() if have.get(name) != value}
        if differs:
            found.wrong(f"run {run_id}: its row is not what its facts say (row, facts): {differs}")


async def _caught_up(connection: psycopg.AsyncConnection[dict[str, Any]], newest: int, patience_s: float = 30.0) -> None:
    async with asyncio.timeout(patience_s):
        while True:
            cursor = await connection.execute("SELECT min(seq) AS seq FROM read_models.positions")
            behind = await cursor.fetchone()
            if behind is not None and (behind["seq"] or 0) >= newest:
                return
            await asyncio.sleep(LOOK_EVERY_S)


def of_submissions(facts: Sequence[Fact]) -> dict[str, RunSubmitted]:
    return {fact.scope: fact.event for fact in facts if isinstance(fact.event, RunSubmitted)}


EVERYTHING = subjects.EVENTS
