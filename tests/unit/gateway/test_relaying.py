"""What passes through the relay: a request's bytes but for the model's name, and a stream's up to its first error."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.relaying import chat
from services.gateway.relaying.chat import WrongChat
from services.gateway.relaying.stream import Passage
from tests.requirements import covers

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), VALUES, max_size=4), st.text(min_size=1), st.text(min_size=1), st.sampled_from([None, 2]), st.booleans())
@covers("relay.untouched")
def test_only_the_models_name_is_another(more: dict[str, Any], model: str, name: str, indent: int | None, ascii_only: bool) -> None:
    body = {**more, "model": model, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    body.pop("user", None)
    body.pop("safety_identifier", None)
    raw = json.dumps(body, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    try:
        asked = chat.read(raw)
    except WrongChat:
        assert not _is_utf8(raw)
        return
    assert (asked.model, asked.is_stream) == (model, True)
    assert asked.for_model(model) == raw
    assert json.loads(asked.for_model(name)) == {**body, "model": name}


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


@covers("relay.untouched")
def test_a_name_that_is_given_twice_is_replaced_twice() -> None:
    raw = b'{"model":"a","messages":[{"model":"b"}],"model" : "c"}'
    assert chat.read(raw).for_model("d") == b'{"model":"d","messages":[{"model":"b"}],"model" : "d"}'


@pytest.mark.parametrize(
    ("raw", "says", "param"),
    [
        (b"", "not JSON", None),
        (b'{"model":"a",}', "not JSON", None),
        (b'{"model":"a","messages":[1]} x', "something follows", None),
        (b'{"model" "a"}', "expected ':'", None),
        (b"{1:2}", "key in quotes", None),
        (b'"text"', "must be a JSON object", None),
        (b'{"model":"\xff"}', "not UTF-8", None),
        (b'{"x":' + b"[" * 200_000, "nested too deeply", None),
        (b"{}", "model name is missing", "model"),
        (b'{"model":"a"}', "messages must be a list", "messages"),
        (b'{"model":"a","messages":[]}', "at least one", "messages"),
        (b'{"model":"a","messages":[1],"stream":"yes"}', "stream must be", "stream"),
    ],
)
@covers("relay.refuses")
def test_a_request_that_is_no_chat_is_refused_by_the_field_to_mend(raw: bytes, says: str, param: str | None) -> None:
    with pytest.raises(WrongChat, match=says) as refused:
        chat.read(raw)
    assert refused.value.param == param


# ---- the stream

WORDS = b'data: {"choices":[{"delta":{"content":"Par"}}]}\n\n'
LAST = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'
DONE = b"data: [DONE]\n\n"


def passed(stream: bytes, cuts: list[int]) -> tuple[bytes, Passage]:
    """What comes out of a stream that the network cuts where it likes."""
    passage, out, at = Passage(), b"", 0
    for cut in [*sorted(cuts), len(stream)]:
        out += passage.feed(stream[at:cut])
        at = max(at, cut)
    return out + passage.finish(), passage


@given(
    st.lists(st.sampled_from([WORDS, b": ping\n\n", b"retry: 3000\r\n\r\n", b'data: {"choices":[],\ndata: "usage":{}}\n\n']), max_size=5),
    st.data(),
)
@covers("relay.untouched")
def test_a_good_stream_passes_byte_for_byte_however_it_is_cut(events: list[bytes], data: st.DataObject) -> None:
    stream = b"".join([*events, LAST, DONE])
    out, passage = passed(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    assert (out, passage.is_over) == (stream, False)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (b'data: {"error":"exploded"}\n\n' + DONE, "exploded"),
        (WORDS + b'data: {"error":{"message":"out of memory","code":500}}\n\n', "out of memory"),
        (b'event: error\ndata: {"message":"overloaded"}\n\n', "overloaded"),
        (b'event: error\ndata: {"error":"Model unloaded."}\n\n', "Model unloaded."),
        (b'data: {"choices":[],"error":{"message":"limit reached"}}\n\n' + DONE, "limit reached"),
        (b": ping\nretry: 3000\n\ndata: {bad json\n\n" + DONE, "not JSON"),
        (WORDS + b'error: {"message":"no slot"}\n\n' + DONE, "no slot"),
        (WORDS + b"proxy error: Failed to read connection", "proxy error: Failed to read connection"),
        (WORDS, "before it was whole"),
        (b"", "before it was whole"),
        (b'data: {"error":{}}\n\n', "error"),
    ],
)
@given(st.data())
@covers("relay.untouched")
def test_an_error_in_any_shape_is_said_once_in_the_one_that_clients_read_and_nothing_follows(
    stream: bytes, says: str, data: st.DataObject
) -> None:
    out, passage = passed(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    *before, last = [event for event in out.split(b"\n\n") if event.strip()]
    error = orjson.loads(last.splitlines()[-1].removeprefix(b"data: "))["error"]
    assert says in error["message"]
    assert passage.is_over
    assert out.endswith(b"\n\n")
    assert b"[DONE]" not in out
    assert all(b"error" not in event for event in before)


@covers("relay.untouched")
def test_an_error_that_clients_can_read_passes_as_it_came() -> None:
    event = b'id: 7\ndata: {"error": {"message":"full", "extra": 1.50}}\n\n'
    assert passed(WORDS + event + DONE, [])[0] == WORDS + event


@covers("relay.untouched")
def test_an_answer_that_came_to_its_end_is_whole_without_the_last_marker() -> None:
    assert passed(WORDS + LAST, [])[0] == WORDS + LAST
    assert passed(WORDS + LAST.rstrip(), [])[0] == WORDS + LAST
