"""The client finds the gateway, follows a run over broken connections, and turns problems into faults."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from aetherium.client import Delta, GatewayClient, Refused, Reset, Unreachable, address, decode
from aetherium.launcher import state
from shared.config import load
from shared.events.envelope import Fact, Unknown

Handler = Callable[[httpx.Request], httpx.Response]


def sse(seq: int, kind: str = "run.noted", **data: Any) -> bytes:
    fields = {"key": "k", "tag": "T", "text": "t", **data} if kind == "run.noted" else data
    body = {
        "seq": seq,
        "id": f"i{seq}",
        "type": kind,
        "version": 1,
        "time": datetime.now(UTC),
        "source": "s",
        "scope": "r1",
        "data": fields,
    }
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (seq, kind.encode(), orjson.dumps(body))


class Stream(httpx.AsyncByteStream):
    """Bytes, then a connection that breaks or ends."""

    def __init__(self, *parts: bytes, breaks: bool = False) -> None:
        self.parts, self.breaks = parts, breaks

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self.parts:
            yield part
        if self.breaks:
            raise httpx.ReadError("connection reset")


def client(*answers: httpx.Response | Exception) -> tuple[GatewayClient, list[httpx.Request]]:
    """A client whose requests get these answers, in order."""
    requests: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        requests.append(request)
        answer = answers[len(requests) - 1]
        if isinstance(answer, Exception):
            raise answer
        return answer

    return GatewayClient("http://gateway", transport=httpx.MockTransport(handle)), requests


def stream(*parts: bytes, breaks: bool = False) -> httpx.Response:
    return httpx.Response(200, stream=Stream(*parts, breaks=breaks))


async def test_a_broken_stream_is_taken_up_after_the_last_fact() -> None:
    gateway, requests = client(
        stream(sse(1), sse(2), sse(3)[:20], breaks=True),
        httpx.ConnectError("the gateway restarts"),
        httpx.Response(503, json={"status": 503, "detail": "not yet", "code": "log.unavailable"}),
        stream(sse(3)),  # ends without the run's end: the gateway was stopped
        stream(sse(4, "run.completed", reply="ok")),
    )
    async with gateway:
        items = [item async for item in gateway.events("r1")]
    assert [item.seq for item in items if isinstance(item, Fact)] == [1, 2, 3, 4]
    assert [request.headers.get("Last-Event-ID") for request in requests] == [None, "2", "2", "2", "3"]


async def test_text_comes_between_facts_and_a_reset_forgets_the_cursor() -> None:
    delta = b'event: llm.delta\ndata: {"callId":"c","text":"Hi"}\n\n'
    reset = b'id:\nevent: reset\ndata: {"reason":"history_gone"}\n\n'
    gateway, requests = client(stream(sse(7), delta, reset, breaks=True), stream(sse(9, "run.completed")))
    async with gateway:
        items = [item async for item in gateway.events("r1", live=True)]
    assert [type(item) for item in items] == [Fact, Delta, Reset, Fact]
    assert items[1] == Delta("c", "Hi")
    assert [request.headers.get("Last-Event-ID") for request in requests] == [None, None]
    assert requests[0].url.params["live"] == "true"


async def test_a_stream_with_nothing_more_ends() -> None:
    gateway, _ = client(httpx.Response(204))
    async with gateway:
        assert [item async for item in gateway.events("r1", after=9)] == []


async def test_a_first_connection_that_fails_is_told_and_not_tried_for_ever() -> None:
    gateway, _ = client(httpx.ConnectError("refused"))
    async with gateway:
        with pytest.raises(Unreachable, match="aetherium up"):
            await anext(gateway.events("r1"))


async def test_a_problem_becomes_a_fault_with_its_members() -> None:
    problem = {"status": 404, "code": "input.not_found", "detail": "no template", "field": "templateId", "known": ["a"]}
    gateway, _ = client(httpx.Response(404, json=problem), httpx.Response(502, text="<html>"), httpx.ConnectError("refused"))
    async with gateway:
        with pytest.raises(Refused, match="no template") as refused:
            await gateway.submit("x", "m", project="p")
        assert (refused.value.status, refused.value.remote_code, refused.value.details["field"]) == (404, "input.not_found", "templateId")
        with pytest.raises(Refused, match="answered 502"):
            await gateway.runs()
        with pytest.raises(Unreachable):
            await gateway.runs()


async def test_a_submission_carries_its_key_and_overrides() -> None:
    gateway, requests = client(httpx.Response(202, json={"runGuid": "r", "projectId": 1, "status": "queued", "success": False, "new": 1}))
    async with gateway:
        submission = await gateway.submit("t", "m", project="p", overrides={"seed": 1}, key="k")
    assert (submission.run_guid, submission.status) == ("r", "queued")
    assert requests[0].headers["Idempotency-Key"] == "k"
    assert requests[0].url.params["wait"] == "false"
    assert orjson.loads(requests[0].content)["overrides"] == {"seed": 1}


@pytest.mark.parametrize("separator", ["\u2028", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
async def test_line_separators_inside_data_do_not_split_an_event(separator: str) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for byte in sse(1, "run.dreamt", text=f"a{separator}b"):
            yield bytes([byte])  # and however the bytes are cut

    (event,) = [event async for event in decode(chunks())]
    assert orjson.loads(event.data)["data"]["text"] == f"a{separator}b"


async def test_a_fact_of_a_newer_engine_is_not_an_error() -> None:
    gateway, _ = client(stream(sse(1, "run.dreamt", of="sheep"), sse(2, "run.completed")))
    async with gateway:
        first = await anext(gateway.events("r1"))
    assert isinstance(first, Fact)
    assert first.event == Unknown(type="run.dreamt", data={"of": "sheep"})


def test_the_gateway_is_where_the_caller_the_environment_or_the_engine_says(tmp_path: Path) -> None:
    environ = {"AETHERIUM_DATA_DIR": str(tmp_path)}
    settings = load(environ)
    assert address(settings, environ=environ) == "http://127.0.0.1:5257"
    engine = state.of_this_process(tmp_path, {"gateway": "http://127.0.0.1:9"}, state.Model(source="none", text=""))
    state.write(engine)
    assert address(settings, environ=environ) == "http://127.0.0.1:9"
    named = {**environ, "AETHERIUM_GATEWAY__PORT": "77", "AETHERIUM_GATEWAY__HOST": "::1"}
    assert address(load(named), environ=named) == "http://[::1]:77"
    assert address(settings, "http://far:1", environ=named) == "http://far:1"
