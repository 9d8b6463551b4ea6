"""The NATS client of every process: nats-py's, with its own short way for what happens thousands of times a second.

Connecting, reconnecting, authentication and ordinary subscriptions are nats-py's. What each fact passes is not: there, a
message goes through three regular expressions, a queue and a task of its own, and a request through a random token, a second
queue and a timeout's task, which made up two thirds of the cost of a fact. Here it is split in place and handed to a function
(`tap`), and what is written goes to the socket's buffer at once. This leans on parts of nats-py that it does not promise to
keep; its version is pinned, and the contract tests run on a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import nats.errors
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.protocol.parser import Parser

WRITE_AHEAD = 1024 * 1024  # bytes that may wait for the socket before whoever writes waits too
LINE = b"\r\n"
STATUS_AT = len("NATS/1.0 ")
PLAIN, WITH_HEADERS = b"MH"
MESSAGES = (PLAIN, WITH_HEADERS)

log = structlog.get_logger()

Take = Callable[[Msg], None]
"""Takes in a message, at once and without waiting. What it raises is a bug, which is logged, and the message is lost."""


class ConnectionLost(nats.errors.Error):
    """The connection broke while an answer was waited for: what was asked may or may not have arrived."""


@dataclass(frozen=True, slots=True)
class Tap:
    """A subscription whose messages go straight to a function."""

    client: LeanClient
    sid: int

    def close(self) -> None:
        self.client.untap(self.sid)


class LeanClient(Client):
    """nats-py's client with taps, requests that end with their connection, and headers that cost a fifth."""

    def __init__(self) -> None:
        super().__init__()
        self._ps = _Parser(self)
        self.taps: dict[int, Take] = {}
        self._asked: dict[str, asyncio.Future[Msg]] = {}
        self._answers_at = ""
        self._tokens = count(1)

    # ---- receive

    def tap(self, subject: str, take: Take) -> Tap:
        """Hand the messages of a subject to `take` as they are read; across reconnects, until closed."""
        self._sid += 1
        sid = self._sid
        self.taps[sid] = take
        self._subs[sid] = Subscription(self, sid, subject)  # never started: it stands here to be subscribed again after a reconnect
        self._send_soon(f"SUB {subject}  {sid}\r\n".encode())
        return Tap(self, sid)

    def untap(self, sid: int) -> None:
        if self.taps.pop(sid, None) is not None:
            self._subs.pop(sid, None)
            if self.is_connected:  # else it is not subscribed again
                self._send_soon(f"UNSUB {sid} \r\n".encode())

    async def _process_headers(self, headers: bytes | None) -> dict[str, str] | None:
        return headers_in(headers) if headers else None

    # ---- ask

    async def request(
        self, subject: str, payload: bytes = b"", timeout: float = 0.5, old_style: bool = False, headers: dict[str, Any] | None = None
    ) -> Msg:
        """The answer to a request.

        Raises:
            TimeoutError: none came within `timeout` seconds.
            ConnectionLost: the connection broke meanwhile; the stock client would let it run into its timeout.
            NoRespondersError: nobody listens.
        """
        if not self._answers_at:
            self._answers_at = f"{self.new_inbox()}."
            self.tap(f"{self._answers_at}*", self._answered)
        token = str(next(self._tokens))
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()
        self._asked[token] = answer
        timer = loop.call_later(timeout, expire, answer)
        try:
            await self.publish(subject, payload, reply=self._answers_at + token, headers=headers)
            return await answer
        finally:
            timer.cancel()
            self._asked.pop(token, None)

    def _answered(self, message: Msg) -> None:
        answer = self._asked.get(message.subject[len(self._answers_at) :])
        if answer is None or answer.done():
            return
        if message.headers and not message.data and message.headers.get("Status") == "503":
            answer.set_exception(nats.errors.NoRespondersError())
        else:
            answer.set_result(message)

    def lose_requests(self) -> None:
        """Tell those who wait that no answer will come."""
        for answer in list(self._asked.values()):
            if not answer.done():
                answer.set_exception(ConnectionLost("the connection to NATS was lost"))

    # ---- send

    async def _send_publish(self, subject: str, reply: str, payload: bytes, payload_size: int, headers: dict[str, Any] | None) -> None:
        command = _published(subject, reply, payload, headers)
        if command is None:
            return await super()._send_publish(subject, reply, payload, payload_size, headers)
        self.stats["out_msgs"] += 1
        self.stats["out_bytes"] += payload_size
        await self._send_command(command)
        return None

    def send(self, subject: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish at once what may be lost, such as an acknowledgement; away from the server it waits for the reconnect."""
        command = _published(subject, "", body, headers)
        if command is not None and not self.is_closed and self._pending_data_size < self._max_pending_size:
            self._send_soon(command)

    async def _send_command(self, cmd: bytes, priority: bool = False) -> None:
        writer = self._writer()
        if writer is None or priority:
            await super()._send_command(cmd, priority)
            await self._flush_pending()
            return
        writer.write(cmd)
        if writer.transport.get_write_buffer_size() > WRITE_AHEAD:
            with suppress(OSError):  # a lost connection is noticed by whoever reads
                await writer.drain()

    def _send_soon(self, command: bytes) -> None:
        writer = self._writer()
        if writer is None:
            self._pending.append(command)  # goes out with what is waiting already, or after the reconnect
            self._pending_data_size += len(command)
        else:
            writer.write(command)

    def _writer(self) -> asyncio.StreamWriter | None:
        """The socket's buffer, which the event loop empties in one go; None while something else has to go first."""
        if self._status != Client.CONNECTED or self._pending:
            return None
        return cast("asyncio.StreamWriter | None", getattr(self._transport, "_io_writer", None))


class _Parser(Parser):
    """Splits what the server sends where it lies. Other lines than messages are left to nats-py's parser."""

    rest = b""
    resets = 0

    def reset(self) -> None:
        super().reset()
        self.rest = b""
        self.resets += 1

    async def parse(self, data: bytes = b"") -> None:
        read = self.rest + data if self.rest else data
        at, resets = 0, self.resets
        while (end := read.find(LINE, at)) >= 0:
            if read[at] not in MESSAGES:
                after = end + len(LINE)
                await super().parse(read[at:after])
            else:
                fields = read[at:end].split()
                start = end + len(LINE)
                stop = start + _number(fields[-1])
                after = stop + len(LINE)
                if after > len(read):
                    break
                if read[at] == PLAIN:
                    reply = fields[3] if len(fields) == 5 else b""
                    await self._hand_over(fields, reply, b"", read[start:stop])
                else:
                    body = start + _number(fields[-2])
                    reply = fields[3] if len(fields) == 6 else b""
                    await self._hand_over(fields, reply, read[start:body], read[body:stop])
            if resets != self.resets:
                return  # the connection was given up meanwhile, and what it said with it
            at = after
        self.rest = read[at:]

    async def _hand_over(self, fields: list[bytes], reply: bytes, head: bytes, body: bytes) -> None:
        client = cast(LeanClient, self.nc)
        subject, sid = fields[1], _number(fields[2])
        take = client.taps.get(sid)
        if take is None:
            return await client._process_msg(sid, subject, reply, body, head)  # pyright: ignore[reportPrivateUsage]
        headers = headers_in(head) if head else None
        try:
            take(Msg(client, subject.decode(), reply.decode(), body, headers))
        except Exception:  # the outermost loop of what is read: one bug must not make the process deaf
            log.exception("message_not_taken", subject=subject.decode())
        return None


def _published(subject: str, reply: str, body: bytes, headers: dict[str, Any] | None) -> bytes | None:
    """The command that publishes a message; None for headers that need nats-py's care: a value from outside must not add a header."""
    if not headers:
        return f"PUB {subject} {reply} {len(body)}\r\n".encode() + body + LINE
    text = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    if text.count("\n") != len(headers) or text.count("\r") != len(headers):
        return None
    head = f"NATS/1.0\r\n{text}\r\n".encode()
    return f"HPUB {subject} {reply} {len(head)} {len(head) + len(body)}\r\n".encode() + head + body + LINE


def headers_in(head: bytes) -> dict[str, str]:
    """A message's headers, the server's own status among them as `Status` and `Description`."""
    first, *lines = head.decode("utf-8", "replace").split("\r\n")
    headers: dict[str, str] = {}
    for line in lines:
        name, separator, value = line.partition(":")
        if separator:
            headers[name.strip()] = value.strip()
    if len(first) > STATUS_AT:
        headers["Status"], _, description = first[STATUS_AT:].partition(" ")
        if description:
            headers["Description"] = description
    return headers


def _number(digits: bytes) -> int:
    try:
        return int(digits)
    except ValueError as error:
        raise nats.errors.ProtocolError from error


def expire(answer: asyncio.Future[Any]) -> None:
    """End a wait whose time is over."""
    if not answer.done():
        answer.set_exception(nats.errors.TimeoutError())
