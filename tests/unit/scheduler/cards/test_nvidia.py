"""NVIDIA's cards through a stand-in for its library, which refuses what the real one refuses."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace as Record
from typing import Any

import pynvml
import pytest

from services.scheduler.cards.machine import Machine
from services.scheduler.cards.nvidia import ABSENT, Nvidia, Nvml, installed
from services.scheduler.cards.nvidia import NOT_SUPPORTED as UNSUPPORTED
from services.scheduler.cards.reading import CardReading, Holder, Link, Reading
from tests.requirements import covers
from tests.unit.scheduler.cards.trees import AMD_FILES, AMPERE, Tree

NOT_SUPPORTED, DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, LOST, MISMATCH = 3, 9, 12, 15, 18


class Refused(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"error {value}")
        self.value = value


class TooOld(Exception):
    """The library lacks a function."""


@dataclass
class Library:
    """One card for each of `cards`; `refuses` says which functions answer with which error."""

    cards: int = 1
    refuses: dict[str, int] = field(default_factory=dict[str, int])
    inits: int = 0
    NVMLError: type[Exception] = Refused
    NVMLLibraryMismatchError: type[Exception] = TooOld

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            if name in self.refuses:
                raise TooOld(name) if self.refuses[name] < 0 else Refused(self.refuses[name])
            return ANSWERS[name](self, *arguments)

        return call


def init(library: Library) -> None:
    library.inits += 1


ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": init,
    "nvmlShutdown": lambda _: None,
    "nvmlDeviceGetCount": lambda library: library.cards,
    "nvmlDeviceGetHandleByIndex": lambda _, index: index,
    "nvmlDeviceGetName": lambda _, handle: b"NVIDIA GeForce RTX 3090",
    "nvmlDeviceGetPciInfo": lambda _, handle: Record(busId=f"00000000:0{handle + 1}:00.0".encode()),
    "nvmlDeviceGetMemoryInfo": lambda _, handle: Record(total=24 * 2**30, used=5 * 2**30, free=19 * 2**30),
    "nvmlDeviceGetTemperature": lambda _, handle, sensor: 55,
    "nvmlDeviceGetPowerUsage": lambda _, handle: 320_500,
    "nvmlDeviceGetUtilizationRates": lambda _, handle: Record(gpu=80, memory=30),
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda _, handle: 4,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _, handle: 8,
    "nvmlDeviceGetMaxPcieLinkGeneration": lambda _, handle: 4,
    "nvmlDeviceGetMaxPcieLinkWidth": lambda _, handle: 16,
    "nvmlDeviceGetComputeRunningProcesses": lambda _, handle: [Record(pid=70, usedGpuMemory=4 * 2**30), Record(pid=80, usedGpuMemory=None)],
    "nvmlDeviceGetGraphicsRunningProcesses": lambda _, handle: [
        Record(pid=70, usedGpuMemory=4 * 2**30),
        Record(pid=60, usedGpuMemory=2**20),
    ],
}


def read(root: Path, library: Library | None) -> Reading:
    return Machine(root, Nvidia(root, lambda _: library)).read()


def only(root: Path, library: Library) -> CardReading:
    (card,) = read(root, library).cards
    return card


@covers("cards.read", "cards.processes")
def test_a_card_is_read_through_its_library_and_is_the_one_that_sysfs_lists(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.card(
        "card0", "0000:01:00.0", driver="nvidia", ids=AMPERE, files={"current_link_speed": "2.5 GT/s PCIe", "current_link_width": "16"}
    )
    tree.process(70, "llama-server")
    card = only(tmp_path, Library())
    assert (card.name, card.vendor, card.pci, card.node) == ("NVIDIA GeForce RTX 3090", "NVIDIA", "0000:01:00.0", "card0")
    assert (card.size_mib, card.used_mib, card.temperature_c, card.power_w, card.busy_share) == (24_576, 5120, 55.0, 320.5, 0.8)
    assert card.link == Link(speed_gts=16.0, width=8, max_speed_gts=16.0, max_width=16)
    assert card.processes == (Holder(pid=60, mib=1), Holder(pid=70, name="llama-server", mib=4096), Holder(pid=80))
    assert set(card.sources.values()) == {"nvml"}


@covers("cards.unknown")
def test_what_a_card_does_not_support_is_unknown_and_no_complaint(tmp_path: Path) -> None:
    asked = [
        name for name in ANSWERS if name.startswith("nvmlDeviceGet") and name not in ("nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex")
    ]
    card = only(tmp_path, Library(refuses=dict.fromkeys(asked, NOT_SUPPORTED)))
    assert (card.name, card.sources, card.problems) == ("NVIDIA card 0", {}, ())
    assert card.size_mib is card.used_mib is card.temperature_c is card.processes is card.link is None


@covers("cards.unknown")
def test_a_lost_card_says_so_and_the_others_are_read(tmp_path: Path) -> None:
    Tree(tmp_path).card("card3", files=AMD_FILES)
    lost, amd = sorted(read(tmp_path, Library(refuses={"nvmlDeviceGetHandleByIndex": LOST})).cards, key=lambda card: card.size_mib or 0)
    assert (lost.name, lost.size_mib, lost.problems) == ("NVIDIA card 0", None, ("the card: error 15",))
    assert amd.size_mib == 24_576


@covers("cards.unknown")
@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND])
def test_without_a_driver_there_is_no_card_and_no_error(tmp_path: Path, code: int) -> None:
    assert read(tmp_path, Library(refuses={"nvmlInit": code})) == Reading()
    assert read(tmp_path, None) == Reading()
    assert installed(tmp_path) is None


def test_a_driver_that_does_not_fit_its_library_is_named(tmp_path: Path) -> None:
    assert read(tmp_path, Library(refuses={"nvmlInit": MISMATCH})).problems == ("NVIDIA's library does not start: error 18",)
    card = only(tmp_path, Library(refuses={"nvmlDeviceGetComputeRunningProcesses": -1, "nvmlDeviceGetGraphicsRunningProcesses": -1}))
    assert card.processes is None
    assert len(card.problems) == 2


def test_the_library_stays_open_and_is_opened_anew_after_a_reset(tmp_path: Path) -> None:
    library = Library()
    machine = Machine(tmp_path, Nvidia(tmp_path, lambda _: library))
    assert [len(machine.read().cards) for _ in range(3)] == [1, 1, 1]
    assert library.inits == 1
    library.refuses = {"nvmlDeviceGetCount": 1, "nvmlShutdown": 1}
    assert machine.read().problems == ("NVIDIA's library does not answer: error 1",)
    library.refuses = {}
    assert (len(machine.read().cards), library.inits) == (1, 2)


def test_the_module_is_looked_for_only_where_a_driver_shows(tmp_path: Path) -> None:
    assert installed(tmp_path) is None
    Tree(tmp_path).write("dev/nvidiactl", "")
    library = installed(tmp_path)
    assert library is not None
    lacking = [name for name in vars(Nvml) if name.startswith("nvml") and not hasattr(library, name)]
    assert lacking == [], "every function that is asked exists"


@covers("cards.unknown")
def test_the_codes_of_an_absent_driver_and_of_what_a_card_does_not_support_are_the_librarys_own() -> None:
    assert {pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND} == ABSENT
    unsupported = {pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}
    assert unsupported == UNSUPPORTED
    assert int(getattr(pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST), "value", 0)) == LOST


@covers("cards.unknown")
def test_a_driver_without_its_library_for_python_is_said_and_other_cards_are_read(tmp_path: Path) -> None:
    def missing(_: Path) -> Nvml:
        raise ImportError("No module named 'pynvml'")

    Tree(tmp_path).card("card0", "0000:03:00.0", files=AMD_FILES)
    reading = Machine(tmp_path, Nvidia(tmp_path, missing)).read()
    assert len(reading.cards) == 1
    assert "pip install nvidia-ml-py" in reading.problems[0]
