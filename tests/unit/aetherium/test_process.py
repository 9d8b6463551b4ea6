from __future__ import annotations

import signal

from aetherium.launcher.process import Backoff

CRASH = 1


def test_the_first_restart_is_immediate_and_the_next_ones_wait_twice_as_long_each() -> None:
    backoff = Backoff(first_s=0.2, longest_s=10)
    waits = [backoff.after(exit_code=CRASH, ready_for_s=None) for _ in range(9)]
    assert waits == [0, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10, 10]


def test_a_process_that_was_killed_from_outside_never_waits() -> None:
    backoff = Backoff()
    assert {backoff.after(exit_code=-signal.SIGKILL, ready_for_s=0.5) for _ in range(50)} == {0.0}


def test_a_process_that_is_killed_before_it_is_ready_waits() -> None:
    backoff = Backoff()
    assert backoff.after(exit_code=-signal.SIGKILL, ready_for_s=None) == 0
    assert backoff.after(exit_code=-signal.SIGKILL, ready_for_s=None) > 0


def test_half_a_minute_of_health_forgets_earlier_failures() -> None:
    backoff = Backoff()
    for _ in range(6):
        backoff.after(exit_code=CRASH, ready_for_s=1)
    assert backoff.after(exit_code=CRASH, ready_for_s=29) == 6.4
    assert backoff.after(exit_code=CRASH, ready_for_s=30) == 0
