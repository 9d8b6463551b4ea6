"""When a card's memory can be planned with again after an unload.

The unload is done when its server confirms it. Its memory may come back a little later, or not at all, since another program
can take it meanwhile: so it is waited for within a bound, and then planned with as it is measured.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol

from shared.clock import Clock

PAUSE_S = 0.25
STILL = timedelta(seconds=1)  # a figure that has not moved for so long will not
BOUND = timedelta(seconds=10)
NOISE_MIB = 64


class Meter(Protocol):
    async def used_mib(self, card: str) -> int | None:
        """What is in use on the card by a reading that begins now; None: nobody can tell."""
        ...


async def settled_mib(meter: Meter, card: str, wanted_mib: int | None, clock: Clock) -> int | None:
    """What is in use on the card once that is `wanted_mib` or less, or has stopped moving, or has moved for too long.

    None, at once, where nobody can tell.
    """
    began = still_since = clock.now()
    used = await meter.used_mib(card)
    while used is not None:
        now = clock.now()
        if (wanted_mib is not None and used <= wanted_mib) or now - still_since >= STILL or now - began >= BOUND:
            return used
        await clock.sleep(PAUSE_S)
        before, used = used, await meter.used_mib(card)
        if used is not None and abs(used - before) >= NOISE_MIB:
            still_since = clock.now()
    return None
