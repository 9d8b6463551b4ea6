"""Every sign that a consumer missed something ends it, and none that it did not."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from nats.aio.msg import Msg

from shared import feed as feeds
from shared.bus import Bus, JetStreamError, Link
from shared.client import Take
from shared.errors import LogUnavailable
from shared.feed import Feed, FeedBroken
from tests.requirements import covers
from tests.support.waiting import until


@dataclass
class Server:
    """A server by hand: what it was asked, and what it is made to say."""

    take: Take | None = None
    sent: list[str] = field(default_factory=list[str])
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    refuses: bool = False
    link: Link = field(default_factory=Link)
    is_connected: bool = True

    @property
    def client(self) -> Server:
        return self

    def new_inbox(self) -> str:
        return "_INBOX.x"

    def tap(self, subject: str, take: Take) -> Any:
        assert subject == "_INBOX.x"
        self.take = take
        return SimpleNamespace(close=lambda: None)

    async def api(self, subject: str, payload: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(payload)
        if self.refuses:
            raise JetStreamError("no more consumers")
        return {}

    async def publish(self, subject: str, body: bytes) -> None:
        self.sent.append(subject)

    def says(self, number: int, *, seq: int = 0, pending: int = 0) -> None:
        self._give(f"$JS.ACK.EVENTS.c.1.{seq or number}.{number}.0.{pending}", None)

    def controls(self, status: str, reply: str = "", **headers: str) -> None:
        self._give(reply, {"Status": status, **{name.replace("_", "-"): value for name, value in headers.items()}})

    def _give(self, reply: str, headers: dict[str, str] | None) -> None:
        assert self.take is not None
        self.take(Msg(cast(Any, None), "aetherium.evt.run.a.started", reply, b"", headers))


@pytest.fixture
def server() -> Server:
    return Server()


async def opened(server: Server, *filters: str) -> Feed:
    feed = Feed(cast(Bus, server), "c")
    await feed.open(filters or ("a.>",), 41)
    return feed


@covers("log.follow.whole")
async def test_what_arrives_is_given_in_order_with_its_place_and_what_is_left(server: Server) -> None:
    feed = await opened(server)
    server.says(1, seq=45, pending=1)
    server.says(2, seq=47)
    assert [(item.seq, item.pending) for item in await feed.more()] == [(45, 1), (47, 0)]
    assert server.asked[0]["config"]["opt_start_seq"] == 42
    assert server.asked[0]["config"]["filter_subject"] == "a.>"


@covers("log.follow.whole")
async def test_several_subjects_are_one_consumer(server: Server) -> None:
    await opened(server, "a.>", "b.>")
    assert server.asked[0]["config"]["filter_subjects"] == ["a.>", "b.>"]


@covers("log.follow.whole")
async def test_a_gap_ends_the_consumer_after_what_came_before_it(server: Server) -> None:
    feed = await opened(server)
    server.says(1)
    server.says(3)
    server.says(4)
    assert [item.seq for item in await feed.more()] == [1]
    with pytest.raises(FeedBroken, match="2 is missing"):
        await feed.more()


@covers("log.follow.whole")
async def test_a_heartbeat_that_names_more_than_arrived_ends_the_consumer(server: Server) -> None:
    feed = await opened(server)
    server.says(1)
    server.controls("100", Nats_Last_Consumer="1")
    assert [item.seq for item in await feed.more()] == [1]
    server.controls("100", Nats_Last_Consumer="2")
    with pytest.raises(FeedBroken, match="heartbeat"):
        await feed.more()


@pytest.mark.parametrize("status", ["409", "404", "503"])
@covers("log.follow.whole")
async def test_a_consumer_that_the_server_ended_is_broken(server: Server, status: str) -> None:
    feed = await opened(server)
    server.controls(status, Description="Consumer Deleted")
    with pytest.raises(FeedBroken, match="Consumer Deleted"):
        await feed.more()


@covers("log.follow.whole")
async def test_a_lost_connection_wakes_and_ends_a_waiting_reader(server: Server) -> None:
    feed = await opened(server)
    waiting = asyncio.create_task(feed.more())
    async with asyncio.timeout(5):
        await until(lambda: server.link.waiting)
        server.link.lost()
        with pytest.raises(FeedBroken, match="lost"):
            await waiting


@covers("log.follow.whole")
async def test_silence_longer_than_the_heartbeat_ends_the_consumer(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "SILENCE_S", 0.01)
    feed = await opened(server)
    async with asyncio.timeout(5):
        with pytest.raises(FeedBroken):
            await feed.more()


@covers("log.follow.whole")
async def test_the_server_is_told_to_go_on_only_when_what_it_sent_was_taken(server: Server) -> None:
    feed = await opened(server)
    server.says(1)
    server.controls("100", reply="$JS.FC.1")
    await feed.more()
    assert server.sent == []
    server.says(2)
    await feed.more()  # asked for more, so the first was taken; the second is there already
    assert server.sent == []
    server.controls("100", Nats_Last_Consumer="2", Nats_Consumer_Stalled="$JS.FC.2")
    waiting = asyncio.create_task(feed.more())
    async with asyncio.timeout(5):
        await until(lambda: server.sent)
    assert server.sent == ["$JS.FC.2"]
    server.says(3)
    assert [item.seq for item in await waiting] == [3]


@covers("log.follow.whole")
async def test_a_server_that_gives_no_consumer_is_a_log_that_is_away(server: Server) -> None:
    server.refuses = True
    with pytest.raises(LogUnavailable, match="no more consumers"):
        await opened(server)
