"""Tasks: their format, how a workspace is judged, and how a check is put to the test."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from evals import task as tasks
from evals.task import FOLDER, KINDS, Task, check, load, load_all, selftest
from shared.errors import BadInput
from tests.requirements import covers

TASK: dict[str, Any] = {
    "id": "copy",
    "kind": "create",
    "level": 1,
    "prompt": "Copy a.txt to b.txt.",
    "files": {"a.txt": "hello\n"},
    "check": "import os, pathlib, sys\n"
    "seed = pathlib.Path(os.environ['SEED'], 'a.txt').read_text()\n"
    "b = pathlib.Path('b.txt')\n"
    "if not b.is_file() or b.read_text() != seed:\n"
    "    print('looked at b.txt')\n"
    "    sys.exit('b.txt is not a copy')\n",
    "selftest": {"right": [{"run": "cp a.txt b.txt"}], "wrong": [{"files": {"b.txt": "other"}}]},
}
EVERY_THIRD = load_all(FOLDER)[2::3]


def made(**fields: Any) -> Task:
    return Task.model_validate({**TASK, **fields})


def written(folder: Path, name: str = "copy", **fields: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump({**TASK, **fields}))
    return path


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    (folder / "a.txt").write_text("hello\n")
    return folder


# ---- the format


def test_a_task_is_read_with_everything_that_its_file_says(tmp_path: Path) -> None:
    assert load(written(tmp_path)) == made()


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"kind": "dance"}, "kind"),
        ({"level": 4}, "level"),
        ({"prompt": ""}, "prompt"),
        ({"unheard": 1}, "unheard"),
        ({"files": {"a": 1}}, "files.a"),
        ({"selftest": {"right": [], "wrong": [{}]}}, "selftest.right"),
        ({"selftest": {"right": [{}], "wrong": [{"runs": "x"}]}}, "selftest.wrong.0.runs"),
        ({"id": "other"}, "id 'other' is not the file's name"),
        ({"check": "if"}, "invalid syntax"),
    ],
)
def test_a_wrong_task_is_refused_with_its_file_and_field(tmp_path: Path, fields: dict[str, Any], names: str) -> None:
    with pytest.raises(BadInput, match=r"copy\.yaml") as refused:
        load(written(tmp_path, **fields))
    assert names in refused.value.message


def test_a_file_that_is_no_yaml_or_no_task_is_refused(tmp_path: Path) -> None:
    for content in ("a: [", "just text", ""):
        (tmp_path / "copy.yaml").write_text(content)
        with pytest.raises(BadInput, match=r"copy\.yaml"):
            load(tmp_path / "copy.yaml")


def test_a_folder_without_tasks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="holds no tasks"):
        load_all(tmp_path)


def test_the_shipped_tasks_can_be_read_and_cover_every_kind() -> None:
    shipped = load_all(FOLDER)
    assert len(shipped) == 12
    assert {task.kind for task in shipped} == set(KINDS)


# ---- the check


def test_a_workspace_is_judged_by_what_is_in_it(workspace: Path) -> None:
    verdict = check(made(), workspace)
    assert (verdict.passed, verdict.detail) == (False, "b.txt is not a copy")
    (workspace / "b.txt").write_text("hello\n")
    assert check(made(), workspace).passed


def test_the_seed_is_the_untouched_one_whatever_the_agent_did_to_its_files(workspace: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (workspace / name).write_text("changed")
    assert not check(made(), workspace).passed


def test_a_check_cannot_change_what_the_agent_left(workspace: Path) -> None:
    assert check(made(check="import pathlib\npathlib.Path('a.txt').unlink()\npathlib.Path('new').touch()"), workspace).passed
    assert sorted(each.name for each in workspace.iterdir()) == ["a.txt"]


def test_a_check_that_does_not_end_fails_with_what_it_started(workspace: Path) -> None:
    marker = workspace.parent / "pid"
    endless = f"import os, pathlib, time\nif child := os.fork():\n    pathlib.Path({str(marker)!r}).write_text(str(child))\ntime.sleep(600)"
    verdict = check(made(check=endless), workspace, timeout_s=3.0)
    assert (verdict.passed, verdict.detail) == (False, "the check ran out of time")
    assert marker.exists(), "the check's own child was not even started"
    stat = Path(f"/proc/{marker.read_text()}/stat")
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_nothing_of_this_process_reaches_a_check(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERIUM_GATEWAY__TOKEN", "secret")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example")
    verdict = check(made(check="import os, sys\nsys.exit(' '.join(sorted(os.environ)))"), workspace)
    assert set(verdict.detail.split()) - {"LC_CTYPE"} == {"HOME", "LANG", "PATH", "PYTHONDONTWRITEBYTECODE", "SEED"}


def test_a_check_runs_in_this_python(workspace: Path) -> None:
    assert check(made(check="import sys\nsys.exit(sys.executable)"), workspace).detail == sys.executable


def test_a_link_out_of_the_workspace_is_copied_as_a_link(workspace: Path) -> None:
    (workspace / "out").symlink_to("/")
    assert check(made(check="import os\nassert os.path.islink('out')"), workspace).passed


def test_a_workspace_that_cannot_be_copied_fails(workspace: Path) -> None:
    assert "cannot be copied" in check(made(), workspace / "gone").detail


# ---- the test of a check


def test_a_check_that_tells_right_from_wrong_has_no_complaint() -> None:
    assert selftest(made()) == []


@pytest.mark.parametrize(
    ("fields", "complaints"),
    [
        ({"check": "pass"}, ["seeds only", "empty workspace", "files emptied", "wrong 0"]),
        ({"check": "raise SystemExit(1)"}, ["right 0"]),
        ({"check": "open('b.txt')"}, ["seeds only: the check crashed", "empty workspace", "files emptied", "wrong 0"]),
        ({"selftest": {"right": [{"run": "false"}], "wrong": [{}]}}, ["right 0: the workspace cannot be made"]),
        ({"selftest": {"right": [{"run": "cp a.txt b.txt", "delete": ["a.txt"]}], "wrong": [{}]}}, ["right 0"]),
    ],
)
def test_a_check_that_does_not_is_complained_of(fields: dict[str, Any], complaints: list[str]) -> None:
    found = selftest(made(**fields))
    assert len(found) == len(complaints)
    for complaint, part in zip(found, complaints, strict=True):
        assert complaint.startswith(f"copy: {part}")


def test_the_command_says_how_many_it_judged_and_fails_on_a_complaint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path)
    assert tasks.main(["selftest", str(tmp_path)]) == 0
    assert capsys.readouterr().out == "1 tasks: 5 workspaces judged rightly, 0 wrongly\n"
    written(tmp_path, check="pass")
    assert tasks.main(["selftest", str(tmp_path)]) == 1
    assert tasks.main(["check", str(tmp_path / "copy.yaml"), str(tmp_path)]) == 0
    assert tasks.main(["selftest", str(tmp_path / "none")]) == 2
    assert tasks.main([]) == 2


@covers("evals.checks")
@pytest.mark.parametrize("task", EVERY_THIRD, ids=lambda task: task.id)
def test_a_sample_of_the_shipped_checks_tells_right_from_wrong(task: Task) -> None:
    assert selftest(task) == []  # tests/integration/test_evals.py has all of them
