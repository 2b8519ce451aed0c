"""The page over HTTP, for browsers of this machine alone: five addresses, GET, and no URL is ever taken for a path."""

import errno
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import Any

from ...errors import ConfigError
from .look import Look, report

HOST = "127.0.0.1"
THREADS = 8  # connections answered at a time
ASSETS = {
    "/": ("page.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
STRICT = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# the report has its style and script in itself; it gets an origin of its own, and nothing to talk to
REPORT = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server(ThreadingTCPServer):
    """Listens on the loopback interface, and answers a bounded number of connections at a time."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, runs: Path, port: int) -> None:
        self.look, self.room = Look(runs), threading.BoundedSemaphore(THREADS)
        try:
            super().__init__((HOST, port), Answer)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise ConfigError(f"port {port} is in use; give another --port, or none: a free one is found") from None
            raise ConfigError(f"port {port} cannot be used ({error.strerror}); give another --port, or none") from None
        self.port = self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Leave a connection for which there is no room: a browser asks again."""
        if self.room.acquire(timeout=1):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer, and make room."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that went away is no error."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Answer(BaseHTTPRequestHandler):
    """One request."""

    server: Server
    timeout = 5  # seconds to say what is wanted
    server_version, sys_version = "fedbeyond", ""
    error_message_format, error_content_type = "%(code)d: %(message)s\n", "text/plain"

    def do_GET(self) -> None:
        """A page of ours, or 404."""
        names = {f"{name}:{self.server.port}" for name in (HOST, "localhost")}
        if self.headers.get_all("Host") not in [[name] for name in names]:  # another site's name may lead here
            self.send_error(403, "ask for 127.0.0.1 or localhost")
            return
        path = self.path.partition("?")[0]
        if path in ASSETS:
            name, kind = ASSETS[path]
            self.answer(files(__package__).joinpath(name).read_bytes(), kind)
        elif path == "/state.json":
            self.answer(json.dumps(self.server.look.state()).encode(), "application/json")
        elif path == "/report":
            try:
                self.answer(report(self.server.look.root).read_bytes(), "text/html", REPORT)
            except OSError:
                self.send_error(404, "there is no report yet")
        else:
            self.send_error(404, "there is no such page")

    def answer(self, content: bytes, kind: str, policy: str = STRICT) -> None:
        """Send a page and what it may do."""
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """What every answer says."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """A page that asks every two seconds would fill the terminal."""


def watch(runs: Path, port: int) -> None:
    """Serve the page until Ctrl-C."""
    if runs.exists() and not runs.is_dir():
        raise ConfigError(f"{runs} is a file; give the folder that 'fedbeyond bench' or 'run' writes to")
    with Server(runs, port) as server:
        there = "" if runs.exists() else " (not there yet)"
        print(f"watching {runs}{there}: http://{HOST}:{server.port}/   (Ctrl-C ends this, not the runs)", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nno longer watching; the runs go on")
