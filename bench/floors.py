"""What the same work costs with plain nats-py and nothing of the engine: the floors. `python -m bench.floors URL` is their other side."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import nats
import uvloop
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import ConsumerConfig, DeliverPolicy, StreamConfig

STREAM = "FLOOR"
PING = "floor.ping"
BODY = b"x" * 600  # about what a fact of the engine holds, headers and body


@asynccontextmanager
async def connected(url: str) -> AsyncGenerator[Client]:
    client = await nats.connect(url)  # pyright: ignore[reportUnknownMemberType]
    try:
        yield client
    finally:
        await client.close()


async def ensure_stream(js: JetStreamContext) -> None:
    await js.add_stream(StreamConfig(name=STREAM, subjects=["floor.log.>"], allow_direct=True))  # pyright: ignore[reportUnknownMemberType]


async def append_ms(url: str, count: int) -> list[float]:
    """Milliseconds of each append, one after the other."""
    async with connected(url) as client:
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await js.publish("floor.log.alone", BODY)
            taken.append((time.perf_counter() - began) * 1000)
        return taken


async def appends_per_s(url: str, writers: int, seconds: float) -> float:
    """Appends a second by as many writers, each waiting for its own acknowledgement."""
    async with connected(url) as client:
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
        until = time.perf_counter() + seconds

        async def write(number: int) -> int:
            done = 0
            while time.perf_counter() < until:
                await js.publish(f"floor.log.writer-{number}", BODY)
                done += 1
            return done

        began = time.perf_counter()
        total = sum(await asyncio.gather(*(write(number) for number in range(writers))))
        return total / (time.perf_counter() - began)


async def request_ms(url: str, count: int) -> list[float]:
    """Milliseconds of each request to the other process and its reply."""
    async with connected(url) as client:
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await client.request(PING, BODY, timeout=5)
            taken.append((time.perf_counter() - began) * 1000)
        return taken


async def effect_ms(url: str, count: int) -> list[float]:
    """Milliseconds of each pair: append a request, and read the answer that the other process appended."""
    async with connected(url) as client:
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
        config = ConsumerConfig(deliver_policy=DeliverPolicy.NEW)
        answers = await js.subscribe("floor.log.answer", stream=STREAM, ordered_consumer=True, config=config)
        taken: list[float] = []
        for _ in range(count):
            began = time.perf_counter()
            await js.publish("floor.log.request", BODY)
            await answers.next_msg(timeout=5)
            taken.append((time.perf_counter() - began) * 1000)
        await answers.unsubscribe()
        return taken


async def read_ms(url: str, stream: str, subject_filter: str, count: int) -> float:
    """Milliseconds to read `count` messages by an ordered consumer, none of them looked into."""
    async with connected(url) as client:
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]
        began = time.perf_counter()
        config = ConsumerConfig(deliver_policy=DeliverPolicy.ALL)
        messages = await js.subscribe(subject_filter, stream=stream, ordered_consumer=True, config=config)
        for _ in range(count):
            await messages.next_msg(timeout=10)
        taken = (time.perf_counter() - began) * 1000
        await messages.unsubscribe()
        return taken


async def answer(url: str) -> None:
    """The other process: reply to pings, and append an answer for each request in the log; until ended."""
    async with connected(url) as client:
        js = client.jetstream()  # pyright: ignore[reportUnknownMemberType]

        async def pong(message: Msg) -> None:
            await message.respond(message.data)

        async def append(message: Msg) -> None:
            await js.publish("floor.log.answer", BODY)
            await message.ack()

        await client.subscribe(PING, cb=pong)  # pyright: ignore[reportUnknownMemberType]
        await js.subscribe("floor.log.request", stream=STREAM, durable="floor", cb=append, manual_ack=True)
        await client.flush()
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(answer(sys.argv[1]))
