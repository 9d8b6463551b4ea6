"""An evaluation task: read from YAML, judged by the workspace that is left, and its own check put to the test.

A file `<id>.yaml` holds
    id          its own name
    kind        the ability it needs, one of KINDS
    level       1 (one tool call can do it) to 3 (several files, must look before acting)
    prompt      what a person asks
    files       {path: text} that the workspace begins with (optional)
    check       a Python script; it runs in a copy of the workspace, exit 0 = passed. The folder that the
                environment variable SEED names holds the untouched `files`.
    selftest    right, wrong: workspaces as {files, delete, run}, each laid over the seeded one. Right ones must
                pass; wrong ones must fail, as must the seeded one, an emptied one, and one with every file emptied.

    python -m evals.task selftest [FOLDER…]      test the check of every task in these folders
    python -m evals.task check TASK.yaml FOLDER  judge one workspace
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from shared.errors import BadInput

FOLDER = Path(__file__).parent / "tasks"
CHECK_TIMEOUT_S = 60.0
DETAIL = 300  # characters kept of what a check says

Kind = Literal["create", "fix", "refactor", "extract", "convert", "edit", "answer", "search", "write"]
KINDS: tuple[str, ...] = get_args(Kind)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Variant(_Part):
    """A workspace made by hand: names to delete and files to lay over the seeded one, then a command to run in it."""

    delete: tuple[str, ...] = ()
    files: Mapping[str, str] = Field(default_factory=dict)
    run: str | None = None


EMPTIED = Variant(run="find . -mindepth 1 -delete")
HOLLOW = Variant(run="find . -type f -exec truncate -s 0 {} +")


class Selftest(_Part):
    right: tuple[Variant, ...] = Field(min_length=1)
    wrong: tuple[Variant, ...] = Field(min_length=1)


class Task(_Part):
    """A small job that a person would give to an agent."""

    id: str
    kind: Kind
    level: Annotated[int, Field(ge=1, le=3)]
    prompt: str = Field(min_length=1)
    check: str
    selftest: Selftest
    files: Mapping[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_is_python(self) -> Task:
        compile(self.check, f"check of {self.id}", "exec")
        return self


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a check found, with the last line that it said."""

    passed: bool
    detail: str = ""


def load(path: Path) -> Task:
    """A task from its file.

    Raises:
        BadInput: it cannot be read; the message names file and field.
    """
    try:
        task = Task.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise BadInput(f"{path}: {place or 'task'}: {first['msg']}", field=place) from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, SyntaxError) as error:
        raise BadInput(f"{path}: {error}", field=str(path)) from error
    if task.id != path.stem:
        raise BadInput(f"{path}: id {task.id!r} is not the file's name", field="id")
    return task


def load_all(folder: Path) -> list[Task]:
    """The tasks of a folder by name.

    Raises:
        BadInput: there is none, or one cannot be read.
    """
    tasks = [load(path) for path in sorted(folder.glob("*.yaml"))]
    if not tasks:
        raise BadInput(f"{folder} holds no tasks (*.yaml)", field="dir")
    return tasks


def lay(files: Mapping[str, str], where: Path) -> None:
    for name, text in files.items():
        target = where / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")


def check(task: Task, workspace: Path, *, timeout_s: float = CHECK_TIMEOUT_S) -> Verdict:
    """Run the task's check in a copy of the workspace, so that it cannot change what the agent left."""
    with tempfile.TemporaryDirectory(prefix="evalcheck-", ignore_cleanup_errors=True) as home:
        copy, seeds, script = Path(home, "ws"), Path(home, "seed"), Path(home, "check.py")
        try:
            shutil.copytree(workspace, copy, symlinks=True)
        except (OSError, shutil.Error) as error:
            return Verdict(False, f"the workspace cannot be copied: {error}"[:DETAIL])
        seeds.mkdir()
        lay(task.files, seeds)
        script.write_text(task.check, encoding="utf-8")
        return _run(script, copy, _environ(home, seeds), timeout_s)


def _environ(home: str, seeds: Path) -> dict[str, str]:
    """All that a check knows: no proxy and no setting of this process reaches it."""
    return {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "SEED": str(seeds),
        "HOME": home,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }


def _run(script: Path, cwd: Path, env: Mapping[str, str], timeout_s: float) -> Verdict:
    child = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=cwd,
        env=dict(env),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        said, complained = child.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)  # with what it started: the agent's programs may never end
        child.communicate()
        return Verdict(False, "the check ran out of time")
    last = ((said + complained).strip().splitlines() or [""])[-1]
    return Verdict(child.returncode == 0, last[:DETAIL])


# ---- the test of a check


def variants(task: Task) -> Iterator[tuple[str, Variant, bool]]:
    """Every workspace that a check is put to: its name, how it is made, and whether it must pass."""
    yield "seeds only", Variant(), False
    yield "empty workspace", EMPTIED, False
    yield "files emptied", HOLLOW, False
    yield from ((f"right {number}", each, True) for number, each in enumerate(task.selftest.right))
    yield from ((f"wrong {number}", each, False) for number, each in enumerate(task.selftest.wrong))


def selftest(task: Task) -> list[str]:
    """Every complaint about the task's check; none means that it tells right from wrong."""
    return [complaint for name, variant, expected in variants(task) if (complaint := _complaint(task, name, variant, expected))]


def _complaint(task: Task, name: str, variant: Variant, expected: bool) -> str:
    with tempfile.TemporaryDirectory(prefix="evalself-") as folder:
        workspace = Path(folder, "ws")
        workspace.mkdir()
        try:
            _make(task, variant, workspace)
        except (OSError, subprocess.CalledProcessError) as error:
            return f"{task.id}: {name}: the workspace cannot be made: {error}"
        verdict = check(task, workspace)
    if verdict.passed != expected:
        return f"{task.id}: {name}: {'passed' if verdict.passed else 'failed'} and should not have: {verdict.detail}"
    return "" if expected or not _crashed(verdict) else f"{task.id}: {name}: the check crashed: {verdict.detail}"


def _crashed(verdict: Verdict) -> bool:
    """Whether the last line is that of a traceback, which a check that says what is wrong does not end in."""
    name = verdict.detail.partition(":")[0]
    return "Traceback" in verdict.detail or (name.isidentifier() and name.endswith(("Error", "Exception")))


def _make(task: Task, variant: Variant, workspace: Path) -> None:
    lay(task.files, workspace)
    for name in variant.delete:
        target = workspace / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()
    lay(variant.files, workspace)
    if variant.run:
        path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '/usr/bin:/bin')}"
        subprocess.run(variant.run, shell=True, cwd=workspace, env={**os.environ, "PATH": path}, check=True, capture_output=True)


def main(argv: Sequence[str]) -> int:
    try:
        match list(argv):
            case ["selftest", *folders]:
                return _selftest_all([Path(each) for each in folders] or [FOLDER])
            case ["check", file, workspace]:
                verdict = check(load(Path(file)), Path(workspace))
                print("passed" if verdict.passed else "failed", verdict.detail)
                return not verdict.passed
            case _:
                print(__doc__)
                return 2
    except BadInput as wrong:
        print(wrong.message, file=sys.stderr)
        return 2


def _selftest_all(folders: Sequence[Path]) -> int:
    tasks = [task for folder in folders for task in load_all(folder)]
    complaints = [complaint for task in tasks for complaint in selftest(task)]
    for complaint in complaints:
        print(complaint)
    cases = sum(1 for task in tasks for _ in variants(task))
    print(f"{len(tasks)} tasks: {cases - len(complaints)} workspaces judged rightly, {len(complaints)} wrongly")
    return bool(complaints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
