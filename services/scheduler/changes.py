"""What a changed file of settings changes in a running scheduler, and what waits for its next start. Pure (S4).

Who is where (servers, cards, the slots themselves) is built once: connections, leases in the log and the gateway's relay go by it.
How they are used (order, sets, sizes, concurrency, roles, times) is read anew for each decision, so it may change at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shared.scheduler_settings import SchedulerSettings
from shared.section import Section

ROWS: Mapping[str, frozenset[str]] = {
    "cards": frozenset({"size_mib", "reserve_mib"}),
    "slots": frozenset({"concurrency", "max_models", "models", "standard_set", "alternates", "interactive_copies", "restore_delay_s"}),
}
"""The tables of rows, and what of a row may change while it is in use. All other settings of the section may."""


@dataclass(frozen=True, slots=True)
class Change:
    """`settings` are those to go on with; the other two name settings as the file does: `scheduler.slots.primary.concurrency`."""

    settings: SchedulerSettings
    taken: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


@dataclass(slots=True)
class _Notes:
    taken: list[str] = field(default_factory=list[str])
    needs_restart: list[str] = field(default_factory=list[str])


def change(running: SchedulerSettings, wanted: SchedulerSettings) -> Change:
    """What becomes of `running` when the file says `wanted`."""
    notes, values = _Notes(), dict[str, Any]()
    for name in SchedulerSettings.model_fields:
        before, after = getattr(running, name), getattr(wanted, name)
        if name in ROWS:
            values[name] = _rows(f"scheduler.{name}", before, after, ROWS[name], notes)
        elif before != after:
            values[name] = after
            notes.taken.append(f"scheduler.{name}")
    return Change(running.model_copy(update=values), tuple(notes.taken), tuple(notes.needs_restart))


def _rows(
    place: str, before: Mapping[str, Section], after: Mapping[str, Section], live: frozenset[str], notes: _Notes
) -> dict[str, Section]:
    """The rows that are in use, each with what may change of it. None is added, and none goes."""
    notes.needs_restart += [f"{place}.{name}" for name in {**before, **after} if (name in before) != (name in after)]
    return {name: _row(f"{place}.{name}", row, after[name], live, notes) if name in after else row for name, row in before.items()}


def _row(place: str, before: Section, after: Section, live: frozenset[str], notes: _Notes) -> Section:
    changed = [name for name in type(before).model_fields if getattr(before, name) != getattr(after, name)]
    notes.taken += [f"{place}.{name}" for name in changed if name in live]
    notes.needs_restart += [f"{place}.{name}" for name in changed if name not in live]
    return before.model_copy(update={name: getattr(after, name) for name in changed if name in live})
