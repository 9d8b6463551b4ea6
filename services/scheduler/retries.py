"""What to do after a failed attempt of a model call (KS 6.3). Pure.

A dropped connection, a proxy's error, a parser's rejection: once more, after a short pause. A model that is
loading is waited for, inside the caller's time. Everything else, and every second failure, is the call's end.
"""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.backends.faults import BackendFault, ModelLoading
from shared.errors import Verdict

PAUSE_S = 0.5
LOADING_POLL_S = 1.0
ATTEMPTS = 2


@dataclass(frozen=True, slots=True)
class Again:
    """Try once more after `pause_s`; `counts` = it uses up an attempt."""

    pause_s: float
    counts: bool = True


def after_failure(fault: BackendFault, attempt: int, left_s: float) -> Again | None:
    """Whether to try again after attempt number `attempt`, with `left_s` of the caller's time left."""
    if isinstance(fault, ModelLoading):
        return Again(LOADING_POLL_S, counts=False) if left_s > LOADING_POLL_S else None
    if fault.verdict is Verdict.RETRY and attempt < ATTEMPTS and left_s > PAUSE_S:
        return Again(PAUSE_S)
    return None
