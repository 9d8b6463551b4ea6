"""Where a chat client's model is served: slot order, what is loaded first, and a slot that does not say (KS 6.10)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from services.scheduler import relay_places
from services.scheduler.arbiter.commands import ObserveSlot, Seen
from services.scheduler.office import Office
from services.scheduler.relay_places import RelayPlaces, places
from services.scheduler.slots import catalogue
from shared.errors import BadInput, ServiceUnavailable
from shared.scheduler_settings import SchedulerSettings
from tests.requirements import covers

KNOWN = catalogue(
    SchedulerSettings.model_validate(
        {
            "slots": {"primary": {"interactive_copies": {"writer": "writer-chat"}}, "secondary": {}, "_judge": {}},
            "slot_order": ["secondary"],
        }
    )
)
LOADED, THERE = Seen("writer", "loaded"), Seen("writer", "not-loaded")


@covers("relay.resolve")
def test_places_come_in_slot_order_and_say_whether_the_model_is_loaded() -> None:
    found = places(KNOWN, {"primary": (THERE,), "secondary": (Seen("acme/Writer@q4_k_m", "loaded"),)}, "writer")
    assert [(each.slot, each.model, each.resident) for each in found] == [
        ("primary", "writer", False),
        ("secondary", "acme/Writer@q4_k_m", True),
    ]


@covers("relay.resolve")
def test_a_hidden_slot_and_a_slot_that_does_not_list_the_model_are_no_place() -> None:
    assert places(KNOWN, {"_judge": (LOADED,), "primary": (Seen("other", "loaded"),)}, "writer") == []


@covers("relay.copies")
def test_a_copy_for_chat_clients_counts_only_while_it_is_loaded() -> None:
    (with_copy,) = places(KNOWN, {"primary": (LOADED, Seen("writer-chat", "loaded"))}, "writer")
    assert (with_copy.model, with_copy.copy) == ("writer", "writer-chat")
    (without,) = places(KNOWN, {"primary": (LOADED, Seen("writer-chat", "not-loaded"))}, "writer")
    assert without.copy is None


@dataclass
class FakeServer:
    rows: tuple[Seen, ...] | None  # None: it never says

    async def listing(self) -> tuple[Seen, ...]:
        if self.rows is None:
            await asyncio.Event().wait()
        return self.rows or ()


class Refusing:
    async def listing(self) -> tuple[Seen, ...]:
        raise ServiceUnavailable("it answered HTML")


@dataclass
class FakeOffice:
    servers: dict[str, Any]
    known: Any = KNOWN
    changes: int = 0
    told: list[Any] = field(default_factory=list[Any])

    async def do(self, command: Any) -> None:
        self.told.append(command)


@covers("relay.resolve")
async def test_a_slot_that_is_silent_or_fails_lists_nothing_and_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay_places, "LISTING_S", 0.05)
    office = FakeOffice({"primary": FakeServer((LOADED,)), "secondary": FakeServer(None)})
    answer = await RelayPlaces(cast(Office, office)).verb({"model": "writer"})
    assert [row["slot"] for row in answer["places"]] == ["primary"]
    assert office.told == [ObserveSlot("primary", (LOADED,))]  # the arbiter decides by what was just seen
    office.servers["secondary"] = Refusing()
    assert [row["slot"] for row in (await RelayPlaces(cast(Office, office)).verb({"model": "writer"}))["places"]] == ["primary"]


def test_a_request_without_a_model_names_the_field() -> None:
    with pytest.raises(BadInput, match="model: give the name"):
        asyncio.run(RelayPlaces(cast(Office, FakeOffice({}))).verb({}))
