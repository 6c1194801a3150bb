"""A webhook on loopback that keeps what Alertmanager posts to it."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any


class Webhook:
    """Listens on 127.0.0.1, any port; `alerts` are (status, labels) in order of arrival."""

    def __init__(self) -> None:
        self.alerts: list[tuple[str, dict[str, str]]] = []
        kept = self.alerts

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", "0")))
                posted: dict[str, Any] = json.loads(body)
                kept.extend((alert["status"], alert["labels"]) for alert in posted["alerts"])
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *args: object) -> None:  # the parameter there shadows a builtin
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Webhook:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def got(self, name: str, status: str) -> bool:
        """Whether an alert of this name arrived with this status."""
        return any(labels["alertname"] == name and state == status for state, labels in self.alerts)
