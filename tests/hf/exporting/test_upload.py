"""Uploading exports to a Hugging Face hub in this process."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from tests.helpers.models.exports import Exported
from tests.helpers.models.imported import write_llama3
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.hub import Hub, Repository, served, use_hub

ID = "org/tape"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, for a user who has logged in."""
    monkeypatch.setenv("HF_TOKEN", "hf_token")
    with served() as hub:
        use_hub(monkeypatch, hub.address)
        yield hub


@pytest.fixture
def folder(exported: Callable[..., Exported], tmp_path: Path) -> Path:
    """A copy of an exported model."""
    return shutil.copytree(exported("grouped").folder, tmp_path / "exported")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.mark.parametrize("large_suffix", ["none", ".safetensors"])
def test_upload(hub: Hub, folder: Path, command: Command, large_suffix: str) -> None:
    """A new repository is private, and has all files of the export but hidden ones."""
    hub.large_suffix = large_suffix
    uploaded = contents(folder)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "lock").write_text("hidden")
    status, printed, errors = command("push", folder, ID)
    assert status == 0, errors
    assert f"uploaded {folder} to {hub.address}/{ID}" in printed
    assert hub.repositories[ID] == Repository(uploaded, private=True)


def test_upload_again(hub: Hub, folder: Path, command: Command) -> None:
    """The weights of an earlier model are deleted, so that no mixture of two models remains. Other files stay."""
    earlier = {"model-00001-of-00002.safetensors": b"1", "model.safetensors.index.json": b"{}", "picture.png": b"2"}
    hub.repositories[ID] = Repository(earlier)
    assert command("push", folder, ID)[0] == 0
    assert hub.repositories[ID].files == contents(folder) | {"picture.png": b"2"}


def test_failed_upload(hub: Hub, folder: Path, command: Command) -> None:
    """The error says which command resumes, and that command completes the repository."""
    hub.commit_status = 403
    status, _, errors = command("push", folder, ID)
    assert status == 2
    assert errors.count("error: ") == 1
    assert f"error: {folder} was not uploaded to {hub.address}/{ID} (" in errors
    assert f"`megatape push {folder} {ID}` resumes" in errors
    assert "Traceback" not in errors
    hub.commit_status = 200
    assert command("push", folder, ID)[0] == 0
    assert hub.repositories[ID].files == contents(folder)


def test_public(hub: Hub, folder: Path, command: Command) -> None:
    """A model becomes public only if the user says so, also in a repository that is public already."""
    assert command("push", folder, ID, "--public")[0] == 0
    assert not hub.repositories[ID].private
    before = len(hub.writes())
    status, _, errors = command("push", folder, ID)
    assert status == 2
    assert f"{ID} exists on {hub.address} and is public: add --public" in errors
    assert len(hub.writes()) == before


def test_refused_repository(hub: Hub, folder: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a suitable id or a token, nothing is sent, and nothing is exported before."""
    assert "is not the id of a repository on the hub" in command("push", folder, "tape")[2]
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(folder / "missing"))
    for words in (("push", folder, ID), ("export", folder, folder / "out", "--push", ID)):
        status, _, errors = command(*words)
        assert status == 2
        assert f"{ID}: no access token for {hub.address}: run `hf auth login`" in errors
    use_hub(monkeypatch, hub.address, offline=True)
    assert "HF_HUB_OFFLINE is set" in command("push", folder, ID)[2]
    assert not (folder / "out").exists()
    assert hub.requests == []


@pytest.mark.parametrize("secret", ["s3://user:password@bucket/data", "hf_" + "aB3" * 12, "https://a/b?token=0123"])
def test_secret(hub: Hub, folder: Path, command: Command, secret: str) -> None:
    """A folder with a password or a token in a text file is refused before anything is sent."""
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"note": secret}))
    status, _, errors = command("push", folder, ID)
    assert status == 2
    assert f"{folder / 'config.json'} contains a password or an access token" in errors
    assert secret not in errors
    assert hub.requests == []


def test_refused_folder(hub: Hub, folder: Path, command: Command, tmp_path: Path) -> None:
    """Only complete exports and adapters are uploaded."""
    assert "no such folder" in command("push", tmp_path / "none", ID)[2]
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "manifest.json").write_text("{}")
    assert "export it first" in command("push", tmp_path / "checkpoint", ID)[2]
    (folder / "model.safetensors").unlink()
    assert "no model.safetensors" in command("push", folder, ID)[2]
    (folder / "config.json").unlink()
    assert "has neither config.json nor adapter_config.json" in command("push", folder, ID)[2]
    (folder / "adapter_config.json").write_text("{}")
    assert "no adapter_model.safetensors" in command("push", folder, ID)[2]
    save_file({}, folder / "adapter_model.safetensors")
    assert command("push", folder, ID)[0] == 0
    assert hub.writes()[0] == "POST /api/repos/create"


@pytest.mark.slow
def test_export_and_import(hub: Hub, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model exported with --push is downloaded and imported by its id, with the same weights."""
    monkeypatch.chdir(tmp_path)
    save_tiny("llama", write_llama3(tmp_path / "model", 320))
    assert command("import", "model", "imported")[0] == 0
    assert "nothing is uploaded: add --push REPO" in command("export", "imported", "exported", "--public")[2]
    status, printed, errors = command("export", "imported", "exported", "--push", ID)
    assert status == 0, errors
    assert f"uploaded exported to {hub.address}/{ID}" in printed
    status, _, errors = command("import", ID, "again", "--download")
    assert status == 0, errors
    downloaded = load_file("tape/model.safetensors")
    original = load_file("model/model.safetensors")
    assert downloaded.keys() == original.keys()
    for name, weight in original.items():
        assert downloaded[name].equal(weight), name
