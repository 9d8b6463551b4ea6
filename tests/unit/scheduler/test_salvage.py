"""Reading replies: what is a call, what is shown, what is thought, whatever a model writes."""

from __future__ import annotations

import json
import string
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.scheduler.dialects.calls import NativeCall, ParsedCall, Reading
from services.scheduler.dialects.harmony import without_markers
from services.scheduler.dialects.salvage import read_reply
from services.scheduler.dialects.scan import Braces
from tests.requirements import covers


def schema(*required: str, **properties: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in properties.items()}, "required": list(required)}


SCHEMAS = {
    "list_dir": schema(path="string"),
    "read_file": schema("path", path="string"),
    "write_file": schema("path", "content", path="string", content="string", tags="array", mode="integer", force="boolean"),
    "shell_run": schema("cmd", cmd="string"),
    "finish": schema(),
}
TOOLS = tuple(SCHEMAS)


def read(content: str, *native: NativeCall, cut: bool = False) -> Reading:
    return read_reply(content, native, TOOLS, SCHEMAS, cut=cut)


def called(reading: Reading) -> list[tuple[str, dict[str, Any]]]:
    assert all(call.error is None for call in reading.calls)
    return [(call.name, call.arguments) for call in reading.calls]


def only(reading: Reading) -> ParsedCall:
    (call,) = reading.calls
    return call


A_CALL = '{"name": "read_file", "arguments": {"path": "a"}}'
THE_CALL = [("read_file", {"path": "a"})]

# --- the ways of writing


@covers("model.salvage")
@pytest.mark.parametrize(
    "content",
    [
        A_CALL,
        f"```json\n{A_CALL}\n```",
        f"```\n{A_CALL}",
        f"Action: {A_CALL}",
        f"Action:\n```json\n{A_CALL}\n```",
        f"[{A_CALL}]",
        f"```json\n[\n  {A_CALL},\n]\n```",
        f"[TOOL_CALLS][{A_CALL}]",
        f"<|tool_call|>[{A_CALL}]",
        f"[TOOL_REQUEST]{A_CALL}[END_TOOL_REQUEST]",
        f"<tools>\n{A_CALL}\n</tools>",
        f"<tool_call>[{A_CALL}]</tool_call>",
        f"<|python_tag|>{A_CALL}<|eom_id|>",
        A_CALL + "}",
        "{" + A_CALL + "}",
        "{" + A_CALL,
        '{{"name": "read_file", "arguments": {{"path": "a"}}}}',
        '{"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}',
        '{"tool": "read_file", "input": {"path": "a"}}',
        '{"function": "read_file", "args": {"path": "a"}}',
        '{"action": "read_file", "action_input": {"path": "a"}}',
        '{"name": "read_file", "parameters": {"path": "a"}}',
        '{"name": "read_file", "path": "a"}',
        '{"type": "function", "function": {"name": "read_file", "arguments": "{\\"path\\": \\"a\\"}"}}',
        f'{{"tool_calls": [{{"id": "1", "type": "function", "function": {A_CALL}}}]}}',
        "{'name': 'read_file', 'arguments': {'path': 'a',}}",
        '<tool_call>{"name": "read_file", "arguments": {"path": "a"}</tool_call>',
        '{"name": "read_file", "arguments": {"path": "a"}',
        "<function=read_file>\n<parameter=path>\na\n</parameter>\n</function>",
        "<tool_call>\n<function=read_file>\n<parameter=path>a</parameter>\n</function>\n</tool_call>",
        '<function=read_file>{"path": "a"}</function>',
        f"<think>Reading it is best.</think>{A_CALL}",
        '<|channel|>commentary to=functions.read_file <|constrain|>json<|message|>{"path": "a"}<|call|>',
        '<|start|>assistant<|channel|>commentary to=functions.read_file<|message|>{"path": "a"}',
    ],
)
def test_a_call_is_read_in_every_way_that_models_write_it_and_leaves_nothing_to_see(content: str) -> None:
    reading = read(content)
    assert called(reading) == THE_CALL
    assert (reading.visible, reading.problem) == ("", None)
    assert only(reading).source == "salvaged"


@covers("model.salvage")
def test_several_calls_keep_their_order_and_the_words_around_them_stay() -> None:
    reading = read(f'First:\n{A_CALL}\nthen\n{{"tool": "list_dir", "args": {{}}}} {{"name": "finish", "arguments": {{}}}}\nThat is all.')
    assert [name for name, _ in called(reading)] == ["read_file", "list_dir", "finish"]
    assert reading.visible == "First:\nthen\nThat is all."


