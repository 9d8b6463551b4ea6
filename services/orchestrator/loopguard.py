"""The duplicate-call guard (KS 6.8, infinite_loop_threshold). Pure.

Calls are compared with their results, on canonical arguments: polling whose answer changes is no loop.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from shared.ids import canonical


class Advice(StrEnum):
    RUN = "run"
    TELL = "tell"  # do not run it: tell the agent what it returned, and to move on
    END = "end"  # it was told and goes on: end the loop


@dataclass(frozen=True, slots=True)
class Repeats:
    """The last call that an agent made, and how often in a row it returned the same."""

    call: bytes = b""
    result: str = ""
    times: int = 0
    told: int = 0


def key_of(name: str, arguments: dict[str, Any]) -> bytes:
    return canonical([name, arguments])


def advise(state: Repeats, call: bytes, *, threshold: int) -> Advice:
    """What to do with a call: after `threshold` equal ones it is answered, after two more the loop ends."""
    if call != state.call or state.times < threshold:
        return Advice.RUN
    return Advice.END if state.told >= 2 else Advice.TELL


def ran(state: Repeats, call: bytes, result: str) -> Repeats:
    """The state after a call that was run."""
    if call == state.call and result == state.result:
        return Repeats(call, result, state.times + 1, state.told)
    return Repeats(call, result, 1, 0)


def told(state: Repeats) -> Repeats:
    """The state after the agent was told to move on."""
    return Repeats(state.call, state.result, state.times, state.told + 1)
