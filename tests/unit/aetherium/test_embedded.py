"""What the embedded servers are told, without starting them."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aetherium.launcher import llama, model_file, nats, postgres
from aetherium.launcher.errors import CannotStart
from aetherium.launcher.model_file import ModelFile
from tests.requirements import covers

PARTS = [b"one", b"two", b"three"]
WHOLE = b"".join(PARTS)
SMALL = ModelFile("small", "no_such_package_", 3, len(WHOLE), hashlib.sha256(WHOLE).hexdigest())


@covers("stack.fsync")
def test_the_log_server_flushes_every_fact_and_listens_on_loopback_only(tmp_path: Path) -> None:
    config = nats.render_config(port=4222, monitor_port=8222, store=tmp_path)
    assert "sync_interval: always" in config
    assert "max_payload: 1048576" in config
    assert 'listen: "127.0.0.1:4222"' in config
    assert 'http: "127.0.0.1:8222"' in config


def test_the_log_server_accepts_its_configuration_for_a_folder_with_odd_characters(tmp_path: Path) -> None:
    folder = tmp_path / 'my "data" # 1'
    spec = nats.spec(folder, port=4222, monitor_port=8222, env={})
    checked = subprocess.run([*spec.argv, "-t"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert json.dumps(str(folder / "nats" / "js")) in (folder / "nats" / "nats.conf").read_text()


def test_the_installed_log_server_is_new_enough() -> None:
    assert nats.version(nats.binary()) >= nats.MINIMUM


def test_the_database_password_is_made_once_and_kept_from_others(tmp_path: Path) -> None:
    first = postgres.password(tmp_path)
    assert len(first) >= 24
    assert postgres.password(tmp_path) == first
    assert stat.S_IMODE((tmp_path / "postgres" / "password").stat().st_mode) == 0o600
    assert postgres.dsn(tmp_path, 5433) == f"postgresql://aetherium:{first}@127.0.0.1:5433/aetherium"


@pytest.mark.parametrize(("status", "expected"), [("ready   ", True), ("starting", False)])
def test_the_database_is_ready_when_its_own_pid_file_says_so(tmp_path: Path, status: str, expected: bool) -> None:
    lines = ["77", str(tmp_path), "1", "5432", "", "127.0.0.1", "1 2", status]
    (tmp_path / "postmaster.pid").write_text("\n".join(lines))
    assert postgres.is_ready(tmp_path, 77) is expected
    assert not postgres.is_ready(tmp_path, 78)


async def test_a_pid_file_whose_number_now_belongs_to_a_stranger_is_removed(tmp_path: Path) -> None:
    (tmp_path / "postmaster.pid").write_text(f"{os.getpid()}\n{tmp_path}\n")
    await postgres.end_leftover(tmp_path)
    assert not (tmp_path / "postmaster.pid").exists()


def sources(folder: Path, parts: list[bytes]) -> list[Path]:
    paths = [folder / f"part{number:02}.bin" for number in range(1, len(parts) + 1)]
    for path, content in zip(paths, parts, strict=True):
        path.write_bytes(content)
    return paths


@covers("stack.model_file")
def test_the_model_is_assembled_once_from_its_parts(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    made = model_file.assemble(SMALL, sources(tmp_path, PARTS), cache)
    assert made.read_bytes() == WHOLE
    assert model_file.is_assembled(SMALL, cache)
    assert model_file.assemble(SMALL, [], cache) == made  # nothing is read again


@covers("stack.model_file")
def test_parts_of_another_model_are_refused_and_leave_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(CannotStart, match="do not add up"):
        model_file.assemble(SMALL, sources(tmp_path, [b"one", b"two", b"THREE"]), cache)
    assert not model_file.is_assembled(SMALL, cache)
    assert [path.name for path in cache.iterdir()] == ["small.lock"]


def test_a_model_file_that_was_cut_is_made_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    parts = sources(tmp_path, PARTS)
    made = model_file.assemble(SMALL, parts, cache)
    made.write_bytes(WHOLE[:-1])
    assert not model_file.is_assembled(SMALL, cache)
    assert model_file.assemble(SMALL, parts, cache).read_bytes() == WHOLE


def test_a_stop_during_the_assembly_leaves_nothing(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(CannotStart, match="stopped"):
        model_file.assemble(SMALL, sources(tmp_path, PARTS), cache, lambda: True)
    assert [path.name for path in cache.iterdir()] == ["small.lock"]


def test_two_starts_at_once_assemble_the_model_once(tmp_path: Path) -> None:
    """The second waits for the first and then finds the file: it has no parts to make one from."""
    cache = tmp_path / "cache"
    cache.mkdir()
    code = """
import fcntl, sys
from pathlib import Path
held = open(sys.argv[1], "w")
fcntl.flock(held, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
Path(sys.argv[2]).write_bytes(b"onetwothree")
Path(sys.argv[3]).write_text(sys.argv[4])
"""
    argv = [sys.executable, "-S", "-c", code, cache / "small.lock", cache / "small.gguf", cache / "small.sha256", SMALL.sha256]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"held\n"
        first.stdin.close()
        assert model_file.assemble(SMALL, [], cache).read_bytes() == WHOLE


def test_a_model_without_all_its_parts_is_not_available() -> None:
    assert model_file.parts(SMALL) is None
    assert not llama.is_available(SMALL)


def test_the_cache_follows_the_users_setting(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert model_file.cache_dir() == tmp_path / "aetherium" / "models"


def test_the_model_server_gives_every_slot_the_whole_context() -> None:
    argv = llama.argv(Path("m.gguf"), alias="m", port=1, context_tokens=8192, slots=2)
    assert argv[argv.index("--ctx-size") + 1] == "16384"
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
