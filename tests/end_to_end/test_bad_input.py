"""Corrupted checkpoints, runs that do not fit together, corrupted data, divergence: told clearly, and nothing is lost."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from megatape.checkpoint.reader import CheckpointReader
from tests.helpers.processes.workers import run_workers
from tests.helpers.runs.run_folders import flip_byte
from tests.helpers.runs.training_cases import TRAIN_CASES


def test_corrupted_checkpoints_are_skipped(finished: dict[str, Any], tmp_path: Path) -> None:
    root = Path(finished["run"]["directory"])
    newest: dict[str, Path] = {}
    for name in ("flipped", "short", "missing", "unfinished", "given", "version", "hopeless"):
        shutil.copytree(root / "base", root / name)
        newest[name] = root / name / "checkpoints" / "step-00000004"
    flip_byte(newest["flipped"] / "exp_avg_sq-00000.safetensors")
    given = newest.pop("given")
    flip_byte(given / "weight-00000.safetensors")
    weights = newest["short"] / "weight-00000.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (newest["missing"] / "state.json").unlink()
    (newest["unfinished"] / "manifest.json").unlink()
    version = newest.pop("version")
    hopeless = newest.pop("hopeless")
    manifest = json.loads((version / "manifest.json").read_text())
    del manifest["sha256"]
    manifest["format"] = 99
    digest = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (version / "manifest.json").write_text(json.dumps(manifest | {"sha256": digest}))
    for checkpoint in hopeless.parent.iterdir():
        flip_byte(checkpoint / "state.json")

    cases = [{"name": name, "set": {"training.steps": 5}, "resume": "auto"} for name in newest]
    cases += [
        {"name": "explicit", "resume": str(given)},
        {"name": "version", "resume": "auto"},
        {"name": "hopeless", "resume": "auto"},
        {"name": "base", "resume": str(root / "base" / "checkpoints" / "step-00000003")},
    ]
    results = run_workers(TRAIN_CASES, 2, {"config": finished, "cases": cases}, tmp_path / "workers")[0]
    assert results[: len(newest)] == [{"step": 3, "samples": 24}] * len(newest)
    for path in newest.values():
        found = sorted(entry.name for entry in path.parent.iterdir())
        assert found == ["step-00000004", "step-00000004.corrupted", "step-00000005"], "passed over: neither lost nor counted"
    explicit, other, none, older = (result["error"] for result in results[len(newest) :])
    assert str(given) in explicit and "corrupted" in explicit
    assert "format 99" in other, "what another version wrote is not skipped as if it were broken"
    assert "none of the 2 checkpoints is valid" in none
    assert len(list(hopeless.parent.iterdir())) == 2, "and nothing of it is removed"
    assert "newer than" in older and "step-00000004" in older
    said = "".join((tmp_path / "workers" / f"rank{rank}.log").read_text() for rank in (0, 1))
    for name, part in {
        "flipped/checkpoints/step-00000004/exp_avg_sq-00000.safetensors": "sha256",
        "short/checkpoints/step-00000004/weight-00000.safetensors": "bytes instead of",
        "missing/checkpoints/step-00000004/state.json": "missing",
        "unfinished/checkpoints/step-00000004": "no complete checkpoint",
    }.items():
        assert any(line.startswith("checkpoint not used") and name in line and part in line for line in said.splitlines()), name


@pytest.mark.slow
def test_any_flipped_byte_of_the_small_files_is_noticed(finished: dict[str, Any]) -> None:
    """Every byte of the manifest and the state in turn: refused as corrupted, or (white space) read as before."""
    checkpoint = Path(finished["run"]["directory"]) / "base" / "checkpoints" / "step-00000004"
    sound = CheckpointReader(checkpoint)
    for name in ("manifest.json", "state.json"):
        content = (checkpoint / name).read_bytes()
        for place in range(len(content)):
            damaged = bytearray(content)
            damaged[place] ^= 1
            (checkpoint / name).write_bytes(damaged)
            try:
                reader = CheckpointReader(checkpoint)
            except (ValueError, FileNotFoundError):
                continue
            assert (reader.manifest, reader.state) == (sound.manifest, sound.state), (name, place)
        (checkpoint / name).write_bytes(content)


def test_runs_and_data_that_do_not_fit(finished: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    root = Path(finished["run"]["directory"])
    checkpoint = str(root / "base" / "checkpoints" / "step-00000004")
    data = {name: tmp_path / name for name in ("flipped", "gone", "other")}
    for path in data.values():
        shutil.copytree(data_directory, path)
    shard = min(data["flipped"].glob("train-*.tar"))
    flip_byte(shard)
    min(data["gone"].glob("train-*.tar")).unlink()
    index = data["other"] / "index.json"
    index.write_text(index.read_text().replace('"documents": 1', '"documents": 2', 1))

    expected: list[tuple[dict[str, Any], list[str]]] = [
        ({"name": "base"}, ["already holds checkpoints", "--resume auto"]),
        ({"name": "a", "resume": str(root / "nowhere")}, ["nowhere", "no such folder"]),
        ({"name": "b", "resume": checkpoint, "set": {"model.encoding": "rope"}}, ["model.encoding tape", "rope"]),
        ({"name": "c", "resume": checkpoint, "set": {"model.mlp_size": 44}}, ["model.mlp_size 40", "44"]),
        ({"name": "d", "resume": checkpoint, "set": {"data.sequence_length": 16}}, ["data.sequence_length 32", "16"]),
        ({"name": "n", "resume": checkpoint, "set": {"data.random_offset": False}}, ["data.random_offset True", "False"]),
        ({"name": "e", "resume": checkpoint, "set": {"training.seed": 5}}, ["training.seed 1234", "5"]),
        (
            {"name": "f", "resume": checkpoint, "set": {"data.path": str(data["other"])}},
            ["another set of shards", str(data["other"])],
        ),
        ({"name": "g", "set": {"data.path": str(tmp_path / "nothing")}}, [str(tmp_path / "nothing")]),
        ({"name": "h", "set": {"data.path": str(data["gone"])}}, ["MissingPath", "train-000000.tar"]),
        ({"name": "i", "set": {"data.path": str(data["flipped"])}}, [shard.name, "do not have their checksums"]),
        ({"name": "j", "set": {"model.vocab_size": 299}}, ["300 ids", "model.vocab_size is 299"]),
        ({"name": "k", "set": {"data.sequence_length": 2**20, "model.max_positions": 2**20}}, ["sequence length is 1048576"]),
        ({"name": "l", "set": {"training.global_batch_size": 5}}, ["5 = micro_batch_size 4 x data-parallel ranks 2"]),
        (
            {"name": "m", "set": {"optimizer.learning_rate": 1e30, "checkpoint.interval": 100}},
            ["TrainingDiverged", "step", "learning_rate"],
        ),
    ]
    cases = [case for case, _ in expected]
    for rank, results in enumerate(run_workers(TRAIN_CASES, 2, {"config": finished, "cases": cases}, tmp_path / "workers")):
        for (case, parts), result in zip(expected, results, strict=True):
            for part in parts:
                assert part in result.get("error", ""), (rank, case, result)
    assert not list((root / "m").glob("checkpoints/*")), "a run that diverged leaves no checkpoint of it"


def test_tokenizer_of_the_shards_is_checked(finished: dict[str, Any], data_directory: Path, tmp_path: Path) -> None:
    """A tokenizer that is not the one that made the shards would be exported with the model."""
    copied = tmp_path / "copied"
    shutil.copytree(data_directory, copied)
    flip_byte(copied / "tokenizer.model")
    cases = [{"name": "tokenizer", "set": {"data.path": str(copied)}}]
    result = run_workers(TRAIN_CASES, 1, {"config": finished, "cases": cases}, tmp_path / "workers")[0][0]
    assert "tokenizer.model" in result["error"]
