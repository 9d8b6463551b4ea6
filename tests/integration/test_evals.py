"""The evaluation through the real stack: gateway, orchestrator, scheduler, tools, with a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from aetherium.launcher import state
from evals import task as tasks
from evals.report import Report
from tests.requirements import covers

ROOT = Path(tasks.__file__).parent.parent

SOLVED: dict[str, Any] = {
    "id": "upper-case",
    "kind": "convert",
    "level": 1,
    "prompt": "Write the text of word.txt in capital letters to loud.txt.",
    "files": {"word.txt": "hello\n"},
    "check": "import pathlib\nassert pathlib.Path('loud.txt').read_text().strip() == 'HELLO'\n",
    "selftest": {"right": [{"files": {"loud.txt": "HELLO"}}], "wrong": [{"files": {"loud.txt": "hello"}}]},
}
FAILED: dict[str, Any] = {
    "id": "add-line",
    "kind": "edit",
    "level": 2,
    "prompt": "Append the line blue to colours.txt.",
    "files": {"colours.txt": "red\n"},
    "check": "import pathlib, sys\nif pathlib.Path('colours.txt').read_text() != 'red\\nblue\\n':\n    sys.exit('blue is not there')\n",
    "selftest": {"right": [{"files": {"colours.txt": "red\nblue\n"}}], "wrong": [{"files": {"colours.txt": "blue\n"}}]},
}


def call(name: str, **arguments: str) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


SCRIPT: dict[str, Any] = {
    "model": "scripted",
    "conversations": [
        {
            "match": "capital letters",
            "turns": [
                {"content": "Reading.", "tool_calls": [call("read_file", path="word.txt")]},
                {"content": "Writing.", "tool_calls": [call("run_shell", command="tr a-z A-Z < word.txt > loud.txt")]},
                {"content": "loud.txt holds HELLO."},
            ],
        },
        {"match": "Append the line", "turns": [{"content": "I have appended the line blue."}]},
        {"match": "for ever", "turns": [{"content": "Let me think.", "first_token_delay_s": 300}]},
    ],
}


def lay(folder: Path, *more: dict[str, Any]) -> list[str]:
    """Tasks, script and settings of a test; gives what `aetherium eval` is told of them."""
    (folder / "tasks").mkdir()
    for each in (SOLVED, FAILED, *more):
        (folder / "tasks" / f"{each['id']}.yaml").write_text(yaml.safe_dump(each))
    (folder / "script.yaml").write_text(yaml.safe_dump(SCRIPT))
    places = {"--dir": "tasks", "--script": "script.yaml", "--out": "out", "--data-dir": "data"}
    return [part for option, name in places.items() for part in (option, str(folder / name))]


async def started(*arguments: str) -> asyncio.subprocess.Process:
    env = {**os.environ, "AETHERIUM_CHROMA__ENABLED": "false", "AETHERIUM_INFERENCE__DETECT": "false"}
    command = [sys.executable, "-m", "aetherium", "eval", *arguments]
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe)


async def evaluated(arguments: Sequence[str]) -> tuple[int | None, str, str]:
    process = await started(*arguments)
    try:
        async with asyncio.timeout(120):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return process.returncode, out.decode(), err.decode()


@covers("evals.report")
async def test_a_task_that_is_done_passes_and_one_that_is_only_claimed_fails(tmp_path: Path) -> None:
    code, out, err = await evaluated([*lay(tmp_path), "--json", "--target", "1", "--ablate", "hold_to_request,files_listed"])
    assert code == 0, out + err
    report = Report.model_validate_json(out)
    failed, solved = report.main.results
    assert (failed.task, failed.passed, failed.failure, failed.status) == ("add-line", False, "claimed_done", "completed")
    assert failed.detail == "blue is not there"
    assert (solved.task, solved.passed, solved.failure) == ("upper-case", True, None)
    assert (solved.turns, solved.model_calls, solved.tool_calls) == (3, 3, 3)  # the engine's own first look counts as a call
    assert solved.prompt_tokens > 0
    assert solved.completion_tokens > 0
    assert report.complete
    assert (report.main.passes, [each.without for each in report.ablation]) == (1, [("hold_to_request",), ("files_listed",)])
    # What was owed was made, so holding to it changed no request; the listing is part of the first prompt.
    assert [[each.carried for each in series.results] for series in report.ablation] == [[True, True], [False, False]]
    assert (report.conditions.model_source, report.conditions.model, report.conditions.guided) == ("scripted", "scripted", False)
    assert report.conditions.engine
    workspaces = {each.task: tmp_path / "data" / "workspaces" / str(place) for place, each in enumerate(report.main.results, 1)}
    assert (workspaces["upper-case"] / "loud.txt").read_text() == "HELLO\n"
    assert (workspaces["add-line"] / "colours.txt").read_text() == "red\n"
    assert "[1/2] add-line" in err
    assert "claimed_done" in err
    (table,) = (tmp_path / "out").glob("*.md")
    assert f"aetherium show {failed.run_guid}" in table.read_text()
    assert json.loads(table.with_suffix(".json").read_text())["main"]["summary"]["passed"] == 1
    assert not (tmp_path / "out" / "latest.json").exists()  # it was not the real set


@covers("evals.report")
async def test_an_evaluation_that_is_stopped_reports_what_it_has_and_leaves_nothing_running(tmp_path: Path) -> None:
    stuck = {**SOLVED, "id": "z-stuck", "prompt": "Think for ever, then write loud.txt."}
    process = await started(*lay(tmp_path, stuck), "add-line", "z-stuck", "--target", "1")
    assert process.stdout is not None
    try:
        async with asyncio.timeout(120):
            said = ""
            while "z-stuck  turn 1" not in said:
                said = (await process.stdout.readline()).decode()
                assert said, "it ended before it was stopped"
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 130
    assert "The evaluation was stopped before its last task." in rest.decode()
    assert state.find(tmp_path / "data") is None
    (file,) = (tmp_path / "out").glob("*.json")
    report = Report.model_validate_json(file.read_text())
    assert ([each.task for each in report.main.results], report.complete) == (["add-line"], False)
    assert not report.meets(0)


@pytest.mark.parametrize("task", tasks.load_all(tasks.FOLDER), ids=lambda task: task.id)
@covers("evals.checks")
def test_the_check_of_every_task_tells_right_workspaces_from_wrong_ones(task: tasks.Task) -> None:
    assert tasks.selftest(task) == []
