"""The decision layer's decisions: one row each (KS 6.10, DecisionLogService)."""

from __future__ import annotations

from collections.abc import Iterable

from services.recorder.projections.base import Change, PerFact, key_text
from shared.events.decision import DecisionConcluded
from shared.events.envelope import Fact

CONCLUDED = """
INSERT INTO decision_logs (decision_id, caller, tier, question, options, fallback, choice, source, outcome, reason, confidence, run_id,
    slot, model, lease_id, prompt_sha256, prompt_tokens, completion_tokens, cached_tokens, duration_ms, at, seq)
VALUES (%(decision_id)s, %(caller)s, %(tier)s, %(question)s, %(options)s, %(fallback)s, %(choice)s, %(source)s, %(outcome)s, %(reason)s,
    %(confidence)s, %(run_id)s, %(slot)s, %(model)s, %(lease_id)s, %(prompt_sha256)s, %(prompt_tokens)s, %(completion_tokens)s,
    %(cached_tokens)s, %(duration_ms)s, %(at)s, %(seq)s)
ON CONFLICT (decision_id) DO NOTHING
"""


def changes(fact: Fact) -> Iterable[Change]:
    match fact.event:
        case DecisionConcluded() as event:
            kept = event.model_dump(exclude={"options", "usage", "run_id"}) | event.usage.model_dump()
            run_id = key_text(event.run_id) if event.run_id is not None else None
            ids = {"decision_id": key_text(fact.scope), "run_id": run_id, "seq": fact.seq}
            yield Change(CONCLUDED, kept | {"options": list(event.options)} | ids)
        case _:
            pass


DECISION_LOGS = PerFact("decision_logs", changes)
