"""Which tools a guided agent is offered."""

from __future__ import annotations

import pytest

from services.orchestrator import guidance
from services.orchestrator.actions import Tool
from services.orchestrator.workspace_view import WorkspaceView

TOOLS = (Tool("run_shell", "", {"command": {}}, command="command"), Tool("write_file", "", {"path": {}}, long_text="content"))


@pytest.mark.parametrize(
    ("message", "text", "offers_shell"),
    [
        ("In which room is it? The answer is in a.txt. Write the number of the room to n.txt.", "room 3\n", False),
        ("How many rooms are in a.txt? Write the answer to n.txt.", "room 3\n", True),  # models count badly, programs do not
        ("Which room is in a.txt? Use the shell to write the answer to n.txt.", "room 3\n", True),
        ("Which room is in a.txt? Write the answer to n.txt.", "room 3\n" * 1000, True),  # it was not shown whole
        ("Which room is in a.txt? Write the answer to n.txt.", None, True),  # nor was this
        ("Put the room of a.txt into n.txt.", "room 3\n", True),
    ],
)
def test_a_question_about_a_shown_file_is_answered_without_a_command(message: str, text: str | None, offers_shell: bool) -> None:
    progress = guidance.started(message, ["n.txt"], WorkspaceView(frozenset({"a.txt"})), has_shell=True)
    if text is not None:
        progress = progress.knows("a.txt", text)
    assert ("run_shell" not in guidance.useless(TOOLS, progress)) is offers_shell
