"""Guided turns: the schema of what may be done, and how an action is read back."""

from __future__ import annotations

from dataclasses import replace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.orchestrator.actions import Action, action_schema, fenced_text, introduction, read_action, tools_of
from services.orchestrator.guidance import Progress, next_step, paths_for, started
from services.orchestrator.lint import fault_in
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

EDITORS = tools_of([tool("edit_file", path=STRING, old=STRING, new=STRING)])


def allows(value: object, *, may_finish: bool = True, barred: str = "", narrow: dict[str, list[str]] | None = None) -> bool:
    schema = action_schema(TOOLS, may_finish=may_finish, barred={barred}, narrow=narrow)["json_schema"]["schema"]
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


PLAIN = st.text(st.characters(exclude_characters="\x08\x0c", codec="utf-8"), min_size=1)


@given(st.dictionaries(PLAIN, PLAIN), PLAIN)
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
    assert paths_for(TOOLS, progress(view=seen("a.py")))["write_file"] == []  # the one missing is for the command to make
    assert paths_for(TOOLS, progress())["write_file"] == ["a.py"]
    assert paths_for(TOOLS, progress(view=seen("a.py"), ran=True))["write_file"] == ["a.txt"]
    assert "write_file" not in paths_for(TOOLS, progress(view=seen("a.py", "a.txt"), ran=True))  # anything


def test_the_next_step_is_named() -> None:
    assert next_step(progress(view=seen("a.py")), "a.py", None) == "Now run it with run_shell, such as: python3 a.py > a.txt"
    assert "python3 a.py > a.txt" in next_step(progress(view=seen("a.py"), ran=True), None, "python3 a.py")
    assert "Still missing: a.py, a.txt." in next_step(progress(ran=True), None, None)
    assert "finish" in next_step(progress(view=seen("a.py", "a.txt"), ran=True), None, None)
    assert "did not work" in next_step(progress(failed=True), None, None)


def test_a_listing_is_read_with_its_remarks() -> None:
    view = of_listing("a.txt\nb/c.txt (empty)\nlnk (a link, not followed)\n[cut: 3 more files. Call list_files again.]")
    assert (view.files, view.filled) == ({"a.txt", "b/c.txt"}, {"a.txt"})
    assert of_listing("(the workspace has no files yet)").files == frozenset()
    assert as_text(view) == "Files in the workspace:\na.txt\nb/c.txt"


def test_a_failed_test_run_says_what_to_correct() -> None:
    state = progress(request="Fix calc.py so that the tests pass.", owes=(), view=seen("calc.py"), failed=True).knows("calc.py", "x = 1")
    assert next_step(state, None, "python3 -m pytest -q") == "The command failed. Correct calc.py with edit_file, then run it again."


def test_tests_that_must_pass_are_run_before_the_end() -> None:
    state = progress(request="Fix calc.py so that the tests pass.", owes=(), view=seen("calc.py"))
    assert not state.may_finish
    assert "pytest" in next_step(state, "calc.py", None)
    assert replace(state, tested=True).may_finish


def test_a_file_that_a_request_says_not_to_change_is_not_offered_for_edits() -> None:
    view = WorkspaceView(frozenset({"calc.py", "test_calc.py"}))
    state = started("Fix calc.py. Do not change test_calc.py.", (), view, has_shell=True)
    state = state.knows("calc.py", "a").knows("test_calc.py", "b")
    assert (state.named, state.kept) == (("calc.py", "test_calc.py"), {"test_calc.py"})
    assert paths_for(EDITORS, state)["edit_file"] == ["calc.py"]


@pytest.mark.parametrize(
    ("request_", "kept"),
    [
        ("What is the sum of the prices? They are in prices.csv. Write it to sum.txt.", {"prices.csv"}),
        ("Append a row to prices.csv. Then write the number of rows to sum.txt.", set[str]()),
        ("The prices are in prices.csv; set all of them to 5 in prices.csv. Write their sum to sum.txt.", set[str]()),
        ("Double the prices in prices.csv.", set[str]()),  # no new file is wanted, so it can only be this one
    ],
)
def test_a_file_that_a_request_only_tells_about_is_not_offered_for_edits(request_: str, kept: set[str]) -> None:
    view = WorkspaceView(frozenset({"prices.csv"}))
    state = started(request_, ("sum.txt",) if "sum.txt" in request_ else (), view, has_shell=True)
    assert state.kept == kept


def test_a_named_file_must_have_changed_when_the_request_names_no_new_one() -> None:
    view = WorkspaceView(frozenset({"a.ini"}))
    state = started("Set timeout to 5 in a.ini.", (), view, has_shell=False)
    assert state.untouched == ("a.ini",)
    assert not state.may_finish
    assert replace(state, view=WorkspaceView(view.files, frozenset(), frozenset({"a.ini"}))).may_finish


def test_a_fault_of_what_it_made_keeps_it_from_the_end() -> None:
    state = Progress("Write a.json.", ("a.json",), seen("a.json")).knows("a.json", "{")
    assert not state.may_finish
    assert "not valid JSON" in next_step(state, "a.json", None)


def test_a_file_called_by_its_bare_name_is_found_in_its_folder() -> None:
    view = WorkspaceView(frozenset({"conf/app.ini"}))
    assert started("Change app.ini.", ("app.ini",), view, has_shell=False).named == ("conf/app.ini",)
    assert started("Change app.ini.", ("app.ini",), view, has_shell=False).owes == ()


def test_a_package_to_make_owes_its_init_file() -> None:
    assert started("Make a package named shapes.", (), WorkspaceView(), has_shell=True).owes == ("shapes/__init__.py",)


def test_the_folder_of_a_missing_file_is_made_first() -> None:
    state = progress(request="Run a.py and save it to out/a.txt.", owes=("out/a.txt",), view=seen("a.py"))
    assert "mkdir -p out && python3 a.py > out/a.txt" in next_step(state, "a.py", None)


@pytest.mark.parametrize(
    ("path", "text", "fault"),
    [
        ("a.json", "{}", None),
        ("a.json", "{", "a.json is not valid JSON: line 1, column 2."),
        ("a.py", "x = 1", None),
        ("a.py", "x = = 1", "a.py is not valid Python: line 1."),
        ("a.md", "# A\ntext\n## B\ntext", None),
        ("a.md", "# A\n## B\n## C\ntext", "a.md has no text under the heading '## B'."),
        ("a.md", "# A\n```\n# no heading\n```", None),
        ("a.txt", "{", None),
    ],
)
def test_a_file_is_checked_by_its_kind(path: str, text: str, fault: str | None) -> None:
    assert fault_in(path, text) == fault


def test_control_characters_of_a_pattern_are_read_as_they_were_meant() -> None:
    assert read_action('{"tool":"search_files","pattern":"\\bword\\b"}') == Action("search_files", {"pattern": "\\bword\\b"})