def test_a_file_within_a_call_may_hold_anything() -> None:
    text = '```py\n<think>{"name": "finish"}</think>\n</tool_call> <|end|> \'\'\'\n```\n{{ x }} </parameter> \\d'
    arguments = {"path": "a", "content": text}
    plain = json.dumps({"name": "write_file", "arguments": arguments})
    for content in (plain, f"```json\n{plain}\n```", f"<tool_call>{plain}</tool_call>"):
        assert called(read(content)) == [("write_file", arguments)]
    tagged = f"<function=write_file><parameter=path>a</parameter><parameter=content>\n{text}\n</parameter></function>"
    assert called(read(tagged)) == [("write_file", arguments)]
    channel = f"<|channel|>commentary to=functions.write_file<|message|>{json.dumps(arguments)}<|call|>"
    assert called(read(channel)) == [("write_file", arguments)]


def test_text_in_tags_becomes_what_the_schema_declares() -> None:
    tagged = "<function=write_file>" + "".join(
        f"<parameter={name}>\n{value}\n</parameter>\n"
        for name, value in {"path": "a", "content": "12", "tags": '["x"]', "mode": "420", "force": "True"}.items()
    )
    expected = {"path": "a", "content": "12", "tags": ["x"], "mode": 420, "force": True}
    assert called(read(tagged + "</function>")) == [("write_file", expected)]


@covers("model.repair")
def test_raw_newlines_and_escapes_that_json_lacks_are_read_as_they_are_meant() -> None:
    reading = read('{"name": "write_file", "arguments": {"path": "re.py", "content": "a\n\\d+\\.b\\n"}}')
    assert only(reading).arguments["content"] == "a\n\\d+\\.b\n"
    assert [repair.what for repair in only(reading).repairs] == ["escapes"]


# --- what is no call


@pytest.mark.parametrize(
    "answer",
    [
        '{"name": "Alice", "age": 30}',
        'The set {1, 2} and {"a": [1, {"b": "}"}]} are data.',
        '{"name": "read_file", "description": "Reads.", "parameters": {"type": "object", "properties": {"path": {"type": "string"}}}}',
        '{"name": "get_user", "parameters": {"type": "object", "properties": {}}}',
        '{"name": "read_file"}',
        '{"name": "read_file", "size": 12}',
        '```python\ncall({"name": "finish", "arguments": {}})\n```',
        'An unfinished {"thing": 1, "other',
        "Tags such as `<think>`, `</think>` and `<tool_call>` are markup.",
        'f"{x}" and \\{ and }{',
        "```yaml\na: {b: c}",
    ],
)
def test_an_answers_own_data_is_shown_and_not_called(answer: str) -> None:
    assert read(answer) == Reading(visible=answer)


def test_a_call_of_an_unknown_tool_is_answered_with_the_real_names() -> None:
    call = only(read('{"name": "save_file", "arguments": {"path": "a"}}'))
    assert call.name == "save_file"
    assert call.error == "There is no tool 'save_file'. Call one of: list_dir, read_file, write_file, shell_run, finish."


def test_nothing_within_a_thought_is_acted_on_or_shown() -> None:
    for content in (f"<think>{A_CALL}</think>Done.", f"{A_CALL} no.</think>Done.", f"<THINK>a <think>b</think> {A_CALL}</think>Done."):
        reading = read(content)
        assert (reading.visible, reading.calls, reading.problem) == ("Done.", (), None)
        assert A_CALL in reading.reasoning


def test_a_thought_without_an_end_is_all_thought() -> None:
    reading = read(f"Well. <think>Perhaps {A_CALL}")
    assert (reading.visible, reading.calls) == ("Well.", ())


def test_a_thought_that_speaks_of_its_tag_ends_at_the_last_end() -> None:
    assert read("<think>I use <think> tags.</think>Done.").visible == "Done."


def test_channels_tell_thoughts_from_the_answer() -> None:
    reading = read("<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>It is {42}.<|return|>")
    assert (reading.reasoning, reading.visible) == ("Hm.", "It is {42}.")


# --- what is cut off or broken


