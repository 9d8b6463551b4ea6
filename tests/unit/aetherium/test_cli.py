from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr
from typer.testing import CliRunner

from aetherium import cli
from aetherium.cli import doctor, up
from aetherium.cli.doctor import Grade
from aetherium.cli.status import without_password
from aetherium.launcher import state
from aetherium.launcher.process import ProcessStatus, State
from aetherium.launcher.state import Model
from shared.config import ChromaSettings, InferenceSettings, NatsSettings, PostgresSettings, Settings
from tests.requirements import covers

runner = CliRunner()


def aetherium(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "aetherium", *arguments], capture_output=True, text=True, check=False)


def engine(folder: Path, *processes: ProcessStatus) -> None:
    urls = {"gateway": "http://127.0.0.1:5257", "postgres": "postgresql://aetherium:secret@127.0.0.1:5432/aetherium"}
    state.write(state.of_this_process(folder, urls, Model(source="scripted", text="a scripted model"), processes))


def test_status_of_a_running_engine_lists_processes_and_places(tmp_path: Path) -> None:
    engine(tmp_path, ProcessStatus(name="nats", state=State.READY, port=4222), ProcessStatus(name="tools", state=State.READY, restarts=2))
    said = runner.invoke(cli.build(["status"]), ["status", "--data-dir", str(tmp_path)])
    assert said.exit_code == 0
    assert "http://127.0.0.1:5257" in said.output
    assert "restarts 2" in said.output
    assert "a scripted model" in said.output
    assert "secret" not in said.output


def test_status_of_an_engine_that_is_not_ready_exits_with_1(tmp_path: Path) -> None:
    engine(tmp_path, ProcessStatus(name="nats", state=State.FAILED, problem="the disk is full"))
    said = runner.invoke(cli.build(["status"]), ["status", "--json", "--data-dir", str(tmp_path)])
    assert said.exit_code == 1
    report = json.loads(said.output)
    assert report["ready"] is False
    assert report["processes"][0]["problem"] == "the disk is full"
    assert "secret" not in said.output


def test_status_without_an_engine_says_what_to_run(tmp_path: Path) -> None:
    said = aetherium("status", "--data-dir", str(tmp_path))
    assert said.returncode == 1
    assert "run 'aetherium up'" in said.stderr
    as_json = aetherium("status", "--json", "--data-dir", str(tmp_path))
    assert as_json.returncode == 1
    assert json.loads(as_json.stdout)["error"]["code"] == "input.not_found"


@covers("stack.config")
def test_a_wrong_setting_is_named_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AETHERIUM_GATEWAY__PROT", "1")
    said = aetherium("doctor")
    assert said.returncode == 1
    assert "AETHERIUM_GATEWAY__PROT" in said.stderr
    assert "Traceback" not in said.stderr


def test_only_the_verb_that_was_typed_is_offered_to_the_parser() -> None:
    assert runner.invoke(cli.build(["status"]), ["up", "--help"]).exit_code == 2
    assert runner.invoke(cli.build(), ["up", "--help"]).exit_code == 0


def test_a_password_is_not_shown() -> None:
    assert without_password("postgresql://me:secret@127.0.0.1:5432/db") == "postgresql://me@127.0.0.1:5432/db"
    assert without_password("nats://127.0.0.1:4222") == "nats://127.0.0.1:4222"


@covers("stack.doctor")
def test_doctor_finds_what_the_engine_needs_installed(tmp_path: Path) -> None:
    found = {check.name: check for check in doctor.checks(Settings(data_dir=tmp_path, inference=InferenceSettings(detect=False)))}
    assert found["nats-server"].grade is Grade.OK
    assert found["postgres"].grade is Grade.OK
    assert "PostgreSQL" in found["postgres"].text
    assert found["chroma"].grade is Grade.OK
    assert found["data folder"].grade is Grade.OK


def test_doctor_does_not_ask_for_what_runs_elsewhere(tmp_path: Path) -> None:
    elsewhere = Settings(
        data_dir=tmp_path,
        nats=NatsSettings(url="nats://db.example:4222"),
        postgres=PostgresSettings(dsn=SecretStr("postgresql://db.example/x")),
        chroma=ChromaSettings(enabled=False),
        inference=InferenceSettings(detect=False, local_model=False),
    )
    assert {check.name for check in doctor.checks(elsewhere)} == {"python", "data folder", "disk", "port", "model"}


@covers("stack.doctor")
def test_doctor_fails_for_a_configured_model_server_that_is_silent(tmp_path: Path) -> None:
    silent = Settings(data_dir=tmp_path, inference=InferenceSettings(url="http://127.0.0.1:9"))
    found = {check.name: check for check in doctor.checks(silent)}
    assert found["model"].grade is Grade.FAIL
    assert "http://127.0.0.1:9" in found["model"].text


@pytest.mark.parametrize(("version", "grade"), [((2, 11, 9), Grade.FAIL), ((2, 12, 0), Grade.OK), ((), Grade.FAIL)])
def test_doctor_wants_a_log_server_that_checks_expectations(version: tuple[int, ...], grade: Grade) -> None:
    assert doctor.nats_version(version).grade is grade


def test_doctor_wants_python_3_11() -> None:
    assert doctor.python_version((3, 10, 14)).grade is Grade.FAIL
    assert doctor.python_version((3, 11, 0)).grade is Grade.OK


@pytest.mark.parametrize(("code", "words"), [(1, "exit 1"), (-9, "SIGKILL"), (None, "unknown")])
def test_an_end_is_told_in_words(code: int | None, words: str) -> None:
    assert up.how_it_ended(code) == words
