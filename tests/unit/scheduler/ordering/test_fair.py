from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.references import POLICIES
from services.scheduler.ordering.simulate import Arrival, simulate
from services.scheduler.ordering.situation import IN_A_ROW, LOW_PATIENCE_S
from services.scheduler.ordering.slots import Dispatch, Leave, Load, Slot
from services.scheduler.ordering.waiting import Priority
from tests.requirements import covers
from tests.unit.scheduler.ordering.cases import arrivals, call, decided


@covers("order.whole")
@settings(max_examples=50, deadline=None)
@given(arrivals(), st.sampled_from(sorted(POLICIES)), st.sampled_from([1, 2, 4]))
def test_every_call_goes_exactly_once_whatever_the_policy(rows: list[Arrival], policy: str, concurrency: int) -> None:
    if policy == "fifo":  # low calls have no place in an order of arrival alone
        rows = [replace(row, priority=Priority.NORMAL) for row in rows]
    outcome = simulate(rows, POLICIES[policy], concurrency=concurrency)
    went = Counter(decision.call.id for _, decision in outcome.decisions if isinstance(decision, Dispatch))
    assert went == Counter(row.id for row in rows)


@covers("order.deterministic")
@settings(max_examples=50, deadline=None)
@given(arrivals(), st.sampled_from([1, 4]))
def test_the_same_arrivals_lead_to_the_same_decisions(rows: list[Arrival], concurrency: int) -> None:
    assert simulate(rows, concurrency=concurrency).decisions == simulate(rows, concurrency=concurrency).decisions


@covers("order.model_in_use")
@settings(max_examples=50, deadline=None)
@given(arrivals(), st.sampled_from([1, 2, 4]))
def test_a_model_that_answers_or_loads_is_never_replaced(rows: list[Arrival], concurrency: int) -> None:
    ends: dict[str, float] = {}
    answers, ready_s, loaded = {row.id: row.answer_s for row in rows}, 0.0, ""
    for now_s, decision in simulate(rows, concurrency=concurrency).decisions:
        assert now_s >= ready_s
        if isinstance(decision, Load):
            assert all(end_s <= now_s for end_s in ends.values())
            ready_s, loaded = now_s + 8.0, decision.model
        elif isinstance(decision, Dispatch):
            assert decision.call.model == loaded
            assert sum(end_s > now_s for end_s in ends.values()) < concurrency
            ends[decision.call.id] = now_s + answers[decision.call.id]


@covers("order.fair")
@settings(max_examples=20, deadline=None)
@given(st.floats(0.3, 2.0), st.integers(1, 40))
def test_a_call_does_not_starve_behind_a_model_that_is_asked_for_without_end(every_s: float, waiting: int) -> None:
    flood = [Arrival(f"flood-{place}", "a", 2.0, place * every_s) for place in range(400)]
    others = [Arrival(f"other-{place}", "b", 2.0, 20.0) for place in range(waiting)]
    outcome = simulate([*flood, *others])
    waits = [now_s - each.call.asked_s for now_s, each in outcome.decisions if isinstance(each, Dispatch) and each.call.model == "b"]
    backlog_s = 8.0 + 20.0 / every_s * 2.0  # all that waited before them, and its load
    assert max(waits) <= backlog_s + 2 * (8.0 + waiting * 2.0) + 2 * 8.0


@covers("order.fair")
def test_a_model_whose_calls_came_while_it_was_loaded_answers_them_all_before_it_is_left() -> None:
    rows = [Arrival(f"a{place}", "a", 2.0, 0.0) for place in range(50)] + [Arrival("b", "b", 2.0, 1.0)]
    outcome = simulate(rows)
    assert outcome.swaps == 2
    assert outcome.max_wait_s == 8 + 50 * 2 + 8 - 1


@covers("order.fair")
def test_the_model_of_the_oldest_call_is_next_even_if_more_wait_for_another() -> None:
    desk = Desk([Slot("card")])
    for each in (call("1", "b", 1.0), call("2", "a", 2.0), call("3", "a", 3.0)):
        desk.asked(each)
    (decision,) = decided(desk, "card", 4.0)
    assert isinstance(decision, Load)
    assert (decision.model, decision.why) == ("b", "nothing is loaded, and the oldest of 1 that wait for b has waited 3.0 s")


