"""Reading a server's stream: bytes to events, events to an answer, words to faults."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.backends import faults
from services.scheduler.backends.assembly import Assembly
from services.scheduler.backends.errors import error_in, error_in_body, fault_of
from services.scheduler.backends.sse import SseEvent, SseParser


def events(*chunks: bytes) -> list[SseEvent]:
    parser = SseParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.finish()


@settings(deadline=None, max_examples=80)
@given(st.lists(st.text(max_size=12), max_size=5), st.integers(1, 7), st.sampled_from(["\n", "\r\n"]))
def test_events_are_the_same_however_the_bytes_arrive(texts: list[str], size: int, newline: str) -> None:
    bodies = [json.dumps({"text": text.replace("\ud800", "")}, ensure_ascii=False) for text in texts]
    raw = "".join(f": ping{newline}data: {body}{newline}{newline}" for body in bodies).encode("utf-8", "replace")
    expected = [SseEvent(body.encode("utf-8", "replace").decode()) for body in bodies]
    assert events(*(raw[start : start + size] for start in range(0, len(raw), size))) == expected == events(raw)


def test_a_line_that_is_no_field_is_told_as_stray_and_an_unclosed_event_is_given() -> None:
    assert events(b'data: {"a":1}\n', b"proxy error: gone") == [SseEvent('{"a":1}'), SseEvent("proxy error: gone", stray=True)]
    assert events(b'error: {"m":1}\n') == [SseEvent('{"m":1}', kind="error", stray=True)]
    assert events(b"data: {}") == [SseEvent("{}")]


def assembled(*deltas: dict[str, Any]) -> Assembly:
    answer = Assembly()
    for delta in deltas:
        answer.add({"choices": [{"delta": delta}]})
    return answer


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    name = fields.pop("name", None)
    return {"tool_calls": [{**fields, "function": {"arguments": arguments, **({"name": name} if name else {})}}]}


@pytest.mark.parametrize(
    "deltas",
    [
        (call('{"a"', index=0, id="x", name="f"), call(":1}", index=0), call("{}", index=1, id="x", name="g")),
        (call('{"a"', id="x", name="f"), call(":1}"), call("{}", id="x", name="g")),
        (call('{"a"', index=0, id="x", name="f"), call(":1}", index=0, id="x"), call("{}", index=0, id="y", name="g")),
        (call('{"a"', index=0, name="f"), call(":1}", index=0, name="f"), call("{}", index=1, name="g")),
        (call('{"a":1}', index=0, name="f"), call({}, index=1, name="g")),
    ],
)
def test_calls_are_told_apart_by_index_or_else_by_name_and_id(deltas: tuple[dict[str, Any], ...]) -> None:
    assert [(one.name, one.arguments) for one in assembled(*deltas).calls] == [("f", '{"a":1}'), ("g", "{}")]


def test_a_character_sent_in_two_halves_is_whole_in_the_answer() -> None:
    assert assembled({"content": "\ud83d"}, {"content": "\ude00\x00"}).content == "😀\ufffd"


def test_usage_is_taken_from_timings_where_there_is_no_other() -> None:
    answer = Assembly()
    answer.add({"choices": [], "timings": {"cache_n": 173, "prompt_n": 5, "predicted_n": 24}})
    assert (answer.usage.prompt_tokens, answer.usage.cached_tokens, answer.usage.completion_tokens) == (178, 173, 24)


@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3))
)
def test_a_field_of_another_type_counts_as_absent(odd: Any) -> None:
    answer = Assembly()
    answer.add({"choices": odd, "usage": odd, "model": odd})
    for delta in ({"content": odd, "tool_calls": odd}, odd, {"tool_calls": [{"index": odd, "id": odd, "function": odd}]}):
        answer.add({"choices": [{"delta": delta, "finish_reason": odd}], "usage": {"prompt_tokens": odd}})
    assert isinstance(answer.content, str)
    assert answer.usage.total >= 0


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, '{"error":{"message":"Loading model","type":"unavailable_error","code":503}}', faults.ModelLoading),
        (500, '{"error":{"code":500,"message":"model name=coder-q8 failed to load"}}', faults.ModelLoadFailed),
        (200, '{"error":{"type":"model_load_failed","message":"Failed to load LLM"}}', faults.ModelLoadFailed),
        (400, '{"error":"Model unloaded."}', faults.ModelNotLoaded),
        (400, '{"error":"No models loaded. Please load a model."}', faults.ModelNotLoaded),
        (400, '{"error":{"message":"model is not loaded"}}', faults.ModelNotLoaded),
        (400, '{"error":"The model has crashed without additional information. (Exit code: 1844)"}', faults.ModelNotLoaded),
        (
            400,
            '{"error":"The number of tokens to keep from the initial prompt is greater than the context length"}',
            faults.ContextExceeded,
        ),
        (400, '{"error":{"message":"Failed to load model. Error: insufficient system resources."}}', faults.OutOfMemory),
        (500, "proxy error: Could not establish connection", faults.ProxyError),
        (502, "<html>502</html>", faults.ProxyError),
        (500, '{"error":{"message":"Failed to parse input at pos 4: <|channel|>"}}', faults.OutputUnparseable),
        (503, '{"error":"server busy, please try again.  maximum pending requests exceeded"}', faults.Overloaded),
        (429, "", faults.Overloaded),
        (401, '{"error":{"message":"Invalid API Key","type":"authentication_error","code":401}}', faults.BackendRefused),
        (404, '{"error":{"message":"File Not Found","type":"not_found_error","code":404}}', faults.BackendRefused),
        (400, '{"error":{"message":"invalid temperature"}}', faults.BackendRefused),
        (500, '{"error":{"code":500,"message":"oh no"}}', faults.BackendBroken),
        (500, "", faults.BackendBroken),
        (500, "[" * 100_000, faults.BackendBroken),
    ],
)
def test_the_words_of_a_server_decide_before_its_status(status: int, body: str, kind: type[faults.BackendFault]) -> None:
    fault = fault_of(error_in_body(body), status=status, server="http://server.test")
    assert type(fault) is kind
    assert fault.details["status"] == status
    assert len(fault.message) < 1000
    json.dumps(fault.as_dict())


def test_a_refusal_for_the_key_names_the_key() -> None:
    fault = fault_of(error_in_body("no"), status=401, server="http://server.test")
    assert "API key" in fault.message


@pytest.mark.parametrize("body", [{"choices": []}, {"error": None}, {"error": ""}, {}, [], None, "error"])
def test_a_body_without_an_error_holds_none(body: Any) -> None:
    assert error_in(body) is None
