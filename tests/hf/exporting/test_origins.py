"""Origins of models and data in model cards."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from megatape.config import parse_config
from megatape.hf.exporting.model_card import TrainingSummary, model_card
from megatape.hf.exporting.origins import Origins, origins_of
from megatape.hf.families import family_of
from megatape.hf.families.exported_model import ExportedModel
from megatape.hf.special_tokens import SpecialTokens
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.training_cases import TRAIN_CASES

CACHED = "home/hub/models--org--Tiny-1.5B/snapshots/0123abcd"


def origins_of_run(init_from: Path | None, data: Path) -> Origins:
    start = None
    if init_from is not None:
        start = str(init_from)
    return origins_of(start, [str(data)])


def model_folder(path: Path, card: str | None) -> Path:
    """Write a folder with a model card but without a model."""
    path.mkdir(parents=True)
    if card is not None:
        (path / "README.md").write_text(card)
    return path


def data_from(directory: Path, path: Path, source: dict[str, Any]) -> Path:
    """Copy a data directory and replace the record of its source."""
    shutil.copytree(directory, path)
    index = json.loads((path / "index.json").read_text())
    (path / "index.json").write_text(json.dumps(index | {"source": source}))
    return path


@pytest.mark.parametrize(
    ("folder", "card", "base_model", "license_"),
    [
        ("model", None, None, None),
        (CACHED, None, "org/Tiny-1.5B", None),
        (CACHED, "---\nlicense: llama3.2\nbase_model: org/older\n---\n", "org/Tiny-1.5B", "llama3.2"),
        ("model", "---\ntags: [a]\nlicense: 'mit'\nbase_model:\n- org/older\n---\n# Title\n", "org/older", "mit"),
        ("model", "---\nlicense: a b: c\nbase_model: /home/somebody\n---\n", None, None),
        ("model", "---\nlicense: [mit]\nbase_model: &x org\n---\n", None, None),
        ("model", "# Title\n---\nlicense: mit\n---\n", None, None),
        ("model", "---\nlicense: mit\n", None, None),
    ],
)
def test_a_model_of_transformers(
    tmp_path: Path, folder: str, card: str | None, base_model: str | None, license_: str | None
) -> None:
    """The base model is the id in the cache of the hub, or else the name in the model card; other values are ignored."""
    start = model_folder(tmp_path / folder, card)
    assert origins_of_run(start, tmp_path / "nowhere") == Origins(base_model, license_)


def test_missing_or_damaged_files_add_nothing(tmp_path: Path) -> None:
    for name in ("import.json", "manifest.json", "README.md"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).write_bytes(b"---\n\xff\n---\n")
        assert origins_of_run(tmp_path / name, tmp_path / name) == Origins()
    assert origins_of_run(tmp_path / "nowhere", tmp_path / "nowhere") == Origins()


def test_an_import_of_a_model_in_the_cache(tmp_path: Path, command: Any) -> None:
    source = tmp_path / CACHED
    save_tiny("llama", source)
    (source / "README.md").write_text("---\nlicense: mit\n---\n")
    assert command("import", source, tmp_path / "imported")[0] == 0
    assert origins_of_run(tmp_path / "imported", tmp_path) == Origins("org/Tiny-1.5B", "mit")


def test_data_sets_of_the_hub_are_named(data_directory: Path, tmp_path: Path) -> None:
    """Data sets of the hub are named, also in merged data and subsets. Local folders stay private."""
    hub = data_from(data_directory, tmp_path / "hub", {"kind": "hub", "inputs": ["HuggingFaceFW/fineweb-edu"]})
    c4 = data_from(data_directory, tmp_path / "c4", {"kind": "c4", "inputs": ["/home/somebody/c4"]})
    local = data_from(data_directory, tmp_path / "local", {"kind": "jsonl", "inputs": ["/home/somebody/secret.jsonl"]})
    merged = data_from(data_directory, tmp_path / "merged", {"kind": "merge", "folders": [str(hub), str(local), str(c4)]})
    subset = data_from(data_directory, tmp_path / "subset", {"kind": "subset", "folder": str(merged)})
    itself = data_from(data_directory, tmp_path / "itself", {"kind": "subset", "folder": str(tmp_path / "itself")})
    assert origins_of_run(None, hub).data_sets == ("HuggingFaceFW/fineweb-edu",)
    assert origins_of_run(None, local).data_sets == ()
    assert origins_of_run(None, subset).data_sets == ("HuggingFaceFW/fineweb-edu", "allenai/c4")
    assert origins_of_run(None, itself).data_sets == ()


def test_data_sets_of_an_earlier_run(raw_config: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    """A run that started from another run's checkpoint has learned from the data of both."""
    hub = data_from(data_directory, tmp_path / "hub", {"kind": "hub", "inputs": ["HuggingFaceFW/fineweb-edu"]})
    c4 = data_from(data_directory, tmp_path / "c4", {"kind": "c4", "inputs": ["c4"]})
    raw_config["training"]["steps"] = 1
    raw_config["data"]["path"] = str(c4)
    payload = {"config": raw_config, "cases": [{"name": "earlier"}]}
    run_workers(TRAIN_CASES, 1, payload, tmp_path / "workers")
    checkpoint = Path(raw_config["run"]["directory"], "earlier", "checkpoints", "step-00000001")
    assert origins_of_run(checkpoint, hub).data_sets == ("allenai/c4", "HuggingFaceFW/fineweb-edu")


@pytest.mark.parametrize(
    ("origins", "unknown"),
    [
        (Origins(), "The texts that the model was trained on, its license and its evaluation are not recorded"),
        (Origins("org/tiny", "mit"), "The texts that the model was trained on and its evaluation are not recorded"),
        (Origins("org/tiny", None, ("a/b", "c4")), "Its license and its evaluation are not recorded"),
        (Origins("org/tiny", "mit", ("a/b",)), "Its evaluation is not recorded"),
    ],
)
def test_the_card(raw_config: dict[str, Any], origins: Origins, unknown: str) -> None:
    """The card has metadata in the hub's format, rows with links, and a last sentence about the rest."""
    config = parse_config(raw_config, "test")
    exported = ExportedModel.of_run(config, SpecialTokens(1, 2, 0))
    card = model_card(exported, family_of(exported.model), TrainingSummary(7, 1234, None, "packed"), "", origins)
    metadata = yaml.safe_load(card.split("---\n")[1])
    data_sets = tuple(metadata.get("datasets", ()))
    assert Origins(metadata.get("base_model"), metadata.get("license"), data_sets) == origins
    links = [f"[{name}](https://huggingface.co/datasets/{name})" for name in origins.data_sets]
    if origins.base_model is not None:
        links.append(f"[{origins.base_model}](https://huggingface.co/{origins.base_model})")
    else:
        assert "[None]" not in card
    for link in links:
        assert link in card
    assert unknown in " ".join(card.split())
