"""At most once (ARCHITECTURE §5): what a tool call may do next, from the facts of `tool.<run>`. Pure.

A call is claimed by `started` before it touches anything. A call that was started and never ended is run
again only if its tool is read-only or idempotent; else it is interrupted, and the model is told.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from shared.events.envelope import Event, Fact
from shared.events.tool import ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted, ToolStarted

ENDS = (ToolCompleted, ToolDenied, ToolFailed, ToolInterrupted)


class Next(StrEnum):
    RUN = "run"  # claimed: go on
    NOTHING = "nothing"  # it has ended, or was just ended as interrupted
    NOT_MINE = "not_mine"  # another live process may be inside it


@dataclass(frozen=True, slots=True)
class Claim:
    """A call, the process that wants to run it, and whether the tool may run twice."""

    call_id: str
    tool: str
    server: str
    tier: str
    owner: str
    repeatable: bool
    recovered: bool  # read back at start: only what this owner started is its own


def next_step(facts: Iterable[Fact], claim: Claim) -> tuple[Next, tuple[Event, ...]]:
    """What to do with a call, and the facts that say so."""
    started: ToolStarted | None = None
    for fact in facts:
        if getattr(fact.event, "call_id", None) != claim.call_id:
            continue
        if isinstance(fact.event, ENDS):
            return Next.NOTHING, ()
        if isinstance(fact.event, ToolStarted):
            started = fact.event
    claimed = ToolStarted(call_id=claim.call_id, tool=claim.tool, server=claim.server, owner=claim.owner, tier=claim.tier)
    if started is None:
        return Next.RUN, (claimed,)
    if claim.recovered and started.owner != claim.owner:
        return Next.NOT_MINE, ()
    if claim.repeatable:
        return Next.RUN, (claimed,)
    return Next.NOTHING, (ToolInterrupted(call_id=claim.call_id, tool=claim.tool, message=interrupted_text(claim.tool)),)


def interrupted_text(tool: str) -> str:
    """What the model is told: it may have happened."""
    return (
        f"{tool} was interrupted: the engine stopped while it ran, so it may or may not have done its work. "
        "It was not run again. Look at the workspace, then decide what is left to do."
    )


def has_ended(facts: Iterable[Fact], call_id: str) -> bool:
    return any(isinstance(fact.event, ENDS) and fact.event.call_id == call_id for fact in facts)
