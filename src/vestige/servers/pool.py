"""Several servers of one model share the work; one that dies loses nothing, one that comes back is used again.

In: jobs, each a group of requests that share a prefix, and a function that puts one job to one server. Out: (job,
answer) as they come. Caller: served.py. Every server has a few threads. A job that its server could not answer goes
back into the queue; the threads of a dead server look now and then whether it is back, and ask who it is before they
use it. What has been answered is never asked again.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from vestige.errors import UserError
from vestige.servers.kinds import Server
from vestige.servers.wire import ServerDown

J = TypeVar("J")
A = TypeVar("A")
LOOK_AGAIN = 2.0  # seconds between two looks at a server that is down


class Pool(Generic[J, A]):
    """Puts jobs to servers. `welcome` is called with a server that came back: it may refuse it."""

    def __init__(self, servers: Sequence[Server], slots: int, welcome: Callable[[Server], None], say: Any) -> None:
        self.servers = list(servers)
        self.slots = slots
        self.welcome = welcome
        self.say = say  # a note for the manifest
        self.look_again = LOOK_AGAIN
        self._lock = threading.Condition()
        self._waiting: deque[J] = deque()
        self._left = 0  # jobs without an answer
        self._down: dict[str, str] = {}  # url -> why
        self._looking: set[str] = set()  # servers that a thread is looking at
        self._since = 0.0  # when the last server went down
        self._stop = False

    def run(self, jobs: Sequence[J], ask: Callable[[Server, J], A]) -> Iterator[tuple[J, A]]:
        """Answers in the order in which they come. An error of one job ends the run."""
        if not jobs:
            return
        self._waiting, self._left, self._stop = deque(jobs), len(jobs), False
        self._greet()
        found: queue.SimpleQueue[tuple[J, A] | BaseException] = queue.SimpleQueue()
        threads = [
            threading.Thread(target=self._work, args=(server, ask, found), daemon=True, name=server.url)
            for _ in range(min(self.slots, len(jobs)))  # in turns: each server gets its share of few jobs, too
            for server in self.servers
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in jobs:
                one = found.get()
                if isinstance(one, BaseException):
                    raise one
                yield one
            self._greet()  # a server that was restarted meanwhile, unnoticed, would be another one now
        finally:
            with self._lock:
                self._stop = True
                self._waiting.clear()
                self._lock.notify_all()

    def _greet(self) -> None:
        """Every server says who it is; one that does not answer is down."""
        for server in self.servers:
            try:
                if server.url not in self._down:
                    self.welcome(server)
            except ServerDown as error:
                self._mark(server, str(error))

    def _mark(self, server: Server, why: str) -> None:
        if server.url not in self._down:
            self._down[server.url] = why
            self._since = time.monotonic()
            self.say(f"the server at {server.url} went down; its work went to the others")

    def _work(self, server: Server, ask: Callable[[Server, J], A], found: Any) -> None:
        try:
            self._serve(server, ask, found)
        except BaseException as error:  # whatever it is: a thread has nobody above it, so the one that asked raises it
            found.put(error)

    def _serve(self, server: Server, ask: Callable[[Server, J], A], found: Any) -> None:
        while (job := self._next(server, found)) is not None:
            try:
                answer = ask(server, job)
            except ServerDown as error:
                self._lost(server, job, str(error))
                continue
            with self._lock:
                self._left -= 1
                self._lock.notify_all()
            found.put((job, answer))

    def _next(self, server: Server, found: Any) -> J | None:
        """The next job for a server that is up; None when there is nothing left to do, or no server to do it."""
        while True:
            with self._lock:
                while not self._stop and self._left and not self._waiting and server.url not in self._down:
                    self._lock.wait(self.look_again)
                if self._stop or not self._left:
                    return None
                if server.url not in self._down:
                    return self._waiting.popleft()
            if not self._is_back(server) and self._hopeless(found):
                return None

    def _is_back(self, server: Server) -> bool:
        """Looks whether a server that was down answers; one of its threads looks, the others wait."""
        with self._lock:
            if server.url in self._looking:
                self._lock.wait(self.look_again)
                return server.url not in self._down
            self._looking.add(server.url)
        try:
            self.welcome(server)
        except ServerDown:
            with self._lock:
                self._lock.wait(self.look_again)
            return False
        finally:
            self._looking.discard(server.url)
        with self._lock:
            if self._down.pop(server.url, None) is not None:
                self.say(f"the server at {server.url} came back and was used again")
            self._lock.notify_all()
        return True

    def _lost(self, server: Server, job: J, why: str) -> None:
        """A job goes back to the front of the queue: others of its beginning may be in a cache."""
        with self._lock:
            self._mark(server, why)
            self._waiting.appendleft(job)
            self._lock.notify_all()

    def _hopeless(self, found: Any) -> bool:
        """With no server left a run waits a while for one to come back, and then says so."""
        with self._lock:
            waited = time.monotonic() - self._since
            if len(self._down) < len(self.servers) or waited <= self.servers[0].wire.patience.down:
                return self._stop
            if not self._stop:
                why = next(iter(self._down.values()))
                urls = ", ".join(s.url for s in self.servers)
                todo = "Start one and run the same command again: it goes on where it stopped."
                found.put(UserError(f"No server answers any more ({urls}): {why} {todo}"))
            self._stop = True
            return True
