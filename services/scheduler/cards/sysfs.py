"""What the kernel's /sys tells of each DRM card: memory, sensors, power, link.

Which files there are differs by driver: amdgpu tells its memory, xe and i915 tell sizes where the kernel has the files,
and neither tells what is used, which then comes from the processes (`fdinfo.py`). A card that sleeps is asked for nothing
that would wake it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from services.scheduler.cards.files import Files
from services.scheduler.cards.pci import VENDORS, Names, address, link_of
from services.scheduler.cards.reading import Draft, Sensor, size_mib, used_mib

DRM = "sys/class/drm"
CHIP = ("edge", "pkg", "junction", "gpu")
"""Labels of the sensors that speak for the chip, in the order in which one is chosen."""

_CARD = re.compile(r"card([0-9]{1,4})")
_TEMPERATURE = re.compile(r"temp([0-9]{1,2})_input")
_TILE = re.compile(r"tile[0-9]{1,2}")


def read_cards(root: Path, names: Names) -> tuple[list[Draft], list[str]]:
    """A draft of each card, and what could not be read of the list itself. Connectors (`card0-DP-1`) are none."""
    files = Files()
    nodes = [found for name in files.names(root / DRM) if (found := _CARD.fullmatch(name))]
    ordered = sorted(nodes, key=lambda found: int(found[1]))
    return [_card(root / DRM / found[0], names) for found in ordered], files.problems


def _card(node: Path, names: Names) -> Draft:
    files = Files()
    device = Path(os.path.realpath(node / "device"))
    event = dict(line.split("=", 1) for line in (files.text(device / "uevent") or "").splitlines() if "=" in line)
    vendor, model = files.text(device / "vendor") or "", files.text(device / "device") or ""
    is_asleep = files.text(device / "power/runtime_status") in ("suspended", "suspending")
    name = files.text(device / "product_name") or names.of(vendor, model)
    draft = Draft(
        {
            "node": node.name,
            "pci": address(event.get("PCI_SLOT_NAME", "")) or address(device.name),
            "driver": event.get("DRIVER") or None,
            "vendor": VENDORS.get(vendor, vendor or None),
            "name": name or f"{VENDORS.get(vendor, vendor)} {model}".strip() or "unknown",
            "is_asleep": is_asleep,
        },
        nodes=frozenset({node.name, *files.names(device / "drm")}),
    )
    _memory(draft, files, node, device)
    if is_asleep:
        draft.problems.append("it sleeps; what would wake it was not read")
    else:
        _activity(draft, files, device)
    draft.problems += files.problems
    return draft


def _memory(draft: Draft, files: Files, node: Path, device: Path) -> None:
    draft.tell("size_mib", size_mib(files.number(device / "mem_info_vram_total")), "sysfs mem_info_vram_total")
    draft.tell("used_mib", used_mib(files.number(device / "mem_info_vram_used")), "sysfs mem_info_vram_used")
    tiles = [files.number(device / name / "physical_vram_size_bytes") for name in files.names(device) if _TILE.fullmatch(name)]
    if told := [each for each in tiles if each is not None]:
        draft.tell("size_mib", size_mib(sum(told)) if len(told) == len(tiles) else None, "sysfs physical_vram_size_bytes")
    total, free = files.number(node / "lmem_total_bytes"), files.number(node / "lmem_avail_bytes")
    draft.tell("size_mib", size_mib(total), "sysfs lmem_total_bytes")
    if total is not None and free is not None and 0 <= free <= total:
        draft.tell("used_mib", used_mib(total - free), "sysfs lmem_total_bytes less lmem_avail_bytes")


def _activity(draft: Draft, files: Files, device: Path) -> None:
    percent = files.number(device / "gpu_busy_percent")
    if percent is not None and 0 <= percent <= 100:
        draft.tell("busy_share", percent / 100, "sysfs gpu_busy_percent")
    link, source = link_of(files, device)
    draft.tell("link", link, source)
    for name in files.names(device / "hwmon"):
        if "_gt" not in (files.text(device / "hwmon" / name / "name") or ""):  # a part of the card: its figures are in the card's
            _sensors(draft, files, device / "hwmon" / name)


def _sensors(draft: Draft, files: Files, hwmon: Path) -> None:
    found: list[Sensor] = []
    numbers = sorted(int(match[1]) for name in files.names(hwmon) if (match := _TEMPERATURE.fullmatch(name)))
    for number in numbers:
        raw = files.number(hwmon / f"temp{number}_input")
        label = files.text(hwmon / f"temp{number}_label") or f"temp{number}"
        if raw is not None and -60_000 <= raw <= 200_000:
            found.append(Sensor(label=label, celsius=raw / 1000))
        elif raw is not None:
            draft.problems.append(f"sensor {label} says {raw / 1000:g} °C, which cannot be")
    draft.sensors += tuple(found)
    if chip := _of_the_chip(found):
        draft.tell("temperature_c", chip.celsius, f"hwmon {chip.label}")
    for name in ("power1_average", "power1_input"):
        watts = files.number(hwmon / name)
        if watts is not None and 0 <= watts <= 5_000_000_000:
            draft.tell("power_w", watts / 1_000_000, f"hwmon {name}")
    for name in ("energy1_input", "energy2_input"):  # the card, else its package
        energy = files.number(hwmon / name)
        if energy is not None and draft.energy_uj is None:
            draft.energy_uj, draft.energy_source = energy, f"hwmon {name} over time"


def _of_the_chip(sensors: list[Sensor]) -> Sensor | None:
    by_label = {each.label: each for each in reversed(sensors)}
    known = next((by_label[label] for label in CHIP if label in by_label), None)
    return known or next((each for each in sensors if not each.label.startswith(("mem", "vram", "fan", "mc"))), None)
