"""KS 6.8, infinite_loop_threshold: three equal calls, then two more end the loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.loopguard import Advice, Repeats, advise, key_of, ran, told
from tests.requirements import covers

CALL = key_of("run", {"a": 1, "b": 2})


@covers("run.loop_guard")
def test_three_equal_calls_run_two_more_are_answered_and_then_the_loop_ends() -> None:
    state, advice = Repeats(), []
    for _ in range(6):
        advice.append(advise(state, CALL, threshold=3))
        state = ran(state, CALL, "same") if advice[-1] is Advice.RUN else told(state)
    assert advice == [Advice.RUN] * 3 + [Advice.TELL] * 2 + [Advice.END]


def test_polling_whose_result_changes_is_no_loop() -> None:
    state = Repeats()
    for percent in range(50):
        assert advise(state, CALL, threshold=3) is Advice.RUN
        state = ran(state, CALL, f"{percent} %")


def test_another_call_between_starts_the_count_again() -> None:
    state, other = Repeats(), key_of("look", {})
    for _ in range(5):
        state = ran(ran(state, CALL, "same"), CALL, "same")
        assert advise(state, CALL, threshold=3) is Advice.RUN
        state = ran(state, other, "x")


@given(st.permutations([("a", 1), ("b", 2), ("c", 3)]))
def test_the_order_of_arguments_does_not_make_another_call(items: list[tuple[str, int]]) -> None:
    assert key_of("run", dict(items)) == key_of("run", {"a": 1, "b": 2, "c": 3})
