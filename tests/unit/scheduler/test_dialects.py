"""The ways of writing calls that are no JSON: Python, two lines of ReAct, Mistral's token; whole and in pieces."""

from __future__ import annotations

import time
from typing import Any

import pytest

from services.scheduler.backends.assembly import Assembly
from services.scheduler.dialects import python_calls
from services.scheduler.dialects.calls import Reading
from tests.requirements import covers
from tests.unit.scheduler.test_salvage import A_CALL, THE_CALL, called, only, read

GIVEN = '{"path": "a"}'


@covers("model.salvage")
@pytest.mark.parametrize(
    ("dialect", "content"),
    [
        ("json", f"[TOOL_CALLS][{A_CALL}]"),
        ("tool_call", f"<tool_call>{A_CALL}</tool_call>"),
        ("function", f"<function=read_file>{GIVEN}</function>"),
        ("harmony", f"<|channel|>commentary to=functions.read_file<|message|>{GIVEN}<|call|>"),
        ("mistral", f"[TOOL_CALLS]read_file[ARGS]{GIVEN}"),
        ("mistral", f"[TOOL_CALLS]read_file{GIVEN}"),
        ("mistral", f"[TOOL_CALLS]read_file[CALL_ID]a1B2c3D4e[ARGS]{GIVEN}"),
        ("mistral", f"[THINK]Reading it is best.[/THINK][TOOL_CALLS]read_file[ARGS]{GIVEN}"),
        ("react", f"Action: read_file\nAction Input: {GIVEN}"),
        ("react", f"**Action:** `read_file`\n**Action Input:**\n```json\n{GIVEN}\n```"),
        ("react", "Action 1: read_file\nAction Input 1: a"),
        ("react", 'Action: read_file\nAction Input: "a"\n'),
        ("react", "Action: read_file\nAction Input: path='a'"),
        ("react", "<think>Perhaps.</think>Action: read_file\nAction Input: {'path': 'a',}"),
        ("python", 'read_file(path="a")'),
        ("python", "[read_file('a')]"),
        ("python", "read_file({'path': 'a'})"),
        ("python", '<think>read_file(path="b")</think>read_file(path="a")'),
        ("python", '<|python_start|>[read_file(path="a")]<|python_end|>'),
        ("python", '<|python_tag|>read_file(path="a")<|eom_id|>'),
        ("python", '```tool_code\nprint(default_api.read_file(path="a"))\n```'),
        ("python", '```python\n# First look.\ntext = read_file(path="a")\n```'),
        ("python", 'Action: read_file(path="a")'),
    ],
)
def test_a_call_is_read_in_its_dialect_and_leaves_nothing_to_see(dialect: str, content: str) -> None:
    reading = read(content)
    assert called(reading) == THE_CALL
    assert (only(reading).dialect, reading.visible, reading.problem) == (dialect, "", None)


@pytest.mark.parametrize(
    "content",
    [
        '[list_dir(), read_file(path="a")]',
        'list_dir()\nread_file(path="a")',
        '```tool_code\nlist_dir()\nread_file(\n    path="a",\n)\n```',
        f"[TOOL_CALLS]list_dir[ARGS]{{}}[TOOL_CALLS]read_file[ARGS]{GIVEN}",
        f"[TOOL_CALLS]list_dir[ARGS]{{}}read_file[ARGS]{GIVEN}",
        f"Action: list_dir\nAction Input: {{}}\nAction: read_file\nAction Input: {GIVEN}",
        "Action: list_dir\nAction Input: None\nThought: and\nAction: read_file\nAction Input: a",
    ],
)
def test_several_calls_keep_their_order_in_every_dialect(content: str) -> None:
    assert called(read(content)) == [("list_dir", {}), *THE_CALL]


def test_values_of_python_calls_are_their_literals() -> None:
    text = "l1\n\"q\" 'p' ``` <think> {x} )\n"
    assert called(read(f'write_file("a", content="""{text}""")')) == [("write_file", {"path": "a", "content": text})]
    arguments = {"path": "a", "content": "b", "tags": ["x", "y"], "mode": -3, "force": True}
    assert called(read("write_file(path='a', content='b', tags=('x', 'y'), mode=-3, force=true)")) == [("write_file", arguments)]


@covers("model.repair")
def test_a_raw_newline_in_a_python_string_is_read_as_it_is_meant() -> None:
    call = only(read('write_file(path="a", content="one\ntwo")'))
    assert call.arguments["content"] == "one\ntwo"
    assert [repair.what for repair in call.repairs] == ["raw_newlines"]


def test_nothing_of_a_call_in_python_is_ever_run() -> None:
    for value in ("open('x')", "__import__('os').getpid()", "[i for i in range(9)]", "f'{1}'", "1 + 1", "lambda: 0", "*a", "b'x'", "x"):
        with pytest.raises(python_calls.NotLiteral):
            python_calls.parse(f"f(path={value})" if value != "*a" else "f(*a)")


