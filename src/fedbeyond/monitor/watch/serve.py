"""Serve the page over HTTP to browsers on this computer only: five addresses, GET, and no URL is used as a path."""

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
from .state import REPORT, Watcher

HOST = "127.0.0.1"
THREADS = 8  # connections served at the same time
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
# the report contains its style and script; it gets an origin of its own and no network access
SANDBOXED = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Server(ThreadingTCPServer):
    """An HTTP server on the loopback interface with a bounded number of connections."""

    allow_reuse_address, daemon_threads = True, True

    def __init__(self, runs: Path, port: int) -> None:
        self.watcher, self.connections = Watcher(runs), threading.BoundedSemaphore(THREADS)
        try:
            super().__init__((HOST, port), Handler)
        except OSError as error:
            reason = f"cannot be used ({error.strerror}); give another --port, or none"
            if error.errno == errno.EADDRINUSE:
                reason = "is in use; give another --port, or leave it out to use a free one"
            raise ConfigError(f"port {port} {reason}") from None
        self.port = self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle a connection, or close it if too many are open; a browser will retry."""
        if self.connections.acquire(timeout=1):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle a connection, then free its place."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that closed the connection."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """The handler of a request."""

    server: Server
    timeout = 5  # seconds for a browser to send its request
    server_version, sys_version = "fedbeyond", ""
    error_message_format, error_content_type = "%(code)d: %(message)s\n", "text/plain"

    def do_GET(self) -> None:
        """Send the page, its assets, the state or the report; otherwise 404."""
        allowed = [[f"{name}:{self.server.port}"] for name in (HOST, "localhost")]
        if self.headers.get_all("Host") not in allowed:  # DNS rebinding: another host name may resolve to this one
            self.send_error(403, "use 127.0.0.1 or localhost")
            return
        path = self.path.partition("?")[0]
        if path in ASSETS:
            name, kind = ASSETS[path]
            self.answer(files(__package__).joinpath(name).read_bytes(), kind)
        elif path == "/state.json":
            self.answer(json.dumps(self.server.watcher.state()).encode(), "application/json")
        elif path == "/report":
            try:
                self.answer((self.server.watcher.root / REPORT).read_bytes(), "text/html", SANDBOXED)
            except OSError:
                self.send_error(404, "there is no report yet")
        else:
            self.send_error(404, "there is no such page")

    def answer(self, content: bytes, kind: str, policy: str = STRICT) -> None:
        """Send a page with its content security policy."""
        self.send_response(200)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", policy)
        self.end_headers()
        self.wfile.write(content)

    def end_headers(self) -> None:
        """Add the headers that every response has."""
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a page that sends a request every two seconds would fill the terminal."""


def watch(runs: Path, port: int) -> None:
    """Serve the page until Ctrl-C."""
    if runs.exists() and not runs.is_dir():
        raise ConfigError(f"{runs} is a file; give the folder that 'fedbeyond bench' or 'run' writes to")
    with Server(runs, port) as server:
        watched = f"{runs}{'' if runs.exists() else ' (does not exist yet)'}: http://{HOST}:{server.port}/"
        print(f"watching {watched}   (Ctrl-C stops this server, not the runs)", flush=True)
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            print("\nstopped watching; the runs continue")
