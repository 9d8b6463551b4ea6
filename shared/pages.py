"""Reading the log in pages: batched direct gets, some 30,000 facts a second."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import nats.errors
import orjson
from nats.aio.msg import Msg

from shared import subjects
from shared.bus import Bus, ConnectionLost
from shared.errors import LogUnavailable
from shared.events.envelope import Fact, decode


async def read_page(bus: Bus, subject_filter: str, start: int, size: int = 1000) -> tuple[list[Fact], int, bool]:
    """One batched direct get: the facts, where the next page starts, and whether there is one."""
    client = bus.client
    inbox = client.new_inbox()
    page: list[Fact] = []
    ended: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    bus.link.waiting.add(ended)

    async def take(message: Msg) -> None:
        headers = message.headers or {}
        if ended.done():
            return
        if "Nats-Sequence" in headers:
            try:
                page.append(decode(int(headers["Nats-Sequence"]), headers["Nats-Subject"], headers, message.data))
            except Exception as error:  # the client would log it and go on, and the reader would see a hole
                ended.set_exception(error)
        else:
            ended.set_result(headers.get("Status") == "204" and int(headers.get("Nats-Num-Pending", "0")) > 0)

    subscription = await client.subscribe(inbox, cb=take)  # pyright: ignore[reportUnknownMemberType]
    try:
        ask = orjson.dumps({"batch": size, "seq": start, "next_by_subj": subject_filter})
        await client.publish(f"$JS.API.DIRECT.GET.{subjects.STREAM}", ask, reply=inbox)
        more = await asyncio.wait_for(ended, 10.0)
    except ConnectionLost:
        raise
    except (TimeoutError, nats.errors.Error) as error:
        raise LogUnavailable(f"the event log did not answer a read of {subject_filter!r}") from error
    finally:
        bus.link.waiting.discard(ended)
        with suppress(nats.errors.Error):
            await subscription.unsubscribe()
    return page, (page[-1].seq + 1 if page else start), more
