"""The decision layer, Tier 0: what a model is asked, under which schema, how its answer is read, and whose word holds. Pure.

A decision is small: one choice among a few options, for which the caller has a rule of its own. A model that is loaded
already may know better; wherever it does not say so, readably and with confidence, the rule's choice holds (KS 6.10).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, cast

from services.scheduler.arbiter.state import State
from services.scheduler.backends.base import ChatReply, ChatRequest
from services.scheduler.model_names import same_model
from services.scheduler.placement import place_role
from shared.decision_requests import DecisionRequest
from shared.events.decision import Outcome, Source

ROLE = "decision"
MAX_TOKENS = 300
REASON_CHARS = 300

SYSTEM = (
    "You decide one question for a program. Choose exactly one of the options. Answer with one JSON object: 'reason' in one short "
    "sentence, 'choice' as one of the options word for word, 'confidence' from 0 (a guess) to 100 (certain)."
)


@dataclass(frozen=True, slots=True)
class Place:
    """A model that is loaded now."""

    slot: str
    model: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What holds. `source` "rule": the caller's own choice, for the reason that is given."""

    choice: str
    source: Source
    outcome: Outcome
    reason: str
    confidence: float | None = None


# ---- where


def find_place(state: State, down: Collection[str], wanted: str | None) -> Place | str:
    """A resident model on the slot of the role `decision`, else on its alternates unless the role is pinned; or why there is none."""
    placed = place_role(state.catalogue, ROLE, down)
    if placed is None:
        return "no slot is configured: set scheduler.slots"
    slots = [placed.slot] if placed.binds else [placed.slot, *state.catalogue.slots[placed.slot].alternates]
    for slot in slots:
        model = next(_resident(state, slot, wanted), None)
        if slot not in down and model is not None:
            return Place(slot, model)
    return f"{wanted or 'no model that can chat'} is{' not' if wanted else ''} loaded on {' or '.join(slots)}, and a decision loads nothing"


def _resident(state: State, slot: str, wanted: str | None) -> Iterator[str]:
    """The models that can be asked there: those of the standard set first."""
    on, spec = state.slot(slot), state.catalogue.slots[slot]
    if not on.known:
        return
    for model in dict.fromkeys((*spec.standard_set, *on.models)):
        if on.is_loaded(model) and not state.catalogue.is_embedding(model) and (wanted is None or same_model(model, wanted)):
            yield model


# ---- the question


def schema_of(options: tuple[str, ...]) -> dict[str, Any]:
    """The reason comes first: a model that has said why chooses better than one that says why it chose."""
    properties = {
        "reason": {"type": "string", "maxLength": REASON_CHARS},
        "choice": {"type": "string", "enum": list(options)},
        "confidence": {"type": "integer", "minimum": 0, "maximum": 100},
    }
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def chat_request(asked: DecisionRequest, model: str, timeout_s: float) -> ChatRequest:
    """The one call of a decision: no tools, no chance, and an end that is near."""
    options = "\n".join(f"- {option}" for option in asked.options)
    context = f"\n\nWhat is known:\n{asked.context.strip()}" if asked.context.strip() else ""
    return ChatRequest(
        messages=(
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": f"{asked.question}{context}\n\nOptions:\n{options}"},
        ),
        model=model,
        temperature=0.0,
        seed=0,
        max_tokens=MAX_TOKENS,
        response_format={"type": "json_schema", "json_schema": {"name": "decision", "strict": True, "schema": schema_of(asked.options)}},
        timeout_s=timeout_s,
        idle_timeout_s=timeout_s,
    )


def digest_of(request: ChatRequest) -> str:
    sent = {"messages": list(request.messages), "response_format": request.response_format}
    return hashlib.sha256(json.dumps(sent, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")).hexdigest()


# ---- the answer


def conclude(asked: DecisionRequest, reply: ChatReply, min_confidence: float) -> Conclusion:
    """The model's choice where it can be read and is sure enough; nothing is completed, mended or guessed."""
    if reply.is_cut:
        return by_rule(asked, "unreadable", f"the answer was cut at {MAX_TOKENS} tokens")
    try:
        answer = json.loads(reply.content)
    except (ValueError, RecursionError):
        return by_rule(asked, "unreadable", "the answer is not JSON")
    if not isinstance(answer, dict):
        return by_rule(asked, "unreadable", "the answer is not a JSON object")
    fields = cast(dict[str, Any], answer)
    choice, claimed = fields.get("choice"), fields.get("confidence")
    if not isinstance(choice, str) or choice not in asked.options:
        return by_rule(asked, "unreadable", "the answer chooses none of the options")
    if isinstance(claimed, bool) or not isinstance(claimed, int | float) or not 0 <= claimed <= 100:
        return by_rule(asked, "unreadable", "the answer does not say how sure it is")
    confidence, why = claimed / 100, str(fields.get("reason") or "")[:REASON_CHARS]
    if confidence < min_confidence:
        return Conclusion(asked.fallback, "rule", "unsure", f"the model leans to {choice!r}: {why}", confidence)
    return Conclusion(choice, "model", "decided", why, confidence)


def by_rule(asked: DecisionRequest, outcome: Outcome, reason: str) -> Conclusion:
    return Conclusion(asked.fallback, "rule", outcome, reason)
