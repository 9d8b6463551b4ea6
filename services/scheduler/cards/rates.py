"""Shares and watts out of counters: what two readings, some time apart, say together. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from services.scheduler.cards.fdinfo import Client, Engine, Key

Shares = Mapping[str, float]
"""By kind of engine, 0 to 1."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Counters at a moment (`at_s`, monotonic)."""

    at_s: float
    clients: Mapping[Key, Client] = field(default_factory=dict[Key, Client])
    energy_uj: Mapping[str, int] = field(default_factory=dict[str, int])  # by PCI address


def shares(before: Snapshot | None, after: Snapshot) -> dict[Key, Shares]:
    """How busy each client that is in both snapshots kept each kind of engine."""
    if before is None or after.at_s <= before.at_s:
        return {}
    passed_ns = (after.at_s - before.at_s) * 1e9
    found: dict[Key, Shares] = {}
    for key, client in after.clients.items():
        if (old := before.clients.get(key)) is None:
            continue
        each = {name: _share(old.engines.get(name), engine, passed_ns) for name, engine in client.engines.items()}
        if known := {name: share for name, share in each.items() if share is not None}:
            found[key] = known
    return found


def busiest(several: Iterable[Shares]) -> float | None:
    """The share of the busiest kind of engine, over all of `several`; None when none tells."""
    sums: dict[str, float] = {}
    for each in several:
        for name, share in each.items():
            sums[name] = sums.get(name, 0.0) + share
    return min(1.0, max(sums.values())) if sums else None


def watts(before: Snapshot | None, after: Snapshot, pci: str) -> float | None:
    """The mean power between the snapshots; None over a counter that wrapped or was reset."""
    if before is None or after.at_s <= before.at_s or pci not in before.energy_uj or pci not in after.energy_uj:
        return None
    spent = after.energy_uj[pci] - before.energy_uj[pci]
    power = spent / 1e6 / (after.at_s - before.at_s)
    return power if 0 <= power <= 5000 else None


def _share(old: Engine | None, new: Engine, passed_ns: float) -> float | None:
    if old is None or new.busy < old.busy:
        return None
    passed = passed_ns if new.total is None else new.total - (old.total or 0)
    return min(1.0, (new.busy - old.busy) / passed / new.capacity) if passed > 0 else None
