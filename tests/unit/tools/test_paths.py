"""Nothing outside of the workspace can be read, listed or written, whatever a path says or becomes."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.tools.paths import Missing, ToolRefusal, Workspace, WorkspaceGone, parts_of
from tests.requirements import covers

ROOT = Path("/data/ws/run7")


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_text("secret")
    return folder


@pytest.fixture
def workspace(tmp_path: Path, outside: Path) -> Workspace:
    root = tmp_path / "ws"
    (root / "ok").mkdir(parents=True)
    (root / "a.txt").write_text("inside")
    (root / "link").symlink_to(outside)
    (root / "dangling").symlink_to(outside / "not-there.txt")
    (root / "loop").symlink_to(root / "loop")
    (root / "inner").symlink_to(root / "a.txt")
    return Workspace(root)


def exchange(one: Path, other: Path) -> None:
    """Swap two names in one step (renameat2 with RENAME_EXCHANGE), so that neither is ever free."""
    assert ctypes.CDLL(None).renameat2(-100, os.fsencode(one), -100, os.fsencode(other), 2) == 0


def operations(workspace: Workspace, path: str) -> list[Callable[[], object]]:
    return [
        lambda: workspace.read_bytes(path),
        lambda: workspace.write(path, b"x"),
        lambda: workspace.stat(path),
        lambda: workspace.sha256(path),
        lambda: list(workspace.walk(path)),
        lambda: workspace.make_folder(path),
        lambda: workspace.unlink(path),
        lambda: workspace.rename(path, "free.txt"),
        lambda: workspace.rename("a.txt", path),
    ]


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("/data/ws/run7/a.txt", ("a.txt",)),
        ("/data/ws/run7", ()),
        ("/data//ws/./run7/", ()),
        ("/workspace/src/a.txt", ("src", "a.txt")),
        ("/workspace", ()),
        ("./a.txt", ("a.txt",)),
        ("src//./b/../a.txt", ("src", "a.txt")),
        (".", ()),
        ("workspace/a.txt", ("workspace", "a.txt")),
        ("..a/b..", ("..a", "b..")),
    ],
)
def test_a_path_inside_the_workspace_is_folded_to_its_components(path: str, parts: tuple[str, ...]) -> None:
    assert parts_of(path, ROOT) == parts


@covers("tool.paths.words")
@pytest.mark.parametrize(
    "path",
    [
        "/data/ws/run7-private/b.txt",
        "/data/ws/run70/c.txt",
        "../run7-private/b.txt",
        "/data/ws/run7/../run7-private/b.txt",
        "a/../../run7-private/b.txt",
        "a/../../run7/a.txt",
        "/DATA/WS/RUN7/a.txt",
        "/workspace/../etc/passwd",
        "/workspaces/a.txt",
        "/etc/passwd",
        "/",
        "..",
        "~/.ssh/id_rsa",
    ],
)
def test_a_path_outside_is_refused_with_the_next_action_in_words(path: str) -> None:
    with pytest.raises(ToolRefusal) as refusal:
        parts_of(path, ROOT)
    assert str(refusal.value) == f"{path!r} is outside the workspace. Use a path relative to the workspace, such as 'notes.txt'."


@pytest.mark.parametrize("path", ["", " ", "a\x00b", "a\nb", "x" * 300, "a/" * 3000, "half \ud83d"])
def test_a_path_that_no_file_can_have_is_refused(path: str) -> None:
    with pytest.raises(ToolRefusal):
        parts_of(path, ROOT)


@covers("tool.paths")
@given(st.lists(st.sampled_from(["..", ".", "", "a", "run7", "run7-private", "data", "ws", "workspace"]), max_size=12), st.booleans())
def test_no_folding_leaves_a_step_up_in_the_components(parts: list[str], absolute: bool) -> None:
    with suppress(ToolRefusal):
        folded = parts_of(("/" if absolute else "") + "/".join(parts), ROOT)
        assert not {"..", ".", ""} & set(folded)


@covers("tool.paths.words")
@pytest.mark.parametrize("name", ["secret.txt", "no-such-file.txt"])
def test_every_operation_refuses_an_outside_path_in_the_same_words_whether_it_exists_or_not(
    workspace: Workspace, outside: Path, name: str
) -> None:
    for path in (f"../outside/{name}", str(outside / name)):
        for operation in operations(workspace, path):
            with pytest.raises(ToolRefusal) as refusal:
                operation()
            assert str(refusal.value).startswith(f"{path!r} is outside the workspace.")
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


@covers("tool.paths")
@pytest.mark.parametrize("path", ["link/secret.txt", "link/no-such-file.txt", "link/sub/deeper/x", "dangling/x", "loop/x"])
def test_nothing_goes_through_a_link_to_a_folder(workspace: Workspace, outside: Path, path: str) -> None:
    for operation in operations(workspace, path):
        with pytest.raises(ToolRefusal, match="symbolic link"):
            operation()
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


@pytest.mark.parametrize("path", ["link", "dangling", "loop", "inner"])
def test_a_link_itself_is_neither_read_nor_written_nor_listed(workspace: Workspace, outside: Path, path: str) -> None:
    for operation in (
        lambda: workspace.read_bytes(path),
        lambda: workspace.write(path, b"x"),
        lambda: list(workspace.walk(path)),
        lambda: workspace.make_folder(path),
        lambda: workspace.unlink(path),
    ):
        with pytest.raises(ToolRefusal, match="symbolic link"):
            operation()
    assert os.path.lexists(workspace.root / path)
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


def test_moving_a_file_into_a_linked_folder_is_refused(workspace: Workspace, outside: Path) -> None:
    workspace.write("ok/new.txt", b"1")
    with pytest.raises(ToolRefusal, match="symbolic link"):
        workspace.rename("ok/new.txt", "link/x")
    assert workspace.read_bytes("ok/new.txt") == b"1"
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]


def test_a_walk_names_links_and_does_not_enter_them(workspace: Workspace) -> None:
    found = {entry.path: entry.kind for entry in workspace.walk()}
    assert found == {"a.txt": "file", "dangling": "link", "inner": "link", "link": "link", "loop": "link", "ok": "folder"}


def test_a_walk_leaves_out_what_tools_made(workspace: Workspace) -> None:
    for folder in ("__pycache__", ".git", ".pytest_cache", "node_modules"):
        workspace.write(f"{folder}/x", b"")
    workspace.write("ok/deep/er/y", b"")
    assert [entry.path for entry in workspace.walk("ok")] == ["ok/deep", "ok/deep/er", "ok/deep/er/y"]
    assert not [entry for entry in workspace.walk() if entry.path.endswith("/x")]


def test_pipes_and_sockets_and_folders_are_not_opened_as_files(workspace: Workspace) -> None:
    os.mkfifo(workspace.root / "pipe")
    for path, words in (("pipe", "not a regular file"), ("ok", "is a folder")):
        for operation in (lambda path=path: workspace.read_bytes(path), lambda path=path: workspace.write(path, b"x")):
            with pytest.raises(ToolRefusal, match=words):
                operation()


@covers("tool.paths")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may make a device")
def test_a_device_is_not_opened(workspace: Workspace) -> None:
    try:
        os.mknod(workspace.root / "zero", 0o666 | 0o020000, os.makedev(1, 5))
    except PermissionError:
        pytest.skip("this machine lets no one make a device")
    with pytest.raises(ToolRefusal, match="not a regular file"):
        workspace.read_bytes("zero")


def test_a_write_makes_parents_replaces_whole_files_and_keeps_their_permissions(workspace: Workspace) -> None:
    workspace.write("new/deep/run.sh", b"one")
    (workspace.root / "new/deep/run.sh").chmod(0o755)
    workspace.write("new/deep/run.sh", b"two")
    target = workspace.root / "new/deep/run.sh"
    assert (target.read_bytes(), target.stat().st_mode & 0o777) == (b"two", 0o755)
    assert [each.name for each in target.parent.iterdir()] == ["run.sh"]


def test_a_write_through_a_file_or_to_a_folder_is_refused_in_words(workspace: Workspace) -> None:
    with pytest.raises(ToolRefusal, match="which is a file, not a folder"):
        workspace.write("a.txt/b.txt", b"")
    with pytest.raises(ToolRefusal, match="names a folder"):
        workspace.write("fresh/", b"")
    with pytest.raises(ToolRefusal, match="workspace folder itself"):
        workspace.write(".", b"")


def test_a_write_that_the_disk_refuses_leaves_the_old_file_and_no_rest(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(ToolRefusal, match=r"No space left on device\. Nothing was changed"):
        workspace.write("a.txt", b"new")
    assert workspace.read_bytes("a.txt") == b"inside"
    assert not [name for name in os.listdir(workspace.root) if name.startswith(".aetherium-tmp-")]


def test_a_missing_file_and_a_missing_workspace_are_told_apart(workspace: Workspace, tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"There is no 'b.txt' in the workspace"):
        workspace.read_bytes("b.txt")
    with pytest.raises(WorkspaceGone):
        Workspace(tmp_path / "gone").read_bytes("b.txt")


def test_a_move_never_replaces_what_is_there(workspace: Workspace) -> None:
    workspace.write("b.txt", b"b")
    with pytest.raises(ToolRefusal, match="exists already"):
        workspace.rename("b.txt", "a.txt")
    workspace.rename("b.txt", "new/c.txt")
    assert workspace.read_bytes("new/c.txt") == b"b"


@covers("tool.paths")
def test_a_folder_swapped_for_a_link_at_any_moment_never_lets_a_write_or_a_read_out(workspace: Workspace, outside: Path) -> None:
    real, trap, done = workspace.root / "ok", workspace.root / "trap", threading.Event()
    trap.symlink_to(outside)

    def swap() -> None:
        while not done.is_set():
            exchange(real, trap)

    swapping = threading.Thread(target=swap)
    swapping.start()
    outcomes = {"written": 0, "refused": 0}
    try:
        deadline = time.monotonic() + 10
        while min(outcomes.values()) < 300 and time.monotonic() < deadline:
            try:
                workspace.write("ok/new.txt", b"x")
                outcomes["written"] += 1
            except ToolRefusal:
                outcomes["refused"] += 1
            with suppress(ToolRefusal):
                assert workspace.read_bytes("ok/secret.txt") != b"secret"
    finally:
        done.set()
        swapping.join()
    assert [each.name for each in outside.iterdir()] == ["secret.txt"]
    assert min(outcomes.values()) > 0, f"the race was not one: {outcomes}"


def test_a_file_swapped_for_a_link_is_replaced_and_not_followed(workspace: Workspace, outside: Path) -> None:
    target, trap, done = workspace.root / "ok/f.txt", workspace.root / "trap", threading.Event()

    def swap() -> None:
        while not done.is_set():
            with suppress(FileExistsError):
                trap.symlink_to(outside / "secret.txt")
            os.replace(trap, target)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        for _ in range(500):
            with suppress(ToolRefusal):
                workspace.write("ok/f.txt", b"x")
            with suppress(ToolRefusal):
                assert workspace.read_bytes("ok/f.txt") == b"x"
    finally:
        done.set()
        swapping.join()
    assert (outside / "secret.txt").read_text() == "secret"


@pytest.mark.parametrize("trap", ["link to a secret", "pipe that nobody writes to"])
def test_a_file_swapped_right_after_the_check_is_not_read(
    workspace: Workspace, outside: Path, monkeypatch: pytest.MonkeyPatch, trap: str
) -> None:
    look, target = Workspace._lstat, workspace.root / "a.txt"  # pyright: ignore[reportPrivateUsage]

    def look_then_swap(self: Workspace, folder: int, name: str, path: str) -> os.stat_result:
        status = look(self, folder, name, path)
        target.unlink()
        if "link" in trap:
            target.symlink_to(outside / "secret.txt")
        else:
            os.mkfifo(target)
        return status

    monkeypatch.setattr(Workspace, "_lstat", look_then_swap)
    with pytest.raises(ToolRefusal, match=r"symbolic link|not a regular file"):
        workspace.read_bytes("a.txt")


def test_a_workspace_reached_by_a_link_is_known_by_both_of_its_names(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "other-name").symlink_to(workspace.root)
    linked = Workspace(tmp_path / "other-name")
    for path in (tmp_path / "other-name/a.txt", workspace.root / "a.txt"):
        assert linked.read_bytes(str(path)) == b"inside"


def test_no_descriptor_stays_open_after_any_operation(workspace: Workspace) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for path in ("a.txt", "ok", "link", "link/x", "none", "../x", "new/a"):
        for operation in operations(workspace, path):
            with suppress(ToolRefusal):
                operation()
    assert len(os.listdir("/proc/self/fd")) == before
