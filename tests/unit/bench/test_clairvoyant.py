from __future__ import annotations

from itertools import permutations

import pytest
from hypothesis import given, settings

from bench import traces
from bench.clairvoyant import least_makespan_s
from services.scheduler.ordering.references import POLICIES
from services.scheduler.ordering.simulate import Arrival, simulate
from tests.unit.scheduler.ordering.cases import arrivals


def makespan_s(order: tuple[Arrival, ...]) -> float:
    now_s, loaded = 0.0, ""
    for arrival in order:
        assert arrival.asked_s is not None
        now_s = max(now_s + (8.0 if arrival.model != loaded else 0.0), arrival.asked_s) + arrival.answer_s
        loaded = arrival.model
    return now_s


@settings(max_examples=60, deadline=None)
@given(arrivals(most=6, agents=False))
def test_the_least_makespan_is_that_of_the_best_of_all_orders(rows: list[Arrival]) -> None:
    assert least_makespan_s(rows) == pytest.approx(min(makespan_s(order) for order in permutations(rows)))


@settings(max_examples=30, deadline=None)
@given(arrivals(most=25, agents=False))
def test_no_policy_is_faster_than_who_knows_all_arrivals(rows: list[Arrival]) -> None:
    least_s = least_makespan_s(rows)
    assert all(simulate(rows, policy).makespan_s >= least_s - 1e-6 for policy in POLICIES.values())


def test_arrivals_that_depend_on_answers_have_no_makespan_without_a_policy() -> None:
    with pytest.raises(ValueError, match="no makespan without a policy"):
        least_makespan_s(traces.made("agents", 1).arrivals)
    assert least_makespan_s([]) == 0.0
