"""One reading of all cards of this machine: /sys, NVIDIA's library, and the processes, put together.

Blocking, and at the mercy of drivers: call it in a thread of its own (`telemetry.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from services.scheduler.cards import fdinfo, rates
from services.scheduler.cards.fdinfo import Client, Key, Scan
from services.scheduler.cards.nvidia import Nvidia
from services.scheduler.cards.pci import Names
from services.scheduler.cards.rates import Shares, Snapshot
from services.scheduler.cards.reading import Draft, Holder, Reading, used_mib
from services.scheduler.cards.sysfs import read_cards

FDINFO = "drm fdinfo"


@dataclass
class Machine:
    """The cards below `root`.

    Shares of engines, and power out of an energy counter, are between two readings: the first one does not know them.
    """

    root: Path = Path("/")
    nvidia: Nvidia | None = None
    clock: Callable[[], float] = time.monotonic
    _before: Snapshot | None = None
    _names: Names = field(init=False)

    def __post_init__(self) -> None:
        self._names = Names(self.root)
        self.nvidia = self.nvidia or Nvidia(self.root)

    def read(self) -> Reading:
        """What can be known now. No state of the machine makes this raise."""
        assert self.nvidia is not None
        drafts, problems = read_cards(self.root, self._names)
        own, complaints = self.nvidia.read()
        drafts = _merged(drafts, own)
        seen = fdinfo.scan(self.root) if drafts else Scan()
        energy = {each.pci: each.energy_uj for each in drafts if each.pci is not None and each.energy_uj is not None}
        now = Snapshot(self.clock(), seen.clients, energy)
        shares = rates.shares(self._before, now)
        for draft in drafts:
            _held(draft, seen, shares)
            if draft.pci is not None and not draft.knows("power_w"):
                draft.tell("power_w", rates.watts(self._before, now, draft.pci), draft.energy_source)
        self._before = now
        cards = sorted((draft.reading() for draft in drafts), key=lambda card: (card.pci is None, card.pci or "", card.node or ""))
        return Reading(cards=tuple(cards), hidden_processes=seen.hidden, problems=(*problems, *complaints))


def _merged(drafts: list[Draft], own: list[Draft]) -> list[Draft]:
    """Each card once. NVIDIA's library knows its cards better than /sys does, and those that have no DRM node."""
    merged = {(draft.pci or draft.identity.get("node") or f"#{at}"): draft for at, draft in enumerate(drafts)}
    for at, each in enumerate(own):
        place = each.pci or f"nvml #{at}"
        known = merged.get(place)
        if known is None:
            merged[place] = each
            continue
        known.identity |= {"name": each.identity["name"]}
        for name, value in each.told.items():
            known.told[name], known.sources[name] = value, each.sources[name]
        known.problems += each.problems
    return list(merged.values())


def _held(draft: Draft, seen: Scan, shares: dict[Key, Shares]) -> None:
    """Who holds the card, and what follows from it where the driver itself does not tell.

    A sum over processes is the card's figure only if every process could be seen.
    """
    clients = [client for client in seen.clients.values() if client.pci == draft.pci]
    if not clients:
        if draft.nodes and not draft.nodes & seen.opened and not seen.hidden:
            draft.tell("processes", (), FDINFO)  # nobody has it open
        return
    draft.tell("processes", _holders(clients, shares), FDINFO)
    if seen.hidden:
        return
    told = [client.vram_bytes for client in clients if client.vram_bytes is not None]
    if told:
        draft.tell("used_mib", used_mib(sum(told)), f"{FDINFO}, the sum over processes")
    draft.tell("busy_share", rates.busiest(shares[client.key] for client in clients if client.key in shares), FDINFO)


def _holders(clients: list[Client], shares: dict[Key, Shares]) -> tuple[Holder, ...]:
    by_pid: dict[int, list[Client]] = {}
    for client in clients:
        by_pid.setdefault(client.pid, []).append(client)
    return tuple(_holder(pid, by_pid[pid], shares) for pid in sorted(by_pid))


def _holder(pid: int, clients: list[Client], shares: dict[Key, Shares]) -> Holder:
    told = [client.vram_bytes for client in clients if client.vram_bytes is not None]
    busy = rates.busiest(shares[client.key] for client in clients if client.key in shares)
    return Holder(pid=pid, name=clients[0].process, mib=used_mib(sum(told)) if told else None, busy_share=busy)
