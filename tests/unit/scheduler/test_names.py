"""Which tool a written name means."""

from __future__ import annotations

import pytest

from services.scheduler.dialects.names import Names

REGISTERED = ("workspace-files__read_file", "workspace-files__write_file", "shell__run")


def resolved(written: str, *offered: str) -> str | None:
    found = Names(offered or REGISTERED).resolve(written)
    return found.name if found else None


def test_a_name_that_equals_one_tool_after_folding_is_that_tool() -> None:
    assert resolved("workspace_files__read_file") == "workspace-files__read_file"
    assert resolved("Shell__Run") == "shell__run"
    assert resolved("creating:read_file", "read_file", "write_file") == "read_file"
    assert resolved("functions.read_file", "read_file") == "read_file"


@pytest.mark.parametrize(
    "written", ["creating:read_file", "read_file", "shell__run_as_root", "shell__ru", "shel__run", "", "<|channel|>", "run"]
)
def test_a_name_is_never_guessed_from_its_beginning_or_likeness(written: str) -> None:
    assert resolved(written) is None


def test_a_name_that_fits_two_tools_after_folding_is_neither() -> None:
    assert resolved("A_B", "a-b", "a_b") is None
    assert resolved("a-b", "a-b", "a_b") == "a-b"


def test_an_exact_name_wins_over_every_folding() -> None:
    assert resolved("functions.run", "run", "functions.run") == "functions.run"


def test_an_unknown_name_is_answered_with_every_registered_one_and_no_control_token() -> None:
    words = Names(REGISTERED).unknown("shell__run_as_root<|channel|>commentary")
    assert words == (
        "There is no tool 'shell__run_as_root'. Call one of: workspace-files__read_file, workspace-files__write_file, shell__run."
    )
