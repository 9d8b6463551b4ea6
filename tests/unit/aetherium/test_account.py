"""PostgreSQL refuses to run as root, so it runs as another user who may still pass root's folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from aetherium.launcher.child import before_exec, unprivileged


@pytest.mark.skipif(os.geteuid() != 0, reason="only root changes its user")
def test_a_program_in_a_folder_of_roots_own_is_found_by_the_account_that_runs_it(tmp_path: Path) -> None:
    """initdb asks access(2) for its own programs: an engine may be installed below a folder that only root may enter."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    program = private / "program"
    program.write_text("#!/bin/sh\necho ran as $(id -u)\n")
    program.chmod(0o755)
    ask = f"import os, subprocess; print(os.access({str(program)!r}, os.X_OK), flush=True); subprocess.run([{str(program)!r}], check=True)"
    account = unprivileged()
    assert account is not None
    command = [sys.executable, "-S", "-E", "-c", ask]
    done = subprocess.run(command, preexec_fn=before_exec(signal.SIGTERM, account), capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["True", f"ran as {account.uid}"], done.stderr
