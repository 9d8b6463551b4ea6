"""Settings that change while the scheduler runs: what is taken up, what is named, and what a wrong file leaves as it is (S4)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from services.scheduler.arbiter.commands import BadRequest, RequestLease
from services.scheduler.changes import ROWS, change
from services.scheduler.reload import LOOK_S, Reload
from services.scheduler.slots import catalogue
from shared import config
from shared.events.lease import Priority
from shared.scheduler_settings import CardSettings, RoleSettings, SchedulerSettings, SlotSettings
from shared.testing.clock import FakeClock
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.scheduler.arbiter.world import box
from tests.unit.scheduler.test_turns import opened

SLOT: dict[str, Any] = {
    "url": "http://gpu:2",
    "kind": "lm-studio",
    "api_key": "other",
    "card": "gpu1",
    "concurrency": 5,
    "max_models": 3,
    "models": {"m": {"mib": 7}},
    "standard_set": ("m",),
    "alternates": (),
    "interactive_copies": {"m": "m-chat"},
    "restore_delay_s": 9.0,
}
CARD: dict[str, Any] = {"device": "auto", "size_mib": 100, "reserve_mib": 5}
WHOLE: dict[str, Any] = {
    "slot_order": ("secondary",),
    "embedding_models": ("e",),
    "role_placement": {"verifier": RoleSettings(slot="primary", pinned=True)},
    "default_node_instance": "primary",
    "offline_fallback_slot": "primary",
    "restore_attempts": 5,
    **{name: 77.0 for name in SchedulerSettings.model_fields if name.endswith("_s")},
}
RUNNING = SchedulerSettings(
    slots={"primary": SlotSettings(url="http://gpu:1"), "secondary": SlotSettings()}, cards={"gpu0": CardSettings()}
)


def changes() -> st.SearchStrategy[SchedulerSettings]:
    """Settings that differ from `RUNNING` anywhere."""
    some = st.sampled_from
    slot = st.sets(some(sorted(SLOT))).map(lambda names: SlotSettings.model_validate({"url": "http://gpu:1"} | {n: SLOT[n] for n in names}))
    card = st.sets(some(sorted(CARD))).map(lambda names: CardSettings(**{name: CARD[name] for name in names}))
    whole = st.sets(some(sorted(WHOLE))).map(lambda names: {name: WHOLE[name] for name in names})
    slots = st.dictionaries(some(["primary", "secondary", "third"]), slot)
    cards = st.dictionaries(some(["gpu0", "gpu1"]), card)
    return st.builds(lambda top, slots, cards: SchedulerSettings(**top, slots=slots, cards=cards), whole, slots, cards)


@given(changes())
@covers("slots.reload")
def test_every_difference_is_either_in_force_or_named_as_one_for_a_restart(wanted: SchedulerSettings) -> None:
    found = change(RUNNING, wanted)
    assert (found.settings == wanted) == (not found.needs_restart)
    assert found.settings.slots.keys() == RUNNING.slots.keys()
    for name in RUNNING.slots.keys() & wanted.slots.keys():
        for field_name in SlotSettings.model_fields:
            source = wanted if field_name in ROWS["slots"] else RUNNING
            assert getattr(found.settings.slots[name], field_name) == getattr(source.slots[name], field_name)
    again = change(found.settings, wanted)
    assert (again.settings, again.taken, again.needs_restart) == (found.settings, (), found.needs_restart)


@covers("slots.reload")
def test_settings_are_named_as_the_file_names_them() -> None:
    slots = {"primary": SlotSettings(url="http://gpu:9", concurrency=2), "third": SlotSettings()}
    found = change(RUNNING, SchedulerSettings(slots=slots, cards=RUNNING.cards, preempt_grace_s=1))
    assert found.taken == ("scheduler.slots.primary.concurrency", "scheduler.preempt_grace_s")
    assert found.needs_restart == ("scheduler.slots.secondary", "scheduler.slots.third", "scheduler.slots.primary.url")


# ---- the file


@dataclass
class Followed:
    """A file of settings, and the reload that follows it."""

    file: Path
    reload: Reload
    applied: list[SchedulerSettings]
    clock: FakeClock = field(default_factory=FakeClock)

    async def saved(self, text: str) -> list[dict[str, Any]]:
        """What is logged once a file with this text was left alone."""
        self.file.write_text(text)
        with capture_logs() as lines:
            await self.reload.look()
            await self.reload.look()
        return [dict(line) for line in lines]


@pytest.fixture
def followed(tmp_path: Path) -> Followed:
    file, applied, clock = tmp_path / "aetherium.yaml", list[SchedulerSettings](), FakeClock()
    file.write_text("scheduler: {lease_ttl_s: 60, slots: {primary: {url: 'http://gpu:1'}}}")

    async def apply(settings: SchedulerSettings) -> None:
        applied.append(settings)

    return Followed(
        file, Reload(file, config.load({}, file).scheduler, lambda: config.load({}, file).scheduler, apply, clock), applied, clock
    )


@covers("slots.reload")
async def test_a_changed_file_is_taken_up_and_said(followed: Followed) -> None:
    assert await followed.saved(followed.file.read_text()) == []  # as it was
    (line,) = await followed.saved("scheduler: {lease_ttl_s: 90, slots: {primary: {url: 'http://gpu:1', concurrency: 3}}}")
    assert (line["event"], line["settings"]) == ("settings_taken_up", ("scheduler.slots.primary.concurrency", "scheduler.lease_ttl_s"))
    (settings,) = followed.applied
    assert (settings.lease_ttl_s, settings.slots["primary"].concurrency) == (90, 3)


@covers("slots.reload")
async def test_what_needs_a_restart_is_named_once_and_the_rest_is_taken_up(followed: Followed) -> None:
    need, taken = await followed.saved("scheduler: {lease_ttl_s: 90, slots: {primary: {url: 'http://gpu:2'}, more: {}}}")
    assert (need["event"], need["log_level"]) == ("settings_need_restart", "warning")
    assert need["settings"] == ("scheduler.slots.more", "scheduler.slots.primary.url")
    assert "restart" in need["what_to_do"]
    assert taken["settings"] == ("scheduler.lease_ttl_s",)
    assert followed.applied[0].slots["primary"].url == "http://gpu:1"
    (only,) = await followed.saved("scheduler: {lease_ttl_s: 95, slots: {primary: {url: 'http://gpu:2'}, more: {}}}")
    assert only["event"] == "settings_taken_up"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("scheduler: {lease_ttl_s: -1}", "scheduler.lease_ttl_s"),
        ("scheduler: {slots: {primary: {concurrencey: 2}}}", "scheduler.slots.primary.concurrencey"),
        ("gateway: {prot: 1}", "gateway.prot"),
        ("scheduler: {lease", "not valid YAML"),
    ],
)
@covers("slots.reload")
async def test_a_wrong_file_changes_nothing_and_its_key_is_named(followed: Followed, text: str, named: str) -> None:
    (line,) = await followed.saved(text)
    assert (line["event"], line["log_level"]) == ("settings_refused", "error")
    assert named in line["reason"]
    assert followed.applied == []
    (mended,) = await followed.saved("scheduler: {lease_ttl_s: 90, slots: {primary: {url: 'http://gpu:1'}}}")
    assert mended["event"] == "settings_taken_up"


@covers("slots.reload")
async def test_a_file_that_is_gone_changes_nothing(followed: Followed) -> None:
    await followed.saved(followed.file.read_text())
    followed.file.unlink()
    with capture_logs() as lines:
        for _ in range(3):
            await followed.reload.look()
    assert [line["event"] for line in lines] == ["settings_refused"]
    assert followed.applied == []


@covers("slots.reload")
async def test_a_file_is_read_once_it_has_been_left_alone(followed: Followed) -> None:
    await followed.saved(followed.file.read_text())
    running = asyncio.create_task(followed.reload.run())
    await until(lambda: followed.clock.sleepers)
    for text in ("", "scheduler: {lease_t", "scheduler: {lease_ttl_s: 90, slots: {primary: {url: 'http://gpu:1'}}}"):
        followed.file.write_text(text)
        followed.clock.advance(LOOK_S)
        await until(lambda: followed.clock.sleepers)
        assert followed.applied == []
    followed.clock.advance(LOOK_S)
    await until(lambda: followed.applied)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


# ---- in force


@covers("slots.reload")
async def test_a_larger_concurrency_lets_a_waiting_call_go_and_a_smaller_one_waits_for_answers() -> None:
    async with asyncio.timeout(10), opened() as floor:
        first = [asyncio.create_task(floor.answer("a", number, "mid", holds=60)) for number in range(2)]
        await until(lambda: len(floor.turns.desk.slots["primary"].running) == 2)
        third = asyncio.create_task(floor.answer("a", 3, "mid", holds=60))
        await until(lambda: any(told[:2] == ("a-3", 1) for told in floor.told))
        slots = {**box().slots, "primary": box().slots["primary"].model_copy(update={"concurrency": 3})}
        await floor.office.adopt(catalogue(box(slots=slots)), 5.0)
        floor.turns.configured()
        await until(lambda: len(floor.turns.desk.slots["primary"].running) == 3)
        await floor.office.adopt(catalogue(box()), 5.0)  # one at a time, as the settings have it
        floor.turns.configured()
        assert len(floor.turns.desk.slots["primary"].running) == 3
        for task in (*first, third):
            task.cancel()
        await asyncio.gather(*first, third, return_exceptions=True)


@covers("slots.reload")
async def test_the_arbiter_decides_by_the_new_settings_and_keeps_what_it_knows() -> None:
    async with asyncio.timeout(10), opened() as floor:
        assert await floor.answer("a", 1, "mid") == "mid"
        before = floor.office.state
        await floor.office.adopt(catalogue(box(max_lease_ttl_s=10.0, slot_order=("secondary",))), 1.0)
        assert floor.office.known.order[:2] == ("primary", "secondary")
        assert floor.office.state.slots == before.slots
        assert [each.id for each in floor.office.state.leases()] == [each.id for each in before.leases()]
        long = RequestLease("b", "batch", Priority.BATCH, "primary", ("mid",), ttl=timedelta(minutes=1))
        with pytest.raises(BadRequest, match="at most 10 s"):
            await floor.office.do(long)
