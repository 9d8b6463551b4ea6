"""A process that runs and will not mend by itself is started again."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aetherium.launcher import nats
from aetherium.launcher.process import State
from aetherium.launcher.supervisor import Supervisor
from tests.support.waiting import until
from tests.unit.aetherium.children import STAYS, is_gone, python

WRITE_ERROR = '{"status":"unavailable","error":"JetStream stream EVENTS write error: no space left on device"}'


async def test_a_process_that_says_it_is_unwell_is_ended_and_started_again(tmp_path: Path) -> None:
    sick = True

    async def unwell() -> str | None:
        return "it is stuck" if sick else None

    supervisor = Supervisor([python("stuck", STAYS, unwell=unwell, look_s=0.01)], tmp_path)
    supervisor.start()
    try:
        async with asyncio.timeout(10):
            assert await supervisor.settled()
        first = supervisor.statuses[0].pid
        assert first is not None
        await until(lambda: supervisor.statuses[0].restarts == 1)
        sick = False
        await until(lambda: supervisor.statuses[0].state is State.READY)
        assert is_gone(first)
        again = supervisor.statuses[0].pid
    finally:
        await supervisor.stop()
    assert again not in (None, first)


@pytest.mark.parametrize(
    ("status", "body", "room", "is_stuck"),
    [
        (503, WRITE_ERROR, True, True),
        (503, WRITE_ERROR, False, False),  # still full: a restart would only fail again
        (503, '{"status":"unavailable","error":"JetStream is not current"}', True, False),
        (200, '{"status":"ok"}', True, False),
    ],
)
async def test_nats_is_stuck_when_it_could_write_again_and_does_not(
    tmp_path: Path, status: int, body: str, room: bool, is_stuck: bool
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/healthz"
        store = tmp_path if room else tmp_path / "missing"
        assert bool(await nats.stuck_on_writes(url, store)()) is is_stuck


async def test_a_nats_that_does_not_answer_is_not_taken_for_stuck(tmp_path: Path) -> None:
    assert await nats.stuck_on_writes("http://127.0.0.1:1/healthz", tmp_path)() is None


def test_room_is_what_can_really_be_written(tmp_path: Path) -> None:
    assert nats.has_room(tmp_path, 1 << 16)
    assert not nats.has_room(tmp_path, 1 << 60)
    assert list(tmp_path.iterdir()) == []
