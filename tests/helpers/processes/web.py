"""A web server in this process, failing on request."""

import hashlib
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Fault:
    """Fault in one answer to GET.

    Attributes:
        status: Status in the answer; 0 for the same status as without faults.
        after: Bytes to send of the body before `then`.
        then: "reset" the connection, "end" it, "trickle" (a byte every 50 ms), or "stall" until the server ends.
        location: Where status 302 redirects to, for HEAD as well.
        ranges: Whether the server obeys Range.
        most: Maximum bytes in an answer to a Range.
        announced: Bytes added to the announced length and size.
        tag: Another ETag.
        encoding: Header Content-Encoding.
        retry_after: Header Retry-After, sent with `status`.
    """

    status: int = 0
    after: int = 0
    then: str = ""
    location: str = ""
    ranges: bool = True
    most: int = 2**40
    announced: int = 0
    tag: str = ""
    encoding: str = ""
    retry_after: str = ""


FINE = Fault()


@dataclass
class Web:
    """A running server, whose attributes a test may change.

    Attributes:
        address: The server's URL, without a trailing slash.
        files: Name -> content. A folder's page is a list of links.
        faults: Faults in the next answers to GET, in order.
        always: Fault in all answers after `faults`.
        links: Further links on every folder's page.
        requests: Method, name and Range in each request.
        ended: Set when the server ends, also ending stalled answers.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    always: Fault = FINE
    links: list[str] = field(default_factory=list)
    requests: list[tuple[str, str, str]] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def url(self, name: str) -> str:
        return f"{self.address}/{name}"


@contextmanager
def served(**files: bytes) -> Iterator[Web]:
    """Serve files by name while the block runs."""
    web = Web(files=dict(files))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.answer(web.always if web.always.location else FINE)

        def do_GET(self) -> None:
            self.answer(web.faults.pop(0) if web.faults else web.always)

        def answer(self, fault: Fault) -> None:
            name = self.path.lstrip("/")
            web.requests.append((self.command, name, self.headers.get("Range", "")))
            content = web.files.get(name)
            if self.path.endswith("/"):
                inside = (other.removeprefix(name) for other in web.files if other.startswith(name))
                links = {first + slash for first, slash, _ in (path.partition("/") for path in inside)} | set(web.links)
                content = "".join(f'<a href="{link}">{link}</a>' for link in links).encode()
            status = fault.status or (404 if content is None else 200)
            if status != 200 or content is None:
                self.send_response(status)
                if fault.location:
                    self.send_header("Location", fault.location)
                if fault.retry_after:
                    self.send_header("Retry-After", fault.retry_after)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", "")) if fault.ranges else None
            begin = int(asked[1]) if asked else 0
            size = len(content) + fault.announced
            end = min(size, begin + fault.most) if asked else size
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - begin))
            if fault.encoding:
                self.send_header("Content-Encoding", fault.encoding)
            self.send_header("Content-Type", "text/html" if self.path.endswith("/") else "application/octet-stream")
            self.send_header("ETag", fault.tag or hashlib.sha256(content).hexdigest())
            if asked:
                self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(content[begin : begin + fault.after if fault.then else end])
            if fault.then == "stall":
                web.ended.wait()
            elif fault.then == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            while fault.then == "trickle" and not web.ended.wait(0.05):
                self.wfile.write(b" ")
            if fault.then or fault.announced:
                self.connection.close()
                self.close_connection = True

        def handle(self) -> None:
            try:
                super().handle()
            except (ConnectionError, ValueError):  # the client or a fault has closed the connection
                pass

        def finish(self) -> None:
            try:
                super().finish()
            except (ConnectionError, ValueError):
                pass

    with listening(Handler) as web.address:
        try:
            yield web
        finally:
            web.ended.set()


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """Run a server on this machine during the block. Yields its URL."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
