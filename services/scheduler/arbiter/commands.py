"""What the arbiter can be asked, told and answered with. Pure.

Ids are the caller's: the arbiter draws none, so that the same command on the same state gives the same facts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from shared.errors import Fault
from shared.events.lease import Priority


class BadRequest(Fault):
    """The command is wrong; `details["field"]` names what to mend, the message says how."""

    code = "lease.bad_request"


class UnknownLease(Fault):
    """No open or lately ended lease, and no hold, has that id."""

    code = "lease.not_found"


class LeaseEnded(Fault):
    """The lease is over: it cannot be renewed or used. `details["how"]` is how it ended."""

    code = "lease.ended"


@dataclass(frozen=True, slots=True)
class RequestLease:
    """Ask for a slot. Sizes are MiB. `wait` and `ttl` None: as the settings have it for the priority."""

    lease_id: str
    holder: str
    priority: Priority
    slot: str
    models: tuple[str, ...] = ()
    resident_only: bool = False
    rotates: bool = False
    services: tuple[str, ...] = ()
    services_mib: int = 0
    context_tokens: int | None = None
    run_id: str | None = None
    key: str = ""
    ttl: timedelta | None = None
    wait: timedelta | None = None


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Slots that a run needs together: those on different cards at once, on one card one after another (KS 6.1)."""

    group: str
    parts: tuple[RequestLease, ...]


@dataclass(frozen=True, slots=True)
class Renew:
    lease_id: str
    ttl: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Release:
    """Give a lease back. Twice, or after its end, it changes nothing."""

    lease_id: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class EndRun:
    """A run is over, however it ended: all its leases end in one decision, before anything is restored."""

    run_id: str
    reason: str = "the run ended"


@dataclass(frozen=True, slots=True)
class Sweep:
    """Every LeaseSweepSeconds, and whenever calls in flight end: what time alone has decided."""


@dataclass(frozen=True, slots=True)
class HoldCard:
    hold_id: str
    holder: str
    card: str
    reason: str = ""
    ttl: timedelta | None = None


@dataclass(frozen=True, slots=True)
class ReleaseHold:
    hold_id: str
    reason: str = "released"


@dataclass(frozen=True, slots=True)
class MeasureCard:
    """What telemetry read. `used_mib` None: nobody knows any more, so nothing is planned with what was told before."""

    card: str
    used_mib: int | None
    size_mib: int | None = None


@dataclass(frozen=True, slots=True)
class Seen:
    """A row of a backend's listing, by its own id: `qwen3-8b:2` may be a second copy of `qwen3-8b`."""

    id: str
    state: Literal["loaded", "loading", "not-loaded"] = "not-loaded"
    mib: int | None = None
    context_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class ObserveSlot:
    """What a probe that answered found."""

    slot: str
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class LoseSlot:
    """A probe got anything but a listing: the slot's state is unknown."""

    slot: str
    reason: str


@dataclass(frozen=True, slots=True)
class FinishLoad:
    """The backend answered a load; `seen` is the listing after it, None if that probe did not answer."""

    slot: str
    model: str
    seen: tuple[Seen, ...] | None


@dataclass(frozen=True, slots=True)
class FailLoad:
    """A load failed. `unknown`: the backend vanished, so what it holds nobody knows."""

    slot: str
    model: str
    code: str
    reason: str
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class FinishUnload:
    """The backend confirmed an unload. Free memory is another matter: `used_mib` is what the card's telemetry says then.

    It is planned with at once, since a program outside the engine may have taken the room meanwhile.
    """

    slot: str
    model: str
    instance: str | None = None
    used_mib: int | None = None


@dataclass(frozen=True, slots=True)
class FailUnload:
    slot: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class NeedModel:
    """A rotating lease's turn: bring this model of it in. No facts: ask again when a call, load or unload has ended."""

    lease_id: str
    model: str


Command = (
    RequestLease
    | RequestGroup
    | Renew
    | Release
    | EndRun
    | Sweep
    | HoldCard
    | ReleaseHold
    | MeasureCard
    | ObserveSlot
    | LoseSlot
    | FinishLoad
    | FailLoad
    | FinishUnload
    | FailUnload
    | NeedModel
)
