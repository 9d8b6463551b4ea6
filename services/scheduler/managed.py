"""The configured slots' servers as the arbiter sees them."""

from __future__ import annotations

from dataclasses import dataclass

from services.scheduler.arbiter.commands import Seen
from services.scheduler.backends.base import Backend
from services.scheduler.backends.choose import choose
from services.scheduler.office import Server
from shared.errors import Fault
from shared.scheduler_settings import SchedulerSettings


class CannotManage(Fault):
    """This kind of server can't be told to load or unload a model."""

    code = "slot.cannot_manage"


@dataclass(frozen=True, slots=True)
class Listed:
    """A server without management: what it lists is what it holds."""

    slot: str
    backend: Backend

    async def listing(self) -> tuple[Seen, ...]:
        return tuple(Seen(each.id, "loaded", context_tokens=each.context) for each in await self.backend.models())

    async def load(self, model: str, context_tokens: int | None) -> None:
        raise CannotManage(f"{model} can't be loaded: the server of slot {self.slot} is not one that loads on request", slot=self.slot)

    async def unload(self, model: str, instance: str | None) -> None:
        raise CannotManage(f"{model} can't be unloaded: the server of slot {self.slot} is not one that unloads on request", slot=self.slot)


async def servers(settings: SchedulerSettings) -> dict[str, Server]:
    """By slot. A slot without a URL has none, and its state stays unknown."""
    found: dict[str, Server] = {}
    for name, slot in settings.slots.items():
        if slot.url is not None:
            key = slot.api_key.get_secret_value() if slot.api_key else None
            found[name] = Listed(name, await choose(slot.url, slot.kind, key))
    return found
