"""Hard budgets of a run: reserved before a call, settled after it (feature O29). Pure."""

from __future__ import annotations

from dataclasses import dataclass

from services.orchestrator.durable.history import History
from shared.events import llm, run
from shared.events.content import Budgets

WARN_AT = 0.8


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used or reserved so far."""

    model_calls: int = 0
    tokens: int = 0
    tool_calls: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    budget: str
    limit: float
    used: float


def spent(history: History) -> Spent:
    """From the log alone: an unanswered model call counts with the tokens that it may still write."""
    model_calls = tool_calls = tokens = 0
    for request in history.requests():
        if isinstance(request, run.ToolRequested):
            tool_calls += 1
            continue
        model_calls += 1
        answer = history.answers.get(request.call_id)
        if answer is None:
            tokens += request.sampling.max_tokens or 0
        elif isinstance(answer.event, llm.LlmCompleted):
            tokens += answer.event.usage.total
    return Spent(model_calls, tokens, tool_calls)


def refusal_of_model_call(budgets: Budgets, used: Spent, reserve_tokens: int) -> Refusal | None:
    """Why the next model call may not be made, if so; `reserve_tokens` = prompt estimate + most it may write."""
    if budgets.model_calls is not None and used.model_calls >= budgets.model_calls:
        return Refusal("model_calls", budgets.model_calls, used.model_calls)
    if budgets.tokens is not None and used.tokens + reserve_tokens > budgets.tokens:
        return Refusal("tokens", budgets.tokens, used.tokens)
    return None


def refusal_of_tool_call(budgets: Budgets, used: Spent) -> Refusal | None:
    if budgets.tool_calls is not None and used.tool_calls >= budgets.tool_calls:
        return Refusal("tool_calls", budgets.tool_calls, used.tool_calls)
    return None


def warnings(budgets: Budgets, used: Spent) -> list[tuple[str, str]]:
    """The budgets that are four fifths spent, with a sentence each."""
    rows = (
        ("model_calls", budgets.model_calls, used.model_calls),
        ("tokens", budgets.tokens, used.tokens),
        ("tool_calls", budgets.tool_calls, used.tool_calls),
    )
    return [(name, f"{name}: {have} of {limit} used") for name, limit, have in rows if limit is not None and have >= WARN_AT * limit]
