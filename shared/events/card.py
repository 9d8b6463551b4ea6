"""Facts of a card (a GPU) as a whole, one aggregate per card. Written by the scheduler's arbiter.

A hold reserves the card for something outside the engine. It waits for live runs, and runs wait for it (KS 6.1, 6.10).
"""

from __future__ import annotations

from typing import ClassVar

from pydantic import AwareDatetime, NonNegativeInt

from shared.events.envelope import Event


class CardFact(Event):
    at: AwareDatetime
    card: str


class HoldRequested(CardFact):
    """Somebody wants the card to themselves."""

    TYPE: ClassVar[str] = "card.hold_requested"

    hold_id: str
    holder: str
    reason: str = ""
    ttl_s: float | None = None  # from the moment it is held; None until it is released


class CardHeld(CardFact):
    """No lease is live on the card and the engine's own models are off it.

    `left` are models that may still be there, on slots whose servers did not say.
    """

    TYPE: ClassVar[str] = "card.held"

    hold_id: str
    holder: str
    expires_at: AwareDatetime | None = None
    left: tuple[str, ...] = ()


class CardReleased(CardFact):
    """The hold ended: released, expired, or withdrawn before it was held."""

    TYPE: ClassVar[str] = "card.released"

    hold_id: str
    holder: str
    reason: str = ""


class CardMeasured(CardFact):
    """What telemetry read. `outside_mib` is what neither models nor services of the engine account for.

    None: nobody can tell, so what was measured before holds no more. A `size_mib` that was told once stays.
    """

    TYPE: ClassVar[str] = "card.measured"

    used_mib: NonNegativeInt | None = None
    outside_mib: NonNegativeInt | None = None
    size_mib: NonNegativeInt | None = None
