"""Plain policies to compare with, by name. Their exact rules are those of the recorded arrivals' README."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from services.scheduler.ordering.fair import fair, oldest
from services.scheduler.ordering.situation import Group, Situation
from services.scheduler.ordering.slots import Decision, Dispatch, Leave, Load

Policy = Callable[[Situation], Decision | None]
"""Asked about a slot that is neither down, loading nor leaving, and for which somebody waits. Pure: same situation, same decision."""

QUANTUM_S = 32.0


def fifo(now: Situation) -> Decision | None:
    """Strict order of arrival."""
    if now.mine is not None and all(now.mine.since < group.since for group in now.others):
        return _serve(now)
    return _load(now, min(now.others, key=lambda group: group.since), "it was asked first")


def grouped(now: Situation) -> Decision | None:
    """The loaded model until nothing waits for it, then the one that most wait for."""
    if now.mine is not None:
        return _serve(now)
    return _load(now, max(now.others, key=lambda group: (group.count, -group.since[0])), "most calls wait for it")


def oldest_first(now: Situation) -> Decision | None:
    """The loaded model until nothing waits for it, then the one of the oldest call."""
    if now.mine is not None:
        return _serve(now)
    return _load(now, min(now.others, key=lambda group: group.since), "its oldest call has waited longest")


def quantum(now: Situation) -> Decision | None:
    """Grouped, but a model that was loaded for 32 s makes way for the oldest call of another."""
    if now.others and now.slot.resident is not None and now.now_s - now.slot.loaded_at_s >= QUANTUM_S:
        return _load(now, oldest(now), f"{now.slot.resident} has been loaded for {QUANTUM_S:g} s")
    return grouped(now)


def _serve(now: Situation) -> Dispatch | None:
    return Dispatch(now.slot.name, now.next_call(), "its model is loaded") if now.slot.has_room else None


def _load(now: Situation, group: Group, why: str) -> Leave | Load | None:
    if now.slot.kept_for is not None:
        return None
    return (Leave if now.slot.running else Load)(now.slot.name, group.model, why)


POLICIES: Mapping[str, Policy] = {"fair": fair, "grouped": grouped, "oldest": oldest_first, "quantum32": quantum, "fifo": fifo}
