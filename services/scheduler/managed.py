"""The configured slots' servers as the arbiter sees them: their management where they have one, else what they list."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.arbiter.commands import Seen
from services.scheduler.backends.base import Backend
from services.scheduler.backends.choose import choose, manage
from services.scheduler.backends.faults import NotManaged
from services.scheduler.backends.management import Management
from shared.scheduler_settings import SchedulerSettings


@dataclass(frozen=True, slots=True)
class SlotServer:
    """One slot's server. One without management is seen as holding all that it lists: nothing can be done about it anyway."""

    backend: Backend
    management: Management

    async def listing(self) -> tuple[Seen, ...]:
        try:
            rows = await self.management.listing()
        except NotManaged:
            return tuple(Seen(each.id, "loaded", context_tokens=each.context) for each in await self.backend.models())
        return tuple(Seen(row.id, row.state, row.mib, row.context_tokens) for row in rows)

    async def load(self, model: str, context_tokens: int | None) -> None:
        await self.management.load(model, context_tokens)

    async def unload(self, model: str, instance: str | None) -> None:
        await self.management.unload(model, instance)


async def servers(settings: SchedulerSettings) -> dict[str, SlotServer]:
    """By slot. A slot without a URL has none, and its state stays unknown."""
    found: dict[str, SlotServer] = {}
    for name, slot in settings.slots.items():
        if slot.url is not None:
            key = slot.api_key.get_secret_value() if slot.api_key else None
            found[name] = SlotServer(await choose(slot.url, slot.kind, key), manage(slot.url, slot.kind, api_key=key))
    return found
