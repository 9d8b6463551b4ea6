"""Guided turns: the schema of what may be done, and how an action is read back."""

from __future__ import annotations

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.actions import Action, action_schema, fenced_text, introduction, read_action, tools_of
from services.orchestrator.guidance import Progress, next_step, paths_for
from services.orchestrator.workspace_view import WorkspaceView, as_text, of_listing


def tool(name: str, **arguments: dict[str, object]) -> dict[str, object]:
    parameters = {"type": "object", "properties": arguments, "required": list(arguments), "additionalProperties": False}
    return {"type": "function", "function": {"name": name, "description": f"Does {name}.", "parameters": parameters}}


STRING: dict[str, object] = {"type": "string"}
TOOLS = tools_of(
    [
        tool("list_files"),
        tool("read_file", path=STRING),
        tool("write_file", path=STRING, content={"type": "string", "format": "long-text"}),
        tool("run_shell", command={"type": "string", "format": "command-line"}),
    ]
)


def allows(value: object, *, may_finish: bool = True, barred: str | None = None, narrow: dict[str, list[str]] | None = None) -> bool:
    schema = action_schema(TOOLS, may_finish=may_finish, barred=barred, narrow=narrow or {})["json_schema"]["schema"]
    return jsonschema.Draft202012Validator(schema).is_valid(value)


def test_an_action_is_exactly_one_call_with_exactly_its_arguments() -> None:
    assert allows({"tool": "read_file", "path": "a.txt"})
    assert not allows({"tool": "read_file"})
    assert not allows({"tool": "read_file", "path": "a.txt", "mode": "r"})
    assert not allows({"tool": "remove_all", "path": "a.txt"})


def test_a_long_text_travels_outside_of_the_action() -> None:
    assert allows({"tool": "write_file", "path": "a.txt"})
    assert not allows({"tool": "write_file", "path": "a.txt", "content": "x"})
    assert "You are asked for its content next." in introduction(TOOLS)


def test_finish_is_not_offered_while_something_is_owed() -> None:
    assert not allows({"tool": "finish", "reply": "done"}, may_finish=False)
    assert allows({"tool": "finish", "reply": "done"}, may_finish=True)


def test_a_call_just_repeated_is_not_offered_again() -> None:
    assert not allows({"tool": "list_files"}, barred="list_files")


def test_only_files_that_are_there_can_be_read() -> None:
    assert allows({"tool": "read_file", "path": "a.txt"}, narrow={"read_file": ["a.txt"]})
    assert not allows({"tool": "read_file", "path": "b.txt"}, narrow={"read_file": ["a.txt"]})
    assert not allows({"tool": "read_file", "path": "a.txt"}, narrow={"read_file": []})


@given(st.dictionaries(st.text(min_size=1), st.text()), st.text(min_size=1))
def test_what_the_schema_allows_is_read_back_as_it_was_written(arguments: dict[str, str], name: str) -> None:
    import orjson

    arguments.pop("tool", None)
    assert read_action(orjson.dumps({"tool": name, **arguments}).decode()) == Action(name, dict(arguments))


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', '{"path": "a"}', '{"tool": 3}', 'I think {"tool": "x"}'])
def test_what_is_no_whole_action_is_none(text: str) -> None:
    assert read_action(text) is None


@pytest.mark.parametrize(
    ("reply", "content"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint(1)", "print(1)\n"),  # the stop sequence ate the end
        ("Here it is:\n```\na\n\nb\n```\nDone.", "a\n\nb\n"),
        ("just text\n", "just text\n"),
        ("```\n    indented\n```", "    indented\n"),
        ("```\n```", ""),
        ("", ""),
    ],
)
def test_the_text_of_a_fenced_block_is_taken_whole(reply: str, content: str) -> None:
    assert fenced_text(reply) == content


REQUEST = "Write a.py. Run it, and save its output to a.txt."


def progress(**over: object) -> Progress:
    return Progress(**{"request": REQUEST, "owes": ("a.py", "a.txt"), "has_shell": True, **over})  # type: ignore[arg-type]


def seen(*files: str, empty: tuple[str, ...] = ()) -> WorkspaceView:
    return WorkspaceView(frozenset(files), frozenset(empty), frozenset(files))


def test_the_end_is_earned() -> None:
    assert not progress().may_finish
    assert not progress(view=seen("a.py")).may_finish
    assert not progress(view=seen("a.py", "a.txt")).may_finish  # a run is owed
    assert not progress(view=seen("a.py", "a.txt", empty=("a.txt",)), ran=True).may_finish
    assert not progress(view=seen("a.py", "a.txt"), ran=True, failed=True).may_finish
    assert progress(view=seen("a.py", "a.txt"), ran=True).may_finish
    assert Progress("How many lines has a.txt?").may_finish  # a question changes nothing
    assert not Progress("Fix the bug.").may_finish


def test_data_that_a_command_should_make_is_not_written_by_hand() -> None:
    narrow = paths_for(TOOLS, progress(view=seen("a.py")))
    assert narrow["write_file"] == ["a.py"]
    assert "write_file" not in paths_for(TOOLS, progress(view=seen("a.py"), ran=True))


def test_the_next_step_is_named() -> None:
    assert next_step(progress(view=seen("a.py")), "a.py", None) == "Now run it, such as: python3 a.py > a.txt"
    assert "python3 a.py > a.txt" in next_step(progress(view=seen("a.py"), ran=True), None, "python3 a.py")
    assert "Still missing: a.py, a.txt." in next_step(progress(ran=True), None, None)
    assert "finish" in next_step(progress(view=seen("a.py", "a.txt"), ran=True), None, None)
    assert "did not work" in next_step(progress(failed=True), None, None)


def test_a_listing_is_read_with_its_remarks() -> None:
    view = of_listing("a.txt\nb/c.txt (empty)\nlnk (a link, not followed)\n[cut: 3 more files. Call list_files again.]")
    assert (view.files, view.filled) == ({"a.txt", "b/c.txt"}, {"a.txt"})
    assert of_listing("(the workspace has no files yet)").files == frozenset()
    assert as_text(view) == "Files in the workspace:\na.txt\nb/c.txt"
