"""The client's own message writer against a real server."""

from __future__ import annotations

import asyncio

import pytest
from nats.aio.msg import Msg

from shared.bus import Bus, delivery_of
from shared.ids import new_id
from tests.requirements import covers


async def received(bus: Bus, headers: dict[str, str]) -> Msg:
    subject = f"test.{new_id()}"
    subscription = await bus.client.subscribe(subject)  # pyright: ignore[reportUnknownMemberType]
    await bus.client.publish(subject, b"body", headers=headers)
    async with asyncio.timeout(5):
        return await subscription.next_msg(timeout=5)


@covers("log.envelope.cloudevents")
async def test_headers_arrive_as_they_were_given(bus: Bus) -> None:
    headers = {"ce-type": "run.started", "Nats-Expected-Last-Subject-Sequence-Subject": "a.b.>", "traceparent": "00-ä-01"}
    message = await received(bus, headers)
    assert (message.headers, message.data) == (headers, b"body")


@covers("log.envelope.cloudevents")
@pytest.mark.parametrize("value", ["x\r\nEvil: 1", "x\nEvil: 1", "x\rEvil: 1", "x\r\n\r\nbody"])
async def test_a_value_from_outside_adds_no_header_and_no_body(bus: Bus, value: str) -> None:
    message = await received(bus, {"traceparent": value, "ce-id": "1"})
    assert set(message.headers or {}) == {"traceparent", "ce-id"}
    assert message.data == b"body"


@pytest.mark.parametrize(
    "reply",
    [
        "$JS.ACK.EVENTS.worker.3.1207.88.1700000000000000000.5",
        "$JS.ACK.hub.AACC.EVENTS.worker.3.1207.88.1700000000000000000.5",
        "$JS.ACK._.AACC.EVENTS.worker.3.1207.88.1700000000000000000.5.token",
    ],
)
def test_a_delivery_is_read_from_its_reply_with_and_without_a_domain(reply: str) -> None:
    assert delivery_of(reply) == (1207, 3)
