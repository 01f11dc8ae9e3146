"""`vestige view`: a report served on this machine only, and rebuilt when its runs change. For long sweeps.

It listens on the loopback address, answers GET for three addresses, and only to requests whose Host is that address: a
page of another site, whose name was made to point here (DNS rebinding), gets nothing.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from vestige.errors import UserError
from vestige.internal import internal_error
from vestige.report.build import ReportRequest, build_report
from vestige.report.gather import list_changes
from vestige.report.page import render_page
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

Pages = dict[str, tuple[bytes, str]]  # address -> content and type


def build_pages(request: ReportRequest) -> Pages:
    """What is served at one moment: the page, its data, and the version by which a page sees that there is news."""
    report = build_report(request)
    data = json.dumps(report, ensure_ascii=False, allow_nan=False, sort_keys=True).encode("utf-8", "replace")
    # Two builds of the same runs are one version, whenever they were made.
    version = content_key(json.dumps({**report, "made": ""}, sort_keys=True).encode())[:12]
    page = render_page(report, live=version).encode("utf-8", "replace"), "text/html"
    return {
        "/": page,
        "/index.html": page,
        "/report.json": (data, "application/json"),
        "/version": (version.encode(), "text/plain"),
    }


class Viewer:
    """A server and a watcher. `with Viewer(request) as viewer: ... viewer.address`."""

    def __init__(self, request: ReportRequest, port: int = 0, every: float = EVERY) -> None:
        self.request, self.every = request, every
        self.seen = list_changes(request.runs)  # before reading: what changes meanwhile is seen at the next look
        self.pages = build_pages(request)
        self.stopped = threading.Event()
        try:
            self.server = _Server((LOOPBACK, port), _PageHandler)
        except OSError as error:
            raise UserError(f"Port {port} cannot be used ({error.strerror}); choose another, or none.") from None
        self.server.viewer = self
        self.port = int(self.server.server_address[1])

    @property
    def address(self) -> str:
        return f"http://{LOOPBACK}:{self.port}/"

    def __enter__(self) -> Viewer:
        for work in (self.server.serve_forever, self._watch):
            threading.Thread(target=work, daemon=True).start()
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
        now = list_changes(self.request.runs)
        if now == self.seen:
            return False
        try:
            self.pages = build_pages(self.request)
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
    viewer: Viewer

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if error is not None and not isinstance(error, OSError):  # a reader who left is nobody's mistake
            log.error("%s", internal_error(error))


class _PageHandler(BaseHTTPRequestHandler):
    server: _Server
    server_version, sys_version = "vestige", ""

    def do_GET(self) -> None:
        viewer = self.server.viewer
        if self.headers.get("Host") not in (f"{LOOPBACK}:{viewer.port}", f"localhost:{viewer.port}"):
            self.answer(HTTPStatus.FORBIDDEN, b"This address is not served under that name.\n", "text/plain")
            return
        page = viewer.pages.get(self.path.partition("?")[0])
        if page is None:
            self.answer(HTTPStatus.NOT_FOUND, b"Only the report is served here.\n", "text/plain")
        else:
            self.answer(HTTPStatus.OK, *page)

    def answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        headers = {**HEADERS, "Content-Type": f"{kind}; charset=utf-8", "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        log.debug(format, *args)
