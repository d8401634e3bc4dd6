"""A Hugging Face hub in this process, serving model repositories to the real client."""

import base64
import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

from tests.helpers.processes.web import listening

SHA = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repository:
    """Model repository.

    Attributes:
        files: Name -> content.
        private: Whether only its owner may read it.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    private: bool = True


@dataclass
class Hub:
    """Hub with its repositories, and the errors it answers with.

    Attributes:
        address: URL of the hub.
        repositories: Id -> repository.
        status: Status in every answer about a file to download.
        code: Error code in every answer about a file to download, if its status is not 200.
        lost: Name of a file whose download fails.
        commit_status: Status in every answer to a commit.
        large_suffix: Suffix of files uploaded to the large-file store instead of with the commit.
        fetched: Names of the downloaded files.
        stored: Hash -> content of large files.
        requests: Method and path of every request so far.
    """

    address: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    lost: str = ""
    commit_status: int = 200
    large_suffix: str = ".large"
    fetched: list[str] = field(default_factory=list)
    stored: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def writes(self) -> list[str]:
        """Return all requests changing something."""
        return [request for request in self.requests if not request.startswith(("GET", "HEAD"))]


@contextmanager
def served(**repositories: Repository) -> Iterator[Hub]:
    """Serve a hub while the block runs.

    Args:
        repositories: Name -> repository owned by `org`.
    """
    hub = Hub(repositories={f"org/{name}": repository for name, repository in repositories.items()})

    class Handler(HubHandler):
        served_hub = hub

    with listening(Handler) as hub.address:
        yield hub


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, offline: bool = False) -> None:
    """Set the address that this process's client read from the environment while being imported."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    # The hub's own protocol for large files needs its server.
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)


def online_environment(**variables: str) -> dict[str, str]:
    """Return an environment allowing a child's client to reach a hub, regardless of this process's own client.

    Args:
        variables: Variables to add, such as HF_ENDPOINT.
    """
    inherited = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    return inherited | variables


class HubHandler(BaseHTTPRequestHandler):
    """Answers the client's requests about models. A subclass sets `served_hub`."""

    served_hub: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._route(b"")

    def do_GET(self) -> None:
        self._route(b"")

    def do_POST(self) -> None:
        self._route(self._body())

    def do_PUT(self) -> None:
        self._route(self._body())

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _route(self, body: bytes) -> None:
        hub = self.served_hub
        path = unquote(urlsplit(self.path).path)
        hub.requests.append(f"{self.command} {path}")
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return self._answer_json({"errors": [], "warnings": []})
        if path.startswith("/store/"):
            hub.stored[path.removeprefix("/store/")] = body
            return self._answer(b"")
        for name, repository in hub.repositories.items():
            api = f"/api/models/{name}"
            if path == api:
                return self._answer_json({"id": name, "sha": SHA, "private": repository.private})
            if path.startswith(f"{api}/tree/"):
                return self._answer_json(_tree(repository))
            if path.startswith(f"{api}/preupload/"):
                return self._choose_uploads(json.loads(body))
            if path.startswith(f"{api}/commit/"):
                return self._commit(name, repository, body)
            if path == f"/{name}.git/info/lfs/objects/batch":
                return self._offer_uploads(json.loads(body))
            if path.startswith(f"/{name}/resolve/{SHA}/"):
                return self._download(repository, path.removeprefix(f"/{name}/resolve/{SHA}/"))
        return self._answer(b"", 401, {"X-Error-Code": "RepoNotFound"})

    def _create(self, request: dict[str, Any]) -> None:
        name = f"{request['organization']}/{request['name']}"
        self.served_hub.repositories[name] = Repository(private=request["visibility"] == "private")
        self._answer_json({"url": f"{self.served_hub.address}/{name}", "id": name})

    def _choose_uploads(self, request: dict[str, Any]) -> None:
        files = []
        for file in request["files"]:
            mode = "lfs" if file["path"].endswith(self.served_hub.large_suffix) else "regular"
            files.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False, "oid": None})
        self._answer_json({"files": files})

    def _offer_uploads(self, request: dict[str, Any]) -> None:
        objects = []
        for each in request["objects"]:
            address = f"{self.served_hub.address}/store/{each['oid']}"
            objects.append({**each, "actions": {"upload": {"href": address, "header": {}}}})
        self._answer_json({"transfer": "basic", "objects": objects})

    def _commit(self, name: str, repository: Repository, body: bytes) -> None:
        hub = self.served_hub
        if hub.commit_status != 200:
            return self._answer(b"", hub.commit_status)
        for line in body.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            match operation["key"]:
                case "file":
                    repository.files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    repository.files[value["path"]] = hub.stored[value["oid"]]
                case "deletedFile":
                    del repository.files[value["path"]]
        return self._answer_json({"commitOid": SHA, "commitUrl": f"{hub.address}/{name}/commit/{SHA}"})

    def _download(self, repository: Repository, name: str) -> None:
        hub = self.served_hub
        if name not in repository.files:
            return self._answer(b"", 401, {"X-Error-Code": "RepoNotFound"})
        if hub.status != 200:
            return self._answer(b"", hub.status, {"X-Error-Code": hub.code})
        content = repository.files[name]
        digest = hashlib.sha1(content).hexdigest()
        if self.command == "GET":
            hub.fetched.append(name)
            if name == hub.lost:
                return self._answer(b"", 403)
        return self._answer(content, 200, {"X-Repo-Commit": SHA, "ETag": f'"{digest}"'})

    def _answer_json(self, value: Any) -> None:
        self._answer(json.dumps(value).encode(), 200, {"Content-Type": "application/json"})

    def _answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _tree(repository: Repository) -> list[dict[str, Any]]:
    """Return the hub's listing of a repository."""
    return [{"type": "file", "path": name, "size": len(content), "oid": SHA} for name, content in repository.files.items()]
