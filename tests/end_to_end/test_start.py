"""Runs that start from other weights: an import, an export, a checkpoint; and back to transformers."""

import copy
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from megatape.accounting.parameters import meta_model
from megatape.checkpoint.reader import CheckpointReader, verified_checkpoint
from megatape.config import parse_config, parse_model
from megatape.data.prepare.command import prepare
from megatape.data.prepare.options import PreparationOptions
from megatape.data.sources.source import Source
from megatape.distributed.topology import Topology
from megatape.hf.exporting.exporter import export
from megatape.hf.families import family_of
from megatape.hf.importing.checkpoint import ImportCheckpoint
from megatape.hf.importing.importer import import_model
from megatape.hf.loading.installed_model import read_model
from megatape.hf.model_folder import open_weights
from megatape.model.init import initial_weight
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.startup.new_run_state import new_run_state
from megatape.zero.kinds import WEIGHT
from megatape.zero.state import ZeroState
from megatape.zero.tensors import ReadBlock
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.tiny_models import MODELS, save_tiny
from tests.helpers.processes.workers import WITH_TRANSFORMERS, run_workers
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.training_cases import TRAIN_CASES

# One each of float32 and the other precisions; the dtype is that of the source's files.
DTYPES = {"llama": torch.float16, "mistral": torch.bfloat16, "qwen2": torch.bfloat16}
ONLY_SAVE = {"only_save": True}
AT_ZERO = Path("checkpoints/step-00000000")


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """imported("qwen2", "tape"): the folder of that import, which nothing changes; its source is beside it."""
    root = tmp_path_factory.mktemp("imported")

    def make(name: str, encoding: str) -> Path:
        source = root / name
        out = root / f"{name}-{encoding}"
        if not source.exists():
            save_tiny(name, source, DTYPES.get(name, torch.float32))
        if not out.exists():
            import_model(source, out, encoding, 32)
        return out

    return make


def case_of(folder: Path, name: str, **more: Any) -> dict[str, Any]:
    """A case that trains the import in `folder`."""
    raw = json.loads((folder / "config.json").read_text())
    changes = {f"{section}.{key}": value for section in ("model", "export") for key, value in raw[section].items()}
    changes |= {"training.init_from": raw["training"]["init_from"]} | more.pop("set", {})
    return {"name": name, "set": changes, **more}


@pytest.fixture
def base(raw_config: dict[str, Any]) -> dict[str, Any]:
    """A configuration whose model section is the cases' own."""
    return raw_config | {"model": {}}


def run_of(base: dict[str, Any], name: str) -> Path:
    return Path(base["run"]["directory"]) / name


@pytest.mark.slow
def test_untrained_weights_return_bit_for_bit(base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path) -> None:
    """Every family through two tensor-parallel ranks at ZeRO-3 and back: the source's class, names, values and dtypes.

    With TAPE the shared weights are the source's, and those of the encoding are those of a new model."""
    cases = [case_of(imported(name, "rope"), name, set={"parallel.tp": 2}, **ONLY_SAVE) for name in MODELS]
    cases += [case_of(imported("qwen3", "tape"), "tape", set={"parallel.tp": 2}, **ONLY_SAVE)]
    results = run_workers(TRAIN_CASES, 2, {"config": base, "cases": cases}, tmp_path / "workers")
    assert results[0] == [{"step": 0, "samples": 0}] * len(cases)
    for name, (model_class, _, _) in MODELS.items():
        checkpoint = verified_checkpoint(run_of(base, name) / AT_ZERO)
        export(checkpoint, tmp_path / name)
        source = imported(name, "rope").parent / name
        ours = load_file(tmp_path / name / "model.safetensors")
        theirs = load_file(source / "model.safetensors")
        assert ours.keys() == theirs.keys()
        for key, tensor in theirs.items():
            assert ours[key].dtype == tensor.dtype == DTYPES.get(name, torch.float32) and torch.equal(ours[key], tensor), key
        model, expected = (AutoModelForCausalLM.from_pretrained(folder).eval() for folder in (tmp_path / name, source))
        assert type(model) is model_class
        with torch.no_grad():
            tokens = torch.arange(200)[None]
            assert torch.equal(model(tokens).logits, expected(tokens).logits), name
            assert torch.equal(read_model(tmp_path / name)(tokens).logits, expected(tokens).logits), name
    reader = CheckpointReader(run_of(base, "tape") / AT_ZERO)
    untrained = ImportCheckpoint(imported("qwen3", "tape"))
    assert untrained.names() == reader.names()
    assert all(torch.equal(untrained.tensor(name), reader.tensor(name)) for name in reader.names())
    shared = load_file(imported("qwen3", "tape").parent / "qwen3" / "model.safetensors")
    family = family_of(reader.config.model)
    for name, parameter in meta_model(reader.config.model).named_parameters():
        if ".position." in name:
            assert torch.equal(reader.tensor(name), initial_weight(name, parameter, 0.02, 1234)), name
        else:
            assert torch.equal(reader.tensor(name), shared[family.parameter_name(name)]), name
        rows = slice(0, parameter.shape[0])
        columns = slice(0, parameter.shape[1] if parameter.dim() > 1 else 1)
        assert not reader.read("exp_avg", name, tuple(parameter.shape), rows, columns).any()


