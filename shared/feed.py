"""One ephemeral consumer of the log, which either gives everything in order or says that it is broken.

nats-py has such a consumer, but its messages take the long way (`shared.client`), and it needs ten seconds to notice that the
server forgot it. Here every sign counts: a gap in the consumer's own numbers, a heartbeat that names more than has arrived,
silence, a lost connection. Whoever reads opens a new one behind the last fact that it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from nats.aio.msg import Msg

from shared import subjects
from shared.bus import Bus, JetStreamError, numbers_in
from shared.client import ConnectionLost, Tap, expire
from shared.errors import LogUnavailable
from shared.ids import new_id

HEARTBEAT_S = 0.5
SILENCE_S = HEARTBEAT_S * 3
FORGET_S = 30.0  # a consumer whose reader died is dropped by the server


class FeedBroken(Exception):
    """Something was missed, or may have been."""


@dataclass(frozen=True, slots=True)
class Item:
    """A message of the log: its sequence in the stream, and how many more matched when it was sent."""

    seq: int
    pending: int
    message: Msg


@dataclass
class Feed:
    """A push consumer with flow control: the server sends ahead no more than its window until what it sent was taken."""

    bus: Bus
    name: str = field(default_factory=lambda: new_id().replace("-", ""))
    _tap: Tap | None = None
    _arrived: list[Item] = field(default_factory=list[Item])
    _delivered: int = 0  # the consumer's own number of the last message
    _broken: str = ""
    _owed: str = ""  # where to say that what has arrived was taken
    _wake: asyncio.Future[None] | None = None

    async def open(self, subject_filters: Sequence[str], after: int) -> None:
        """Begin behind sequence `after`.

        Raises:
            LogUnavailable: the server did not answer.
        """
        inbox = self.bus.client.new_inbox()
        self._tap = self.bus.client.tap(inbox, self._take)
        config: dict[str, Any] = {
            "name": self.name,
            "deliver_subject": inbox,
            "deliver_policy": "by_start_sequence",
            "opt_start_seq": after + 1,
            "ack_policy": "none",
            "max_deliver": 1,
            "flow_control": True,
            "idle_heartbeat": int(HEARTBEAT_S * 1e9),
            "inactive_threshold": int(FORGET_S * 1e9),
            "mem_storage": True,
            "num_replicas": 1,
        }
        if len(subject_filters) == 1:
            config["filter_subject"] = subject_filters[0]
        else:
            config["filter_subjects"] = list(subject_filters)
        try:
            await self.bus.api(f"CONSUMER.CREATE.{subjects.STREAM}.{self.name}", {"stream_name": subjects.STREAM, "config": config})
        except JetStreamError as error:
            raise LogUnavailable(f"the event log gave no consumer: {error.message}") from error

    async def more(self) -> list[Item]:
        """What has arrived since the last time, in order; waits for at least one.

        Raises:
            FeedBroken: the rest has to be read anew.
        """
        await self._say_taken()
        while not self._arrived:
            if self._broken:
                raise FeedBroken(self._broken)
            await self._sign_of_life()
            await self._say_taken()
        arrived, self._arrived = self._arrived, []
        return arrived

    async def __aenter__(self) -> Feed:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._tap is not None:
            self._tap.close()
        if self.bus.client.is_connected:  # else the server forgets it by itself
            await self.bus.client.publish(f"$JS.API.CONSUMER.DELETE.{subjects.STREAM}.{self.name}", b"")

    def _take(self, message: Msg) -> None:
        if message.reply.startswith("$JS.ACK."):
            self._take_in(message)
        else:
            self._control(message, message.headers or {})
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def _take_in(self, message: Msg) -> None:
        _, seq, number, pending = numbers_in(message.reply)
        if number != self._delivered + 1:
            self._broken = self._broken or f"message {self._delivered + 1} is missing before {number}"
        if not self._broken:
            self._delivered = number
            self._arrived.append(Item(seq, pending, message))

    def _control(self, message: Msg, headers: dict[str, str]) -> None:
        if headers.get("Status") != "100":
            self._broken = self._broken or f"the server ended the consumer: {headers.get('Description', headers)}"
        elif message.reply:
            self._owed = message.reply
        else:
            self._owed = headers.get("Nats-Consumer-Stalled", self._owed)
            if int(headers.get("Nats-Last-Consumer", "0")) > self._delivered:
                self._broken = self._broken or "a heartbeat names a message that did not arrive"

    async def _say_taken(self) -> None:
        if self._owed and not self._arrived:
            owed, self._owed = self._owed, ""
            await self.bus.client.publish(owed, b"")

    async def _sign_of_life(self) -> None:
        """Wait until something arrives, the connection is lost, or it has been too quiet for too long."""
        loop = asyncio.get_running_loop()
        wake = self._wake = loop.create_future()
        self.bus.link.waiting.add(wake)
        timer = loop.call_later(SILENCE_S, expire, wake)
        try:
            await wake
        except (ConnectionLost, TimeoutError) as error:
            self._broken = self._broken or f"{error}"
        finally:
            timer.cancel()
            self.bus.link.waiting.discard(wake)
            self._wake = None
