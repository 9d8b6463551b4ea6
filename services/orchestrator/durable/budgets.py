"""Hard budgets of a run: reserved before a call, settled after it (feature O29). Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from shared.events import llm, run
from shared.events.content import Budgets
from shared.events.envelope import Event

WARN_AT = 0.8


@dataclass(frozen=True, slots=True)
class Spent:
    """What a run has used or reserved so far."""

    model_calls: int = 0
    tokens: int = 0
    tool_calls: int = 0


@dataclass
class Spending:
    """The sum as the run's facts come in: a fold over the whole history for each call would cost its square.

    An unanswered model call counts with the tokens that it may still write. Its answer may come before the
    request itself does: they arrive by different ways.
    """

    model_calls: int = 0
    tokens: int = 0
    tool_calls: int = 0
    _by_call: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def spent(self) -> Spent:
        return Spent(self.model_calls, self.tokens, self.tool_calls)

    def request(self, event: run.LlmRequested | run.ToolRequested) -> None:
        if isinstance(event, run.ToolRequested):
            self.tool_calls += 1
            return
        self.model_calls += 1
        if event.call_id not in self._by_call:
            self._charge(event.call_id, event.sampling.max_tokens or 0)

    def answer(self, event: Event) -> None:
        """The first answer of a call."""
        if isinstance(event, llm.LlmCompleted | llm.LlmFailed):
            self._charge(event.call_id, event.usage.total if isinstance(event, llm.LlmCompleted) else 0)

    def _charge(self, call_id: str, tokens: int) -> None:
        self.tokens += tokens - self._by_call.get(call_id, 0)
        self._by_call[call_id] = tokens


@dataclass(frozen=True, slots=True)
class Refusal:
    budget: str
    limit: float
    used: float


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
