"""A process that is ready where the engine asks, and writes its engine settings to its log. Standard library only."""

from __future__ import annotations

import json
import os
from http.server import BaseHTTPRequestHandler, HTTPServer


class Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/readyz" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


if __name__ == "__main__":
    print(json.dumps({name: value for name, value in os.environ.items() if name.startswith("AETHERIUM_")}), flush=True)
    port = int(os.environ["AETHERIUM_HEALTH__PORT"]) or int(os.environ["AETHERIUM_GATEWAY__PORT"])
    HTTPServer(("127.0.0.1", port), Ready).serve_forever()
