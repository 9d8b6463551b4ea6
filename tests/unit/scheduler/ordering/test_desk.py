"""The desk under every order of calls, cancellations, answers, loads and leases that keep a slot."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from services.scheduler.ordering.desk import Desk
from services.scheduler.ordering.slots import Leave, Load, Slot
from services.scheduler.ordering.waiting import Priority
from tests.requirements import covers
from tests.unit.scheduler.ordering.cases import call, decided


class AnyDay(RuleBasedStateMachine):
    """One slot of two calls at a time; `step` is its clock."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk([Slot("s", concurrency=2)])
        self.now_s = 0.0
        self.asked = 0

    @property
    def slot(self) -> Slot:
        return self.desk.slots["s"]

    @rule(model=st.sampled_from("abc"), low=st.booleans(), pinned=st.booleans())
    def ask(self, model: str, low: bool, pinned: bool) -> None:
        self.asked += 1
        self.desk.asked(call(f"c{self.asked}", model, self.now_s, agent="abc"[self.asked % 3], pin="s" if pinned else None, low=low))

    @rule(place=st.integers(0, 5))
    def cancel(self, place: int) -> None:
        waiting = [each.id for each in self.desk.waiting]
        if place < len(waiting):
            self.desk.withdrawn(waiting[place])

    @rule(seconds=st.sampled_from([0.1, 5.0, 400.0]))
    def decide(self, seconds: float) -> None:
        self.now_s += seconds
        was_kept = self.slot.kept_for is not None
        for decision in decided(self.desk, "s", self.now_s):
            if isinstance(decision, Load | Leave):
                assert not was_kept, "a slot that is kept for a run loads no other model"
                assert any(self.desk.waiting.lanes_of(decision.model, "s", each) for each in Priority), "nobody waits for it"

    @rule(model=st.sampled_from("abc"))
    def decide_to_swap(self, model: str) -> None:
        """As a policy may, while a call of the loaded model is in flight."""
        wanted = any(self.desk.waiting.lanes_of(model, "s", each) for each in Priority)
        if wanted and self.slot.running and self.slot.kept_for is None and model != self.slot.resident:
            self.desk.leaving("s", model)

    @rule()
    def answer(self) -> None:
        for running in list(self.slot.running)[:1]:
            self.desk.answered(running, "s", self.now_s)

    @rule(works=st.booleans())
    def end_load(self, works: bool) -> None:
        if self.slot.loading is not None:
            if works:
                self.desk.loaded("s", self.slot.loading, self.now_s)
            else:
                self.desk.unloaded("s")

    @rule(kept=st.booleans())
    def keep(self, kept: bool) -> None:
        self.desk.configured(replace(self.slot, kept_for="run r1" if kept else None))

    @invariant()
    def a_swap_that_is_decided_is_wanted_and_allowed(self) -> None:
        model = self.slot.leaving_for
        if model is not None:
            assert self.slot.kept_for is None
            assert any(self.desk.waiting.lanes_of(model, "s", each) for each in Priority)


@covers("order.whole", "order.model_in_use")
class TestAnyDay(AnyDay.TestCase):
    settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_a_swap_whose_calls_were_cancelled_does_not_come_back_with_the_next_one() -> None:
    desk = Desk([Slot("s", resident="a")])
    desk.asked(call("one", "a"))
    assert decided(desk, "s", 0.0)
    desk.asked(call("two", "b", 1.0))
    desk.leaving("s", "b")
    desk.withdrawn("two")
    assert desk.slots["s"].leaving_for is None
    desk.asked(call("three", "b", 2.0))
    assert desk.decide("s", 2.0) is None  # one call of `a` is in flight, and nothing says that `b` is next at once
