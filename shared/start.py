"""`python -m shared.start services.NAME.app`: run a service without what its libraries import for others.

Where they are installed, nats-py imports aiohttp for websockets and structlog imports rich for tracebacks in
colour. No service uses either, and together they take a third of the time in which a killed one is back.
"""

from __future__ import annotations

import runpy
import sys
from typing import cast

UNUSED = ("aiohttp", "rich")


def main() -> None:
    module = sys.argv.pop(1)
    for name in UNUSED:
        cast("dict[str, object]", sys.modules)[name] = None  # which makes `import` say that it is not there
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
