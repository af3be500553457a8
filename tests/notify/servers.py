"""Real servers that keep what they are sent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


class Hook:
    """A webhook. status: its answers; the last one stays."""

    def __init__(self, *status: int) -> None:
        self.bodies: list[bytes] = []
        self.paths: list[str] = []
        self._status = list(status or (200,))
        self._came = threading.Condition()
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.send_response(hook.take(self.path, body))
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def take(self, path: str, body: bytes) -> int:
        with self._came:
            self.bodies.append(body)
            self.paths.append(path)
            self._came.notify_all()
            return self._status.pop(0) if len(self._status) > 1 else self._status[0]

    @property
    def posts(self) -> list[dict[str, Any]]:
        return [json.loads(body) for body in self.bodies]

    def wait_for(self, many: int, limit_s: float = 20.0) -> list[dict[str, Any]]:
        with self._came:
            assert self._came.wait_for(lambda: len(self.bodies) >= many, limit_s), self.posts
        return self.posts

    @property
    def port(self) -> int:
        return int(self.server.server_address[1])


@contextmanager
def webhook(*status: int) -> Iterator[Hook]:
    hook = Hook(*status)
    thread = threading.Thread(target=hook.server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hook
    finally:
        hook.server.shutdown()
        hook.server.server_close()


class Mailbox:
    def __init__(self) -> None:
        self.mails: list[Message] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
        self.mails.append(message_from_bytes(envelope.content))
        return "250 OK"


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, int]]:
    box, port = Mailbox(), free_port()
    controller = Controller(box, hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield box, port
    finally:
        controller.stop()


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
