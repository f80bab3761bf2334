"""HTTP servers of a test's own: one answers what a function says, one passes requests on and changes the answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.protocol.run_vectors import Answer, Server

# Called with method, path, headers and body.
Respond = Callable[[str, str, dict[str, str], Any], Answer]


@contextmanager
def answering(respond: Respond) -> Iterator[str]:
    """A server on a free port; yields its URL."""

    class Handler(BaseHTTPRequestHandler):
        def respond(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = json.loads(self.rfile.read(length)) if length else None
            answer = respond(self.command, self.path, dict(self.headers), sent)
            content = json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in {**answer.headers, "content-length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_DELETE = respond

        def log_message(self, *_: object) -> None:
            """Tests say what they have to say themselves."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{http.server_port}"
        finally:
            http.shutdown()
            thread.join()


@contextmanager
def tampering(url: str, token: str, tamper: Callable[[str, Answer], None]) -> Iterator[Server]:
    """A server that passes everything on to `url`, and has each answer's body or headers changed by `tamper`."""
    behind = Server(url, token)

    def pass_on(method: str, path: str, _: dict[str, str], body: Any) -> Answer:
        answer = behind.call(method, path, body)
        # How the body was transported (its length, chunks) is not passed on.
        kept = {name: value for name, value in answer.headers.items() if name.startswith("x-")}
        answer = Answer(answer.status, kept, answer.body)
        tamper(path, answer)
        return answer

    with answering(pass_on) as front:
        server = Server(front, token)
        server.discover()
        yield server
