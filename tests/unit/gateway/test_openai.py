"""The relay for OpenAI clients, asked by the official client over a real socket, with a scripted server behind it (S17)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai
import orjson
import pytest

from services.gateway.core import Policy
from services.gateway.relaying.relay import Relay
from services.gateway.relaying.servers import Upstream
from shared.errors import RemoteFault, ServiceUnavailable
from shared.testing.memory import MemoryLog
from simulators.testing import Simulator, running
from tests.requirements import covers
from tests.support.waiting import until
from tests.unit.gateway.conftest import MemoryLive, make_gateway, served

WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "x-note": [1.5, None]}}}
SAY: Any = [{"role": "user", "content": "Hello, Käthe"}]


@dataclass
class ScriptedArbiter:
    """Grants a lease where `busy` does not name the slot; `take` is the arrival of a run."""

    places: list[dict[str, Any]]
    busy: set[str] = field(default_factory=set[str])
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list[tuple[str, dict[str, Any]]])
    leases: dict[str, asyncio.Event] = field(default_factory=dict[str, asyncio.Event])  # set: it was taken away
    away: bool = False

    async def ask(self, verb: str, fields: Mapping[str, Any]) -> dict[str, Any]:
        if self.away:
            raise ServiceUnavailable("the scheduler service is not there")
        self.asked.append((verb, dict(fields)))
        match verb:
            case "relay_places":
                return {"slots": len(self.places), "places": self.places}
            case "lease_request" if fields["slot"] in self.busy:
                return {"leaseId": "none", "state": "refused", "reason": f"slot {fields['slot']} is in use by run r1"}
            case "lease_request":
                name = f"lease-{len(self.leases) + 1}"
                self.leases[name] = asyncio.Event()
                return {"leaseId": name, "state": "granted"}
            case "lease":
                with suppress(TimeoutError):
                    await asyncio.wait_for(self.leases[fields["leaseId"]].wait(), fields["waitS"])
                return {"leaseId": fields["leaseId"], "state": "preempted" if self.leases[fields["leaseId"]].is_set() else "granted"}
            case "lease_renew" if self.leases[fields["leaseId"]].is_set():
                raise RemoteFault("lease.ended", "it was preempted")
            case "models":
                return {"models": [{"model": "writer"}, {"model": "coder"}, {"model": "writer"}]}
            case _:
                return {}

    def take(self) -> None:
        for lease in self.leases.values():
            lease.set()

    def count(self, verb: str) -> int:
        return sum(name == verb for name, _ in self.asked)


@dataclass
class Bench:
    client: openai.AsyncOpenAI
    relay: Relay
    arbiter: ScriptedArbiter
    servers: dict[str, Simulator]
    url: str


def place(slot: str, **over: Any) -> dict[str, Any]:
    return {"slot": slot, "model": "writer", "resident": True, "copy": None, **over}


@asynccontextmanager
async def bench(
    folder: Path, *places: dict[str, Any], turns: Any = "Good day.", slots: bool = True, idle_s: float = 60.0
) -> AsyncGenerator[Bench]:
    script = [{"content": turns}] if isinstance(turns, str) else turns
    arbiter = ScriptedArbiter(list(places))
    async with running(script) as one, running(script) as two:
        upstreams = {"primary": Upstream(one.url, "secret-key"), "secondary": Upstream(f"{two.url}/v1")} if slots else {}
        relay = Relay(arbiter, upstreams, Upstream(one.url), idle_s=idle_s, silence_s=5.0)
        gateway = make_gateway(MemoryLog(), folder, MemoryLive(), Policy(max_chat_bytes=2000), relay)
        async with served(gateway) as url, openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            yield Bench(client, relay, arbiter, {"primary": one, "secondary": two}, url)
        await relay.close()


async def _rest(pieces: AsyncIterator[Any]) -> None:
    async for _ in pieces:
        pass


@pytest.mark.parametrize("slots", [True, False])
@covers("relay.untouched")
async def test_a_chat_passes_through_untouched(tmp_path: Path, slots: bool) -> None:
    async with bench(tmp_path, place("primary", model="acme/writer"), slots=slots) as world:
        asked: Any = {"tools": [WEATHER], "tool_choice": "auto", "response_format": {"type": "json_object"}, "top_p": 0.25}
        answer = await world.client.chat.completions.create(model="writer", messages=SAY, extra_body={"min_p": 0.05}, **asked)
        assert answer.choices[0].message.content == "Good day."
        (got,) = world.servers["primary"].requests
        assert got.body == {**asked, "min_p": 0.05, "messages": SAY, "model": "acme/writer" if slots else "writer"}
        assert got.headers.get("authorization") == ("Bearer secret-key" if slots else None)  # the server's key, never the client's


@covers("relay.untouched")
async def test_a_stream_comes_as_it_is_written_with_tool_calls(tmp_path: Path) -> None:
    turns = [{"content": "Looking.", "tool_calls": [{"name": "weather", "arguments": {"city": "Oslo"}}], "delay_s": 0.01}]
    async with bench(tmp_path, place("primary"), turns=turns) as world:
        text, calls = "", ""
        stream = await world.client.chat.completions.create(model="writer", messages=SAY, tools=[WEATHER], stream=True)
        async for piece in stream:
            for choice in piece.choices:
                text += choice.delta.content or ""
                calls += "".join(call.function.arguments or "" for call in choice.delta.tool_calls or () if call.function)
        assert (text, calls.replace(" ", "")) == ("Looking.", '{"city":"Oslo"}')


@covers("relay.refuses")
async def test_a_client_is_refused_as_the_router_would_where_every_copy_is_in_use(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), place("secondary")) as world:
        world.arbiter.busy |= {"primary", "secondary"}
        with pytest.raises(openai.BadRequestError) as refused:
            await world.client.chat.completions.create(model="writer", messages=SAY)
        assert refused.value.response.json() == {"error": {"code": 400, "message": "model is not loaded", "type": "invalid_request_error"}}
        assert not world.servers["primary"].requests
        assert not world.servers["secondary"].requests


@covers("relay.refuses")
async def test_a_model_that_is_listed_and_not_loaded_is_not_asked_for(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary", resident=False)) as world:
        with pytest.raises(openai.BadRequestError, match="model is not loaded"):
            await world.client.chat.completions.create(model="writer", messages=SAY)
        assert not world.servers["primary"].requests
        assert world.arbiter.count("lease_request") == 0


@covers("relay.refuses", "relay.resolve")
async def test_the_next_slot_with_a_loaded_copy_takes_what_the_first_refuses(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), place("secondary")) as world:
        world.arbiter.busy.add("primary")
        await world.client.chat.completions.create(model="writer", messages=SAY)
        assert [len(world.servers[name].requests) for name in ("primary", "secondary")] == [0, 1]


@covers("relay.resolve")
async def test_a_server_that_cannot_be_reached_is_passed_over(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), place("secondary")) as world:
        world.relay.upstreams = {**world.relay.upstreams, "primary": Upstream("http://127.0.0.1:1")}
        await world.client.chat.completions.create(model="writer", messages=SAY)
        assert len(world.servers["secondary"].requests) == 1


@covers("relay.leases")
async def test_a_client_holds_one_lease_a_slot_and_another_client_its_own(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary")) as world:
        ask = world.client.chat.completions.create
        await asyncio.gather(*(ask(model="writer", messages=SAY, user="ann") for _ in range(3)))
        assert world.arbiter.count("lease_request") == 1
        wanted = next(fields for verb, fields in world.arbiter.asked if verb == "lease_request")
        assert wanted["holder"] == "chat ann"
        assert (wanted["priority"], wanted["residentOnly"], wanted["models"]) == ("interactive", True, ["writer"])
        await ask(model="writer", messages=SAY, user="bob")
        assert world.arbiter.count("lease_request") == 2


@covers("relay.leases")
async def test_a_lease_that_is_not_used_is_given_back_and_one_that_was_taken_is_asked_for_anew(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary")) as world:
        await world.client.chat.completions.create(model="writer", messages=SAY)
        world.arbiter.take()
        await world.client.chat.completions.create(model="writer", messages=SAY)
        assert world.arbiter.count("lease_request") == 2
    async with bench(tmp_path, place("primary"), idle_s=0.05) as world:
        await world.client.chat.completions.create(model="writer", messages=SAY)
        await until(lambda: world.arbiter.count("lease_release") == 1)
        assert ("lease_release", {"leaseId": "lease-1", "reason": "idle"}) in world.arbiter.asked


@covers("relay.leases")
async def test_a_client_that_holds_its_lease_is_sent_on_without_asking_anybody(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary")) as world:
        for _ in range(5):
            await world.client.chat.completions.create(model="writer", messages=SAY)
        assert (world.arbiter.count("relay_places"), world.arbiter.count("lease_request"), world.arbiter.count("lease_renew")) == (1, 1, 0)


@covers("relay.leases")
async def test_a_lease_outlives_a_scheduler_that_is_started_again(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "word " * 30, "delay_s": 0.05}]) as world:
        stream = await world.client.chat.completions.create(model="writer", messages=SAY, stream=True)
        world.arbiter.away = True
        await _rest(aiter(stream))
        world.arbiter.away = False
        await world.client.chat.completions.create(model="writer", messages=SAY)
        assert world.arbiter.count("lease_request") == 1


@covers("relay.copies")
async def test_a_chat_goes_to_the_copy_for_chats_and_to_the_base_model_where_that_cannot_serve(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary", copy="writer-chat")) as world:
        await world.client.chat.completions.create(model="writer", messages=SAY)
        assert [each.body["model"] for each in world.servers["primary"].requests] == ["writer-chat"]
    failing = [{"content": "Good day.", "fault": "http_500", "first_n": 1}]
    async with bench(tmp_path, place("primary", copy="writer-chat"), turns=failing) as world:
        answer = await world.client.chat.completions.create(model="writer", messages=SAY)
        assert answer.choices[0].message.content == "Good day."
        assert [each.body["model"] for each in world.servers["primary"].requests] == ["writer-chat", "writer"]


@pytest.mark.parametrize("stream", [True, False])
@covers("relay.stops")
async def test_a_client_that_leaves_before_the_first_token_stops_the_server(tmp_path: Path, stream: bool) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "x", "fault": "never"}]) as world:
        asking = asyncio.create_task(world.client.chat.completions.create(model="writer", messages=SAY, stream=stream))
        await until(lambda: len(world.servers["primary"].requests) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.servers["primary"].until_outcome(0, "client_left")


@covers("relay.stops")
async def test_a_client_that_leaves_in_the_middle_of_a_stream_stops_the_server(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "word " * 500, "delay_s": 0.02}]) as world:
        stream = await world.client.chat.completions.create(model="writer", messages=SAY, stream=True)
        async for _ in stream:
            break
        await stream.close()
        await world.servers["primary"].until_outcome(0, "client_left")


@covers("relay.stops")
async def test_a_run_that_takes_the_card_ends_the_stream_with_the_reason(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "word " * 500, "delay_s": 0.02}]) as world:
        stream = await world.client.chat.completions.create(model="writer", messages=SAY, stream=True)
        pieces = aiter(stream)
        await anext(pieces)
        world.arbiter.take()
        with pytest.raises(openai.APIError, match="the card was given to a run"):
            await _rest(pieces)
        await world.servers["primary"].until_outcome(0, "client_left")


@covers("relay.stops", "relay.refuses")
async def test_a_run_that_takes_the_card_before_the_first_token_sends_the_client_on(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "x", "fault": "never"}]) as world:
        asking = asyncio.create_task(world.client.chat.completions.create(model="writer", messages=SAY))
        await until(lambda: len(world.servers["primary"].requests) == 1)
        world.arbiter.take()
        with pytest.raises(openai.BadRequestError, match="model is not loaded"):
            await asking


@pytest.mark.parametrize("fault", ["error_in_stream", "proxy_error_in_stream", "drop_mid_stream", "half_stream", "garbage"])
@covers("relay.untouched")
async def test_an_error_inside_a_stream_reaches_the_client(tmp_path: Path, fault: str) -> None:
    """Case 41: the status was sent, so what went wrong is in the body."""
    async with (
        bench(tmp_path, place("primary"), turns=[{"content": "half a sentence", "fault": fault}]) as world,
        httpx.AsyncClient() as raw,
    ):
        body = {"model": "writer", "messages": SAY, "stream": True}
        answer = await raw.post(f"{world.url}/v1/chat/completions", json=body)
        assert answer.status_code == 200
        assert "error" in answer.text
        assert "[DONE]" not in answer.text


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "not JSON"),
        (b"[]", 400, "must be a JSON object"),
        (b'{"messages":[]}', 400, "model name is missing from the request"),
        (b'{"model":7,"messages":[]}', 400, "model must be a string"),
        (b'{"model":"writer","messages":"hi"}', 400, "messages must be a list"),
        (b'{"model":"writer","messages":["' + b"x" * 3000 + b'"]}', 413, "2000"),
    ],
)
@covers("relay.refuses")
async def test_a_wrong_request_is_refused_in_the_protocols_own_form(tmp_path: Path, body: bytes, status: int, says: str) -> None:
    async with bench(tmp_path, place("primary")) as world, httpx.AsyncClient() as raw:
        answer = await raw.post(f"{world.url}/v1/chat/completions", content=body)
        assert answer.status_code == status
        assert says in answer.json()["error"]["message"]
        assert not world.servers["primary"].requests


@covers("relay.resolve")
async def test_the_models_are_listed_once_each(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary")) as world:
        assert [model.id async for model in world.client.models.list()] == ["writer", "coder"]
    async with bench(tmp_path, slots=False) as world:
        assert [model.id async for model in world.client.models.list()]


@pytest.mark.parametrize("fault", ["error_in_stream", "proxy_error_in_stream", "drop_mid_stream", "half_stream", "garbage"])
@covers("relay.untouched")
async def test_an_error_inside_a_stream_is_no_answer_to_the_official_client(tmp_path: Path, fault: str) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "half a sentence", "fault": fault}]) as world:
        stream = await world.client.chat.completions.create(model="writer", messages=SAY, stream=True)
        with pytest.raises(openai.APIError):
            await _rest(aiter(stream))


@covers("relay.untouched")
async def test_numbers_and_texts_that_no_parser_gives_back_the_same_pass_through(tmp_path: Path) -> None:
    body = (
        '{ "messages" : [{"role":"user","content":"\\ud83d lone \\u0000"}],'
        ' "seed": 123456789012345678901234567890, "x": 1.10e2, "model":"writer"}'
    )
    async with bench(tmp_path, place("primary", model="acme/writer")) as world, httpx.AsyncClient() as raw:
        answer = await raw.post(f"{world.url}/v1/chat/completions", content=body.encode())
        assert answer.status_code == 200
        (got,) = world.servers["primary"].requests
        assert got.body["seed"] == 123456789012345678901234567890
        assert got.body["messages"][0]["content"] == "\ud83d lone \x00"


@pytest.mark.parametrize("stream", [True, False])
@covers("relay.copies")
async def test_a_copy_that_answers_with_an_error_under_status_200_is_followed_by_the_base_model(tmp_path: Path, stream: bool) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(orjson.loads(request.content)["model"])
        kind = {"content-type": "text/event-stream" if stream else "application/json"}
        if asked[-1] == "writer-chat":
            return httpx.Response(
                200, headers=kind, content=b': ping\n\ndata: {"error":"Model unloaded."}\n\n' if stream else b'{"error":"x"}'
            )
        return httpx.Response(200, headers=kind, content=b'data: {"choices":[{"finish_reason":"stop"}]}\n\n' if stream else b"{}")

    async with bench(tmp_path, place("primary", copy="writer-chat")) as world, httpx.AsyncClient() as raw:
        world.relay.servers.transport = httpx.MockTransport(answer)
        got = await raw.post(f"{world.url}/v1/chat/completions", json={"model": "writer", "messages": SAY, "stream": stream})
        assert asked == ["writer-chat", "writer"]
        assert (got.status_code, "error" in got.text) == (200, False)


@covers("relay.stops", "relay.leases")
async def test_a_client_that_leaves_frees_the_slot_at_once(tmp_path: Path) -> None:
    """Case 40: a batch job or a second client may wait for it."""
    async with bench(tmp_path, place("primary"), turns=[{"content": "x", "fault": "never"}]) as world:
        asking = asyncio.create_task(world.client.chat.completions.create(model="writer", messages=SAY))
        await until(lambda: len(world.servers["primary"].requests) == 1)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await until(lambda: ("lease_release", {"leaseId": "lease-1", "reason": "the client left"}) in world.arbiter.asked)


@covers("relay.refuses")
async def test_a_model_that_nobody_lists_is_told_from_one_that_is_not_loaded(tmp_path: Path) -> None:
    async with bench(tmp_path) as world:
        with pytest.raises(openai.BadRequestError) as refused:
            await world.client.chat.completions.create(model="writer", messages=SAY)
        said = {"error": {"code": 400, "message": "model 'writer' not found", "type": "invalid_request_error"}}
        assert refused.value.response.json() == said


@covers("relay.resolve")
async def test_a_server_that_breaks_off_before_its_answer_and_an_engine_without_scheduler_are_said(tmp_path: Path) -> None:
    async with bench(tmp_path, place("primary"), turns=[{"content": "x", "fault": "drop_before_answer"}]) as world:
        with pytest.raises(openai.InternalServerError, match="gave no answer") as broken:
            await world.client.chat.completions.create(model="writer", messages=SAY)
        assert broken.value.status_code == 502
    async with bench(tmp_path, place("primary")) as world:
        world.arbiter.away = True
        with pytest.raises(openai.InternalServerError, match="is not there") as away:
            await world.client.chat.completions.create(model="writer", messages=SAY)
        assert away.value.status_code == 503
        world.arbiter.away = False


@covers("relay.refuses", "api.token")
async def test_a_wrong_key_and_a_path_that_is_not_served_are_said_in_the_protocols_own_form(tmp_path: Path) -> None:
    relay = Relay(ScriptedArbiter([]), {})
    gateway = make_gateway(MemoryLog(), tmp_path, MemoryLive(), Policy(token="the-token"), relay)
    async with served(gateway) as url:
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError, match="this API needs a token"):
                await stranger.models.list()
        async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="the-token", max_retries=0) as client:
            with pytest.raises(openai.NotFoundError, match="is not served here"):
                await client.embeddings.create(model="m", input="x")