@covers("order.low")
def test_background_calls_wait_for_every_normal_one_but_not_for_ever() -> None:
    low = Arrival("low", "b", 2.0, 0.0, priority=Priority.LOW)
    few = [Arrival(str(place), "a", 2.0, place * 2.5) for place in range(20)]
    outcome = simulate([low, *few])
    assert [each.call.id for _, each in outcome.decisions if isinstance(each, Dispatch)][-1] == "low"
    endless = [Arrival(str(place), "a", 2.0, place * 2.0) for place in range(600)]
    waited = [now for now, each in simulate([low, *endless]).decisions if isinstance(each, Dispatch) and each.call.id == "low"]
    assert LOW_PATIENCE_S <= waited[0] <= LOW_PATIENCE_S + 60


@covers("order.adjacent")
def test_calls_of_one_agent_go_one_after_the_other_but_no_more_than_a_few_in_a_row() -> None:
    desk = Desk([Slot("card", resident="a")])
    for place in range(IN_A_ROW + 2):
        desk.asked(call(f"x{place}", at_s=place * 2, agent="run/x"))
        desk.asked(call(f"y{place}", at_s=place * 2 + 1, agent="run/y"))
    order: list[str] = []
    while len(desk.waiting):
        (decision,) = decided(desk, "card", 50.0)
        assert isinstance(decision, Dispatch)
        order.append(decision.call.id)
        desk.answered(decision.call.id, "card", 50.0)
    assert order[: IN_A_ROW + 1] == [*(f"x{place}" for place in range(IN_A_ROW)), "y0"]
    runs = [1]
    for before, after in pairwise(order):
        runs = [*runs[:-1], runs[-1] + 1] if before[0] == after[0] else [*runs, 1]
    assert max(runs) <= IN_A_ROW


@covers("order.pins")
def test_a_pinned_call_goes_to_its_slot_even_where_another_has_its_model() -> None:
    desk = Desk([Slot("left", resident="a"), Slot("right", resident="b")])
    desk.asked(call("1", "a", pin="right"))
    assert decided(desk, "left", 1.0) == []
    (decision,) = decided(desk, "right", 1.0)
    assert isinstance(decision, Load)
    assert (decision.slot, decision.model) == ("right", "a")


@covers("order.pins", "order.whole")
def test_what_no_slot_can_serve_is_refused_with_the_reason_and_not_moved() -> None:
    desk = Desk([Slot("left", serves=frozenset({"a"})), Slot("right", down="it does not answer")])
    for each in (call("1", "a", pin="there"), call("2", "b", pin="left"), call("3", "a", pin="right"), call("4", "a")):
        desk.asked(each)
    assert {refuse.call.id: refuse.why for refuse in desk.refusals()} == {
        "1": "it named the slot 'there', which there is not; the slots are left, right",
        "2": "it named the slot 'left', which does not list the model 'b'",
        "3": "it named the slot 'right', which is down: it does not answer",
    }


def test_a_free_call_waits_for_the_slot_that_has_its_model_instead_of_loading_it_twice() -> None:
    desk = Desk([Slot("left", resident="a"), Slot("right")])
    desk.asked(call("1"))
    assert decided(desk, "right", 1.0) == []
    assert isinstance(decided(desk, "left", 1.0)[0], Dispatch)


def test_a_slot_that_is_kept_answers_its_model_and_loads_no_other() -> None:
    desk = Desk([Slot("card", resident="a", kept_for="run 7")])
    desk.asked(call("1", "b"))
    desk.asked(call("2", "a", 1.0))
    assert [type(each) for each in decided(desk, "card", 2.0)] == [Dispatch]
    desk.answered("2", "card", 3.0)
    assert decided(desk, "card", 500.0) == []


def test_a_model_that_is_left_gets_no_more_calls_and_is_replaced_when_it_has_answered() -> None:
    desk = Desk([Slot("card", concurrency=2, resident="a")])
    desk.asked(call("1"))
    decided(desk, "card", 0.0)
    desk.leaving("card", "b")
    desk.asked(call("2", "b", 1.0))
    desk.asked(call("3", "a", 2.0))
    assert decided(desk, "card", 3.0) == []
    desk.answered("1", "card", 4.0)
    assert decided(desk, "card", 4.0) == [Load("card", "b", "it was next, and a has answered")]


def test_a_change_is_given_up_when_the_calls_it_was_for_are_cancelled() -> None:
    desk = Desk([Slot("card", concurrency=2, resident="a")])
    desk.asked(call("1"))
    decided(desk, "card", 0.0)
    desk.asked(call("2", "b", 1.0))
    desk.leaving("card", "b")
    desk.withdrawn("2")
    desk.asked(call("3", "a", 2.0))
    assert [type(each) for each in decided(desk, "card", 3.0)] == [Dispatch]
    assert not any(isinstance(each, Leave) for each in decided(desk, "card", 3.0))
