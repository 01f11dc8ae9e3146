"""JSON over HTTP to one model server: timeouts, retries with backoff, and errors that say what to do.

In: paths and bodies. Out: what the server answered, as plain data. Caller: the kinds of servers (kinds.py and others).
A fault that passes (a reset connection, half an answer, 429, 5xx) is tried again here; one that lasts is `ServerDown`,
and the pool gives the work to another server. The key goes into one header and nowhere else: it is noted as a secret,
redirects are not followed, and an address with a password or a query in it is refused.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from vestige import secrets
from vestige.errors import UserError

TRIES = 4  # of one request, when connections break or answers are cut short
BUSY_TRIES = 8  # when the server itself says that it is busy (429, 503)
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 30.0  # seconds before another try, doubled each time
LARGEST = 1 << 30  # bytes of an answer
BUSY = (429, 503)


class ServerDown(UserError):  # noqa: N818 - named for what was found
    """A server that does not answer, after several tries."""


class ServerRefused(UserError):  # noqa: N818 - named for what was found
    """A server that answers, and does not do what was asked (status 4xx)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True)
class Patience:
    """How long to wait for what, in seconds."""

    timeout: float = 600.0  # for one answer
    down: float = 120.0  # with no server answering, before a run gives up


@dataclass
class WireCount:
    """What one server was asked, counted as it happens."""

    requests: int = 0
    retries: int = 0


class Wire:
    """One server's address. Threads have a connection each, which is kept open between requests."""

    def __init__(self, url: str, key_env: str | None = None, patience: Patience | None = None) -> None:
        self.url = checked_url(url)
        self._parts = urlsplit(self.url)
        self._key = _key(key_env)
        self.patience = patience or Patience()
        self.count = WireCount()
        self.pause: Callable[[float], None] = time.sleep
        self._local = threading.local()
        self._lock = threading.Lock()

    @property
    def reopened(self) -> int:
        """How often this thread's connection had to be made again: the server may be another one since."""
        return int(getattr(self._local, "reopened", 0))

    def get(self, path: str, tries: int = TRIES) -> Any:
        return self._ask("GET", path, None, tries)

    def post(self, path: str, body: Mapping[str, Any], tries: int = TRIES) -> Any:
        return self._ask("POST", path, json.dumps(body, separators=(",", ":")).encode(), tries)

    def _ask(self, method: str, path: str, body: bytes | None, tries: int) -> Any:
        pause, broken, busy = FIRST_PAUSE, 0, 0
        while True:
            with self._lock:
                self.count.requests += 1
            try:
                status, headers, raw = self._once(method, path, body)
                if status == 200:
                    return json.loads(raw)
                if status in BUSY:
                    busy, why = busy + 1, f"status {status} (busy)"
                    pause = max(pause, _retry_after(headers))
                elif status >= 500:
                    broken, why = broken + 1, f"status {status}: {_words(raw)}"
                else:
                    raise self._refusal(status, path, raw)
            # Whatever a connection, a half answer or a proxy's page of HTML raises: it may pass.
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._close()
                self._local.reopened = self.reopened + 1
                broken, why = broken + 1, _why(error)
            if broken >= tries or busy >= max(BUSY_TRIES, tries):
                raise ServerDown(
                    f"The server at {self.url} does not answer {path}: {why}; start it, or correct --server."
                )
            with self._lock:
                self.count.retries += 1
            self.pause(min(pause, LONGEST_PAUSE))
            pause *= 2

    def _refusal(self, status: int, path: str, raw: bytes) -> ServerRefused:
        advice = ""
        if status in (401, 403):
            advice = "; name the environment variable that holds its key with --server-key-env"
        elif status in (301, 302, 307, 308):
            advice = "; it answers with a redirect, which is not followed: give the address it leads to"
        words = f"The server at {self.url} refused {path} (status {status}: {_words(raw)}){advice}."
        return ServerRefused(words, status)

    def _once(self, method: str, path: str, body: bytes | None) -> tuple[int, Mapping[str, str], bytes]:
        connection = self._connection()
        headers = {"Accept": "application/json", "Connection": "keep-alive"}
        headers |= {"Content-Type": "application/json"} if body is not None else {}
        headers |= {"Authorization": f"Bearer {self._key}"} if self._key else {}
        connection.request(method, self._parts.path.rstrip("/") + path, body, headers)
        response = connection.getresponse()
        raw = response.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise http.client.HTTPException(f"an answer of more than {LARGEST} bytes")
        promised = response.headers.get("Content-Length")
        if promised is not None and int(promised) != len(raw):
            raise http.client.HTTPException(f"half an answer ({len(raw)} of {promised} bytes)")
        return response.status, dict(response.headers), raw

    def _connection(self) -> http.client.HTTPConnection:
        held: http.client.HTTPConnection | None = getattr(self._local, "connection", None)
        if held is None:
            place, port = self._parts.hostname or "", self._parts.port
            timeout = self.patience.timeout
            if self._parts.scheme == "https":
                held = http.client.HTTPSConnection(place, port, timeout=timeout, context=ssl.create_default_context())
            else:
                held = http.client.HTTPConnection(place, port, timeout=timeout)
            self._local.connection = held
        return held

    def _close(self) -> None:
        held = getattr(self._local, "connection", None)
        if held is not None:
            held.close()
            self._local.connection = None


def checked_url(url: str) -> str:
    """An address as it may be written into manifests; one that carries a secret is refused.

    >>> checked_url("http://127.0.0.1:8000/v1/")
    'http://127.0.0.1:8000'
    """
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UserError(f"--server takes addresses such as http://127.0.0.1:8000, not '{url}'.")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise UserError(
            "--server takes a plain address, without a password or a query in it; keys come from an environment "
            "variable (--server-key-env NAME)."
        )
    path = re.sub(r"/v1/?$", "", parts.path).rstrip("/")
    return f"{parts.scheme}://{parts.netloc}{path}"


def _key(name: str | None) -> str | None:
    if not name:
        return None
    value = os.environ.get(name, "").strip()
    if not value:
        raise UserError(f"--server-key-env names {name}, but no such environment variable is set.")
    if not value.isascii() or not value.isprintable():
        raise UserError(f"The environment variable {name} does not hold a key: it has characters a header cannot hold.")
    secrets.note(value)
    return value


def _retry_after(headers: Mapping[str, str]) -> float:
    said = next((v for k, v in headers.items() if k.lower() == "retry-after"), "")
    return float(said) if said.replace(".", "", 1).isdigit() else 0.0


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, json.JSONDecodeError):
        return "its answer is not JSON (cut short?)"
    words = str(error).strip().rstrip(".")
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _words(raw: bytes) -> str:
    """What an error says, in a few words."""
    text = raw[:4000].decode("utf-8", "replace")
    try:
        found = json.loads(text)
        while isinstance(found, dict) and (inner := found.get("error", found.get("message", found.get("detail")))):
            found = inner
        text = found if isinstance(found, str) else json.dumps(found)
    except ValueError:
        pass
    return " ".join(text.split())[:300].rstrip(".") or "no reason given"
