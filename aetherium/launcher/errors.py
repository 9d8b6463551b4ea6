"""What can keep the local engine from starting. Messages say what to do."""

from __future__ import annotations

from shared.errors import Fault


class CannotStart(Fault):
    """A part of the local engine cannot be started here."""

    code = "launcher.cannot_start"


class AlreadyRunning(Fault):
    """Another engine holds the data folder; `details["pid"]` is its process."""

    code = "launcher.already_running"
