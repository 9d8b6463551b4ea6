"""Where a chat client's model can be served now (KS 6.10, InferenceRelayService): asked of every slot at once."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from services.scheduler.arbiter.commands import ObserveSlot, Seen
from services.scheduler.model_names import same_model
from services.scheduler.office import Office
from services.scheduler.slots import Catalogue
from shared.errors import BadInput, Fault

LISTING_S = 1.5  # a slot that has not answered by then counts as listing nothing (KS 6.10)

logger = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RelayPlace:
    """A slot that lists the model. `copy`: the instance that chat clients use there, if it is loaded."""

    slot: str
    model: str
    resident: bool
    copy: str | None = None


def places(known: Catalogue, listings: Mapping[str, Sequence[Seen]], model: str) -> list[RelayPlace]:
    """The slots that list a model, in slot order."""
    found: list[RelayPlace] = []
    for slot in known.order:
        rows = sorted(listings.get(slot, ()), key=lambda row: row.id != model)  # its very name before one that means the same
        row = next((row for row in rows if same_model(row.id, model)), None)
        if row is None:
            continue
        loaded = {row.id for row in rows if row.state == "loaded"}
        here = next((row.id for row in rows if same_model(row.id, model) and row.id in loaded), None)
        copies = known.slots[slot].interactive_copies
        copy = next((copy for base, copy in copies.items() if same_model(base, model) and copy in loaded), None)
        found.append(RelayPlace(slot, here or row.id, here is not None, copy if here else None))
    return found


@dataclass(frozen=True, slots=True)
class RelayPlaces:
    """Answers the gateway's relay."""

    office: Office

    async def verb(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """`{model}` → `{slots, places}`: how many slots are configured, and those that list the model, in their order."""
        model = raw.get("model")
        if not isinstance(model, str) or not model:
            raise BadInput("model: give the name of a model", field="model")
        order = [name for name in self.office.known.order if name in self.office.servers]
        seen = await asyncio.gather(*map(self._listing, order))
        found = places(self.office.known, dict(zip(order, seen, strict=True)), model)
        return {"slots": len(self.office.servers), "places": [asdict(each) for each in found]}

    async def _listing(self, slot: str) -> tuple[Seen, ...]:
        before = self.office.changes
        try:
            async with asyncio.timeout(LISTING_S):
                seen = await self.office.servers[slot].listing()
        except (Fault, TimeoutError) as silent:
            logger.info("relay_slot_silent", slot=slot, reason=str(silent) or f"no listing within {LISTING_S} s")
            return ()
        if self.office.changes == before:  # otherwise it may be older than what the arbiter knows by now
            await self.office.do(ObserveSlot(slot, seen))  # so that a lease is decided by what was just seen
        return seen
