"""One of several processes holds an office: who takes it when, and never two who may act."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shared.tenure import LOOK_S, MARGIN_S, RENEW_S, TTL_S, StoodDown, Tenure
from shared.testing.clock import FakeClock
from shared.testing.memory import MemoryRegister
from tests.requirements import covers

STEP_S = 0.25


async def settle() -> None:
    """Let every task go on as far as it can; none of them waits for anything but the clock and each other."""
    for _ in range(20):
        await asyncio.sleep(0)


@dataclass
class Member:
    """A process that wants the office. While it is `stopped` its clock stands, though time goes on."""

    tenure: Tenure
    clock: FakeClock
    task: asyncio.Task[None] | None = None
    stopped: bool = False

    async def work(self) -> None:
        while True:
            await self.tenure.take()
            await self.tenure.hold()

    @property
    def may_act(self) -> bool:
        return self.tenure.is_certain


@dataclass
class Group:
    register: MemoryRegister = field(default_factory=MemoryRegister)
    time_s: list[float] = field(default_factory=lambda: [0.0])
    members: list[Member] = field(default_factory=list[Member])

    async def join(self, owner: str) -> Member:
        clock = FakeClock()
        member = Member(Tenure(self.register, owner, clock, lambda: self.time_s[0]), clock)
        member.task = asyncio.create_task(member.work())
        self.members.append(member)
        await settle()
        return member

    async def kill(self, member: Member) -> None:
        assert member.task is not None
        member.task.cancel()
        self.members.remove(member)
        await settle()

    async def pass_time(self, seconds: float) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.time_s[0] += STEP_S
            for member in self.members:
                if not member.stopped:
                    member.clock.advance(STEP_S)
            await settle()
            assert sum(member.may_act for member in self.members) <= 1


@asynccontextmanager
async def group(*owners: str) -> AsyncIterator[Group]:
    made = Group()
    for owner in owners:
        await made.join(owner)
    try:
        yield made
    finally:
        for member in list(made.members):
            await made.kill(member)


@covers("standby.one")
async def test_the_first_is_in_office_and_the_others_stand_by_for_as_long_as_it_lives() -> None:
    async with group("a", "b", "c") as made:
        await made.pass_time(60)
        assert [member.may_act for member in made.members] == [True, False, False]


@covers("standby.one")
async def test_a_dead_holder_is_relieved_after_the_time_that_it_was_trusted_and_no_sooner() -> None:
    async with group("a", "b") as made:
        first, second = made.members
        await made.pass_time(10)
        await made.kill(first)
        await made.pass_time(TTL_S - RENEW_S)
        assert not second.may_act
        await made.pass_time(RENEW_S + MARGIN_S + 2 * LOOK_S)
        assert second.may_act


@covers("standby.one")
async def test_a_process_that_is_started_again_goes_on_at_once() -> None:
    async with group("a", "b") as made:
        await made.kill(made.members[0])
        again = await made.join("a")
        assert again.may_act
        await made.pass_time(20)
        assert again.may_act


@covers("standby.one")
async def test_an_office_that_is_given_up_is_taken_without_waiting() -> None:
    async with group("a", "b") as made:
        first, second = made.members
        await first.tenure.release()
        await made.kill(first)
        await made.pass_time(LOOK_S)
        assert second.may_act


@covers("standby.fenced")
async def test_a_holder_that_was_stopped_finds_out_before_it_acts_and_stands_by() -> None:
    async with group("a", "b") as made:
        first, second = made.members
        first.stopped = True
        await made.pass_time(10)
        assert second.may_act
        with pytest.raises(StoodDown):
            await first.tenure.confirm()
        first.stopped = False
        await made.pass_time(10)
        assert [member.may_act for member in made.members] == [False, True]
        await made.kill(second)
        await made.pass_time(TTL_S + MARGIN_S + 2 * LOOK_S)
        assert first.may_act


@covers("standby.fenced")
async def test_a_conflict_is_looked_into_though_the_office_was_just_confirmed() -> None:
    async with group("a") as made:
        (first,) = made.members
        assert first.may_act
        await made.join("a")  # a second process by the same name, as a supervisor starts it when it thinks the first dead
        assert first.may_act
        with pytest.raises(StoodDown):
            await first.tenure.confirm(anew=True)


@covers("standby.one")
async def test_while_the_log_is_away_nobody_is_relieved_and_the_holder_goes_on_when_it_is_back() -> None:
    async with group("a", "b") as made:
        first, second = made.members
        made.register.away = True
        await made.pass_time(30)
        assert [first.may_act, second.may_act] == [False, False]
        waiting = asyncio.create_task(first.tenure.confirm())
        made.register.away = False
        await made.pass_time(2 * RENEW_S)
        assert [first.may_act, second.may_act] == [True, False]
        await waiting


@given(st.lists(st.tuples(st.sampled_from(["stop", "go", "away", "back", "kill", "wait"]), st.integers(0, 2)), max_size=25))
@covers("standby.one")
async def test_two_never_may_act_and_somebody_does_in_the_end(steps: list[tuple[str, int]]) -> None:
    async with group("a", "b", "c") as made:
        for step, who in steps:
            member = made.members[who % len(made.members)]
            match step:
                case "stop" | "go":
                    member.stopped = step == "stop"
                case "away" | "back":
                    made.register.away = step == "away"
                case "kill" if len(made.members) > 1:
                    await made.kill(member)
                case _:
                    await made.pass_time(3)
        made.register.away = False
        for member in made.members:
            member.stopped = False
        await made.pass_time(TTL_S + MARGIN_S + 3 * LOOK_S)
        assert sum(member.may_act for member in made.members) == 1
