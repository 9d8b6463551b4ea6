"""Who holds a card, from the kernel's "DRM client usage stats": /proc/<pid>/fdinfo/<fd> of every open DRM file.

One open file may be had under several numbers and in several processes (dup, fork, passed over a socket). Its client id
tells them apart, so that memory and time are counted once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from services.scheduler.cards.files import Files, whole
from services.scheduler.cards.pci import address

UNITS = {"": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
Key = tuple[str, str]
"""A client: the card's PCI address, and the id that is unique on it."""

_MEMORY = re.compile(r"drm-(resident|memory|total)-((?:vram|local)[0-9]*)")
_ENGINE = re.compile(r"drm-(engine-capacity|engine|total-cycles|cycles)-(.+)")
_BY_PREFERENCE = ("resident", "memory", "total")  # `memory` is amdgpu's older word for what is resident; `total` may be elsewhere


@dataclass(frozen=True, slots=True)
class Engine:
    """Counters of one kind of engine. `busy` is ns, or cycles where `total` counts the cycles that passed."""

    busy: int
    total: int | None = None
    capacity: int = 1  # engines of that kind


@dataclass(frozen=True, slots=True)
class Client:
    """An open DRM file."""

    pci: str
    client_id: str
    pid: int
    vram_bytes: int | None = None
    engines: Mapping[str, Engine] = field(default_factory=dict[str, Engine])
    process: str | None = None

    @property
    def key(self) -> Key:
        return self.pci, self.client_id


@dataclass(frozen=True, slots=True)
class Scan:
    """All clients, each once; the DRM files (`card0`, `renderD128`) that somebody has open; and processes that could not be seen."""

    clients: Mapping[Key, Client] = field(default_factory=dict[Key, Client])
    opened: frozenset[str] = frozenset()
    hidden: int = 0


def parse(text: str, pid: int) -> Client | None:
    """The client that an fdinfo file tells of; None when it is not a DRM file's, or can't be told from others.

    >>> parse("drm-pdev: 0000:03:00.0\\ndrm-client-id: 7\\ndrm-memory-vram: 12 KiB", 42).vram_bytes
    12288
    """
    pairs = {key.strip(): value.strip() for key, colon, value in (line.partition(":") for line in text.splitlines()) if colon}
    pci, client_id = address(pairs.get("drm-pdev", "")), pairs.get("drm-client-id", "")
    if pci is None or not client_id:
        return None
    return Client(pci, client_id, pid, _vram(pairs), _engines(pairs))


def distinct(clients: Iterable[Client]) -> dict[Key, Client]:
    """Each client once. Of several processes that share one, the lowest pid counts: that is who opened it, before a fork."""
    found: dict[Key, Client] = {}
    for each in clients:
        if each.key not in found or each.pid < found[each.key].pid:
            found[each.key] = each
    return found


def scan(root: Path) -> Scan:
    """Every DRM client below `root`/proc. Processes come and go meanwhile: those that went are not there."""
    clients: list[Client] = []
    opened: set[str] = set()
    hidden = 0
    proc = root / "proc"
    for pid in (name for name in Files().names(proc) if name.isascii() and name.isdecimal()):
        files = Files()
        found, nodes = _of_process(files, proc / pid)
        clients += found
        opened |= nodes
        hidden += files.denied
    named = {key: replace(each, process=Files().text(proc / str(each.pid) / "comm")) for key, each in distinct(clients).items()}
    return Scan(named, frozenset(opened), hidden)


def _of_process(files: Files, process: Path) -> tuple[list[Client], set[str]]:
    """The links tell which few of all open files are DRM's: reading them is much cheaper than reading each fdinfo."""
    clients: list[Client] = []
    nodes: set[str] = set()
    for fd in files.names(process / "fd"):
        target = files.link(process / "fd" / fd) or ""
        if "/dri/" not in target:
            continue
        nodes.add(target.rpartition("/")[2])
        client = parse(files.text(process / "fdinfo" / fd) or "", int(process.name))
        if client is not None:
            clients.append(client)
    return clients, nodes


def _vram(pairs: Mapping[str, str]) -> int | None:
    regions: dict[str, dict[str, int]] = {}
    for key, value in pairs.items():
        if (found := _MEMORY.fullmatch(key)) and (count := _bytes(value)) is not None:
            regions.setdefault(found[2], {})[found[1]] = count
    if not regions:
        return None
    return sum(next(kinds[kind] for kind in _BY_PREFERENCE if kind in kinds) for kinds in regions.values())


def _bytes(text: str) -> int | None:
    number, _, unit = text.partition(" ")
    count, scale = whole(number), UNITS.get(unit.strip())
    return count * scale if count is not None and count >= 0 and scale is not None else None


def _engines(pairs: Mapping[str, str]) -> dict[str, Engine]:
    counters: dict[str, dict[str, int]] = {}
    for key, value in pairs.items():
        if (found := _ENGINE.fullmatch(key)) and (count := whole(value.removesuffix(" ns"))) is not None and count >= 0:
            counters.setdefault(found[2], {})[found[1]] = count
    engines: dict[str, Engine] = {}
    for name, told in counters.items():
        capacity = told.get("engine-capacity", 0) or 1
        if "engine" in told:
            engines[name] = Engine(told["engine"], None, capacity)
        elif "cycles" in told and "total-cycles" in told:
            engines[name] = Engine(told["cycles"], told["total-cycles"], capacity)
    return engines