@covers("model.salvage.cut")
@pytest.mark.parametrize(
    "content",
    [
        f"<tool_call>\n{A_CALL}",
        "Now. <tool_call>",
        '<tool_call>{"name": "read_file", "arguments": {"pa',
        f'<tool_call>{{"name": "shell_run", "arguments": {{"cmd": "{A_CALL}',
        "<function=read_file><parameter=path>a</parameter>",
        "<function=read_file",
        '{"name": "write_file", "arguments": {"path": "x", "content": "[{"name": "finish", "arguments": {}}',
        '{"arguments": {"name": "finish", "arguments": {}}, "na',
        '<|channel|>commentary to=functions.read_file<|message|>{"path": "a',
        '{"name": "read_file", "arguments": {{{"path": }}}}',
    ],
)
def test_a_call_that_is_not_whole_is_not_run_and_the_model_is_told(content: str) -> None:
    reading = read(content)
    assert reading.calls == ()
    assert reading.visible in ("", "Now.")
    assert reading.problem is not None
    assert "not run" in reading.problem or "nothing was run" in reading.problem


def test_a_missing_last_brace_is_not_added_to_a_reply_that_the_token_limit_ended() -> None:
    assert read(A_CALL[:-1], cut=True).calls == ()
    assert called(read(A_CALL[:-1])) == THE_CALL


def test_calls_before_one_that_is_cut_stand() -> None:
    reading = read(f'<tool_call>{A_CALL}</tool_call><tool_call>{{"name": "fin')
    assert called(reading) == THE_CALL
    assert reading.problem is not None


def test_json_that_cannot_be_stored_is_refused_in_words() -> None:
    for value in ("1" * 30, "NaN", "1e999", "[" * 200 + "]" * 200):
        call = only(read(f'{{"name": "write_file", "arguments": {{"path": "a", "content": "b", "tags": {value}}}}}'))
        assert call.error is not None
        assert call.name == "write_file"


def test_nul_and_lone_surrogates_are_replaced() -> None:
    call = only(read('{"name": "read_file", "arguments": {"path": "a\\u0000b\\ud800"}}'))
    assert call.arguments == {"path": "a\ufffdb\ufffd"}
    assert read("a\x00b\ud83d").visible == "a\ufffdb\ufffd"


# --- native calls


def test_native_calls_are_read_and_the_content_is_only_cleaned() -> None:
    reading = read(f"<think>hm</think>Reading. {A_CALL}", NativeCall("list_dir", '{"path": "src"}', "K7"), NativeCall("finish", ""))
    assert called(reading) == [("list_dir", {"path": "src"}), ("finish", {})]
    assert {call.source for call in reading.calls} == {"native"}
    assert (reading.visible, reading.reasoning) == ("Reading.", "hm")


@pytest.mark.parametrize("arguments", ['{"path": "a", "content": "b', '{"path": "a"', "[1]", '"a"', "a", '{"path": "a"} and more {'])
def test_native_arguments_that_are_no_whole_object_are_an_error_and_not_completed(arguments: str) -> None:
    call = only(read("", NativeCall("write_file", arguments)))
    assert call.error is not None
    assert "write_file" in call.error
    assert call.arguments == {}


@covers("model.repair")
@pytest.mark.parametrize("arguments", ["{'path': 'a'}", '{"path": "a",}', '"{\\"path\\": \\"a\\"}"', '{{"path": "a"}}', ' {"path": "a"}\n'])
def test_native_arguments_with_a_slip_are_mended(arguments: str) -> None:
    assert called(read("", NativeCall("read_file", arguments))) == THE_CALL


# --- cases from the field


def test_tags_outside_of_reasoning_are_calls_in_order() -> None:
    reading = read(
        '<think>\nOne idea would be <tool_call>{"name":"shell_run","arguments":{"cmd":"rm -r build"}}</tool_call> but that is too much.\n'
        '</think>\nLooking at the folder.\n<tool_call>\n{"name": "list_dir", "arguments": {"path": "src"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "read_file", "arguments": {"path": "README.md"}}\n</tool_call>'
    )
    assert called(reading) == [("list_dir", {"path": "src"}), ("read_file", {"path": "README.md"})]
    assert reading.visible == "Looking at the folder."


@pytest.mark.parametrize("name", ["list_dir<|channel|>commentary", "functions.list_dir", "LIST-DIR", " list_dir "])
def test_control_tokens_and_prefixes_in_a_name_do_not_hide_the_tool(name: str) -> None:
    call = only(read("", NativeCall(name, '{"path":"src"}')))
    assert (call.name, call.arguments, call.error) == ("list_dir", {"path": "src"}, None)
    assert [(repair.what, repair.before, repair.after) for repair in call.repairs] == [("tool_name", name, "list_dir")]


def test_a_channel_without_a_recipient_is_an_empty_turn() -> None:
    reading = read('<|channel|>commentary<|message|>{"path": "/", "pattern": "*budget*"}<|end|>')
    assert reading.is_empty


