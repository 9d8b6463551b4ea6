"""The runs: each row is the outcome of the one fold (`shared.runstate`) over the run's facts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from services.recorder.batches import closing
from services.recorder.projections.base import Change, key_text
from shared import subjects
from shared.events.envelope import Fact
from shared.events.run import RunSubmitted
from shared.runstate import RunState, evolve, fold

REMEMBERED = 500  # running runs; one that fell out is folded again from the log

# Domains whose scope is a run.
DOMAINS = frozenset({"run", "llm", "tool", "signal"})

UPSERT = """
INSERT INTO runs (run_id, status, project_id, template_id, message, source_agent, owner, resumes, submitted_at, started_at, ended_at,
    turns, model_calls, model_calls_done, tool_calls, tool_calls_done, prompt_tokens, completion_tokens, cached_tokens,
    steps, steps_done, reply, code, reason, files, cancel_requested, seq)
VALUES (%(run_id)s, %(status)s, %(project_id)s, %(template_id)s, %(message)s, %(source_agent)s, %(owner)s, %(resumes)s, %(submitted_at)s,
    %(started_at)s, %(ended_at)s, %(turns)s, %(model_calls)s, %(model_calls_done)s, %(tool_calls)s, %(tool_calls_done)s, %(prompt_tokens)s,
    %(completion_tokens)s, %(cached_tokens)s, %(steps)s, %(steps_done)s, %(reply)s, %(code)s, %(reason)s, %(files)s, %(cancel_requested)s,
    %(seq)s)
ON CONFLICT (run_id) DO UPDATE SET
    status = EXCLUDED.status, project_id = EXCLUDED.project_id, template_id = EXCLUDED.template_id, message = EXCLUDED.message,
    source_agent = EXCLUDED.source_agent, owner = EXCLUDED.owner, resumes = EXCLUDED.resumes, submitted_at = EXCLUDED.submitted_at,
    started_at = EXCLUDED.started_at, ended_at = EXCLUDED.ended_at, turns = EXCLUDED.turns, model_calls = EXCLUDED.model_calls,
    model_calls_done = EXCLUDED.model_calls_done, tool_calls = EXCLUDED.tool_calls, tool_calls_done = EXCLUDED.tool_calls_done,
    prompt_tokens = EXCLUDED.prompt_tokens, completion_tokens = EXCLUDED.completion_tokens, cached_tokens = EXCLUDED.cached_tokens,
    steps = EXCLUDED.steps, steps_done = EXCLUDED.steps_done, reply = EXCLUDED.reply, code = EXCLUDED.code, reason = EXCLUDED.reason,
    files = EXCLUDED.files, cancel_requested = EXCLUDED.cancel_requested, seq = EXCLUDED.seq
"""


class History(Protocol):
    """Where the earlier facts of a run are read."""

    def follow(self, *subject_filters: str, after: int) -> AsyncIterator[Fact]: ...


@dataclass
class Runs:
    """Keeps the state of the runs that are under way, so that a fact costs one step of the fold."""

    log: History
    name: str = "runs"
    remembered: int = REMEMBERED
    _states: OrderedDict[str, RunState] = field(default_factory=OrderedDict[str, RunState])

    async def changes(self, facts: Sequence[Fact]) -> Sequence[Change]:
        touched: dict[str, RunState] = {}
        for fact in facts:
            if fact.aggregate.domain in DOMAINS:
                before = touched.get(fact.scope) or await self._before(fact)
                touched[fact.scope] = evolve(before, fact)
        for state in touched.values():
            self._remember(state)
        return [Change(UPSERT, row(state)) for state in touched.values()]

    def forget(self) -> None:
        self._states.clear()

    async def _before(self, fact: Fact) -> RunState:
        """The state that a run had before `fact`."""
        if known := self._states.get(fact.scope):
            return known
        if isinstance(fact.event, RunSubmitted):  # always a run's first fact
            return RunState(fact.scope)
        return fold(fact.scope, await self._earlier(fact))

    async def _earlier(self, fact: Fact) -> list[Fact]:
        """The run's facts before `fact`. Followed rather than read, since that gets past what nobody can parse."""
        earlier: list[Fact] = []
        async with closing(self.log.follow(subjects.of_run(fact.scope), after=0)) as history:
            async for each in history:
                if each.seq >= fact.seq:
                    break
                if each.aggregate.domain in DOMAINS:
                    earlier.append(each)
        return earlier

    def _remember(self, state: RunState) -> None:
        if state.status.is_final:  # hardly anything follows, and its reply may be long
            self._states.pop(state.run_id, None)
            return
        self._states[state.run_id] = state
        self._states.move_to_end(state.run_id)
        if len(self._states) > self.remembered:
            self._states.popitem(last=False)


def row(state: RunState) -> dict[str, Any]:
    """The columns of a run."""
    same = ("project_id", "template_id", "message", "source_agent", "owner", "resumes", "submitted_at", "started_at", "ended_at")
    same += (
        "turns",
        "model_calls",
        "model_calls_done",
        "tool_calls",
        "tool_calls_done",
        "reply",
        "code",
        "reason",
        "cancel_requested",
        "seq",
    )
    return {
        **{name: getattr(state, name) for name in same},
        **state.usage.model_dump(),
        "run_id": key_text(state.run_id),
        "status": str(state.status),
        "files": list(state.files),
        "steps": len(state.steps),
        "steps_done": sum(step.ended_at is not None for step in state.steps.values()),
    }