@pytest.mark.slow
def test_training_from_an_import(base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path) -> None:
    """Every family trains on one process, and transformers loads what is exported. Qwen3, with biases,
    norms of queries and keys, and tied embeddings, trains the same on 2 data x 2 tensor ranks at stage 3, where a run stopped
    halfway resumes bit for bit, although init_from is still set."""
    steps = 6
    base["training"]["steps"] = steps
    base["optimizer"]["eps"] = 1e-3
    base["checkpoint"] = {"interval": steps // 2, "keep": 5}

    def straight(name: str, ranks: int, changes: dict[str, Any]) -> list[dict[str, Any]]:
        return [case_of(imported(name, encoding), f"{name}-{encoding}-{ranks}", set=changes) for encoding in ("rope", "tape")]

    def checkpoint(name: str, step: int) -> Path:
        return run_of(base, name) / f"checkpoints/step-{step:08d}"

    families = ("llama3", "mistral", "qwen2", "qwen3")
    plain = [case for name in families for case in straight(name, 1, {"zero.stage": 0})]
    divided = straight("qwen3", 4, {"zero.stage": 3, "parallel.tp": 2})
    resumed = [
        case | {"name": f"{case['name']}-resumed", "resume": str(checkpoint(case["name"], steps // 2))} for case in divided
    ]
    for world_size, cases in ((1, plain), (4, divided + resumed)):
        results = run_workers(TRAIN_CASES, world_size, {"config": base, "cases": cases}, tmp_path / f"workers-{world_size}")
        assert [result.get("step", result) for result in results[0]] == [
            steps // 2 if "resume" in case else 0 for case in cases
        ]
    losses = {
        case["name"]: [
            json.loads(line)["loss"] for line in (run_of(base, case["name"]) / "metrics.jsonl").read_text().splitlines()
        ]
        for case in plain + divided
    }
    for name, found in losses.items():
        assert found[-1] < found[0] - 0.1, name
    for case in divided:
        name = case["name"]
        assert_close(losses[name][:3], losses[name.replace("-4", "-1")][:3], bounds.TRAINED, what=name)
        weights, theirs = (load_file(checkpoint(run, steps) / "weight-00000.safetensors") for run in (name, f"{name}-resumed"))
        assert all(torch.equal(weights[key], tensor) for key, tensor in theirs.items())
    for name, ranks in [*((name, 1) for name in families), ("qwen3", 4)]:
        export(verified_checkpoint(checkpoint(f"{name}-rope-{ranks}", steps)), tmp_path / f"{name}-{ranks}")
        assert type(AutoModelForCausalLM.from_pretrained(tmp_path / f"{name}-{ranks}")) is MODELS[name][0]


def test_checkpoints_and_exports_of_ours(trained: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint of TAPE starts a longer run, one with rope, and one with adapters, and its export starts one; optimizer and
    step are new, and so is what belongs to another encoding, even under a name that TAPE has, too. A checkpoint with adapters
    starts none without. Data of another tokenizer are warned of."""
    raw = copy.deepcopy(trained)
    origin = Path(raw["run"]["directory"]) / "base" / "checkpoints" / "step-00000004"
    raw["run"]["directory"] = str(tmp_path / "run")
    export(verified_checkpoint(origin), tmp_path / "exported")
    kinds: dict[str, dict[str, Any]] = {
        "longer": {"model.max_positions": 64, "data.sequence_length": 64},
        "rope": {"model.encoding": "rope"},
        "scalars": {"model.encoding": "tape_attention_only", "training.frozen": ["position"]},
        "vectors": {"model.encoding": "tape_vector"},
        "exported": {"training.init_from": str(tmp_path / "exported")},
        "lora": {"model.lora": {"rank": 2, "alpha": 2.0}, "training.trainable": ["adapters"]},
        "other": {"data.path": str(tmp_path / "other")},
        "without": {"training.init_from": str(tmp_path / "run" / "lora" / AT_ZERO)},
    }
    (tmp_path / "text").mkdir()
    for name in "abcdefghij":
        (tmp_path / "text" / f"{name}.txt").write_text(f"The text of another {name} tokenizer. " * 50)
    texts = Source("text", (str(tmp_path / "text"),))
    prepare(PreparationOptions(texts, 0.5, None, raw["model"]["vocab_size"]), tmp_path / "other")
    cases = [
        {"name": name, "set": {"training.init_from": str(origin)} | changes, "only_save": True}
        for name, changes in kinds.items()
    ]
    *started, refused = run_workers(
        TRAIN_CASES, 1, {"config": raw, "cases": cases}, tmp_path / "workers", imports=WITH_TRANSFORMERS
    )[0]
    assert started == [{"step": 0, "samples": 0}] * 7
    log = (tmp_path / "workers" / "rank0.log").read_text()
    assert log.count("warning: the tokenizer of the data") == 1
    assert "case other" in log[: log.index("warning: the tokenizer")].split("starting from")[-2]
    assert "this model lacks blocks.0.attention.key.adapter.a" in refused["error"]
    expected = CheckpointReader(origin)
    assert expected.tensor("blocks.0.position.gain").any()
    for name in ("longer", "rope", "scalars", "vectors", "exported", "lora"):
        found = CheckpointReader(tmp_path / "run" / name / AT_ZERO)
        shared = [key for key in found.names() if ".adapter." not in key]
        if name in ("scalars", "vectors"):
            assert not found.tensor("blocks.0.position.gain").any()
            shared = [key for key in shared if ".position." not in key]
        assert shared and all(torch.equal(found.tensor(key), expected.tensor(key)) for key in shared), name
        lost = {key for key in expected.names() if ".position." in key} if name in ("rope", "scalars") else set()
        assert set(expected.names()) - set(found.names()) == lost - set(found.names())


def test_other_models_are_refused(base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path) -> None:
    """Parameters that differ are named, also where another encoding may lack its own; and every rank is told."""
    wrong: dict[str, tuple[str, dict[str, Any], str]] = {
        "shape": ("rope", {"mlp_size": 64}, "shapes differ: blocks.0.mlp.gate.weight (48, 32), here (64, 32)"),
        "more": ("rope", {"num_layers": 3}, "it lacks blocks.2."),
        "fewer": ("rope", {"num_layers": 1}, "this model lacks blocks.1."),
        "norms": ("rope", {"qk_norm": True}, "it lacks blocks.0.attention.key_norm.weight"),
        "encoding": ("tape", {"mlp_size": 64}, "shapes differ: blocks.0.mlp.gate.weight"),
        "head": ("tape", {"tie_embeddings": True}, "this model lacks head.weight"),
    }
    for name, (encoding, changes, message) in wrong.items():
        folder = imported("llama", encoding)
        section = json.loads((folder / "config.json").read_text())["model"]
        open_weights(folder).check_fits(parse_model(section, name))
        with pytest.raises(ValueError, match=re.escape(message)):
            open_weights(folder).check_fits(parse_model(section | changes, name))
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        open_weights(tmp_path / "none")

    save_tiny("llama", tmp_path / "changed")
    import_model(tmp_path / "changed", tmp_path / "import", "rope", 32)
    content = bytearray((tmp_path / "changed" / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "changed" / "model.safetensors").write_bytes(content)
    cases = [case_of(tmp_path / "import", "changed")]
    for (result,) in run_workers(TRAIN_CASES, 2, {"config": base, "cases": cases}, tmp_path / "workers"):
        assert result["error"].startswith("UserError: training.init_from: rank ") and "has changed since" in result["error"]


def test_resuming_wins(trained: dict[str, Any], tmp_path: Path) -> None:
    """--resume auto continues from the run's own checkpoint and does not look at init_from; without one, init_from begins."""
    raw = copy.deepcopy(trained)
    raw["training"]["steps"] = 5
    gone = {"training.init_from": str(tmp_path / "none")}
    raw["run"]["directory"] = str(shutil.copytree(trained["run"]["directory"], tmp_path / "run"))
    cases = [{"name": "base", "set": gone, "resume": "auto"}, {"name": "new", "set": gone, "resume": "auto"}]
    payload = {"config": raw, "cases": cases}
    results = run_workers(TRAIN_CASES, 2, payload, tmp_path / "workers")[0]
    assert results[0] == {"step": 4, "samples": 32}
    assert results[1]["error"].startswith("MissingPath: training.init_from") and "no such folder" in results[1]["error"]


@pytest.mark.slow
def test_a_rank_reads_its_share(base: dict[str, Any], tmp_path: Path) -> None:
    """On 2 data x 2 tensor ranks at ZeRO-3, each reads a quarter of the weights, and loading takes little memory beyond it:
    at the start, and where a run resumes with frozen weights from its base."""
    big: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 64}
    save_tiny("llama", tmp_path / "model", **big)
    import_model(tmp_path / "model", tmp_path / "import", "rope", 32)
    case = case_of(tmp_path / "import", "run", set={"parallel.tp": 2})
    for path, value in case["set"].items():
        section, _, key = path.partition(".")
        base.setdefault(section, {})[key] = value
    results = run_workers("tests.end_to_end.test_start:measure_loading", 4, base, tmp_path / "workers")
    whole = results[0]["model"]
    assert whole > 40e6
    for result in results:
        for kind in ("started", "resumed"):
            assert result[kind]["read"] < 0.3 * whole  # rows that two ranks share are read by both
            assert result[kind]["peak"] < 0.2 * whole, result
    for kind in ("started", "resumed"):
        assert sum(result[kind]["read"] for result in results) >= whole


def measure_loading(raw: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """Bytes of the model, and for both ways what `_measured` returns."""
    config = parse_config(raw, "test")
    with hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
        data = open_run_data(config)
        run = build_trainer(config, data, topology, lease)  # loads once: the state itself is in memory now
        state = run.engine.state
        initial = new_run_state(config.model, config.training, state.parameters, run.environment, data.tokenizer)
        started = _measured(state, initial.read)
    raw["training"]["trainable"] = ["norms"]
    raw["run"]["directory"] = f"{config.run.directory}-frozen"
    config = parse_config(raw, "test")
    with hold(RunFolder(Path(config.run.directory)).lease, topology) as lease:
        run = build_trainer(config, open_run_data(config), topology, lease)
        resumed = _measured(run.engine.state, CheckpointReader(run.checkpoints.ensure_saved()).read)
    whole = sum(torch.Size(state.shape(name)).numel() * 4 for name in state.parameters)
    return {"model": whole, "started": started, "resumed": resumed}


def _measured(state: ZeroState, read: ReadBlock) -> dict[str, int]:
    """Bytes of weights that this rank reads, and by how many its resident memory grows meanwhile."""
    sizes = []

    def counted(*arguments: Any) -> Tensor:
        block = read(*arguments)
        if arguments[0] == WEIGHT:
            sizes.append(block.numel() * 4)
        return block

    counting: ReadBlock = counted
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before = _memory("VmRSS")
    state.load(counting, 0)
    return {"read": sum(sizes), "peak": _memory("VmHWM") - before}


def _memory(field: str) -> int:
    """A line of /proc/self/status, in bytes."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[field].split()[0]) * 1024
