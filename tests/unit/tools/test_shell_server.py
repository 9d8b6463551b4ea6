"""`run_shell` over a scripted runtime, and once over the real local one."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from services.containers.local import LocalRuntime
from services.tools.paths import Workspace
from services.tools.servers import snapshot
from services.tools.servers.base import UNKNOWN_SHA256, CallContext
from services.tools.servers.invoke import bound_of, invoke
from services.tools.servers.shell import ExecResult
from tests.requirements import covers
from tests.unit.tools.doubles import ScriptedRuntime, desk


async def test_a_command_goes_to_the_project_under_the_calls_own_id(tmp_path: Path) -> None:
    runtime = ScriptedRuntime(lambda _: ExecResult(0, "hello\n"))
    tools = await desk(tmp_path / "ws", runtime)
    reply = await tools.call("run_shell", command="echo hello", timeout_s="5")
    assert runtime.asked == [(7, "call_1", "echo hello", 5.0, tools.root)]
    assert (reply.content, reply.is_error, reply.structured) == ("hello\n[exit code 0]", False, {"exit_code": 0, "timed_out": False})


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (ExecResult(0, ""), "(no output)\n[exit code 0]"),
        (ExecResult(3, "bad\n"), "bad\n[exit code 3]"),
        (ExecResult(None, "half\n", timed_out=True), "half\n[stopped after 60 s: the command did not end."),
        (ExecResult(None, ""), "(no output)\n[stopped from outside before it ended."),
    ],
)
async def test_the_answer_says_how_the_command_ended(tmp_path: Path, result: ExecResult, text: str) -> None:
    reply = await (await desk(tmp_path / "ws", ScriptedRuntime(lambda _: result))).call("run_shell", command="x")
    assert reply.content.startswith(text)
    assert reply.is_error == (result.exit_code != 0)


async def test_long_output_keeps_its_head_and_its_tail_and_counts_the_rest(tmp_path: Path) -> None:
    runtime = ScriptedRuntime(lambda _: ExecResult(1, "HEAD" + "x" * 20_000 + "TAIL", cut=500))
    text = (await (await desk(tmp_path / "ws", runtime)).call("run_shell", command="x")).content
    assert text.startswith("HEADx")
    assert text.endswith("xTAIL\n[exit code 1]")
    assert f"[cut: {20_008 - 8_000 + 500:,} characters." in text
    assert len(text) < 8_300


async def test_output_that_a_store_cannot_hold_is_cleaned(tmp_path: Path) -> None:
    runtime = ScriptedRuntime(lambda _: ExecResult(0, "E\x00r\x00\ud83d"))
    text = (await (await desk(tmp_path / "ws", runtime)).call("run_shell", command="x")).content
    assert text == "E\ufffdr\ufffd\ufffd\n[exit code 0]"


@covers("tool.changes")
async def test_files_that_a_command_changed_are_recorded_with_what_stood_there_before(tmp_path: Path) -> None:
    def work(root: Path) -> ExecResult:
        (root / "made.txt").write_text("new")
        (root / "edited.txt").write_text("2")
        (root / "gone.txt").unlink()
        os.utime(root / "touched.txt", ns=(1, 1))
        (root / "__pycache__").mkdir()
        (root / "__pycache__/x.pyc").write_bytes(b"x")
        return ExecResult(0, "done")

    tools = await desk(tmp_path / "ws", ScriptedRuntime(work))
    for name in ("edited.txt", "gone.txt", "touched.txt", "still.txt"):
        (tools.root / name).write_text("1")
    reply = await tools.call("run_shell", command="x")
    known = {change.path: (change.before, change.before_sha256 is None, change.after_sha256 is None) for change in reply.changes}
    assert known == {"edited.txt": (b"1", False, False), "gone.txt": (b"1", False, True), "made.txt": (None, True, False)}
    assert reply.content.endswith("[files changed: edited.txt, gone.txt (removed), made.txt]")


async def test_changes_are_recorded_even_when_the_runtime_fails(tmp_path: Path) -> None:
    def work(root: Path) -> ExecResult:
        (root / "half.txt").write_text("half")
        raise ConnectionError("daemon went away")

    reply = await (await desk(tmp_path / "ws", ScriptedRuntime(work))).call("run_shell", command="x")
    assert (reply.failure, [change.path for change in reply.changes]) == ("tool.crashed", ["half.txt"])
    assert "daemon" not in reply.content


async def test_a_large_file_has_a_hash_once_it_changed_and_says_that_the_one_before_is_unknown(tmp_path: Path) -> None:
    def work(root: Path) -> ExecResult:
        (root / "large.bin").write_bytes(b"y" * (snapshot.HASHED_BYTES + 1))
        return ExecResult(0, "")

    tools = await desk(tmp_path / "ws", ScriptedRuntime(work))
    (tools.root / "large.bin").write_bytes(b"x" * (snapshot.HASHED_BYTES + 1))
    (change,) = (await tools.call("run_shell", command="x")).changes
    assert (change.before, change.before_sha256) == (None, UNKNOWN_SHA256)
    assert re.fullmatch("[0-9a-f]{64}", change.after_sha256 or "")


async def test_files_are_read_again_only_when_they_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tools = await desk(tmp_path / "ws")
    for number in range(50):
        (tools.root / f"{number}.txt").write_text("x")
    await tools.text("run_shell", command="first")
    read: list[str] = []
    real = Workspace.read_bytes

    def counted(self: Workspace, path: str, limit: int | None = None) -> bytes:
        read.append(path)
        return real(self, path, limit)

    monkeypatch.setattr(Workspace, "read_bytes", counted)
    (tools.root / "7.txt").write_text("y")
    await tools.text("run_shell", command="second")
    assert read == ["7.txt"]


async def test_beyond_the_bound_on_files_nothing_is_claimed_to_be_new_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "FILES", 3)

    def work(root: Path) -> ExecResult:
        (root / "0.txt").write_text("first")  # pushes the third file out of sight
        (root / "1.txt").write_text("changed")
        return ExecResult(0, "")

    tools = await desk(tmp_path / "ws", ScriptedRuntime(work))
    for number in range(1, 6):
        (tools.root / f"{number}.txt").write_text("x")
    reply = await tools.call("run_shell", command="x")
    assert [change.path for change in reply.changes] == ["1.txt"]


async def test_the_calls_own_time_bound_leaves_the_command_time_to_be_ended(tmp_path: Path) -> None:
    spec = (await desk(tmp_path / "ws")).specs["run_shell"]
    assert bound_of(spec, {"timeout_s": 600}) == 630
    assert bound_of(spec, {}) >= 60 + 10


async def test_a_blank_command_is_answered_without_running_anything(tmp_path: Path) -> None:
    runtime = ScriptedRuntime()
    tools = await desk(tmp_path / "ws", runtime)
    assert "The command is empty" in await tools.error("run_shell", command="  ")
    assert "'command' of run_shell must not be empty" in await tools.error("run_shell", command="")
    assert runtime.asked == []


async def test_a_program_is_written_run_and_its_output_saved_with_the_local_runtime(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path / "home")
    tools = await desk(tmp_path / "ws", runtime)
    await tools.text("write_file", path="hello.py", content="print('hello')\n")
    reply = await tools.call("run_shell", command="python hello.py | tee out.txt")
    assert reply.content == "hello\n[exit code 0]\n[files changed: out.txt]"
    assert (tools.root / "out.txt").read_text() == "hello\n"


async def test_a_cancelled_call_ends_its_command(tmp_path: Path) -> None:
    runtime = LocalRuntime(tmp_path / "home")
    tools = await desk(tmp_path / "ws", runtime)
    context = CallContext("run-1", "call_1", "coder", 7, tools.root)
    reply = await invoke(tools.servers, tools.specs["run_shell"], {"command": "touch began; sleep 60"}, context, timeout_s=0.5)
    assert (reply.failure, [change.path for change in reply.changes]) == ("tool.timed_out", ["began"])
    assert (await runtime.describe(7)).running == ()
