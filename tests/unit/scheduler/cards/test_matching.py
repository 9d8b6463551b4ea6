"""A configured card is one piece of hardware, or its settings are told how to be mended."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.cards.matching import Configured, match
from services.scheduler.cards.reading import CardReading
from tests.requirements import covers

AMD = CardReading(name="Navi 31 [Radeon RX 7900 XTX]", vendor="AMD", pci="0000:03:00.0", node="card1", size_mib=24_560, used_mib=100)
ARC = CardReading(name="Battlemage G21 [Arc B580]", vendor="Intel", pci="0000:07:00.0", node="card0")
IGPU = CardReading(name="Raphael", vendor="AMD", pci="0000:0a:00.0", node="card2", size_mib=512)
BMC = CardReading(name="0x1a03 0x2000", vendor="0x1a03", pci="0000:0b:00.0", node="card3")
HERE = (AMD, ARC, IGPU, BMC)


@covers("cards.match")
@pytest.mark.parametrize(
    ("device", "hardware"),
    [
        ("0000:03:00.0", AMD),
        ("03:00.0", AMD),
        ("00000000:0A:00.0", IGPU),
        ("card0", ARC),
        ("0", AMD),
        ("1", ARC),
        ("7900", AMD),
        ("arc b580", ARC),
        ("Raphael", IGPU),
    ],
)
def test_a_card_is_found_by_address_node_place_or_name(device: str, hardware: CardReading) -> None:
    (status,) = match([Configured("big", device)], HERE)
    assert (status.reading, status.problem) == (hardware, "")


@covers("cards.match")
def test_a_miss_says_what_there_is_and_what_to_mend() -> None:
    (status,) = match([Configured("big", "0000:04:00.0", size_mib=16_000)], (AMD, ARC))
    assert status.reading is None
    assert (status.size_mib, status.used_mib) == (16_000, None)
    assert status.problem == (
        "no card here is '0000:04:00.0'; mend scheduler.cards.big.device, or leave it out for a server elsewhere. "
        "Found: 0000:03:00.0 card1 Navi 31 [Radeon RX 7900 XTX]; 0000:07:00.0 card0 Battlemage G21 [Arc B580]."
    )
    (status,) = match([Configured("big", "7900")], ())
    assert status.problem.endswith("Found: none at all.")


@covers("cards.match")
def test_a_name_of_several_cards_is_none_of_them() -> None:
    (status,) = match([Configured("x", "ra")], HERE)
    assert status.reading is None
    assert status.problem.startswith("2 cards here are 'ra'; give the PCI address. Found: 0000:03:00.0")
    for missing in ("", "9", "card17"):
        assert match([Configured("x", missing)], HERE)[0].reading is None


@covers("cards.match")
def test_auto_is_the_only_gpu_and_a_servers_display_chip_is_none() -> None:
    assert match([Configured("x", "auto")], (AMD, BMC))[0].reading is AMD
    assert "2 cards here are 'auto'" in match([Configured("x", "auto")], (AMD, ARC, BMC))[0].problem


@covers("cards.match")
def test_a_card_elsewhere_has_its_configured_size_and_nothing_else() -> None:
    (status,) = match([Configured("rented", size_mib=80_000)], HERE)
    assert (status.reading, status.size_mib, status.used_mib, status.problem) == (None, 80_000, None, "")


def test_a_configured_size_comes_first_and_one_that_is_too_large_is_doubted() -> None:
    smaller, larger = match([Configured("a", "card1", size_mib=20_000)], HERE) + match([Configured("a", "card1", size_mib=30_000)], HERE)
    assert (smaller.size_mib, smaller.problem) == (20_000, "")
    assert larger.problem == "30000 MiB are configured and the hardware has 24560; lower scheduler.cards.a.size_mib"
    assert match([Configured("a", "card1")], HERE)[0].size_mib == 24_560


DEVICES = st.none() | st.sampled_from(("0", "1", "2", "card0", "card1", "03:00.0", "0000:07:00.0", "auto", "Raphael", "R", "", "zz"))


@given(st.lists(DEVICES, max_size=6), st.lists(st.sampled_from(HERE), unique_by=lambda card: card.pci, max_size=4))
def test_no_hardware_is_two_cards_and_every_miss_is_explained(devices: list[str | None], here: list[CardReading]) -> None:
    statuses = match([Configured(f"c{at}", device) for at, device in enumerate(devices)], here)
    assert [status.card.device for status in statuses] == devices
    found = [status.reading.pci for status in statuses if status.reading is not None]
    assert len(found) == len(set(found))
    for status in statuses:
        assert (status.reading is not None) or status.problem or status.card.device is None
