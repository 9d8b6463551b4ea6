from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from aetherium.launcher import lock, state
from aetherium.launcher.errors import AlreadyRunning, CannotStart
from aetherium.launcher.ports import Ports, is_free
from aetherium.launcher.process import ProcessStatus, State
from aetherium.launcher.state import Model

MODEL = Model(source="none", text="none")


def test_the_usual_port_is_taken_when_it_is_free() -> None:
    free = Ports().pick()
    assert Ports().pick(free) == free


def test_another_port_is_taken_when_a_server_listens_on_the_usual_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        assert not is_free(taken)
        picked = Ports().pick(taken)
    assert picked != taken


def test_no_port_is_given_twice() -> None:
    ports = Ports()
    first = ports.pick()
    assert ports.pick(first) != first


def test_two_engines_that_start_at_the_same_time_get_different_ports() -> None:
    first, second = Ports(), Ports()
    usual = first.pick()  # nothing listens there yet
    assert second.pick(usual) != usual
    first.release()
    assert Ports().pick(usual) == usual


def test_a_port_is_let_go_by_an_engine_that_was_killed() -> None:
    code = "from aetherium.launcher.ports import Ports; held = Ports(); print(held.pick(), flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        held = int(engine.stdout.readline())
        assert Ports().pick(held) != held
        engine.kill()
        engine.wait()
    assert Ports().pick(held) == held


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(CannotStart, match=r"203\.0\.113\.1"):
        Ports().pick(host="203.0.113.1")


def test_a_second_engine_on_the_same_folder_is_told_who_holds_it(tmp_path: Path) -> None:
    with lock.held(tmp_path), pytest.raises(AlreadyRunning, match=f"pid {os.getpid()}"), lock.held(tmp_path):
        pass


def test_the_folder_is_free_again_afterwards(tmp_path: Path) -> None:
    with lock.held(tmp_path):
        pass
    with lock.held(tmp_path):
        pass


def test_a_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    code = """
import sys, time
from pathlib import Path
from aetherium.launcher import lock
with lock.held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AlreadyRunning, match=f"pid {holder.pid}"), lock.held(tmp_path):
            pass
        holder.kill()
        holder.wait()
    with lock.held(tmp_path):
        pass


def test_a_running_engine_is_found_by_its_data_folder(tmp_path: Path) -> None:
    written = state.of_this_process(tmp_path, {"gateway": "http://127.0.0.1:1"}, MODEL, [ProcessStatus(name="nats", state=State.READY)])
    state.write(written)
    assert state.find(tmp_path) == written
    assert written.is_ready


def test_the_state_file_is_for_its_owner_only(tmp_path: Path) -> None:
    state.write(state.of_this_process(tmp_path, {}, MODEL))
    assert stat.S_IMODE((tmp_path / "run" / "engine.json").stat().st_mode) == 0o600


def test_what_a_dead_engine_left_is_not_taken_for_a_running_one(tmp_path: Path) -> None:
    this = state.of_this_process(tmp_path, {}, MODEL)
    ended = subprocess.Popen([sys.executable, "-S", "-c", ""])
    ended.wait()
    state.write(this.model_copy(update={"pid": ended.pid}))
    assert state.find(tmp_path) is None
    state.write(this.model_copy(update={"started_at": this.started_at - 60}))  # the same pid, an earlier process
    assert state.find(tmp_path) is None


@pytest.mark.parametrize("content", ["", "{", '{"pid": 1}'])
def test_a_broken_state_file_means_that_no_engine_runs(tmp_path: Path, content: str) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "engine.json").write_text(content)
    assert state.find(tmp_path) is None


def test_a_tidy_stop_removes_the_state(tmp_path: Path) -> None:
    state.write(state.of_this_process(tmp_path, {}, MODEL))
    state.remove(tmp_path)
    assert state.find(tmp_path) is None
