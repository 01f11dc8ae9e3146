"""`vestige view`: a report served on this machine only, and rebuilt when its runs change. For long sweeps.

It listens on the loopback address, answers GET for three addresses, and only to requests whose Host is that address: a
page of another site, whose name was made to point here (DNS rebinding), gets nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vestige.errors import UserError
from vestige.internal import internal_error
from vestige.report.gather import traces_of
from vestige.report.page import render_page
from vestige.report.run import ReportAsk, build_report
from vestige.types import content_key

log = logging.getLogger("vestige.report")

LOOPBACK = "127.0.0.1"
EVERY = 3.0  # seconds between looks at the runs
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Shown:
    """What is served at one moment."""

    version: str
    page: bytes
    data: bytes


def show(ask: ReportAsk) -> Shown:
    report = build_report(ask)
    data = json.dumps(report, ensure_ascii=False, allow_nan=False, sort_keys=True).encode("utf-8", "replace")
    still = json.dumps({k: v for k, v in report.items() if k != "made"}, sort_keys=True).encode()
    version = content_key(still)[:12]
    return Shown(version, render_page(report, live=version).encode("utf-8", "replace"), data)


class Viewer:
    """A server and a watcher. `with Viewer(ask) as viewer: ... viewer.address`."""

    def __init__(self, ask: ReportAsk, port: int = 0, every: float = EVERY) -> None:
        self.ask, self.every = ask, every
        self.seen = traces_of(ask.runs)  # before reading: what changes meanwhile is seen at the next look
        self.shown = show(ask)
        self.stopped = threading.Event()
        try:
            self.server = _Server((LOOPBACK, port), _handler(self))
        except OSError as error:
            raise UserError(f"Port {port} cannot be used ({error.strerror}); choose another, or none.") from None
        self.port = int(self.server.server_address[1])
        self.threads = [threading.Thread(target=work, daemon=True) for work in (self.server.serve_forever, self._watch)]

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    def __enter__(self) -> Viewer:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.server.shutdown()
        self.server.server_close()

    def _watch(self) -> None:
        while not self.stopped.wait(self.every):
            self.look()

    def look(self) -> bool:
        """Rebuilds the report if a file changed. A run that is being written may not be readable yet: wait for it."""
        now = traces_of(self.ask.runs)
        if now == self.seen:
            return False
        try:
            self.shown = show(self.ask)
        except (UserError, OSError) as error:  # a run half written: the page stays, and the next look tries again
            log.warning("The report was not updated: %s", error)
            return False
        except Exception as error:  # a bug: the page stays, and is tried again when the files change
            log.error("%s", internal_error(error))
            self.seen = now
            return False
        self.seen = now
        return True


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # a reader who left is nobody's mistake
            log.error("%s", internal_error(error))


def _handler(viewer: Viewer) -> type[BaseHTTPRequestHandler]:
    class PageHandler(BaseHTTPRequestHandler):
        server_version, sys_version = "vestige", ""

        def do_GET(self) -> None:
            if self.headers.get("Host") not in hosts(viewer.port):
                self.answer(HTTPStatus.FORBIDDEN, b"This address is not served under that name.\n", "text/plain")
                return
            shown = viewer.shown
            pages = {
                "/": (shown.page, "text/html"),
                "/index.html": (shown.page, "text/html"),
                "/report.json": (shown.data, "application/json"),
                "/version": (shown.version.encode(), "text/plain"),
            }
            found = pages.get(self.path.partition("?")[0])
            if found is None:
                self.answer(HTTPStatus.NOT_FOUND, b"Only the report is served here.\n", "text/plain")
            else:
                self.answer(HTTPStatus.OK, *found)

        def answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
            self.send_response(status)
            for name, value in {**HEADERS, "Content-Type": f"{kind}; charset=utf-8"}.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            log.debug(format, *args)

    return PageHandler


def hosts(port: int) -> tuple[str, str]:
    return f"{LOOPBACK}:{port}", f"localhost:{port}"
