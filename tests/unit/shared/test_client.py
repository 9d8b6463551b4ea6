"""The client's own splitting of what the server sends, held against nats-py's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

import nats.errors
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.msg import Msg
from nats.protocol.parser import Parser

from shared.client import LeanClient, headers_in
from tests.requirements import covers

Seen = tuple[int, bytes, bytes, bytes, bytes]

tokens = st.from_regex(r"[A-Za-z0-9_$.-]{1,12}", fullmatch=True)
bodies = st.binary(max_size=60) | st.sampled_from([b"\r\n", b"MSG a 1 3\r\nabc\r\n", b"PING\r\n", b""])
heads = st.dictionaries(tokens, st.text("abc :é", max_size=8), max_size=4).map(
    lambda headers: ("NATS/1.0\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items()) + "\r\n").encode()
)


@dataclass
class Recorder:
    """Stands in for the client behind nats-py's parser."""

    seen: list[Any] = field(default_factory=list[Any])

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.seen.append((sid, subject, reply, data, headers or b""))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_pong(self) -> None:
        self.seen.append("pong")

    async def _process_err(self, message: str) -> None:
        self.seen.append(message)


class Listening(LeanClient):
    """The client with its hand-over recorded; odd subscriptions are tapped, even ones take nats-py's way."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Any] = []
        for sid in range(1, 9, 2):
            self.taps[sid] = lambda message, sid=sid: self.seen.append((sid, message))

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes | None) -> None:
        self.seen.append((sid, subject, reply, data, headers or b""))

    async def _process_ping(self) -> None:
        self.seen.append("ping")

    async def _process_pong(self) -> None:
        self.seen.append("pong")

    async def _process_err(self, err_msg: str) -> None:
        self.seen.append(err_msg)

    async def read(self, *pieces: bytes) -> list[Any]:
        for piece in pieces:
            await self._ps.parse(piece)
        return [(each[0], each[1].subject, each[1].reply, each[1].data, each[1].headers) if _tapped(each) else each for each in self.seen]


def _tapped(seen: Any) -> bool:
    return isinstance(seen, tuple) and isinstance(seen[1], Msg)


@st.composite
def messages(draw: st.DrawFn) -> bytes:
    subject, sid, body = draw(tokens), draw(st.integers(1, 8)), draw(bodies)
    reply = f"{draw(tokens)} " if draw(st.booleans()) else ""
    if draw(st.booleans()):
        return f"MSG {subject} {sid} {reply}{len(body)}\r\n".encode() + body + b"\r\n"
    head = draw(heads)
    return f"HMSG {subject} {sid} {reply}{len(head)} {len(head) + len(body)}\r\n".encode() + head + body + b"\r\n"


lines = messages() | st.sampled_from([b"PING\r\n", b"PONG\r\n", b"+OK\r\n", b"-ERR 'Stale Connection'\r\n"])


@covers("bus.wire")
@given(st.lists(lines, max_size=8), st.data())
def test_a_stream_is_read_as_nats_py_reads_it_however_it_is_cut(sent: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]

    async def both() -> tuple[list[Any], list[Any]]:
        theirs = Recorder()
        await Parser(theirs).parse(stream)
        return theirs.seen, await Listening().read(*pieces)

    theirs, ours = asyncio.run(both())
    assert ours == [_as_tapped(each) for each in theirs]


def _as_tapped(seen: Any) -> Any:
    if not isinstance(seen, tuple) or seen[0] % 2 == 0:
        return seen
    sid, subject, reply, data, head = seen
    return sid, subject.decode(), reply.decode(), data, headers_in(head) if head else None


@covers("bus.wire")
@given(heads)
def test_headers_are_read_as_nats_py_reads_them(head: bytes) -> None:
    async def theirs() -> dict[str, str] | None:
        return await super(LeanClient, LeanClient())._process_headers(head)

    expected = asyncio.run(theirs()) or {}
    # nats-py keeps no header whose value is empty when it reads them as mail.
    assert {name: value for name, value in headers_in(head).items() if value or name in expected} == expected


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        (b"NATS/1.0 503\r\n\r\n", {"Status": "503"}),
        (b"NATS/1.0 404 No Messages\r\n\r\n", {"Status": "404", "Description": "No Messages"}),
        (
            b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: 1016\r\n\r\n",
            {"Status": "100", "Description": "Idle Heartbeat", "Nats-Last-Consumer": "1016"},
        ),
        (b"NATS/1.0\r\ntraceparent:00-a-01\r\n\r\n", {"traceparent": "00-a-01"}),
    ],
)
@covers("bus.wire")
def test_a_status_of_the_server_is_read_beside_its_headers(head: bytes, expected: dict[str, str]) -> None:
    assert headers_in(head) == expected


@covers("bus.wire")
async def test_a_size_that_is_no_number_ends_the_connection() -> None:
    with pytest.raises(nats.errors.ProtocolError):
        await Listening().read(b"MSG a 1 x\r\nabc\r\n")


@covers("bus.wire")
async def test_a_bug_in_a_tap_does_not_make_the_process_deaf() -> None:
    client = Listening()

    def broken(_: Msg) -> None:
        raise RuntimeError("bug")

    client.taps[1] = broken
    assert await client.read(b"MSG a 1 1\r\nx\r\nMSG a 3 1\r\ny\r\n") == [(3, "a", "", b"y", None)]
