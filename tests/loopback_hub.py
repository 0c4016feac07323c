"""As much of the Hugging Face Hub as moving a model takes, on this machine alone."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "a" * 40


class Hub(ThreadingHTTPServer):
    """Repositories by name, each with its files, and every path that was asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.created: list[dict[str, Any]] = []
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_POST(self) -> None:
        body = self._body()
        self.server.asked.append(self.path)
        if self.path == "/api/repos/create":
            told = json.loads(body)
            name = f"{told['organization']}/{told['name']}"
            self.server.created.append(told)
            self.server.repositories.setdefault(name, {})
            self._json({"url": f"{self.server.address}/{name}", "id": name, "name": name})
        elif "/preupload/" in self.path:
            files = [{**f, "uploadMode": "regular"} for f in json.loads(body)["files"]]
            self._json({"files": [{**f, "shouldIgnore": False} for f in files]})
        elif "/commit/" in self.path:
            name = "/".join(self.path.split("/")[3:5])
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    self.server.repositories[name][entry["value"]["path"]] = content
            self._json({"commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}",
                        "commitOid": COMMIT, "hookOutput": "", "success": True})  # fmt: skip
        else:
            self._json({})

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        listed = re.match(r"/api/models/([^/]+/[^/]+)/(?:revision|tree)/([^?/]+)", self.path)
        if listed is not None:
            return self._listing(listed[1], listed[2], tree="/tree/" in self.path)
        return self._file(with_body=True)

    def do_HEAD(self) -> None:
        self._file(with_body=False)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def _listing(self, name: str, revision: str, *, tree: bool) -> None:
        files = self.server.repositories.get(name)
        if files is None or revision not in ("main", COMMIT):
            code = "RepoNotFound" if files is None else "RevisionNotFound"
            return self._send(404, b"{}", {"X-Error-Code": code, "X-Error-Message": "not here"})
        if tree:
            return self._json(
                [
                    {"type": "file", "path": p, "size": len(d), "oid": _tag(d)}
                    for p, d in files.items()
                ]
            )
        siblings = [{"rfilename": path} for path in files]
        return self._json({"id": name, "sha": COMMIT, "siblings": siblings})

    def _file(self, *, with_body: bool) -> None:
        found = re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", self.path)
        data = None if found is None else self.server.repositories.get(found[1], {}).get(found[2])
        if data is None:
            return self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
        headers = {"ETag": f'"{_tag(data)}"', "X-Repo-Commit": COMMIT}
        return self._send(200, data, headers, with_body=with_body)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def _json(self, told: Any) -> None:
        self._send(200, json.dumps(told).encode(), {"Content-Type": "application/json"})

    def _send(
        self, status: int, data: bytes, headers: dict[str, str], *, with_body: bool = True
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if with_body and self.command != "HEAD":
            self.wfile.write(data)


def _tag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """Yield a Hub that is there for a while."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
