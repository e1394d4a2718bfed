"""Serve the report to a browser on this machine while runs go on."""

from __future__ import annotations

import errno
import hashlib
import html
import socket
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Lock, Timer
from typing import Any
from urllib.parse import urlsplit

from selective_backprop.lab.study.plan import PLAN

HOST = "127.0.0.1"
_WAITING = """<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="2"><title>Waiting</title>
<link rel="icon" href="data:,">
<body style="font: 16px system-ui, sans-serif; margin: 2rem"><p>{}</p>"""


def state_of(paths: Sequence[Path]) -> str:
    """A text that changes whenever a file of the report's runs changes."""
    seen = hashlib.sha256()
    for path in paths:
        for file in sorted(path.rglob("*")):
            if file.name in ("config.json", "records.jsonl", PLAN) or file.suffix == ".npz":
                try:
                    seen.update(f"{file}:{file.stat().st_mtime_ns}\n".encode())
                except FileNotFoundError:
                    continue  # replaced at this moment; the next look sees it
    return seen.hexdigest()[:16]


_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; style-src 'unsafe-inline'; img-src data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""As in the page itself, which asks this server alone. As a header it is also for pages that have no such line."""
_MOST_CONNECTIONS = 16
_SECONDS_TO_TAKE = 30.0  # for each part of the answer


class Server(ThreadingHTTPServer):
    """Serves / and /version, to this machine; 16 connections at a time, and none that keeps it waiting.

    Args:
        port: the port; 0 takes any free one. OSError if another program uses it.
        paths: folders of runs.
        make: the page for a state of the runs; what it raises is shown until the runs change.
    """

    daemon_threads = True
    seconds_to_ask = 10.0
    """Seconds from a connection to the end of its request, however slowly that comes. Later it is closed."""

    def __init__(self, port: int, paths: Sequence[Path], make: Callable[[str], str]) -> None:
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise OSError(
                f"port {port} is in use by another program: choose another one, or --port 0 for any free one"
            ) from None
        self.paths, self._make = paths, make
        self._lock, self._made = Lock(), ("", "")
        self._free = BoundedSemaphore(_MOST_CONNECTIONS)

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a new thread. If there are too many connections, close this one at once."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections, since a browser may leave at any time."""
        if not isinstance(sys.exc_info()[1], (OSError, ValueError)):
            super().handle_error(request, client_address)

    def page(self) -> str:
        """The page. It is made again only if the runs have changed."""
        with self._lock:
            state = state_of(self.paths)
            if self._made[0] != state:
                self._made = state, self._make(state)
            return self._made[1]


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = _SECONDS_TO_TAKE

    def handle_one_request(self) -> None:
        # A timeout of the socket is for each byte: who sends one every few seconds would never be done.
        self._deadline = Timer(self.server.seconds_to_ask, self._give_up)
        self._deadline.daemon = True
        self._deadline.start()
        try:
            super().handle_one_request()
        finally:
            self._deadline.cancel()

    def _give_up(self) -> None:
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def parse_request(self) -> bool:
        understood = super().parse_request()
        self._deadline.cancel()
        return understood

    def do_GET(self) -> None:  # the name that http.server calls
        # A name that leads here from elsewhere (DNS rebinding) is not one of this machine.
        if self.headers.get("Host") not in {f"{name}:{self.server.server_port}" for name in (HOST, "localhost")}:
            self._answer(403, "text/plain", "this is served to 127.0.0.1 alone")
        elif (path := urlsplit(self.path).path) == "/version":
            self._answer(200, "text/plain", state_of(self.server.paths))
        elif path == "/":
            self._answer(200, "text/html", self.server.page())
        elif self.path == "/favicon.ico":  # browsers ask for it unasked; 204 is "there is none", and no error
            self._answer(204, "image/x-icon", "")
        else:
            self._answer(404, "text/plain", "there is / and nothing else")

    def do_HEAD(self) -> None:
        """The same answer as to GET, without its content."""
        self.do_GET()

    def _answer(self, status: int, kind: str, text: str) -> None:
        content = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Security-Policy", _POLICY)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because a line per request would hide what the user wants to see."""


def waiting(reason: str) -> str:
    """A page that looks again in two seconds."""
    return _WAITING.format(html.escape(reason))
