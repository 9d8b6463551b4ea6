from __future__ import annotations

import argparse
from pathlib import Path

from simulators.lmstudio.config import LmConfig, load_config
from simulators.lmstudio.server import LmStudioServer
from simulators.openai_server import serve_app


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m simulators.lmstudio", description="A simulated LM Studio.")
    parser.add_argument("--config", type=Path, help="YAML: models, vram_mib, load_s, replies; default: one model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free port")
    parser.add_argument("--port-file", type=Path, help="written with the port once the server accepts connections")
    options = parser.parse_args(argv)
    config = load_config(options.config) if options.config else LmConfig()
    serve_app(LmStudioServer(config, keep=200), "LM Studio, simulated,", options.host, options.port, options.port_file)


if __name__ == "__main__":
    main()
