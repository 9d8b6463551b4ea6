"""The workspace tools as a model meets them: what they do, what they record, what they say when they can't."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from pathlib import Path

import pytest
from mcp import Client

from services.tools.servers import workspace as module
from services.tools.servers.base import CallContext, Changes, current_call, current_changes
from services.tools.servers.invoke import invoke
from tests.requirements import covers
from tests.unit.tools.doubles import Desk, desk


@pytest.fixture
async def tools(tmp_path: Path) -> Desk:
    return await desk(tmp_path / "ws")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# ---- writing


@covers("tool.changes")
async def test_a_file_is_written_exactly_as_given_and_recorded_with_both_sides(tools: Desk) -> None:
    content = '{"port": 8080, "debug": true}'
    created = await tools.call("write_file", path="/workspace/conf/cfg.json", content=content)
    assert (created.content, created.is_error) == ("Created conf/cfg.json: 1 lines, 29 characters.", False)
    assert (tools.root / "conf/cfg.json").read_bytes() == content.encode()
    replaced = await tools.call("write_file", path="conf/cfg.json", content="null")
    (change,) = replaced.changes
    assert (change.path, change.before, change.before_sha256, change.after_sha256) == (
        "conf/cfg.json",
        content.encode(),
        sha256(content.encode()),
        sha256(b"null"),
    )
    assert created.changes[0].before_sha256 is None


async def test_writing_what_is_there_already_changes_nothing_and_says_so(tools: Desk) -> None:
    await tools.text("write_file", path="a.txt", content="same\n")
    again = await tools.call("write_file", path="a.txt", content="same\n")
    assert "already holds exactly this content" in again.content
    assert again.changes == ()


async def test_null_characters_and_half_emoji_in_content_do_not_fail_the_write(tools: Desk) -> None:
    await tools.text("write_file", path="a.txt", content="cut \ud83d and \x00 end 😀")
    assert (tools.root / "a.txt").read_text() == "cut \ufffd and \ufffd end 😀"


@covers("tool.paths")
async def test_escaping_paths_are_refused_by_every_tool_and_nothing_is_recorded(tools: Desk, tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("secret")
    (tools.root / "link").symlink_to(tmp_path)
    for path in ("../x.txt", str(tmp_path / "x.txt"), "link/x.txt"):
        for tool, rest in (
            ("read_file", {}),
            ("write_file", {"content": "x"}),
            ("edit_file", {"old": "secret", "new": "x"}),
            ("list_files", {}),
            ("search_files", {"pattern": "secret"}),
        ):
            said = await tools.error(tool, path=path, **rest)
            assert "outside the workspace" in said or "symbolic link" in said
    assert (tmp_path / "x.txt").read_text() == "secret"


# ---- reading


async def test_a_file_is_read_whole_or_by_lines(tools: Desk) -> None:
    (tools.root / "a.txt").write_bytes(b"one\r\ntwo\r\nthree")
    assert await tools.text("read_file", path="a.txt") == "one\ntwo\nthree"
    assert await tools.text("read_file", path="a.txt", start_line=2, end_line=2) == "two\n"
    assert await tools.text("read_file", path="a.txt", start_line=3, end_line=99) == "three"
    assert "has 3 lines, so there is no line 4" in await tools.error("read_file", path="a.txt", start_line=4)
    assert "before start_line" in await tools.error("read_file", path="a.txt", start_line=3, end_line=2)


async def test_a_long_file_is_cut_at_a_line_and_says_how_to_go_on(tools: Desk) -> None:
    lines = [f"line {number}" for number in range(1, 3001)]
    (tools.root / "long.txt").write_text("\n".join(lines) + "\n")
    seen: list[str] = []
    start = 1
    while len(seen) < 3000:
        text = await tools.text("read_file", path="long.txt", start_line=start)
        assert len(text) < 8_200
        body, _, cut = text.partition("[cut: ")
        seen += body.splitlines()
        if cut:
            assert cut == f"lines {start} to {len(seen)} of 3000. Call read_file with start_line {len(seen) + 1} for more.]"
        start = len(seen) + 1
    assert seen == lines


async def test_a_line_too_long_to_show_is_cut_with_its_length(tools: Desk) -> None:
    (tools.root / "min.js").write_text("x" * 50_000)
    text = await tools.text("read_file", path="min.js")
    assert text.endswith("[cut: line 1 has 50,000 characters. Use run_shell to see the rest of it.]")
    assert len(text) < 8_200


async def test_what_cannot_be_read_is_answered_with_what_to_do(tools: Desk) -> None:
    assert await tools.error("read_file", path="a.txt") == ("There is no 'a.txt': the workspace is empty. Use write_file to create it.")
    (tools.root / "src").mkdir()
    (tools.root / "src/Main.py").write_text("x")
    (tools.root / "logo.png").write_bytes(b"\x89PNG\x00\x01")
    (tools.root / "empty").touch()
    assert await tools.error("read_file", path="main.py") == "There is no 'main.py'. Did you mean 'src/Main.py'?"
    assert "The files are: empty, logo.png, src/Main.py" in await tools.error("read_file", path="other.py")
    assert "is a folder, not a file. Call list_files" in await tools.error("read_file", path="src")
    assert "binary file of 6 bytes" in await tools.error("read_file", path="logo.png")
    assert await tools.text("read_file", path="empty") == "[empty is empty]"


async def test_a_file_too_large_to_read_says_so_without_being_read(tools: Desk) -> None:
    with (tools.root / "big").open("wb") as file:
        file.truncate(module.READ_BYTES * 100)
    assert "larger than 8 MiB" in await tools.error("read_file", path="big")


# ---- editing


async def test_an_edit_keeps_mark_line_ends_and_the_missing_last_newline(tools: Desk) -> None:
    before = b"\xef\xbb\xbfa = 1\r\nb = 2\r\nc = 3"
    (tools.root / "a.py").write_bytes(before)
    reply = await tools.call("edit_file", path="./a.py", old="b = 2\nc", new="b = 4\nd = 5\nc")
    after = b"\xef\xbb\xbfa = 1\r\nb = 4\r\nd = 5\r\nc = 3"
    assert (tools.root / "a.py").read_bytes() == after
    assert reply.content == "Edited a.py at line 2. It reads there now:\na = 1\nb = 4\nd = 5\nc = 3"
    (change,) = reply.changes
    assert (change.path, change.before, change.after_sha256) == ("a.py", before, sha256(after))


async def test_a_latin_1_file_keeps_its_bytes_and_refuses_what_it_cannot_hold(tools: Desk) -> None:
    (tools.root / "a.txt").write_bytes("caf\xe9 = 1\n".encode("latin-1"))
    await tools.text("edit_file", path="a.txt", old="= 1", new="= 2")
    assert (tools.root / "a.txt").read_bytes() == "caf\xe9 = 2\n".encode("latin-1")
    assert "stored as latin-1, which has no '→'" in await tools.error("edit_file", path="a.txt", old="= 2", new="→")


async def test_a_binary_file_is_not_edited(tools: Desk) -> None:
    data = b"\x00\x01abc\xff"
    (tools.root / "a.bin").write_bytes(data)
    assert "binary" in await tools.error("edit_file", path="a.bin", old="abc", new="abd")
    assert (tools.root / "a.bin").read_bytes() == data


async def test_an_edit_that_finds_nothing_or_too_much_leaves_the_file_alone(tools: Desk) -> None:
    (tools.root / "a.py").write_text("x = 1\nx = 1\nvalue = compute(x)\n")
    assert "occurs 2 times (lines 1, 2)" in await tools.error("edit_file", path="a.py", old="x = 1", new="x = 2")
    assert "nearest lines are 3 to 3:\nvalue = compute(x)" in await tools.error("edit_file", path="a.py", old="value = compute(y)", new="z")
    assert (tools.root / "a.py").read_text() == "x = 1\nx = 1\nvalue = compute(x)\n"


async def test_edits_of_one_file_at_the_same_time_are_all_kept(tools: Desk) -> None:
    (tools.root / "a.txt").write_text("".join(f"<{number}>\n" for number in range(20)))
    await asyncio.gather(*(tools.text("edit_file", path="a.txt", old=f"<{number}>", new=f"[{number}]") for number in range(20)))
    assert (tools.root / "a.txt").read_text() == "".join(f"[{number}]\n" for number in range(20))


# ---- listing and searching


async def test_a_listing_shows_files_as_paths_that_other_tools_accept(tools: Desk) -> None:
    for path in ("b.txt", "src/deep/a.py", "src/__pycache__/a.pyc", ".git/config", "node_modules/x/index.js", ".pytest_cache/v"):
        (tools.root / path).parent.mkdir(parents=True, exist_ok=True)
        (tools.root / path).write_text("x")
    (tools.root / "empty.txt").touch()
    (tools.root / "link").symlink_to("/etc")
    assert (await tools.text("list_files")).split("\n") == ["b.txt", "empty.txt (empty)", "link (a link, not followed)", "src/deep/a.py"]
    assert await tools.text("list_files", path="/workspace/src") == "src/deep/a.py"
    assert "is a file, not a folder" in await tools.error("list_files", path="b.txt")
    assert "There is no 'none'" in await tools.error("list_files", path="none")


async def test_an_empty_workspace_says_so(tools: Desk) -> None:
    assert await tools.text("list_files") == "(the workspace has no files yet)"


async def test_a_long_listing_is_bounded_and_counts_what_is_left_out(tools: Desk) -> None:
    for number in range(900):
        (tools.root / f"file-with-a-long-name-{number:04}.txt").touch()
    text = await tools.text("list_files")
    shown = text.split("\n")[:-1]
    assert len(text) < 8_200
    assert text.endswith(f"[cut: {900 - len(shown)} more files. Call list_files with the path of one folder.]")


async def test_odd_names_on_the_disk_cannot_forge_lines_or_break_the_answer(tools: Desk) -> None:
    Path(os.fsdecode(os.fsencode(tools.root) + b"/bad-\xff")).write_text("needle")
    (tools.root / "two\nlines").write_text("needle")
    assert (await tools.text("list_files")).split("\n") == ["bad-\ufffd", "two\ufffdlines"]
    assert (
        await tools.text("search_files", pattern="needle")
        == "No line matches 'needle' in 0 files; it is looked for in their lines, not in their names."
    )


async def test_a_search_answers_with_file_line_and_text(tools: Desk) -> None:
    (tools.root / "a.py").write_text("import os\n\ndef main():\n    pass\n")
    (tools.root / "b.bin").write_bytes(b"\x00def main")
    (tools.root / "__pycache__").mkdir()
    (tools.root / "__pycache__/c.py").write_text("def main")
    assert await tools.text("search_files", pattern=r"def \w+\(") == "a.py:3: def main():"
    assert await tools.text("search_files", pattern="def", path="a.py") == "a.py:3: def main():"
    assert (
        await tools.text("search_files", pattern="nothing")
        == "No line matches 'nothing' in 1 files; it is looked for in their lines, not in their names."
    )


async def test_a_bad_regular_expression_is_answered_with_one_that_works(tools: Desk) -> None:
    (tools.root / "a.py").write_text("call(x)\n")
    said = await tools.error("search_files", pattern="call(")
    assert said == ("'call(' is not a regular expression: missing ) at position 5. To find it as plain text, search for 'call\\\\('.")
    assert await tools.text("search_files", pattern="call\\(") == "a.py:1: call(x)"


async def test_a_search_that_finds_too_much_is_cut_and_says_so(tools: Desk) -> None:
    (tools.root / "a.txt").write_text("match\n" * 500)
    text = await tools.text("search_files", pattern="match")
    assert text.count("\n") == 100
    assert text.endswith("[cut: more lines match after 100. Search in one folder, or for a longer pattern.]")


@covers("tool.search_bounded")
async def test_a_pattern_that_would_never_end_is_stopped_and_the_process_goes_on(tools: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SEARCH_S", 0.3)
    (tools.root / "a.txt").write_text("a" * 5000 + "b\n")
    beats = 0

    async def beat() -> None:
        nonlocal beats
        while True:
            beats += 1
            await asyncio.sleep(0)

    beating = asyncio.create_task(beat())
    async with asyncio.timeout(5):
        text = await tools.text("search_files", pattern="(a|aa)+$")
    beating.cancel()
    assert "stopped after 0.3 s at a.txt" in text
    assert beats > 10


# ---- how a call is run


async def test_the_call_reaches_a_handler_through_an_in_process_client_too(tools: Desk) -> None:
    changes = Changes()
    async with Client(tools.servers[0]) as client:
        current_call.set(CallContext("run-1", "call_1", "coder", 7, tools.root))
        current_changes.set(changes)
        result = await client.call_tool("write_file", {"path": "a.txt", "content": "x"})
    assert not result.is_error
    assert [change.path for change in changes.all()] == ["a.txt"]


async def test_calls_at_the_same_time_do_not_see_each_others_workspace(tmp_path: Path) -> None:
    desks = [await desk(tmp_path / f"ws{number}") for number in range(8)]
    replies = await asyncio.gather(*(each.call("write_file", path="a.txt", content=each.root.name) for each in desks))
    assert all((each.root / "a.txt").read_text() == each.root.name for each in desks)
    assert all(len(reply.changes) == 1 for reply in replies)


async def test_a_call_past_its_bound_is_a_failure_that_still_reports_what_it_changed(tools: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    write, cancelled = module.Workspace.write, threading.Event()

    def slow(self: module.Workspace, path: str, data: bytes) -> None:
        write(self, path, data)
        assert cancelled.wait(5)

    monkeypatch.setattr(module.Workspace, "write", slow)
    context = CallContext("run-1", "call_1", "coder", 7, tools.root)
    asyncio.get_running_loop().call_later(0.15, cancelled.set)
    reply = await invoke(tools.servers, tools.specs["write_file"], {"path": "a.txt", "content": "x"}, context, timeout_s=0.05)
    assert (reply.failure, reply.is_error) == ("tool.timed_out", True)
    assert [change.path for change in reply.changes] == ["a.txt"]
    assert (tools.root / "a.txt").read_text() == "x"


async def test_a_crash_of_a_tool_tells_the_model_nothing_of_the_engine(tools: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> str:
        raise RuntimeError("/secret/place")

    monkeypatch.setattr(module, "_list", broken)
    reply = await tools.call("list_files")
    assert (reply.failure, reply.is_error) == ("tool.crashed", True)
    assert "secret" not in reply.content


async def test_a_workspace_that_is_gone_is_a_failure_and_not_the_models_mistake(tools: Desk) -> None:
    tools.root.rmdir()
    reply = await tools.call("list_files")
    assert (reply.failure, reply.content) == ("tool.workspace_gone", "The workspace folder cannot be opened. Try again later.")


def test_changes_of_one_file_are_told_once_and_only_if_something_changed() -> None:
    changes = Changes()
    changes.record("a", None, b"1")
    changes.record("a", b"1", b"2")
    changes.record("b", b"x", b"y")
    changes.record("b", b"y", b"x")
    changes.record("c", b"", None)
    assert [(c.path, c.before, c.before_sha256, c.after_sha256) for c in changes.all()] == [
        ("a", None, None, sha256(b"2")),
        ("c", b"", sha256(b""), None),
    ]
