"""Downloading models from a Hugging Face hub in this process."""

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers.models.imported import write_llama3
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command
from tests.helpers.processes.hub import Repository, online_environment, served, use_hub

ID = "org/tiny"
NEEDED = {"config.json", "generation_config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"}
NEEDED |= {"special_tokens_map.json", "chat_template.jinja", "README.md"}
OTHERS = (
    "original/consolidated.00.pth",
    "onnx/model.safetensors",
    "pytorch_model.bin",
    "consolidated.safetensors",
)


def repository_of(folder: Path) -> Repository:
    """Return a repository with the files of `folder`, and other files that an import does not need."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    return Repository(files | dict.fromkeys(OTHERS, b"other"))


def megatape(folder: Path, address: str, *words: object) -> tuple[int, str, str]:
    """Run a command in a child process, with the hub at `address`. Returns status, output and errors."""
    environment = online_environment(
        HF_ENDPOINT=address,
        HF_HOME=str(folder / "home"),
        HF_HUB_DISABLE_PROGRESS_BARS="1",
    )
    process = subprocess.run(
        [sys.executable, "-m", "megatape", *map(str, words)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    return process.returncode, process.stdout, process.stderr


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
    with served(tiny=repository_of(model)) as hub:
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
            assert (tmp_path / "tiny" / name).read_bytes() == hub.repositories[ID].files[name], name
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
    with served(tiny=repository_of(model)) as hub:
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
