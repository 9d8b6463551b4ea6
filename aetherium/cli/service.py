"""How verbs ask a service's own code: in a process of its own, since the command line imports no service."""

from __future__ import annotations

import subprocess
import sys

from aetherium.launcher.stack import base_environ


def run_module(module: str, *arguments: str, as_json: bool) -> int:
    """Run `python -m module`, whose output is the verb's; gives its exit code."""
    command = [sys.executable, "-P", "-m", module, *arguments, *(["--json"] if as_json else [])]
    return subprocess.run(command, env=base_environ(), check=False).returncode
