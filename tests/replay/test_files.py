"""The files that a run begins with are in its workspace before its first tool call, once, through any crash."""

from __future__ import annotations

from pathlib import Path

import pytest

from services.tools import seeds
from services.tools.paths import ToolRefusal, Workspace
from shared import subjects
from shared.events import run
from shared.events.content import Pins, SeedFile
from shared.events.tool import FilesLaid, ToolCompleted, ToolStarted
from shared.runlog import line_of
from shared.testing.memory import MemoryBlobs
from tests.requirements import covers
from tests.support.world import RUN, Turn, World

FILES = {"notes.txt": "as submitted\n", "src/main.py": "print(1)\n"}
WORK = (
    Turn(calls=[("read_file", '{"path":"notes.txt"}'), ("read_file", '{"path":"src/main.py"}')]),
    Turn(calls=[("write_file", '{"path":"notes.txt","content":"as changed\\n"}'), ("append_line", '{"line":"one"}')]),
    Turn(content="All done."),
)


async def submit(world: World) -> None:
    ref = await world.blobs.put(world.template.as_bytes())
    files = [SeedFile(path=path, content=await world.blobs.put(text.encode())) for path, text in FILES.items()]
    event = run.RunSubmitted(
        project_id=1, template_id="test", template=ref, message="Do the work.", pins=Pins(template=ref.sha256), files=tuple(files)
    )
    await world.log.append(subjects.Aggregate("run", RUN), [event], after=0)


def texts(world: World) -> dict[str, str]:
    root = world.folder / "ws" / "1"
    return {str(file.relative_to(root)): file.read_text() for file in sorted(root.rglob("*")) if file.is_file()}


async def test_a_run_finds_its_files_at_its_first_call(tmp_path: Path) -> None:
    world = World(tmp_path, WORK)
    await submit(world)
    await world.live()
    facts = world.log.facts
    laid = [fact for fact in facts if isinstance(fact.event, FilesLaid)]
    assert [fact.event for fact in laid] == [FilesLaid(files=tuple(FILES))]
    assert line_of(laid[0]) == "the workspace got notes.txt, src/main.py"
    assert laid[0].seq < min(fact.seq for fact in facts if isinstance(fact.event, ToolStarted))
    read = [fact.event.content for fact in facts if isinstance(fact.event, ToolCompleted) and fact.event.tool == "read_file"]
    assert sorted(read) == sorted(FILES.values())
    assert texts(world) == {**FILES, "notes.txt": "as changed\n"}


@covers("api.files")
async def test_a_run_cut_after_any_fact_keeps_what_it_changed_in_its_files(tmp_path: Path) -> None:
    whole = World(tmp_path / "whole", WORK)
    whole.folder.mkdir()
    await submit(whole)
    await whole.live()
    for cut in range(2, len(whole.log.facts) + 1):
        world = World(tmp_path / str(cut), WORK)
        world.folder.mkdir()
        await submit(world)
        world.reopen(crash_at=cut)
        await world.live()
        world.reopen()
        await world.live()
        assert sum(isinstance(fact.event, FilesLaid) for fact in world.log.facts) == 1, f"cut after fact {cut}"
        assert texts(world) == {**FILES, "notes.txt": "as changed\n"}, f"cut after fact {cut}"


async def test_a_file_that_was_removed_after_it_was_laid_does_not_come_back(tmp_path: Path) -> None:
    world = World(tmp_path, WORK)
    await submit(world)
    await world.live(until=FilesLaid)
    (tmp_path / "ws" / "1" / "src" / "main.py").unlink()
    world.reopen()
    await world.live()
    assert "src/main.py" not in texts(world)


async def test_a_name_that_is_taken_keeps_what_stands_there(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    (tmp_path / "a.txt").write_text("here first")
    files = [SeedFile(path=path, content=await blobs.put(b"laid")) for path in ("a.txt", "b/c.txt")]
    assert await seeds.lay(Workspace(tmp_path), files, blobs) == ("b/c.txt",)
    assert await seeds.lay(Workspace(tmp_path), files, blobs) == ()
    assert ((tmp_path / "a.txt").read_text(), (tmp_path / "b" / "c.txt").read_text()) == ("here first", "laid")


async def test_nothing_is_laid_outside_the_workspace(tmp_path: Path) -> None:
    blobs = MemoryBlobs()
    root = tmp_path / "ws"
    root.mkdir()
    (root / "link").symlink_to(tmp_path)
    for path in ("../out.txt", "/etc/out.txt", "link/out.txt"):
        with pytest.raises(ToolRefusal):
            await seeds.lay(Workspace(root), [SeedFile(path=path, content=await blobs.put(b"x"))], blobs)
    assert [each.name for each in tmp_path.iterdir()] == ["ws"]
