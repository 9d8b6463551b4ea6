"""The first page of a reading: one batched direct get, which answers sooner than a consumer can be set up."""

from __future__ import annotations

import asyncio

import nats.errors
import orjson
from nats.aio.msg import Msg

from shared import subjects
from shared.bus import Bus
from shared.client import ConnectionLost
from shared.errors import LogUnavailable
from shared.events.envelope import Fact, decode

PAGE = 200
PATIENCE_S = 10.0


async def read_page(bus: Bus, subject_filter: str, start: int, size: int = PAGE) -> tuple[list[Fact], bool]:
    """The facts from sequence `start` on, at most `size`, and whether there are more.

    Raises:
        LogUnavailable: the server did not answer.
        ConnectionLost: the connection broke meanwhile.
        ValueError: a fact cannot be read.
    """
    page: list[Fact] = []
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    def take(message: Msg) -> None:
        headers = message.headers or {}
        if ended.done():
            return
        if "Nats-Sequence" not in headers:
            return ended.set_result(headers.get("Status") == "204" and int(headers.get("Nats-Num-Pending", "0")) > 0)
        try:
            page.append(decode(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers, message.data))
        except Exception as error:  # the reader would see a hole
            ended.set_exception(error)

    inbox = bus.client.new_inbox()
    tap = bus.client.tap(inbox, take)
    bus.link.waiting.add(ended)
    try:
        ask = orjson.dumps({"batch": size, "seq": start, "next_by_subj": subject_filter})
        await bus.client.publish(f"$JS.API.DIRECT.GET.{subjects.STREAM}", ask, reply=inbox)
        more = await asyncio.wait_for(ended, PATIENCE_S)
    except ConnectionLost:
        raise
    except (TimeoutError, nats.errors.Error) as error:
        raise LogUnavailable(f"the event log did not answer a read of {subject_filter!r}") from error
    finally:
        bus.link.waiting.discard(ended)
        tap.close()
    return page, more