def test_a_string_that_looks_like_json_stays_the_string_it_is() -> None:
    content = '{"port": 8080, "debug": true}'
    arguments = json.dumps({"path": "cfg.json", "content": content, "tags": '["config"]'})
    call = only(read("", NativeCall("write_file", arguments)))
    assert call.arguments == {"path": "cfg.json", "content": content, "tags": ["config"]}
    assert len(content.encode()) == 29
    for literal in ("123", "true", "null"):
        call = only(read("", NativeCall("write_file", json.dumps({"path": "a", "content": literal}))))
        assert call.arguments["content"] == literal


@pytest.mark.parametrize("content", ["", "\n  \n", "<think>long thinking</think>"])
def test_a_reply_without_anything_to_see_is_empty_and_no_answer(content: str) -> None:
    assert read(content).is_empty


# --- whatever is written

TEXTS = st.text(max_size=30)
CALLS = st.one_of(
    st.fixed_dictionaries({"name": st.just("write_file"), "arguments": st.fixed_dictionaries({"path": TEXTS, "content": TEXTS})}),
    st.fixed_dictionaries({"name": st.just("read_file"), "arguments": st.fixed_dictionaries({"path": TEXTS})}),
)


def in_python(call: dict[str, Any]) -> str:
    return f"{call['name']}({', '.join(f'{key}={value!r}' for key, value in call['arguments'].items())})"


def in_json(wrap: str) -> Callable[[dict[str, Any], bool], str]:
    return lambda call, ascii_only: wrap.replace("{}", json.dumps(call, ensure_ascii=ascii_only))


def with_arguments(before: str, after: str = "") -> Callable[[dict[str, Any], bool], str]:
    return lambda call, ascii_only: before.replace("NAME", call["name"]) + json.dumps(call["arguments"], ensure_ascii=ascii_only) + after


WAYS: dict[str, Callable[[dict[str, Any], bool], str]] = {
    "bare": in_json("{}"),
    "fence": in_json("```json\n{}\n```"),
    "tag": in_json("<tool_call>\n{}\n</tool_call>"),
    "label": in_json("Action: {}"),
    "list": in_json("[{}]"),
    "prose": in_json("So:\n{}\nOk."),
    "thought": in_json("<think>hm</think>{}"),
    "mistral, older": in_json("[TOOL_CALLS][{}]"),
    "mistral": with_arguments("[THINK]hm[/THINK][TOOL_CALLS]NAME[ARGS]"),
    "mistral, bare": with_arguments("[TOOL_CALLS]NAME"),
    "react": with_arguments("Thought: Hm.\nAction: NAME\nAction Input: "),
    "react, fenced": with_arguments("<think>hm</think>\nAction: NAME\nAction Input:\n```json\n", "\n```"),
    "harmony": with_arguments("<|channel|>commentary to=functions.NAME<|message|>", "<|call|>"),
    "python": lambda call, _: in_python(call),
    "python, list": lambda call, _: f"<think>hm</think>[{in_python(call)}]",
    "python, fence": lambda call, _: f"```tool_code\nprint({in_python(call)})\n```",
    "python, program": lambda call, _: f"```python\nresult = default_api.{in_python(call)}\n```",
}
FRAGMENTS = st.sampled_from(
    [
        *("{", "}", "{{", '"', "\\", "[", "]", "```", "```py", "\n", ":", ",", "a", " ", "\x00", "\ud800"),
        *("<think>", "</think>", "<tool_call>", "</tool_call>", "<function=finish>", "</function>", "<parameter=path>", "</parameter>"),
        *("<|channel|>", "<|message|>", "<|end|>", "<|", "|>", "final", "to=functions.finish"),
        *('{"name": "finish", "arguments": {}}', '"name": "finish"', "finish"),
        *("Action: finish\n", "Action Input:", "Observation:", "[TOOL_CALLS]", "[ARGS]", "[THINK]", "[/THINK]"),
        *("finish()", "[finish(", "(", ")", "'", '"""', "path=", "read_file(path=", "print(", "```tool_code\n"),
    ]
)
FEW = settings(max_examples=120, deadline=None)


def cleaned(value: Any) -> Any:
    return json.loads(json.dumps(value).replace("\\u0000", "\\ufffd"))


@covers("model.salvage")
@FEW
@given(st.lists(CALLS, min_size=1, max_size=3), st.sampled_from(list(WAYS)), st.booleans())
def test_a_valid_call_is_never_lost_or_changed(calls: list[dict[str, Any]], way: str, ascii_only: bool) -> None:
    content = "\n".join(WAYS[way](call, ascii_only) for call in calls)
    assert called(read(content)) == [(call["name"], cleaned(call["arguments"])) for call in calls]