@covers("model.salvage.cut")
@pytest.mark.parametrize(
    "content",
    [
        'read_file(path="a',
        'read_file(path="a"',
        '[list_dir(), read_file(path="a")',
        '```tool_code\nread_file(path="a\n```',
        'write_file(path="a", content="say "hi"")',
        "read_file(path=os.environ['HOME'])",
        "Action: read_file",
        "Action: read_file\nAction In",
        f"Action: read_file\nAction Input: {GIVEN[:-1]}",
        "[TOOL_CALLS]read_f",
        f"[TOOL_CALLS]read_file[ARGS]{GIVEN[:-1]}",
        '[TOOL_CALLS]write_file[ARGS]{"path": "a", "content": "[TOOL_CALLS]finish[ARGS]{}',
        "write_file(path='a', content='\nfinish()\n",
    ],
)
def test_a_call_that_is_not_whole_is_not_run_in_any_dialect(content: str) -> None:
    reading = read(content)
    assert (reading.calls, reading.visible) == ((), "")
    assert reading.problem is not None
    assert "not run" in reading.problem


def test_a_bare_input_that_the_token_limit_ended_is_not_run() -> None:
    content = "Action: read_file\nAction Input: notes/to"
    assert read(content, cut=True).calls == ()
    assert called(read(content)) == [("read_file", {"path": "notes/to"})]


@pytest.mark.parametrize(
    "answer",
    [
        'I would call read_file(path="a") now.',
        'read_file(path="a") reads it.',
        "read_file(path)\nwrite_file(path, content)",
        'The call is `read_file(path="a")`.',
        'save_file(path="a")',
        '```python\nimport os\nread_file(path="a")\n```',
        '```python\ndef main():\n    read_file(path="a")\n```',
        '```sh\nread_file(path="a")\n```',
        "Action: run away\nand hide",
        "Action: read_file is what I would do.",
        "Course of action: none",
    ],
)
def test_what_speaks_of_a_call_or_is_a_program_is_shown_and_not_called(answer: str) -> None:
    assert read(answer) == Reading(visible=answer)


def test_a_result_that_the_model_made_up_is_neither_shown_nor_acted_on() -> None:
    reading = read("Thought: I look.\nAction: read_file\nAction Input: a\nObservation: It says x.\nAction: finish\nAction Input: {}")
    assert called(reading) == THE_CALL
    assert reading.visible == "Thought: I look."


def test_only_tools_of_the_turn_are_called_whatever_the_dialect() -> None:
    for content in ('[TOOL_CALLS]rm[ARGS]{"path": "a"}', 'Action: rm\nAction Input: {"path": "a"}', '[read_file(path="a"), rm(path="a")]'):
        wrong = [call for call in read(content).calls if call.error]
        assert [call.name for call in wrong] == ["rm"]
        assert "read_file" in str(wrong[0].error)
    assert read('rm(path="a")').calls == ()


def test_more_values_than_a_tool_has_arguments_are_refused_in_words() -> None:
    call = only(read('read_file("a", "b")'))
    assert call.error is not None
    assert "'read_file' was not run" in call.error


# --- streamed


def streamed(content: str, size: int = 4) -> Reading:
    """The reading of a reply that came in pieces of `size` characters."""
    answer = Assembly()
    for start in range(0, len(content), size):
        answer.add({"choices": [{"delta": {"content": content[start : start + size]}}]})
    return read(answer.content)


@pytest.mark.parametrize(
    "content",
    [
        f"<think>hm</think>[TOOL_CALLS]read_file[ARGS]{GIVEN}",
        f"<think>hm</think>Action: read_file\nAction Input: {GIVEN}",
        '<think>hm</think>[read_file(path="a")]',
        f"<think>hm</think><tool_call>{A_CALL}</tool_call>",
    ],
)
def test_a_reply_reads_the_same_however_it_arrives(content: str) -> None:
    whole: dict[str, Any] = {"choices": [{"message": {"content": content}}]}
    answer = Assembly()
    answer.add_whole(whole)
    assert streamed(content) == streamed(content, 1) == read(answer.content)
    assert called(streamed(content)) == THE_CALL


def test_ten_thousand_braces_in_deltas_of_four_characters_take_about_twice_the_time_of_five_thousand() -> None:
    """No bound in seconds: how fast the machine is counts in the bench. Three quarters of the way to a square would fail."""

    def taken(braces: int) -> float:
        content = ("{ " + "x" * 98) * braces
        began = time.process_time()
        assert streamed(content).visible == content
        return time.process_time() - began

    half, whole = (min(taken(braces) for _ in range(3)) for braces in (5_000, 10_000))
    assert whole < 3.5 * half
