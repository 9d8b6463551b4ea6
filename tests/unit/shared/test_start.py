"""Services start without what their libraries would import for others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import shared
from shared.start import UNUSED

PROBE = """
import sys
if __name__ == "__main__":
    print(sys.argv[1:], *(name for name in ("aiohttp", "rich") if name in sys.modules and sys.modules[name] is not None))
"""


def run(folder: Path, *arguments: str) -> str:
    root = str(Path(shared.__file__).parent.parent)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([root, str(folder)])}
    return subprocess.run([sys.executable, "-P", *arguments], env=env, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_module_runs_as_the_program_with_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "probe.py").write_text(PROBE)
    assert run(tmp_path, "-m", "shared.start", "probe", "--one", "two").strip() == "['--one', 'two']"


@pytest.mark.parametrize("name", ["orchestrator", "tools"])
def test_a_service_imports_without_them(tmp_path: Path, name: str) -> None:
    (tmp_path / "whole.py").write_text(f"import sys, services.{name}.app\nprint(*(each for each in {UNUSED} if sys.modules.get(each)))")
    assert run(tmp_path, "-m", "shared.start", "whole").strip() == ""
