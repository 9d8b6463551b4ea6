"""Who holds a card: every open DRM file once, whatever the unit, and whoever vanishes meanwhile."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.cards import fdinfo
from services.scheduler.cards.fdinfo import Client, Engine, distinct, parse
from services.scheduler.cards.machine import Machine
from services.scheduler.cards.rates import Snapshot, busiest, shares, watts
from services.scheduler.cards.reading import CardReading, Holder
from tests.requirements import covers
from tests.unit.scheduler.cards.trees import AMD_FILES, ARC, Tree, amdgpu, as_nobody, i915, unprivileged, xe

PCI = "0000:03:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def machine(tree: Tree, *times: float) -> Machine:
    clock = iter(times or (0.0, 10.0))
    return Machine(tree.root, clock=lambda: next(clock))


def only(reader: Machine) -> CardReading:
    (card,) = reader.read().cards
    return card


@covers("cards.processes")
def test_processes_are_told_with_what_they_hold(tree: Tree) -> None:
    tree.card("card0", files=AMD_FILES)
    tree.process(900, "Xorg", amdgpu(1, "200000 KiB"))
    tree.process(1200, "llama-server", amdgpu(7, "2900 MiB"), amdgpu(8, "1 KiB"))
    tree.process(1300, "bash")
    card = only(machine(tree))
    assert card.processes == (Holder(pid=900, name="Xorg", mib=196), Holder(pid=1200, name="llama-server", mib=2901))
    assert (card.used_mib, card.sources["used_mib"]) == (3073, "sysfs mem_info_vram_used"), "the driver knows better than a sum"
    assert card.sources["processes"] == "drm fdinfo"


@covers("cards.processes")
def test_a_file_that_is_open_twice_or_in_two_processes_counts_once(tree: Tree) -> None:
    tree.card("card0", driver="xe", ids=ARC)
    tree.process(300, "parent", xe(5, "100 MiB"), xe(5, "100 MiB"))
    tree.process(2000, "child", xe(5, "100 MiB"), xe(6, "1 MiB"))
    card = only(machine(tree))
    assert card.processes == (Holder(pid=300, name="parent", mib=100), Holder(pid=2000, name="child", mib=1))
    assert (card.used_mib, card.sources["used_mib"]) == (101, "drm fdinfo, the sum over processes")


@covers("cards.processes")
def test_the_same_client_id_on_two_cards_is_two_clients(tree: Tree) -> None:
    tree.card("card0", "0000:03:00.0", driver="xe", ids=ARC)
    tree.card("card1", "0000:07:00.0", driver="i915", ids=ARC)
    tree.process(10, "both", xe(1, "10 MiB"), i915(1, "20 MiB", pci="0000:07:00.0"))
    first, second = machine(tree).read().cards
    assert first.processes == (Holder(pid=10, name="both", mib=10),)
    assert second.processes == (Holder(pid=10, name="both", mib=20),)
    assert (first.used_mib, second.used_mib) == (10, 20)


@covers("cards.read")
def test_shares_of_engines_are_between_two_readings(tree: Tree) -> None:
    tree.card("card0", driver="i915", ids=ARC)
    tree.process(10, "a", i915(1, "1 MiB", render_ns=5_000_000_000, video_ns=0))
    tree.process(11, "b", i915(2, "1 MiB", render_ns=100, video_ns=0))
    reader = machine(tree, 50.0, 60.0)
    first = only(reader)
    tree.write("proc/10/fdinfo/1", i915(1, "1 MiB", render_ns=7_000_000_000, video_ns=8_000_000_000))
    tree.write("proc/11/fdinfo/1", i915(2, "1 MiB", render_ns=3_000_000_100, video_ns=0))
    card = only(reader)
    assert (first.busy_share, [each.busy_share for each in first.processes or ()]) == (None, [None, None])
    assert [round(each.busy_share or 0, 3) for each in card.processes or ()] == [0.4, 0.3], "its busiest engine: half of two for 8 s"
    assert round(card.busy_share or 0, 3) == 0.5, "render: 0.2 and 0.3 together"


@covers("cards.read")
def test_xe_tells_cycles_of_those_that_passed(tree: Tree) -> None:
    tree.card("card0", driver="xe", ids=ARC)
    tree.process(10, "a", xe(1, "1 MiB", ccs=1000, passed=10_000))
    reader = machine(tree)
    reader.read()
    tree.write("proc/10/fdinfo/1", xe(1, "1 MiB", ccs=3000, passed=11_000))
    assert only(reader).busy_share == 0.5, "2,000 cycles of four engines in 1,000"


@covers("cards.unknown")
def test_a_sum_over_processes_is_no_total_while_some_are_hidden() -> None:
    with unprivileged() as root:
        tree = Tree(root)
        tree.card("card0", driver="xe", ids=ARC)
        tree.process(10, "mine", xe(1, "5 MiB"))
        tree.process(11, "of another user", xe(2, "7 MiB"))
        (root / "proc/11/fd").chmod(0)
        with as_nobody():
            reading = machine(tree).read()
    assert reading.hidden_processes == 1
    assert reading.cards[0].processes == (Holder(pid=10, name="mine", mib=5),)
    assert (reading.cards[0].used_mib, reading.cards[0].busy_share) == (None, None)


@covers("cards.unknown")
def test_a_file_that_is_not_for_this_user_is_named_and_unknown() -> None:
    with unprivileged() as root:
        tree = Tree(root)
        device = tree.card("card0", files=AMD_FILES)
        (root / device / "mem_info_vram_used").chmod(0)
        with as_nobody():
            card = only(machine(tree))
    assert (card.size_mib, card.used_mib) == (24_576, None)
    assert card.problems == ("mem_info_vram_used could not be read: Permission denied",)


@covers("cards.unknown")
def test_nobody_can_tell_who_holds_a_card_whose_driver_writes_no_such_figures(tree: Tree) -> None:
    tree.card("card0", driver="nouveau", ids=("0x10de", "0x2204"))
    tree.process(10, "Xorg", "", target="/dev/dri/card0")
    assert only(machine(tree)).processes is None


@covers("cards.processes")
def test_a_process_that_vanishes_while_it_is_read_is_not_there(tree: Tree) -> None:
    tree.card("card0", driver="xe", ids=ARC)
    tree.process(10, "stays", xe(1, "5 MiB"))
    tree.process(11, "went before its files were listed", xe(2, "5 MiB"))
    tree.process(12, "went before its figures were read", xe(3, "5 MiB"))
    for fd in (tree.root / "proc/11/fd").iterdir():
        fd.unlink()
    (tree.root / "proc/11/fd").rmdir()
    (tree.root / "proc/12/fdinfo/1").unlink()
    tree.process(13, "lost its name", xe(4, "6 MiB"))
    (tree.root / "proc/13/comm").unlink()
    (tree.root / "proc/self").mkdir()
    card = only(machine(tree))
    assert card.processes == (Holder(pid=10, name="stays", mib=5), Holder(pid=13, name=None, mib=6))


@pytest.mark.parametrize(
    ("lines", "vram"),
    [
        ("drm-memory-vram: 12 KiB", 12 * 1024),
        ("drm-memory-vram: 12 MiB", 12 * 2**20),
        ("drm-memory-vram: 4096", 4096),
        ("drm-memory-vram: 12 furlongs", None),
        ("drm-memory-vram: -5 KiB", None),
        ("drm-memory-vram:", None),
        ("drm-memory-gtt: 12 KiB", None),
        ("drm-total-vram: 9 KiB\ndrm-resident-vram: 3 KiB\ndrm-memory-vram: 4 KiB", 3 * 1024),
        ("drm-total-vram0: 9 KiB\ndrm-resident-vram1: 3 KiB", 12 * 1024),
        ("drm-total-local0: 9 KiB\ndrm-total-system0: 1 KiB\ndrm-shared-vram0: 1 KiB", 9 * 1024),
    ],
)
def test_memory_is_read_in_every_unit_and_what_is_resident_comes_first(lines: str, vram: int | None) -> None:
    client = parse(f"drm-pdev: {PCI}\ndrm-client-id: 1\n{lines}", 1)
    assert client is not None
    assert client.vram_bytes == vram


def test_a_file_without_its_card_or_its_id_is_not_counted() -> None:
    assert parse("pos: 0\nflags: 02", 1) is None
    assert parse("drm-pdev: platform\ndrm-client-id: 1", 1) is None
    assert parse(f"drm-pdev: {PCI}", 1) is None


@given(st.text(max_size=200), st.lists(st.sampled_from(("drm-engine-", "drm-total-vram", ":", " 12", " ns", "\n", f"drm-pdev:{PCI}\n"))))
def test_any_text_is_read_without_an_error(noise: str, pieces: list[str]) -> None:
    parse(noise, 1)
    parse("".join(pieces) + "drm-client-id:1\n" + noise, 1)


CLIENTS = st.builds(
    Client,
    st.sampled_from((PCI, "0000:07:00.0")),
    st.sampled_from("123"),
    st.integers(1, 50),
    st.none() | st.integers(0, 2**40),
    st.dictionaries(
        st.sampled_from("rv"), st.builds(Engine, st.integers(0, 10**12), st.none() | st.integers(0, 10**12), st.integers(1, 4))
    ),
)


@given(st.lists(CLIENTS))
def test_each_client_counts_once_in_whatever_number_it_was_found(clients: list[Client]) -> None:
    pids = {key: min(each.pid for each in clients if each.key == key) for key in {each.key for each in clients}}
    found = distinct([*clients, *clients])
    assert {key: each.pid for key, each in found.items()} == pids


@given(st.lists(CLIENTS), st.lists(CLIENTS), st.floats(-10, 10))
def test_shares_stay_between_nothing_and_all(before: list[Client], after: list[Client], passed: float) -> None:
    first, second = Snapshot(0.0, distinct(before), {PCI: 5}), Snapshot(passed, distinct(after), {PCI: 9})
    found = shares(first, second)
    assert passed > 0 or found == {}
    assert all(0 <= share <= 1 for each in found.values() for share in each.values())
    whole = busiest(found.values())
    assert whole is None or 0 <= whole <= 1
    assert found.keys() <= first.clients.keys() & second.clients.keys()
    power = watts(first, second, PCI)
    assert power is None or power >= 0


def test_a_counter_that_was_reset_tells_nothing() -> None:
    old, new = Client(PCI, "1", 1, None, {"gfx": Engine(500)}), Client(PCI, "1", 1, None, {"gfx": Engine(20)})
    assert shares(Snapshot(0, distinct([old])), Snapshot(1, distinct([new]))) == {}
    assert watts(Snapshot(0, {}, {PCI: 500}), Snapshot(1, {}, {PCI: 20}), PCI) is None
    assert shares(None, Snapshot(1, distinct([new]))) == {}


def test_this_very_machine_can_be_read() -> None:
    reading = Machine().read()
    assert all(card.name for card in reading.cards)
    assert fdinfo.scan(Path("/")).hidden >= 0