@covers("model.salvage.cut")
@FEW
@given(CALLS, st.sampled_from(list(WAYS)), st.data())
def test_a_reply_cut_anywhere_gives_the_whole_call_or_none(call: dict[str, Any], way: str, data: st.DataObject) -> None:
    content = WAYS[way](call, True)
    end = data.draw(st.integers(0, len(content)))
    for cut in (False, True):
        reading = read(content[:end], cut=cut)
        assert [(one.name, one.arguments) for one in reading.calls] in ([], [(call["name"], cleaned(call["arguments"]))])


@FEW
@given(CALLS, st.sampled_from(list(WAYS)), st.data())
def test_a_damaged_reply_never_raises_and_never_calls_a_tool_that_it_does_not_name(
    call: dict[str, Any], way: str, data: st.DataObject
) -> None:
    content = WAYS[way](call, True)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content)))
        content = content[:at] + data.draw(FRAGMENTS) + content[at + data.draw(st.integers(0, 3)) :]
    for one in read(content).calls:
        assert one.error is not None or one.name in content


@FEW
@given(st.lists(FRAGMENTS, max_size=40).map("".join))
def test_markup_in_any_order_never_raises_or_shows_a_control_marker(content: str) -> None:
    reading = read(content, *([NativeCall(content[:9], content)] if len(content) % 2 else []))
    assert without_markers(reading.visible) == reading.visible
    assert not any("<|" in call.name or len(call.name) > 64 for call in reading.calls)
    json.dumps([call.arguments for call in reading.calls], allow_nan=False).encode()


@FEW
@given(st.text(alphabet=string.ascii_letters + " .,!?\n'äß😀", max_size=200))
def test_an_answer_in_plain_words_is_shown_as_it_is(answer: str) -> None:
    reading = read(answer)
    assert (reading.visible, reading.calls, reading.problem) == (answer.strip(), (), None)


# --- the work is linear

FILL = "x" * 100
SHAPES = {
    "open braces": lambda n: "{" * n + FILL * n,
    "nested, closed": lambda n: "{" * n + FILL * n + "}" * n,
    "lone quotes": lambda n: '{"' * n + FILL * n,
    "escaped quotes": lambda n: '{\\"{"' * n + FILL * n,
    "quotes against escapes": lambda n: '{"\\"{' * n + '"}' * n,
    "cut calls": lambda n: '{"name":"read_file",' * n + FILL * n,
    "nested calls": lambda n: '{"name":"read_file",' * n + "}" * n,
    "unknown calls": lambda n: '{"name":"nope",{"a":1}' * n + "}" * n,
    "open tags": lambda n: "<tool_call>{" * n + FILL * n + "<think>",
    "open functions": lambda n: "<function=a><parameter=b>" * n + FILL * n,
    "open thoughts": lambda n: "<think>" * n + FILL * n,
    "channels": lambda n: "<|channel|>a<|message|>" * n + FILL * n,
    "fences": lambda n: "```python\n" * n + FILL * n,
    "markers": lambda n: "<|" * n + "|>" * n,
    "open python": lambda n: 'read_file(path="\n' * n + FILL * n,
    "python lists": lambda n: "[read_file(\n" * n + FILL * n,
    "python fences": lambda n: '```python\nread_file(path="a"\n' * n + FILL * n,
    "open mistral": lambda n: "[TOOL_CALLS]read_file[ARGS]{" * n + FILL * n,
    "open react": lambda n: "Action: read_file\nAction Input: {\n" * n + FILL * n,
    "react without input": lambda n: "Action: read_file\n" * n + FILL * n,
    "spaces": lambda n: "[" + " " * 50 * n + A_CALL + " " * 50 * n,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_finding_objects_takes_work_in_proportion_to_the_text(shape: str) -> None:
    def steps(n: int) -> int:
        text = SHAPES[shape](n)
        braces = Braces(text)
        for position, character in enumerate(text):
            if character == "{":
                braces.close_of(position)
        return braces.steps

    assert steps(2000) <= 2.2 * steps(1000) + 100


@pytest.mark.parametrize("shape", SHAPES)
def test_a_megabyte_of_any_shape_is_read(shape: str) -> None:
    """Would take minutes if any step went through the text again and again."""
    reading = read(SHAPES[shape](10_000))
    assert len(reading.calls) <= 1
