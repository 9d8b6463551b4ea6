"""What version of the engine's code this is: the release, and a digest of what runs are executed by.

A run that was parked by a bug goes on only under another digest.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


def fingerprint() -> str:
    """Such as `0.1.0+3fa9c1d2`: equal for equal code of this service and of `shared`."""
    here = Path(__file__).parent
    taken = hashlib.sha256()
    for folder in (here, here.parent.parent / "shared"):
        for file in sorted(folder.rglob("*.py")):
            taken.update(file.read_bytes())
    try:
        release = version("aetherium")
    except PackageNotFoundError:
        release = "0"
    return f"{release}+{taken.hexdigest()[:8]}"
