"""The model calls: one row each, with what they took and how they ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from services.recorder.projections.base import Change, PerFact, key_text
from shared.events.envelope import Fact
from shared.events.llm import LlmCompleted, LlmDispatched, LlmFailed, LlmQueued, LlmRetried
from shared.events.run import LlmRequested

REQUESTED = """
INSERT INTO llm_calls (run_id, call_id, key, agent, turn, priority, requested_model, requested_slot, status, attempts, retries,
    requested_at, requested_seq)
VALUES (%(run_id)s, %(call_id)s, %(key)s, %(agent)s, %(turn)s, %(priority)s, %(model)s, %(slot)s, 'requested', 0, 0, %(at)s, %(seq)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    key = EXCLUDED.key, agent = EXCLUDED.agent, turn = EXCLUDED.turn, priority = EXCLUDED.priority,
    requested_model = EXCLUDED.requested_model, requested_slot = EXCLUDED.requested_slot,
    requested_at = EXCLUDED.requested_at, requested_seq = EXCLUDED.requested_seq
"""

QUEUED = """
INSERT INTO llm_calls (run_id, call_id, status, attempts, retries) VALUES (%(run_id)s, %(call_id)s, 'queued', 0, 0)
ON CONFLICT (run_id, call_id) DO UPDATE SET status = 'queued'
"""

DISPATCHED = """
INSERT INTO llm_calls (run_id, call_id, status, model, slot, attempts, retries, dispatched_at)
VALUES (%(run_id)s, %(call_id)s, 'dispatched', %(model)s, %(slot)s, %(attempt)s, 0, %(at)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    status = 'dispatched', model = EXCLUDED.model, slot = EXCLUDED.slot,
    attempts = greatest(llm_calls.attempts, EXCLUDED.attempts), dispatched_at = EXCLUDED.dispatched_at
"""

RETRIED = """
INSERT INTO llm_calls (run_id, call_id, status, attempts, retries) VALUES (%(run_id)s, %(call_id)s, 'requested', 0, 1)
ON CONFLICT (run_id, call_id) DO UPDATE SET retries = llm_calls.retries + 1
"""

COMPLETED = """
INSERT INTO llm_calls (run_id, call_id, status, model, slot, attempts, retries, prompt_tokens, completion_tokens, cached_tokens,
    tool_calls, finish_reason, prompt_sha256, queued_ms, first_token_ms, duration_ms, ended_at, ended_seq)
VALUES (%(run_id)s, %(call_id)s, 'completed', %(model)s, %(slot)s, 1, 0, %(prompt_tokens)s, %(completion_tokens)s, %(cached_tokens)s,
    %(tool_calls)s, %(finish_reason)s, %(prompt_sha256)s, %(queued_ms)s, %(first_token_ms)s, %(duration_ms)s, %(at)s, %(seq)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    status = 'completed', model = coalesce(nullif(EXCLUDED.model, ''), llm_calls.model),
    slot = coalesce(nullif(EXCLUDED.slot, ''), llm_calls.slot),
    prompt_tokens = EXCLUDED.prompt_tokens, completion_tokens = EXCLUDED.completion_tokens, cached_tokens = EXCLUDED.cached_tokens,
    tool_calls = EXCLUDED.tool_calls, finish_reason = EXCLUDED.finish_reason, prompt_sha256 = EXCLUDED.prompt_sha256,
    queued_ms = EXCLUDED.queued_ms, first_token_ms = EXCLUDED.first_token_ms, duration_ms = EXCLUDED.duration_ms,
    ended_at = EXCLUDED.ended_at, ended_seq = EXCLUDED.ended_seq
"""

FAILED = """
INSERT INTO llm_calls (run_id, call_id, status, attempts, retries, code, failure, duration_ms, ended_at, ended_seq)
VALUES (%(run_id)s, %(call_id)s, 'failed', 0, 0, %(code)s, %(failure)s, %(duration_ms)s, %(at)s, %(seq)s)
ON CONFLICT (run_id, call_id) DO UPDATE SET
    status = 'failed', code = EXCLUDED.code, failure = EXCLUDED.failure, duration_ms = EXCLUDED.duration_ms,
    ended_at = EXCLUDED.ended_at, ended_seq = EXCLUDED.ended_seq
"""


def changes(fact: Fact) -> Iterable[Change]:
    match fact.event:
        case LlmRequested() as event:
            asked = event.model_dump(include={"agent", "turn", "priority", "model", "slot"})
            yield Change(REQUESTED, _call(fact, event.call_id) | asked | {"key": event.key})
        case LlmQueued() as event:
            yield Change(QUEUED, _call(fact, event.call_id))
        case LlmDispatched() as event:
            yield Change(DISPATCHED, _call(fact, event.call_id) | event.model_dump(include={"model", "slot", "attempt"}))
        case LlmRetried() as event:
            yield Change(RETRIED, _call(fact, event.call_id))
        case LlmCompleted() as event:
            yield Change(COMPLETED, _call(fact, event.call_id) | _answer(event))
        case LlmFailed() as event:
            failed = {"code": event.code, "failure": event.message, "duration_ms": event.duration_ms}
            yield Change(FAILED, _call(fact, event.call_id) | failed)
        case _:
            pass


def _call(fact: Fact, call_id: str) -> dict[str, Any]:
    return {"run_id": key_text(fact.scope), "call_id": key_text(call_id), "at": fact.time, "seq": fact.seq}


def _answer(event: LlmCompleted) -> dict[str, Any]:
    kept = event.model_dump(include={"model", "slot", "finish_reason", "prompt_sha256", "queued_ms", "first_token_ms", "duration_ms"})
    return kept | event.usage.model_dump() | {"tool_calls": len(event.tool_calls)}


LLM_CALLS = PerFact("llm_calls", changes)
