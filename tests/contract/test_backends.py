"""One suite for every backend: on the scripted server, whose wire format is llama-server's, and on a real one.

The simulator alone can break things on purpose; what it claims about the healthy wire is checked
against a real llama-server wherever `AETHERIUM_TEST_LLAMA_URL` names one.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from services.scheduler.backends.base import Backend, ChatReply, ChatRequest, Delta
from services.scheduler.backends.detect import detect
from services.scheduler.backends.faults import (
    BackendBroken,
    BackendFault,
    BackendRefused,
    CallTimeout,
    ConnectionDropped,
    ContextExceeded,
    InferenceUnreachable,
    ModelLoading,
    OutputUnparseable,
    ProtocolError,
    ProxyError,
    StreamBroken,
)
from services.scheduler.backends.llama_server import LlamaServerBackend
from services.scheduler.backends.openai import OpenAiBackend
from shared.errors import Verdict
from simulators.openai_server import bind
from simulators.testing import Simulator, running
from tests.requirements import covers

REAL = os.environ.get("AETHERIUM_TEST_LLAMA_URL", "")
USER = {"role": "user", "content": "Say hello."}
HELLO = "Hello. I am scripted, and this is long enough for several pieces."
TIME_TOOL = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time in a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}

Make = Callable[[str], OpenAiBackend]


@pytest.fixture(params=[OpenAiBackend, LlamaServerBackend], ids=["openai", "llama_server"])
async def make(request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    made: list[OpenAiBackend] = []

    def build(url: str) -> OpenAiBackend:
        made.append(request.param(url))
        return made[-1]

    yield build
    for backend in made:
        await backend.close()


def ask(**changes: Any) -> ChatRequest:
    return ChatRequest(**{"messages": [USER], "timeout_s": 5.0, **changes})


async def answer_of(make: Make, turn: dict[str, Any], **changes: Any) -> tuple[ChatReply, list[Delta], Simulator]:
    deltas: list[Delta] = []
    async with running([turn]) as simulator:
        reply = await make(simulator.url).chat(ask(**changes), deltas.append)
    return reply, deltas, simulator


async def fault_of(make: Make, turn: dict[str, Any], **changes: Any) -> BackendFault:
    async with running([turn]) as simulator:
        with pytest.raises(BackendFault) as caught:
            await make(simulator.url).chat(ask(**changes))
        assert len(simulator.requests) == 1
    return caught.value


# --- what holds for every server


async def check_answers_in_pieces(backend: Backend) -> None:
    deltas: list[Delta] = []
    reply = await backend.chat(ask(timeout_s=300.0, max_tokens=24, temperature=0.0, seed=1), deltas.append)
    assert reply.content
    assert "".join(delta.text for delta in deltas) == reply.content
    assert len(deltas) > 1
    assert reply.finish_reason in ("stop", "length")
    assert reply.usage.prompt_tokens > 0
    assert reply.usage.completion_tokens > 0
    assert reply.first_token_ms is not None
    assert 0 < reply.first_token_ms <= reply.duration_ms


async def check_serves_again_at_once(backend: Backend) -> None:
    """After a streamed answer llama-server closes the socket that it promised to keep."""
    for _ in range(3):
        assert (await backend.chat(ask(timeout_s=300.0, max_tokens=4))).content


async def check_lists_and_is_ready(backend: Backend) -> None:
    assert (await backend.healthy()).state == "ready"
    models = await backend.models()
    assert models
    assert all(model.id for model in models)


SUITE = [check_answers_in_pieces, check_serves_again_at_once, check_lists_and_is_ready]


@covers("llm.wire")
@pytest.mark.parametrize("check", SUITE)
async def test_every_backend_behaves_alike_on_the_simulator(make: Make, check: Callable[[Backend], Any]) -> None:
    async with running([{"content": HELLO}]) as simulator:
        await check(make(simulator.url))


@covers("llm.wire")
@pytest.mark.real_model
@pytest.mark.skipif(not REAL, reason="AETHERIUM_TEST_LLAMA_URL names no llama-server")
@pytest.mark.parametrize("check", SUITE)
async def test_every_backend_behaves_alike_on_a_real_llama_server(make: Make, check: Callable[[Backend], Any]) -> None:
    await check(make(REAL))


@covers("llm.wire")
@pytest.mark.real_model
@pytest.mark.skipif(not REAL, reason="AETHERIUM_TEST_LLAMA_URL names no llama-server")
async def test_a_real_llama_server_sends_the_chunks_that_the_simulator_sends() -> None:
    body = {"messages": [USER], "max_tokens": 4, "stream": True, "stream_options": {"include_usage": True}}
    async with running([{"content": HELLO}]) as simulator:
        simulated, real = [await shape_of_stream(url, body) for url in (simulator.url, REAL)]
    assert real == simulated


@pytest.mark.real_model
@pytest.mark.skipif(not REAL, reason="AETHERIUM_TEST_LLAMA_URL names no llama-server")
async def test_a_real_llama_server_refuses_what_does_not_fit_as_the_simulator_does(make: Make) -> None:
    (model, *_) = await LlamaServerBackend(REAL).models()
    assert model.context is not None
    with pytest.raises(ContextExceeded) as caught:
        await make(REAL).chat(ask(messages=[{"role": "user", "content": "word " * (model.context + 100)}], timeout_s=300.0))
    assert caught.value.details["context"] == model.context


async def shape_of_stream(url: str, body: dict[str, Any]) -> list[set[str]]:
    """The keys of the opening, the finish and the usage chunk, and the end."""
    async with httpx.AsyncClient(trust_env=False, timeout=300) as client:
        response = await client.post(f"{url}/v1/chat/completions", json=body)
    lines = [line for line in response.text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    assert lines[0].startswith('data: {"choices":')
    chunks = [httpx.Response(200, text=line.removeprefix("data: ")).json() for line in (lines[0], lines[-3], lines[-2])]
    return [set(chunk) - {"timings"} for chunk in chunks]


# --- answers


async def test_what_is_asked_is_sent_and_what_is_not_asked_is_left_to_the_server(make: Make) -> None:
    async with running([{"content": HELLO}]) as simulator:
        await make(simulator.url).chat(ask(model="m", tools=[TIME_TOOL], seed=7, response_format={"type": "text"}))
        body = simulator.requests[0].body
    assert (body["model"], body["tools"], body["seed"], body["response_format"]) == ("m", [TIME_TOOL], 7, {"type": "text"})
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}
    assert not {"temperature", "top_p", "max_tokens"} & set(body)


async def test_a_url_is_taken_with_and_without_v1(make: Make) -> None:
    async with running([{"content": HELLO}]) as simulator:
        for url in (simulator.url, f"{simulator.url}/v1", f"{simulator.url}/v1/"):
            assert (await make(url).chat(ask())).content == HELLO


def test_a_url_that_is_none_is_named_at_the_start() -> None:
    with pytest.raises(ValueError, match="'localhost:1234' is not an http or https URL"):
        OpenAiBackend("localhost:1234")


async def test_reasoning_is_told_apart_from_the_answer(make: Make) -> None:
    reply, deltas, _ = await answer_of(make, {"reasoning": "I think about it.", "content": "42"})
    assert (reply.reasoning, reply.content) == ("I think about it.", "42")
    assert "".join(delta.reasoning for delta in deltas) == reply.reasoning


async def test_native_calls_come_whole_in_order_and_as_written(make: Make) -> None:
    calls = [
        {"name": "get_time", "arguments": {"city": "Oslo"}, "id": "K7"},
        {"name": "get_time", "arguments": '{"city": "Bro', "id": "K7"},
    ]
    reply, _, _ = await answer_of(make, {"tool_calls": calls, "chunk": 3})
    assert [(call.name, call.arguments, call.server_id) for call in reply.tool_calls] == [
        ("get_time", '{"city": "Oslo"}', "K7"),
        ("get_time", '{"city": "Bro', "K7"),
    ]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize("chunk", [1, 2, 1000])
async def test_text_of_every_kind_survives_the_wire(make: Make, chunk: int) -> None:
    text = 'a\u2028b\u0085c\x0b "quotes" \\ back\nlines\r\nund Grüße 😀 data: [DONE]\n\n'
    reply, _, _ = await answer_of(make, {"content": text, "chunk": chunk})
    assert reply.content == text


async def test_an_answer_cut_by_the_token_limit_says_so(make: Make) -> None:
    reply, _, _ = await answer_of(make, {"content": "half", "finish_reason": "length"})
    assert reply.is_cut


async def test_llama_server_tells_the_context_of_one_slot() -> None:
    async with running({"context": 25_344, "slots": 4, "turns": [{"content": "x"}]}) as simulator:
        backend = LlamaServerBackend(simulator.url)
        (model,) = await backend.models()
        await backend.close()
    assert (model.context, model.parallel) == (25_344, 4)


# --- faults


@pytest.mark.parametrize(
    ("fault", "kind", "verdict"),
    [
        ("http_500", BackendBroken, Verdict.RETRY),
        ("parser_rejects", OutputUnparseable, Verdict.RETRY),
        ("loading", ModelLoading, Verdict.RETRY),
        ("context_exceeded", ContextExceeded, Verdict.FINAL),
        ("drop_before_answer", ConnectionDropped, Verdict.RETRY),
    ],
)
async def test_a_refusal_is_told_as_what_it_means(make: Make, fault: str, kind: type[BackendFault], verdict: Verdict) -> None:
    failed = await fault_of(make, {"fault": fault})
    assert type(failed) is kind
    assert failed.verdict is verdict
    assert failed.fragment == ""


@covers("llm.stream_broken")
@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("drop_mid_stream", ConnectionDropped),
        ("half_stream", StreamBroken),
        ("error_in_stream", BackendBroken),
        ("proxy_error_in_stream", ProxyError),
        ("garbage", ProtocolError),
    ],
)
async def test_a_stream_that_breaks_is_a_fault_that_keeps_its_fragment(make: Make, fault: str, kind: type[BackendFault]) -> None:
    failed = await fault_of(make, {"content": HELLO, "fault": fault})
    assert type(failed) is kind
    assert failed.fragment
    assert HELLO.startswith(failed.fragment)
    assert failed.fragment != HELLO


async def test_a_fault_that_hits_the_first_requests_only_is_over_after_them(make: Make) -> None:
    async with running([{"content": HELLO, "fault": "drop_mid_stream", "first_n": 2}]) as simulator:
        backend = make(simulator.url)
        for _ in range(2):
            with pytest.raises(ConnectionDropped):
                await backend.chat(ask())
        assert (await backend.chat(ask())).content == HELLO


async def test_the_size_of_a_prompt_that_does_not_fit_is_told(make: Make) -> None:
    failed = await fault_of(make, {"fault": "context_exceeded"})
    assert failed.details["prompt_tokens"] > failed.details["context"] > 0


async def test_no_server_is_unreachable_and_down(make: Make) -> None:
    sock = bind(0)  # bound and not listening: nobody else can take the port meanwhile
    backend = make(f"http://127.0.0.1:{sock.getsockname()[1]}")
    try:
        with pytest.raises(InferenceUnreachable, match="Start it"):
            await backend.chat(ask())
        health = await backend.healthy()
    finally:
        sock.close()
    assert health.state == "down"
    assert "Start it" in health.reason


async def test_a_server_that_loads_its_model_is_loading_everywhere(make: Make) -> None:
    async with running({"load_s": 600, "turns": [{"content": "x"}]}) as simulator:
        backend = make(simulator.url)
        assert (await backend.healthy()).state == "loading"
        for call in (backend.models(), backend.chat(ask())):
            with pytest.raises(ModelLoading):
                await call


async def test_a_total_timeout_is_the_callers_and_frees_the_server(make: Make) -> None:
    async with running([{"fault": "never"}]) as simulator:
        with pytest.raises(CallTimeout) as caught:
            await make(simulator.url).chat(ask(timeout_s=1.0))
        await simulator.until_outcome(0, "client_left")
    assert caught.value.verdict is Verdict.FINAL
    assert caught.value.details["kind"] == "total"


@covers("llm.stream_broken")
async def test_a_silence_in_mid_answer_is_a_timeout_too(make: Make) -> None:
    async with running([{"content": HELLO, "delay_s": 60}]) as simulator:
        with pytest.raises(CallTimeout) as caught:
            await make(simulator.url).chat(ask(idle_timeout_s=0.1))
        await simulator.until_outcome(0, "client_left")
    assert caught.value.details["kind"] == "idle"
    assert caught.value.fragment


@pytest.mark.parametrize("turn", [{"content": HELLO, "first_token_delay_s": 60}, {"content": HELLO, "delay_s": 60}])
async def test_cancelling_a_call_stops_the_work_upstream(make: Make, turn: dict[str, Any]) -> None:
    async with running([turn]) as simulator:
        task = asyncio.create_task(make(simulator.url).chat(ask(timeout_s=None)))
        await simulator.until_outcome(0, "open")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await simulator.until_outcome(0, "client_left")


async def test_a_listener_that_raises_ends_the_call_with_its_own_error(make: Make) -> None:
    def refuse(_: Delta) -> None:
        raise LookupError("nobody listens")

    async with running([{"content": HELLO, "delay_s": 60}]) as simulator:
        with pytest.raises(LookupError):
            await make(simulator.url).chat(ask(), refuse)
        await simulator.until_outcome(0, "client_left")


# --- bodies that no simulator of llama-server sends


def serving(body: str | bytes, *, status: int = 200, kind: str = "text/event-stream", **headers: str) -> OpenAiBackend:
    def respond(_: httpx.Request) -> httpx.Response:
        return httpx.Response(status, content=body, headers={"content-type": kind, **headers})

    return OpenAiBackend("http://server.test", transport=httpx.MockTransport(respond))


END = 'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


@covers("llm.stream_broken")
@pytest.mark.parametrize(
    ("stream", "words", "fragment"),
    [
        ('data: {"error":"exploded"}\n\ndata: [DONE]\n\n', "exploded", ""),
        (
            'data: {"choices":[{"delta":{"content":"Par"}}]}\n\ndata: {"error":{"message":"out of memory","code":500}}\n\n',
            "out of memory",
            "Par",
        ),
        ('event: error\ndata: {"message":"overloaded"}\n\n', "overloaded", ""),
        ('data: {"choices":[],"error":{"message":"limit reached"}}\n\ndata: [DONE]\n\n', "limit reached", ""),
        (": ping\nretry: 3000\n\ndata: {bad json\ndata: [DONE]\n\n", "not JSON", ""),
        ('error: {"message":"an old build","code":500}\n\n' + END, "an old build", ""),
    ],
)
async def test_an_error_inside_a_good_stream_fails_the_turn(stream: str, words: str, fragment: str) -> None:
    with pytest.raises(BackendFault, match=words) as caught:
        await serving(stream).chat(ask())
    assert caught.value.fragment == fragment


async def test_a_parser_that_rejects_a_streamed_answer_is_told_as_unparseable() -> None:
    stream = (
        'data: {"choices":[{"delta":{"content":"Reading the file."}}]}\n\n'
        'data: {"choices":[{"delta":{"tool_calls":[{"index":0,"id":"x",'
        '"function":{"name":"write_file","arguments":"{\\"path\\":"}}]}}]}\n\n'
        'data: {"error":{"code":500,"type":"server_error","message":"Failed to parse input at pos 812"}}\n\n'
    )
    with pytest.raises(OutputUnparseable) as caught:
        await serving(stream).chat(ask())
    assert caught.value.fragment == "Reading the file."
    assert caught.value.code == "llm.output_unparseable"


@pytest.mark.parametrize("missing", ['data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n', "data: [DONE]\n\n"])
async def test_an_answer_needs_both_a_finish_reason_and_the_end_marker(missing: str) -> None:
    start = 'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
    with pytest.raises(StreamBroken):
        await serving(start + missing).chat(ask())
    assert (await serving(start + END).chat(ask())).content == "Hi"


async def test_keep_alive_comments_empty_choices_and_nulls_are_no_text() -> None:
    noise = ': ping\n\ndata: {"choices":[]}\n\ndata: {"choices":[{"delta":{"content":null}}]}\n\ndata: {"choices":[{"delta":{}}]}\n\n'
    reply = await serving(noise + 'data: {"choices":[{"delta":{"content":"Hi"}}],"usage":null}\r\n\r\n' + noise + END).chat(ask())
    assert reply.content == "Hi"


async def test_a_server_that_does_not_stream_is_read_whole() -> None:
    body = '{"choices":[{"finish_reason":"stop","message":{"content":"Hi","reasoning":"hm"}}],"usage":{"prompt_tokens":3}}'
    reply = await serving(body, kind="application/json").chat(ask())
    assert (reply.content, reply.reasoning, reply.usage.prompt_tokens) == ("Hi", "hm", 3)


@pytest.mark.parametrize(
    ("body", "kind", "fault"),
    [
        ('{"error":"Unexpected endpoint or method. (POST /v1/chat/completions)"}', "application/json", BackendBroken),
        ("<html>a router's page</html>", "text/html", ProtocolError),
        ("[]", "application/json", ProtocolError),
        ("", "application/json", ProtocolError),
        ('{"choices":[]}', "application/json", StreamBroken),
    ],
)
async def test_a_status_of_200_alone_is_no_answer(body: str, kind: str, fault: type[BackendFault]) -> None:
    with pytest.raises(fault):
        await serving(body, kind=kind).chat(ask())


async def test_a_redirect_is_not_followed_with_the_prompt() -> None:
    with pytest.raises(BackendRefused):
        await serving("", status=302, location="http://elsewhere.test/").chat(ask())


async def test_a_server_that_asks_for_a_pause_says_how_long() -> None:
    with pytest.raises(BackendFault) as caught:
        await serving("Too Many Requests", status=429, kind="text/plain", **{"retry-after": "7"}).chat(ask())
    assert caught.value.code == "llm.overloaded"
    assert caught.value.details["retry_after_s"] == 7


# --- finding a server


@covers("llm.detect")
async def test_detection_takes_the_first_place_that_lists_a_model() -> None:
    async with running([{"content": "x"}]) as first, running([{"content": "x"}]) as second:
        silent = bind(0)
        silent.listen()  # accepts and never answers
        nobody = f"http://127.0.0.1:{silent.getsockname()[1]}"
        try:
            found = await detect([nobody, second.url, first.url], timeout_s=0.5)
            assert await detect([nobody], timeout_s=0.1) is None
        finally:
            silent.close()
    assert found == second.url


async def test_detection_counts_a_server_that_still_loads() -> None:
    async with running({"load_s": 600, "turns": [{"content": "x"}]}) as simulator:
        assert await detect([simulator.url]) == simulator.url


@covers("llm.detect")
async def test_detection_of_nothing_finds_nothing() -> None:
    assert await detect([]) is None
