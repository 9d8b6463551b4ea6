from __future__ import annotations

from services.scheduler.ordering.references import POLICIES, fifo, grouped, oldest_first, quantum
from services.scheduler.ordering.simulate import Arrival, simulate


def arrivals(*rows: tuple[str, float]) -> list[Arrival]:
    """Calls of 2 s each: model and time."""
    return [Arrival(str(place), model, 2.0, asked_s) for place, (model, asked_s) in enumerate(rows)]


def loads(rows: list[Arrival], policy: str, concurrency: int = 1) -> str:
    return "".join(
        each.model for _, each in simulate(rows, POLICIES[policy], concurrency=concurrency).decisions if type(each).__name__ == "Load"
    )


def test_fifo_swaps_for_each_change_of_model_in_the_order_of_arrival() -> None:
    outcome = simulate(arrivals(("a", 0), ("b", 0), ("a", 0)), fifo)
    assert (outcome.swaps, outcome.makespan_s) == (3, 3 * 8 + 3 * 2)
    assert outcome.waits_s == (8.0, 18.0, 28.0)


def test_grouped_serves_the_loaded_model_until_its_queue_is_empty_though_a_call_is_in_flight() -> None:
    rows = arrivals(("a", 0), ("b", 0.5), ("a", 1), ("a", 9))
    outcome = simulate(rows, grouped)
    assert (outcome.swaps, outcome.makespan_s) == (2, 2 * 8 + 4 * 2)
    assert simulate([*rows, Arrival("late", "a", 2.0, 13.0)], grouped).swaps == 3


def test_grouped_takes_the_model_that_most_wait_for_and_oldest_that_of_the_oldest_call() -> None:
    rows = arrivals(("a", 0), ("b", 1), ("c", 2), ("c", 3))
    assert (loads(rows, "grouped"), loads(rows, "oldest")) == ("acb", "abc")


def test_quantum_leaves_a_model_that_was_loaded_for_32_s_only_when_a_call_of_another_waits() -> None:
    rows = arrivals(*[("a", 0.0)] * 30, ("b", 0.0))
    assert (loads(rows, "quantum32"), loads(rows[:-1], "quantum32")) == ("aba", "a")
    assert simulate(rows, quantum).waits_s[-1] > simulate(rows, oldest_first).waits_s[-1]


def test_a_load_waits_for_the_calls_in_flight() -> None:
    rows = [Arrival("0", "a", 20.0, 0.0), Arrival("1", "a", 1.0, 0.0), Arrival("2", "b", 1.0, 9.0)]
    for policy in POLICIES.values():
        assert simulate(rows, policy, concurrency=2).makespan_s == 8 + 20 + 8 + 1


def test_an_agent_asks_again_half_a_second_after_its_answer() -> None:
    rows = [Arrival(str(place), "a", 2.0, None, "one") for place in range(3)]
    for policy in POLICIES.values():
        assert simulate(rows, policy).makespan_s == 8 + 3 * 2 + 2 * 0.5
