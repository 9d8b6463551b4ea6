"""How a run's code can be stopped, and the failures that it may see."""

from __future__ import annotations

from shared.errors import Fault, Verdict


class NonDeterminism(Exception):
    """The code asks for something else than the log holds at this place. A bug: it parks the run."""

    def __init__(self, seq: int, message: str) -> None:
        super().__init__(message)
        self.seq = seq


class BudgetExhausted(Fault):
    """A hard budget of the run does not allow the next call (feature O29)."""

    code = "run.budget_exhausted"


class ModelCallFailed(Fault):
    """The scheduler ended a model call without an answer; `details["code"]` is its reason."""

    code = "run.model_call_failed"


class EmptyResponse(Fault):
    """The model keeps answering with nothing that can be read."""

    code = "run.empty_response"


class LoopDetected(Fault):
    """The model repeats one call in spite of being told what it returned (KS 6.8, the duplicate-call guard)."""

    code = "run.loop_detected"


class TurnsExhausted(Fault):
    """The agent used all its turns without a final answer (KS 6.8, max_turns_per_agent)."""

    code = "run.turns_exhausted"


class OwedOutputMissing(Fault):
    """The agent ended its work without the files that it owes (KS 6.1, `[SINGLE-GATE]`)."""

    code = "run.owed_output_missing"


class DeadlinePassed(Fault):
    """The wall-time budget of the run is spent."""

    code = "run.deadline_passed"


class Unrunnable(Fault):
    """The run cannot be started at all."""

    code = "run.unrunnable"
    verdict = Verdict.FINAL
