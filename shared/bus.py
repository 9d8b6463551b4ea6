"""The connection to NATS, and raw JetStream API calls.

The client's reconnect settings live here once. A publish that timed out may still be stored, and
`nats.connect` to a dead server retries for ever, so both are bounded by their callers.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

import nats.errors
import orjson
import structlog
from nats.aio.msg import Msg

from shared.client import ConnectionLost, LeanClient
from shared.errors import Fault, LogUnavailable, Verdict

MINIMUM_SERVER = (2, 12)
REJOIN_S = 0.05  # between tries while others come back after an outage

log = structlog.get_logger()


class WrongServer(Fault):
    """The NATS server is too old: it would ignore optimistic concurrency in silence."""

    code = "bus.wrong_server"


class JetStreamError(Fault):
    """The JetStream API refused a request; `details["err_code"]` is the server's own number."""

    code = "bus.jetstream"
    verdict = Verdict.FINAL

    @property
    def err_code(self) -> int:
        return int(self.details.get("err_code", 0))


@dataclass(slots=True)
class Link:
    """What became of the connection. Who waits for an answer learns at once that it will not come.

    An answer that was on its way when the server died is lost for good; without this its caller would
    wait out a time bound that is meant for slow work.
    """

    reconnects: int = 0
    waiting: set[asyncio.Future[Any]] = field(default_factory=set[asyncio.Future[Any]])

    def lost(self) -> None:
        for future in self.waiting:
            if not future.done():
                future.set_exception(ConnectionLost("the connection to NATS was lost"))
        self.waiting.clear()


@dataclass(frozen=True, slots=True)
class Bus:
    """One connection of one process."""

    client: LeanClient
    name: str
    link: Link = field(default_factory=Link)

    async def api(self, subject: str, payload: dict[str, Any] | None = None, *, timeout_s: float = 5.0) -> dict[str, Any]:
        """The answer of a `$JS.API` request that may be made twice.

        Raises:
            JetStreamError: the server refused it.
            LogUnavailable: no answer within `timeout_s`.
        """
        try:
            reply = await self.ask(f"$JS.API.{subject}", orjson.dumps(payload) if payload is not None else b"", timeout_s=timeout_s)
        except (TimeoutError, nats.errors.Error) as error:
            raise LogUnavailable(f"the event log did not answer {subject!r}: {error!r}") from error
        answer = cast(dict[str, Any], orjson.loads(reply.data))
        if "error" in answer:
            problem = answer["error"]
            raise JetStreamError(f"{subject}: {problem.get('description')}", **problem)
        return answer

    async def ask(self, subject: str, body: bytes, *, timeout_s: float = 5.0, headers: dict[str, str] | None = None) -> Msg:
        """The answer to a request that may be made twice: one that was lost with the connection is made again.

        Raises:
            TimeoutError, nats.errors.Error: no answer within `timeout_s`.
        """
        was_lost = False
        async with asyncio.timeout(timeout_s):
            while True:
                try:
                    return await self.client.request(subject, body, timeout=timeout_s, headers=headers)
                except ConnectionLost:
                    was_lost = True  # the client keeps the next one until it is connected again
                except nats.errors.NoRespondersError:
                    if not was_lost:
                        raise
                    await asyncio.sleep(REJOIN_S)  # whoever answers lost its connection too, and is not back yet

    async def close(self) -> None:
        if not self.client.is_closed:
            await self.client.close()


def delivery_of(reply: str) -> tuple[int, int]:
    """Of a message that a consumer delivered: its sequence in the stream, and the how-manieth delivery."""
    attempt, seq, _, _ = numbers_in(reply)
    return seq, attempt


def numbers_in(reply: str) -> tuple[int, int, int, int]:
    """Where a delivered message's acknowledgement goes says: the how-manieth delivery, its sequence in the stream, the consumer's own
    number of it, and how many more matched.

    The client's own reader of it makes a date and three objects for each message.
    """
    tokens = reply.split(".")
    at = 4 if len(tokens) == 9 else 6  # two more tokens in front where the server has JetStream domains
    return int(tokens[at]), int(tokens[at + 1]), int(tokens[at + 2]), int(tokens[at + 4])


async def connect(url: str, name: str, *, timeout_s: float = 30.0) -> Bus:
    """A connection that comes back by itself, to a server that is new enough.

    Raises:
        LogUnavailable: nothing answered at `url` within `timeout_s`.
        WrongServer: the server is older than 2.12.
    """

    async def on_error(error: Exception) -> None:
        log.debug("bus_error", error=repr(error))

    async def on_disconnect() -> None:
        if not client.is_closed:  # closing on purpose is no news
            log.warning("bus_disconnected", url=url)
        link.lost()
        client.lose_requests()

    async def on_reconnect() -> None:
        log.info("bus_reconnected", url=url)
        link.reconnects += 1

    client, link = LeanClient(), Link()
    try:
        await asyncio.wait_for(
            client.connect(
                url,
                name=name,
                max_reconnect_attempts=-1,
                reconnect_time_wait=0.25,  # pyright: ignore[reportArgumentType]  the client sleeps for any number
                connect_timeout=2,
                pending_size=8 * 1024 * 1024,
                error_cb=on_error,
                disconnected_cb=on_disconnect,
                reconnected_cb=on_reconnect,
            ),
            timeout_s,
        )
    except (TimeoutError, OSError, nats.errors.Error) as error:
        await client.close()
        raise LogUnavailable(f"no NATS server answers at {url}: is it running? ({error!r})") from error
    version = client.connected_server_version
    if (version.major, version.minor) < MINIMUM_SERVER:
        await client.close()
        raise WrongServer(f"nats-server {version} at {url} is too old: 2.12 or newer is needed")
    return Bus(client, name, link)
