"""Facts of leases on a slot's memory, one aggregate per slot. Written by the scheduler's arbiter (KS 6.1, 6.10).

A request is `requested`, perhaps `queued`, then `admitted` (it has its place; models are being brought in), then
`granted` (usable now). It ends once: refused, released, preempted, expired or lost. Every fact says whose lease it is.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar

from pydantic import AwareDatetime, BaseModel, ConfigDict, NonNegativeInt, PositiveInt

from shared.events.envelope import Event


class Priority(StrEnum):
    """Who goes first: a run, then an interactive client, then batch work."""

    RUN = "run"
    INTERACTIVE = "interactive"
    BATCH = "batch"


class ModelNeed(BaseModel):
    """A model that a lease is on. Without `mib` its size is not known, and it counts as the whole card."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    name: str
    mib: NonNegativeInt | None = None


class LeaseFact(Event):
    """What every fact of a lease says. `at` is when it was decided; deadlines are computed from it."""

    at: AwareDatetime
    slot: str
    card: str
    lease_id: str
    holder: str
    priority: Priority


class LeaseRequested(LeaseFact):
    """Somebody asked. `after` is the lease of the same group whose grant it waits for (slots that share a card)."""

    TYPE: ClassVar[str] = "lease.requested"

    models: tuple[ModelNeed, ...] = ()
    context_tokens: PositiveInt | None = None  # what its calls need; None takes whatever is loaded
    resident_only: bool = False  # it loads nothing
    rotates: bool = False  # its models take turns in memory; none is pinned
    services: tuple[str, ...] = ()  # GPU services that run under it
    services_mib: NonNegativeInt = 0
    run_id: str | None = None
    key: str = ""  # the caller's idempotency key
    group: str = ""  # leases that are acquired together: one refusal ends all
    after: str | None = None
    ttl_s: float = 0.0
    wait_until: AwareDatetime  # a request still waiting then expires


class LeaseQueued(LeaseFact):
    """It must wait. `waits_for` names the leases, holds or models that stand in its way."""

    TYPE: ClassVar[str] = "lease.queued"

    code: str
    reason: str
    position: PositiveInt
    waits_for: tuple[str, ...] = ()


class LeaseAdmitted(LeaseFact):
    """Memory is set aside: from here on the lease is live. `reason` is the plan's arithmetic in words."""

    TYPE: ClassVar[str] = "lease.admitted"

    loads: tuple[ModelNeed, ...] = ()
    evicts: tuple[str, ...] = ()
    reason: str = ""
    card_mib: NonNegativeInt | None = None


class LeaseGranted(LeaseFact):
    """The holder may use its models until `expires_at`, renewals apart."""

    TYPE: ClassVar[str] = "lease.granted"

    models: tuple[ModelNeed, ...] = ()
    run_id: str | None = None
    expires_at: AwareDatetime
    waited_s: float = 0.0


class LeaseRefused(LeaseFact):
    """It will not be granted. `reason` is for the holder: the arithmetic, or what stands in the way."""

    TYPE: ClassVar[str] = "lease.refused"

    code: str
    reason: str


class LeaseRenewed(LeaseFact):
    """The holder is alive: this lease, and no other, lives on until `expires_at`."""

    TYPE: ClassVar[str] = "lease.renewed"

    expires_at: AwareDatetime


class LeasePreemptRequested(LeaseFact):
    """The holder was asked to release by `deadline_at`; its models stay until then."""

    TYPE: ClassVar[str] = "lease.preempt_requested"

    by: str
    by_holder: str
    deadline_at: AwareDatetime
    reason: str = ""


class LeasePreemptWithdrawn(LeaseFact):
    """Who asked for its place is gone: the holder may go on."""

    TYPE: ClassVar[str] = "lease.preempt_withdrawn"

    by: str


class LeasePreempted(LeaseFact):
    """It was ended for somebody of higher priority: an interactive lease at once, a batch lease after its grace."""

    TYPE: ClassVar[str] = "lease.preempted"

    by: str
    by_holder: str
    reason: str = ""


class LeaseReleased(LeaseFact):
    """The holder gave it back, or the run that held it ended, or a sibling of its group was refused."""

    TYPE: ClassVar[str] = "lease.released"

    run_id: str | None = None
    reason: str = ""


class LeaseExpired(LeaseFact):
    """Its time passed: it was not renewed, or it waited as long as it may (`waiting`)."""

    TYPE: ClassVar[str] = "lease.expired"

    waiting: bool = False
    run_id: str | None = None
    reason: str = ""


class LeaseLost(LeaseFact):
    """Its model left the card by another hand and could not be brought back."""

    TYPE: ClassVar[str] = "lease.lost"

    run_id: str | None = None
    reason: str


ENDINGS: frozenset[type[Event]] = frozenset({LeaseRefused, LeasePreempted, LeaseReleased, LeaseExpired, LeaseLost})
