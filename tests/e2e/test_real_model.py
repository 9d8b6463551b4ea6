"""The demo's task with the bundled local model: nothing scripted, nothing simulated."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aetherium.launcher import llama
from tests.requirements import covers

MINUTES = 15


@pytest.mark.real_model
@pytest.mark.skipif(not llama.is_available(), reason="the local model is not installed: make model")
@covers("demo.real_model")
def test_the_local_model_does_the_demos_task(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if not name.startswith("AETHERIUM_")}
    env |= {
        "AETHERIUM_DATA_DIR": str(tmp_path),
        "AETHERIUM_INFERENCE__DETECT": "false",
        "AETHERIUM_CHROMA__ENABLED": "false",
    }
    command = [sys.executable, "-m", "aetherium", "demo"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=MINUTES * 60, cwd=tmp_path, check=False)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}"
    assert "primes.txt holds the 25 primes below 100" in done.stdout
    assert "scripted" not in done.stdout
    (saved,) = tmp_path.glob("workspaces/*/primes.txt")
    assert [int(line) for line in saved.read_text().split()] == [n for n in range(2, 100) if all(n % d for d in range(2, n))]
