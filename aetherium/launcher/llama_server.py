"""`python -m aetherium.launcher.llama_server`: llama.cpp's own HTTP server inside this process.

xllamacpp carries that server in a wheel built for any x86-64 processor; the prebuilt `llama-server` wheels
that exist need AVX-512 and die with SIGILL on common machines. It runs on the CPU and asks nothing outside.
"""

from __future__ import annotations

import argparse
import importlib
import signal
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True, help="tokens, shared evenly by the slots")
    parser.add_argument("--parallel", type=int, required=True, help="slots")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    # SIGTERM ends the process as it is: there is nothing to save, and a request under way may last for minutes.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    server = _serve(options)
    print("listening on", server.listening_address, flush=True)
    while True:
        signal.pause()


def _serve(options: argparse.Namespace) -> Any:
    """The server, which loads the model before it is returned. It lives as long as the object."""
    xllamacpp: Any = importlib.import_module("xllamacpp")  # has no types
    params = xllamacpp.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_ctx = options.ctx_size
    params.n_parallel = options.parallel
    params.cpuparams.n_threads = options.threads
    params.cpuparams_batch.n_threads = options.threads
    params.use_jinja = True
    params.ui = False
    params.offline = True
    params.cache_ram_mib = 512  # of finished prompts; the default is 8 GiB
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
