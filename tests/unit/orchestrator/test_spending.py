from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.durable.budgets import Spent
from services.orchestrator.durable.history import History
from shared.clock import SystemClock
from shared.events import llm, run, tool
from shared.events.content import Sampling, Usage
from shared.events.envelope import Event, Fact
from shared.subjects import Aggregate
from tests.requirements import covers

NOW = SystemClock().now()
Calls = list[tuple[str, int, int]]


def events_of(calls: Calls) -> list[tuple[int, Event]]:
    """Requests and answers, each with a rank that says when it arrives; `kind` is how the call ended, if it did."""
    events: list[tuple[int, Event]] = []
    for number, (kind, asked, answered) in enumerate(calls):
        call_id = f"call_{number}"
        if kind == "tool":
            events.append((asked, run.ToolRequested(key=call_id, call_id=call_id, agent="a", tool="t")))
            events.append((answered, tool.ToolCompleted(call_id=call_id, tool="t")))
            continue
        events.append((asked, run.LlmRequested(key=call_id, call_id=call_id, agent="a", sampling=Sampling(max_tokens=100 + number))))
        if kind == "completed":
            usage = Usage(prompt_tokens=7, completion_tokens=number)
            events += [
                (answered + late, llm.LlmCompleted(call_id=call_id, usage=usage)) for late in (0, 50)
            ]  # the second one counts for nothing
        if kind == "failed":
            events.append((answered, llm.LlmFailed(call_id=call_id, code="x", message="")))
    return sorted(events, key=lambda row: row[0])


def counted(calls: Calls) -> Spent:
    """The same from the whole: what each call costs once all has arrived."""
    tokens = 0
    for number, (kind, _, _) in enumerate(calls):
        tokens += {"completed": 7 + number, "open": 100 + number}.get(kind, 0)
    tools = sum(kind == "tool" for kind, _, _ in calls)
    return Spent(model_calls=len(calls) - tools, tokens=tokens, tool_calls=tools)


KINDS = st.sampled_from(["completed", "failed", "open", "tool"])


@covers("run.budget")
@given(st.lists(st.tuples(KINDS, st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_what_is_spent_is_the_same_in_whatever_order_requests_and_answers_arrive(calls: Calls) -> None:
    history = History("r")
    for seq, (_, event) in enumerate(events_of(calls), 1):
        fact = Fact(seq, f"id-{seq}", NOW, "test", Aggregate(event.TYPE.partition(".")[0], "r"), event)
        assert history.add(fact)
        assert not history.add(fact)
    assert history.spending.spent == counted(calls)


@covers("run.budget")
def test_an_open_call_counts_with_all_that_it_may_still_write() -> None:
    history = History("r")
    asked = run.LlmRequested(key="k", call_id="c", agent="a", sampling=Sampling(max_tokens=500))
    history.add(Fact(1, "1", NOW, "test", Aggregate("run", "r"), asked))
    assert history.spending.spent == Spent(model_calls=1, tokens=500)
    history.add(Fact(2, "2", NOW, "test", Aggregate("llm", "r"), llm.LlmCompleted(call_id="c", usage=Usage(completion_tokens=20))))
    assert history.spending.spent == Spent(model_calls=1, tokens=20)
