"""Downloading models from the Hugging Face hub, replaced by a server in this process."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from huggingface_hub import constants
from safetensors.torch import load_file

from tests.helpers.models.imported import write_llama3
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.web import listening

ID = "org/tiny"
SHA = "0123456789abcdef0123456789abcdef01234567"
NEEDED = {"config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}
NEEDED |= {"special_tokens_map.json", "chat_template.jinja", "README.md"}
OTHERS = (
    "original/consolidated.00.pth",
    "onnx/model.safetensors",
    "pytorch_model.bin",
    "consolidated.safetensors",
)


@dataclass
class Hub:
    """Hub with a single model.

    Attributes:
        address: URL of the hub.
        files: Name -> content of the model's files.
        status: Status of every answer about a file.
        code: Error code of every answer about a file, if its status is not 200.
        lost: Name of the file whose download fails.
        fetched: Names of the downloaded files.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    status: int = 200
    code: str = ""
    lost: str = ""
    fetched: list[str] = field(default_factory=list)


@contextmanager
def served(folder: Path) -> Iterator[Hub]:
    """Serve the files of `folder` as the hub's only model."""
    hub = Hub(files={path.name: path.read_bytes() for path in folder.iterdir()} | dict.fromkeys(OTHERS, b"other"))

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            if path == f"/api/models/{ID}":
                return self.answer(json.dumps({"id": ID, "sha": SHA}).encode())
            if path == f"/api/models/{ID}/tree/{SHA}":
                listed = [
                    {"type": "file", "path": name, "size": len(content), "oid": SHA} for name, content in hub.files.items()
                ]
                return self.answer(json.dumps(listed).encode())
            name = path.removeprefix(f"/{ID}/resolve/{SHA}/")
            if name == path or name not in hub.files:
                return self.answer(b"", 401, {"X-Error-Code": "RepoNotFound"})
            if hub.status != 200:
                return self.answer(b"", hub.status, {"X-Error-Code": hub.code})
            content = hub.files[name]
            digest = hashlib.sha1(content).hexdigest()
            headers = {"X-Repo-Commit": SHA, "ETag": f'"{digest}"'}
            if self.command == "GET":
                hub.fetched.append(name)
            if name == hub.lost and self.command == "GET":
                return self.answer(b"", 403)
            return self.answer(content, 200, headers)

        def answer(self, content: bytes, status: int = 200, headers: dict[str, str] | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            for key, value in (headers or {}).items():
                self.send_header(key, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

    with listening(Handler) as hub.address:
        yield hub


def megatape(folder: Path, address: str, *words: object) -> tuple[int, str, str]:
    """Run a command in a child process, with the hub at `address`. Returns status, output and errors."""
    environment = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "HF_TOKEN")}
    environment |= {"HF_ENDPOINT": address, "HF_HOME": str(folder / "home"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    process = subprocess.run(
        [sys.executable, "-m", "megatape", *map(str, words)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stdout, process.stderr


def use_hub(monkeypatch: pytest.MonkeyPatch, address: str, offline: bool = False) -> None:
    """Set the address that this process's client read from the environment when it was imported."""
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = write_llama3(tmp_path / "model", 320)
    save_tiny("llama", folder, shard="40KB")
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Tiny\n")
    return folder


@pytest.mark.slow
def test_download(model: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import downloads exactly the files it needs. An interrupted download is not taken for a model, and resumes."""
    monkeypatch.chdir(tmp_path)
    with served(model) as hub:
        use_hub(monkeypatch, hub.address)
        hub.lost = "tokenizer.json"
        status, _, errors = command("import", ID, "out", "--download")
        assert status == 2
        assert errors.splitlines()[-1].startswith(f"error: {ID} was not downloaded from {hub.address} (")
        assert "give the same command again" in errors
        assert not (tmp_path / "tiny").exists()
        hub.lost = ""
        num_fetched = len(hub.fetched)
        status, printed, errors = megatape(tmp_path, hub.address, "import", ID, "out", "--download")
        assert status == 0, errors
        assert f"downloaded {ID} to tiny" in printed
        assert "--tokenizer tiny" in printed
        weights = {path.name for path in model.glob("*.safetensors")}
        downloaded = {path.name for path in (tmp_path / "tiny").iterdir() if path.is_file()}
        assert downloaded == NEEDED | weights
        assert set(hub.fetched) == downloaded
        assert len(weights) > 1
        fetched_again = hub.fetched[num_fetched:]
        assert "tokenizer.json" in fetched_again
        assert len(fetched_again) < len(downloaded)
        for name in downloaded:
            assert (tmp_path / "tiny" / name).read_bytes() == hub.files[name], name
        status, _, errors = command("import", ID, "again", "--download")
        assert status == 2
        assert "tiny exists: remove it or choose another name" in errors
        assert command("import", ID, "again", "--download", "elsewhere")[0] == 0
    assert command("export", "out", "exported")[0] == 0
    card = (tmp_path / "exported" / "README.md").read_text()
    assert f"\nbase_model: {ID}\nlicense: apache-2.0\n---\n" in card
    expected_names: set[str] = set()
    for path in model.glob("*.safetensors"):
        expected_names |= load_file(path).keys()
    assert load_file(tmp_path / "exported" / "model.safetensors").keys() == expected_names


def test_no_access(model: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error is one line that says what to do."""
    monkeypatch.chdir(tmp_path)
    with served(model) as hub:
        cases: list[tuple[int, str, str, str]] = [
            (403, "GatedRepo", ID, f"{ID} was not downloaded from {hub.address} (403 Client Error. Cannot access gated repo"),
            (401, "GatedRepo", ID, "accept its terms on its page and run `hf auth login`"),
            (200, "", "org/none", "Repository Not Found"),
            (404, "EntryNotFound", ID, f"{ID} was not downloaded"),
            (200, "", "tiny", "'tiny' is not the id of a model on the hub"),
            (200, "", "model/../model", "is not the id of a model"),
        ]
        use_hub(monkeypatch, hub.address)
        for hub.status, hub.code, name, message in cases:
            status, _, errors = command("import", name, "out", "--download", "new")
            assert status == 2, errors
            assert message in errors.splitlines()[-1], errors
            assert "Traceback" not in errors
            assert errors.count("error: ") == 1
        words = ("import", ID, "out", "--download", "new")
        use_hub(monkeypatch, hub.address, offline=True)
        assert "please unset the `HF_HUB_OFFLINE` environment variable" in command(*words)[2]
    use_hub(monkeypatch, "http://127.0.0.1:9")
    status, _, errors = command(*words)
    assert status == 2
    assert f"error: {ID} was not downloaded from http://127.0.0.1:9" in errors.splitlines()[-1]
    assert not (tmp_path / "new").exists()
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [("import", ID, "out"), ("generate", ID, "--prompt", "a")])
def test_an_id_that_is_no_folder(command: Command, tmp_path: Path, words: tuple[str, ...]) -> None:
    """The error says how to download the model, unless the path looks like a misspelled existing folder."""
    status, _, errors = command(*words)
    assert status == 2
    assert f"hf download {ID} --local-dir tiny" in errors
    assert errors.count("\n") == 1
    (tmp_path / "runs").mkdir()
    assert "hf download" not in command(words[0], tmp_path / "runs" / "x", *words[2:])[2]
