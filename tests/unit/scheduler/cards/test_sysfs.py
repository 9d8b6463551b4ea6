"""Cards as /sys tells them, driver by driver, and nothing made up where it does not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.cards.files import Files, whole
from services.scheduler.cards.machine import Machine
from services.scheduler.cards.pci import address
from services.scheduler.cards.reading import TOLD, CardReading, Draft, Link, Reading, Sensor
from tests.requirements import covers
from tests.unit.scheduler.cards.trees import AMD_FILES, ARC, Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def read(tree: Tree) -> Reading:
    reading = Machine(tree.root).read()
    for card in reading.cards:
        assert set(card.sources) == {name for name in TOLD if getattr(card, name) is not None}, "each known field has its source"
    return reading


def only(tree: Tree) -> CardReading:
    (card,) = read(tree).cards
    return card


@covers("cards.read")
def test_an_amd_card_tells_memory_sensors_power_link_and_how_busy_it_is(tree: Tree) -> None:
    tree.card("card1", files=AMD_FILES)
    tree.write("usr/share/misc/pci.ids", "# list\n1001  Other\n\t744c  Wrong\n1002  AMD/ATI\n\t744b  No\n\t744c  Navi 31 [RX 7900 XTX]\n")
    card = only(tree)
    assert (card.name, card.vendor, card.driver) == ("Navi 31 [RX 7900 XTX]", "AMD", "amdgpu")
    assert (card.pci, card.node) == ("0000:03:00.0", "card1")
    assert (card.size_mib, card.used_mib) == (24_576, 3073), "used is rounded up: what is planned beside it must fit"
    assert (card.temperature_c, card.power_w, card.busy_share) == (61.0, 215.0, 0.37)
    assert [(each.label, each.celsius) for each in card.sensors] == [("edge", 61.0), ("junction", 78.0), ("mem", 70.0)]
    assert card.link == Link(speed_gts=16.0, width=16, max_speed_gts=16.0, max_width=16)
    assert card.processes == (), "every process could be seen, and none has it open"
    assert card.sources["used_mib"] == "sysfs mem_info_vram_used"
    assert card.sources["temperature_c"] == "hwmon edge"
    assert card.problems == ()


@covers("cards.read")
def test_the_link_is_that_of_the_slot_and_not_of_the_switch_on_the_card(tree: Tree) -> None:
    above = ("0000:00:01.1", "0000:01:00.0", "0000:02:00.0")
    tree.card("card0", above=above, files=AMD_FILES)
    bridge = "sys/devices/pci0000:00/0000:00:01.1"
    tree.write(f"{bridge}/vendor", "0x1022\n")  # the processor's: its figure is that of the same link, and not asked
    for folder, speed, width in (("0000:01:00.0", "8.0 GT/s PCIe", "4"), ("0000:01:00.0/0000:02:00.0", "16.0 GT/s PCIe", "16")):
        tree.write(f"{bridge}/{folder}/vendor", "0x1002\n")
        tree.write(f"{bridge}/{folder}/current_link_speed", speed)
        tree.write(f"{bridge}/{folder}/current_link_width", width)
    card = only(tree)
    assert card.link == Link(speed_gts=8.0, width=4)
    assert card.sources["link"] == "sysfs current_link_* of 0000:01:00.0"


@covers("cards.read")
def test_xe_and_i915_tell_their_size_where_the_kernel_has_the_file_and_power_from_energy_over_time(tree: Tree) -> None:
    xe_files = {
        "tile0/physical_vram_size_bytes": "0x300000000",
        "hwmon/hwmon2/name": "xe",
        "hwmon/hwmon2/temp2_input": "48000",
        "hwmon/hwmon2/temp2_label": "pkg",
        "hwmon/hwmon2/temp3_input": "52000",
        "hwmon/hwmon2/temp3_label": "vram",
        "hwmon/hwmon2/energy1_input": "1000000",
    }
    device = tree.card("card0", "0000:03:00.0", driver="xe", ids=ARC, files=xe_files)
    i915_files = {"node/lmem_total_bytes": str(16 * 2**30), "node/lmem_avail_bytes": str(15 * 2**30), "hwmon/hwmon3/name": "i915_gt0"}
    tree.card("card1", "0000:07:00.0", driver="i915", ids=("0x8086", "0x56a0"), files=i915_files | {"hwmon/hwmon3/power1_input": "9"})
    times = iter((100.0, 104.0))
    machine = Machine(tree.root, clock=lambda: next(times))
    first = machine.read().cards[0]
    tree.write(f"{device}/hwmon/hwmon2/energy1_input", "201000000")
    xe, other = machine.read().cards
    assert (xe.name, xe.size_mib, xe.used_mib, xe.temperature_c) == ("Intel 0xe20b", 12_288, None, 48.0)
    assert (first.power_w, xe.power_w, xe.sources["power_w"]) == (None, 50.0, "hwmon energy1_input over time")
    assert (other.size_mib, other.used_mib, other.power_w) == (16_384, 1024, None), "what a part of the card draws is not the card's"


@covers("cards.unknown")
def test_a_card_that_tells_nothing_is_there_with_nothing_known(tree: Tree) -> None:
    tree.card("card0", driver="ast", ids=("0x1a03", "0x2000"))
    card = only(tree)
    assert (card.name, card.vendor, card.processes) == ("0x1a03 0x2000", "0x1a03", ())
    assert [getattr(card, name) for name in TOLD if name != "processes"] == [None] * 6
    assert card.problems == ()


@covers("cards.unknown")
def test_a_machine_without_a_card_has_none_and_no_complaint(tree: Tree) -> None:
    assert read(tree) == Reading()
    tree.write("sys/class/drm/version", "drm 1.1.0")
    assert read(tree) == Reading()


@covers("cards.unknown")
def test_what_a_broken_driver_says_is_left_out_and_named(tree: Tree) -> None:
    broken = {
        "mem_info_vram_total": "18446744073709551615",
        "mem_info_vram_used": "garbage",
        "gpu_busy_percent": "4294967295",
        "hwmon/hwmon0/temp1_input": "4294967295",
        "hwmon/hwmon0/temp1_label": "edge",
        "hwmon/hwmon0/power1_average": "-7",
        "current_link_speed": "Unknown",
        "current_link_width": "63",
    }
    device = tree.card("card0", files=broken)
    (tree.root / device / "hwmon/hwmon0/power1_input").mkdir()
    (tree.root / device / "product_name").write_bytes(b"\xff\x00")
    card = only(tree)
    known = [name for name in TOLD if getattr(card, name) is not None]
    assert known == ["processes"]
    assert any("mem_info_vram_used holds no number: 'garbage'" in each for each in card.problems)
    assert any("edge says 4.29497e+06 °C" in each for each in card.problems)
    assert any("power1_input could not be read: Is a directory" in each for each in card.problems)


def test_a_card_said_to_hold_more_than_it_has_is_not_believed(tree: Tree) -> None:
    tree.card("card0", files={"mem_info_vram_total": str(2**30), "mem_info_vram_used": str(2**31)})
    card = only(tree)
    assert (card.size_mib, card.used_mib) == (1024, None)
    assert card.problems == ("2048 MiB are said to be used of 1024 MiB, which cannot be",)


def test_a_sleeping_card_is_not_woken(tree: Tree) -> None:
    tree.card("card0", files=AMD_FILES | {"power/runtime_status": "suspended"})
    card = only(tree)
    assert card.is_asleep
    assert (card.size_mib, card.temperature_c, card.power_w, card.busy_share, card.link) == (24_576, None, None, None, None)
    assert card.sensors == ()


def test_links_that_lead_round_or_nowhere_are_a_card_of_which_nothing_is_known(tree: Tree) -> None:
    drm = tree.root / "sys/class/drm"
    drm.mkdir(parents=True)
    (drm / "card0").symlink_to("card0")
    (drm / "card1").symlink_to("../../devices/gone")
    names = [(card.name, card.node, card.size_mib) for card in read(tree).cards]
    assert names == [("unknown", "card0", None), ("unknown", "card1", None)]


@covers("cards.unknown")
def test_what_can_not_be_read_is_a_note_and_reading_is_bounded(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "odd").mkdir()
    (tmp_path / "long").write_text("x" * 200_000)
    assert files.text(tmp_path / "nothing") is None
    assert files.problems == []
    assert files.text(tmp_path / "odd") is None
    assert files.problems == ["odd could not be read: Is a directory"]
    assert len(files.text(tmp_path / "long") or "") == 64 * 1024


@given(st.text(max_size=30))
def test_a_number_is_read_whole_or_not_at_all(text: str) -> None:
    found = whole(text)
    assert found is None or found == int(text, 16 if text.startswith("0x") else 10)


@given(st.integers(0, 0xFFFF), st.integers(0, 0xFF), st.integers(0, 0x1F), st.integers(0, 7), st.booleans())
def test_an_address_is_the_same_in_every_spelling(domain: int, bus: int, device: int, function: int, upper: bool) -> None:
    kernel = f"{domain:04x}:{bus:02x}:{device:02x}.{function}"
    library = f"{domain:08X}:{bus:02X}:{device:02X}.{function}"
    assert address(library if upper else kernel) == kernel
    if domain == 0:
        assert address(f"{bus:02x}:{device:02x}.{function}") == kernel


@given(st.lists(st.tuples(st.sampled_from(("size_mib", "used_mib")), st.integers(-1, 2**50) | st.none()), max_size=8))
def test_a_reading_is_sound_whatever_was_told(told: list[tuple[str, int | None]]) -> None:
    draft = Draft({"name": "x"}, sensors=(Sensor(label="edge", celsius=1.0),))
    for name, value in told:
        draft.tell(name, value if value is None or value > 0 else None, "test")
    reading = draft.reading()
    assert set(reading.sources) == {name for name in TOLD if getattr(reading, name) is not None}
    if reading.size_mib is not None and reading.used_mib is not None:
        assert reading.used_mib <= reading.size_mib
