"""What the cards' telemetry shows at /metrics. What is not known is absent, not zero."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Gauge

from services.scheduler.cards.matching import CardStatus

SIZE = Gauge("scheduler_card_size_mib", "Memory of the card that leases are planned with", ["card"])
USED = Gauge("scheduler_card_used_mib", "Memory of the card in use, by anybody", ["card"])
TEMPERATURE = Gauge("scheduler_card_temperature_celsius", "Temperature of the card's chip", ["card"])
POWER = Gauge("scheduler_card_power_watts", "Power that the card draws", ["card"])
BUSY = Gauge("scheduler_card_busy_ratio", "Share of time that the card's busiest engine worked", ["card"])
LINK = Gauge("scheduler_card_link_gts", "Speed of the card's PCIe link, in GT/s a lane", ["card"])
LANES = Gauge("scheduler_card_link_lanes", "Lanes of the card's PCIe link", ["card"])
PROCESSES = Gauge("scheduler_card_processes", "Processes that have the card open", ["card"])
PROBLEM = Gauge("scheduler_card_problem", "1 while something is wrong with a card's settings or its driver", ["card"])
READ_S = Gauge("scheduler_cards_read_seconds", "Time that the last reading of all cards took")
UNTOLD = Counter("scheduler_cards_untold", "Figures that the arbiter failed to take; they are told again")
UNREAD = Counter("scheduler_cards_unread", "Readings that failed or did not come in time")

_BY_CARD = (SIZE, USED, TEMPERATURE, POWER, BUSY, LINK, LANES, PROCESSES, PROBLEM)


def show(statuses: Iterable[CardStatus]) -> None:
    """Set each card's gauges to what is known now."""
    for status in statuses:
        reading, name = status.reading, status.card.name
        link = reading.link if reading else None
        values: dict[Gauge, float | None] = {
            SIZE: status.size_mib,
            USED: status.used_mib,
            TEMPERATURE: reading.temperature_c if reading else None,
            POWER: reading.power_w if reading else None,
            BUSY: reading.busy_share if reading else None,
            LINK: link.speed_gts if link else None,
            LANES: link.width if link else None,
            PROCESSES: len(reading.processes) if reading and reading.processes is not None else None,
            PROBLEM: 1 if status.problem else 0,
        }
        for gauge, value in values.items():
            _set(gauge, name, value)


def forget(card: str) -> None:
    """The card is configured no more."""
    for gauge in _BY_CARD:
        _set(gauge, card, None)


def _set(gauge: Gauge, card: str, value: float | None) -> None:
    if value is not None:
        gauge.labels(card=card).set(value)
    else:
        gauge.remove(card)
