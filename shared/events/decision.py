"""Facts of the decision layer, one aggregate per decision. Written by the scheduler (KS 6.10)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import AwareDatetime, NonNegativeInt

from shared.events.content import Usage
from shared.events.envelope import Event

Source = Literal["model", "rule"]
Outcome = Literal["decided", "no_model", "busy", "timeout", "failed", "unreadable", "unsure"]


class DecisionConcluded(Event):
    """A bounded question was settled: by a model, or, for the reason that `outcome` and `reason` give, by the caller's own rule.

    `fallback` is what that rule chose; `confidence` is the model's own claim, 0 to 1.
    """

    TYPE: ClassVar[str] = "decision.concluded"

    at: AwareDatetime
    caller: str
    question: str
    options: tuple[str, ...]
    fallback: str
    choice: str
    source: Source
    outcome: Outcome
    reason: str = ""
    confidence: float | None = None
    tier: NonNegativeInt = 0  # 0: one question to a model that is loaded already
    run_id: str | None = None
    slot: str = ""
    model: str = ""
    lease_id: str = ""
    prompt_sha256: str = ""  # of the messages and the schema, as sent
    usage: Usage = Usage()
    duration_ms: float = 0.0
