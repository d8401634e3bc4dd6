"""Runs that start from an import, an export or a checkpoint, and their export to transformers."""

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

from megatape.checkpoint.load.reader import CheckpointReader, verified_checkpoint
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
from megatape.model.build import meta_model
from megatape.model.init import initial_weight
from megatape.reliability.lease import hold
from megatape.run_folder import RunFolder
from megatape.training.startup.build_trainer import build_trainer
from megatape.training.startup.state.new_run_state import new_run_state
from megatape.zero.state.interfaces import ReadBlock
from megatape.zero.state.kinds import WEIGHT
from megatape.zero.state.zero_state import ZeroState
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.models.tiny_models import MODELS, save_tiny
from tests.helpers.processes.workers import WITH_TRANSFORMERS, run_workers
from tests.helpers.runs.case_runs import run_cases
from tests.helpers.runs.run_data import open_run_data
from tests.helpers.runs.run_folders import assert_identical, read_entries, tensors
from tests.helpers.runs.training_cases import TRAIN_CASES

# Sources in float32 and in the other precisions, keeping their files' dtype
DTYPES = {"llama": torch.float16, "mistral": torch.bfloat16, "qwen2": torch.bfloat16}
ONLY_SAVE = {"only_save": True}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Path]:
    """imported("qwen2", "tape") is the folder of an import that nothing changes. Its source is in the same folder."""
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


def case_of(folder: Path, name: str, **settings: Any) -> dict[str, Any]:
    """Return a case that trains the import in `folder`, with section__key=value changed."""
    raw = json.loads((folder / "config.json").read_text())
    changes = {"training.init_from": raw["training"]["init_from"]}
    for section in ("model", "export"):
        for key, value in raw[section].items():
            changes[f"{section}.{key}"] = value
    for key, value in settings.items():
        changes[key.replace("__", ".")] = value
    return {"name": name, "set": changes}


@pytest.fixture
def base(raw_config: dict[str, Any]) -> dict[str, Any]:
    """Configuration whose section model comes from the cases."""
    return raw_config | {"model": {}}


def checkpoint_of(base: dict[str, Any], name: str, step: int = 0) -> Path:
    return RunFolder(Path(base["run"]["directory"]) / name).checkpoint(step)


@pytest.mark.slow
def test_untrained_weights_return_bit_for_bit(base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path) -> None:
    """Every family through two tensor-parallel ranks at ZeRO-3 and back: the source's class, names, values and dtypes."""
    cases = [case_of(imported(name, "rope"), name, parallel__tp=2) | ONLY_SAVE for name in MODELS]

    results = run_cases(base, cases, 2, tmp_path / "workers")

    assert results == [{"step": 0, "samples": 0}] * len(cases)
    for name, (model_class, _, _) in MODELS.items():
        exported = tmp_path / name
        export(verified_checkpoint(checkpoint_of(base, name)), exported)
        source = imported(name, "rope").parent / name
        weights = load_file(exported / "model.safetensors")
        expected_weights = load_file(source / "model.safetensors")
        assert_identical(weights, expected_weights, name)
        for weight in (*weights.values(), *expected_weights.values()):
            assert weight.dtype == DTYPES.get(name, torch.float32)
        check_logits(exported, source, model_class)


def check_logits(exported: Path, source: Path, model_class: type) -> None:
    """Check the logits of an export in transformers and in our model."""
    tokens = torch.arange(200)[None]
    model = AutoModelForCausalLM.from_pretrained(exported).eval()
    source_model = AutoModelForCausalLM.from_pretrained(source).eval()
    assert type(model) is model_class
    with torch.no_grad():
        expected = source_model(tokens).logits
        assert torch.equal(model(tokens).logits, expected), exported
        assert torch.equal(read_model(exported)(tokens).logits, expected), exported


@pytest.mark.slow
def test_an_import_with_tape_has_shared_and_new_weights(
    base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path
) -> None:
    """Shared weights are the source's, those of the encoding are a new model's, and moments are zero."""
    folder = imported("qwen3", "tape")
    case = case_of(folder, "tape", parallel__tp=2) | ONLY_SAVE

    results = run_cases(base, [case], 2, tmp_path / "workers")

    assert results == [{"step": 0, "samples": 0}]
    reader = CheckpointReader(checkpoint_of(base, "tape"))
    untrained = ImportCheckpoint(folder)
    assert untrained.names() == reader.names()
    for name in reader.names():
        assert torch.equal(untrained.tensor(name), reader.tensor(name)), name
    source_weights = load_file(folder.parent / "qwen3" / "model.safetensors")
    family = family_of(reader.config.model)
    for name, parameter in meta_model(reader.config.model).named_parameters():
        if ".position." in name:
            expected = initial_weight(name, parameter, 0.02, 1234)
        else:
            expected = source_weights[family.parameter_name(name)]
        assert torch.equal(reader.tensor(name), expected), name
        num_columns = parameter.shape[1] if parameter.dim() > 1 else 1
        shape = tuple(parameter.shape)
        moment = reader.read("exp_avg", name, shape, slice(0, shape[0]), slice(0, num_columns))
        assert not moment.any(), name


TRAINED_FAMILIES = ("llama3", "mistral", "qwen2", "qwen3")


@pytest.mark.slow
def test_training_from_an_import(base: dict[str, Any], imported: Callable[..., Path], tmp_path: Path) -> None:
    """Every family trains on one process, and transformers loads what is exported.

    Qwen3, with biases, norms of queries and keys, and tied embeddings, trains the same on 2 data x 2 tensor ranks at stage 3.
    A run stopped halfway resumes bit for bit there, although init_from is still set.
    """
    steps = 6
    base["training"]["steps"] = steps
    base["optimizer"]["eps"] = 1e-3
    base["checkpoint"] = {"interval": steps // 2, "keep": 5}
    on_one_rank: list[dict[str, Any]] = []
    for name in TRAINED_FAMILIES:
        for encoding in ("rope", "tape"):
            on_one_rank.append(case_of(imported(name, encoding), f"{name}-{encoding}-1", zero__stage=0))
    on_four_ranks: list[dict[str, Any]] = []
    resumed: list[dict[str, Any]] = []
    for encoding in ("rope", "tape"):
        case = case_of(imported("qwen3", encoding), f"qwen3-{encoding}-4", zero__stage=3, parallel__tp=2)
        on_four_ranks.append(case)
        checkpoint = checkpoint_of(base, case["name"], steps // 2)
        resumed.append(case | {"name": f"{case['name']}-resumed", "resume": str(checkpoint)})

    results = run_cases(base, on_one_rank, 1, tmp_path / "workers-1")
    assert [result.get("step", result) for result in results] == [0] * len(on_one_rank)
    results = run_cases(base, on_four_ranks + resumed, 4, tmp_path / "workers-4")
    assert [result.get("step", result) for result in results] == [0, 0, steps // 2, steps // 2]

    losses = {}
    for case in on_one_rank + on_four_ranks:
        name = case["name"]
        metrics = read_entries(Path(base["run"]["directory"]) / name / "metrics.jsonl")
        losses[name] = [entry["loss"] for entry in metrics]
        assert losses[name][-1] < losses[name][0] - 0.1, name
    for encoding in ("rope", "tape"):
        name = f"qwen3-{encoding}-4"
        assert_close(losses[name][:3], losses[f"qwen3-{encoding}-1"][:3], bounds.TRAINED, what=name)
        straight = tensors(checkpoint_of(base, name, steps), "weight")
        assert_identical(tensors(checkpoint_of(base, f"{name}-resumed", steps), "weight"), straight, name)
    for run in [*(f"{name}-rope-1" for name in TRAINED_FAMILIES), "qwen3-rope-4"]:
        export(verified_checkpoint(checkpoint_of(base, run, steps)), tmp_path / run)
        family, _, _ = run.partition("-")
        assert type(AutoModelForCausalLM.from_pretrained(tmp_path / run)) is MODELS[family][0]


def test_checkpoints_and_exports_of_ours(trained: dict[str, Any], tmp_path: Path) -> None:
    """A checkpoint of TAPE starts a longer run, one with rope, and one with adapters, and its export starts one.

    Weights of another encoding are new, even those with a name that TAPE also has. A checkpoint with adapters starts no run
    without them. Data of another tokenizer give a warning.
    """
    raw = copy.deepcopy(trained)
    origin = RunFolder(Path(raw["run"]["directory"]) / "base").checkpoint(4)
    raw["run"]["directory"] = str(tmp_path / "run")
    export(verified_checkpoint(origin), tmp_path / "exported")
    prepare_other_tokenizer(tmp_path, raw["model"]["vocab_size"])
    settings: dict[str, dict[str, Any]] = {
        "longer": {"model.max_positions": 64, "data.sequence_length": 64},
        "rope": {"model.encoding": "rope"},
        "scalars": {"model.encoding": "tape_attention_only", "training.frozen": ["position"]},
        "vectors": {"model.encoding": "tape_vector"},
        "exported": {"training.init_from": str(tmp_path / "exported")},
        "lora": {"model.lora": {"rank": 2, "alpha": 2.0}, "training.trainable": ["adapters"]},
        "other": {"data.path": str(tmp_path / "other")},
        "without": {"training.init_from": str(checkpoint_of(raw, "lora"))},
    }
    cases: list[dict[str, Any]] = []
    for name, changes in settings.items():
        cases.append({"name": name, "set": {"training.init_from": str(origin)} | changes} | ONLY_SAVE)

    *started, refused = run_cases(raw, cases, 1, tmp_path / "workers", imports=WITH_TRANSFORMERS)

    assert started == [{"step": 0, "samples": 0}] * 7
    assert "this model lacks blocks.0.attention.key.adapter.a" in refused["error"]
    log = (tmp_path / "workers" / "rank0.log").read_text()
    assert log.count("warning: the tokenizer of the data") == 1
    before_warning, _, _ = log.partition("warning: the tokenizer")
    assert "case other" in before_warning.split("starting from")[-2]
    origin_reader = CheckpointReader(origin)
    assert origin_reader.tensor("blocks.0.position.gain").any()
    for name in ("longer", "rope", "scalars", "vectors", "exported", "lora"):
        check_started(CheckpointReader(checkpoint_of(raw, name)), origin_reader, name)


def prepare_other_tokenizer(folder: Path, vocab_size: int) -> None:
    """Prepare data with another tokenizer in `folder`/other."""
    texts = folder / "text"
    texts.mkdir()
    for name in "abcdefghij":
        (texts / f"{name}.txt").write_text(f"The text of another {name} tokenizer. " * 50)
    prepare(PreparationOptions(Source("text", (str(texts),)), 0.5, None, vocab_size), folder / "other")


def check_started(reader: CheckpointReader, origin: CheckpointReader, name: str) -> None:
    """Check which weights of a new run are those of its origin."""
    shared = [key for key in reader.names() if ".adapter." not in key]
    if name in ("scalars", "vectors"):
        assert not reader.tensor("blocks.0.position.gain").any()
        shared = [key for key in shared if ".position." not in key]
    assert shared
    for key in shared:
        assert torch.equal(reader.tensor(key), origin.tensor(key)), (name, key)
    lost = set(origin.names()) - set(reader.names())
    if name in ("rope", "scalars"):
        assert lost <= {key for key in origin.names() if ".position." in key}
    else:
        assert lost == set()


@pytest.mark.parametrize(
    ("encoding", "changes", "message"),
    [
        ("rope", {"mlp_size": 64}, "shapes differ: blocks.0.mlp.gate.weight (48, 32), here (64, 32)"),
        ("rope", {"num_layers": 3}, "it lacks blocks.2."),
        ("rope", {"num_layers": 1}, "this model lacks blocks.1."),
        ("rope", {"qk_norm": True}, "it lacks blocks.0.attention.key_norm.weight"),
        ("tape", {"mlp_size": 64}, "shapes differ: blocks.0.mlp.gate.weight"),
        ("tape", {"tie_embeddings": True}, "this model lacks head.weight"),
    ],
    ids=["shape", "more layers", "fewer layers", "norms", "shape with an encoding", "head"],
)
def test_other_models_are_refused(imported: Callable[..., Path], encoding: str, changes: dict[str, Any], message: str) -> None:
    """Parameters that differ are named, also where another encoding may lack its own."""
    folder = imported("llama", encoding)
    section = json.loads((folder / "config.json").read_text())["model"]
    open_weights(folder).check_fits(parse_model(section, "same"))

    with pytest.raises(ValueError, match=re.escape(message)):
        open_weights(folder).check_fits(parse_model(section | changes, "other"))


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="none: no such folder"):
        open_weights(tmp_path / "none")


def test_a_source_that_has_changed_is_refused_on_every_rank(base: dict[str, Any], tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "changed")
    import_model(tmp_path / "changed", tmp_path / "import", "rope", 32)
    path = tmp_path / "changed" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    cases = [case_of(tmp_path / "import", "changed")]

    results_by_rank = run_workers(TRAIN_CASES, 2, {"config": base, "cases": cases}, tmp_path / "workers")

    for (result,) in results_by_rank:
        assert result["error"].startswith("UserError: training.init_from: rank ")
        assert "has changed since" in result["error"]


def test_resuming_wins(trained: dict[str, Any], tmp_path: Path) -> None:
    """--resume auto continues from the run's own checkpoint and does not read init_from. A run without one does."""
    raw = copy.deepcopy(trained)
    raw["training"]["steps"] = 5
    missing = {"training.init_from": str(tmp_path / "none")}
    raw["run"]["directory"] = str(shutil.copytree(trained["run"]["directory"], tmp_path / "run"))
    cases = [{"name": "base", "set": missing, "resume": "auto"}, {"name": "new", "set": missing, "resume": "auto"}]

    with_checkpoint, without = run_cases(raw, cases, 2, tmp_path / "workers")

    assert with_checkpoint == {"step": 4, "samples": 32}
    assert without["error"].startswith("MissingPath: training.init_from")
    assert "no such folder" in without["error"]


@pytest.mark.slow
def test_a_rank_reads_its_share(base: dict[str, Any], tmp_path: Path) -> None:
    """On 2 data x 2 tensor ranks at ZeRO-3, each reads a quarter of the weights, and loading takes little memory beyond it.

    This holds at the start, and when resuming with frozen weights from a base.
    """
    sizes: dict[str, Any] = {"hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 6, "head_dim": 64}
    save_tiny("llama", tmp_path / "model", **sizes)
    import_model(tmp_path / "model", tmp_path / "import", "rope", 32)
    case = case_of(tmp_path / "import", "run", parallel__tp=2)
    for path, value in case["set"].items():
        section, _, key = path.partition(".")
        base.setdefault(section, {})[key] = value
    results = run_workers("tests.end_to_end.test_start:measure_loading", 4, base, tmp_path / "workers")

    model_bytes = results[0]["model"]
    assert model_bytes > 40e6
    for kind in ("started", "resumed"):
        for result in results:
            assert result[kind]["read"] < 0.3 * model_bytes  # Both ranks read the rows that they share.
            assert result[kind]["peak"] < 0.2 * model_bytes, result
        assert sum(result[kind]["read"] for result in results) >= model_bytes


def measure_loading(raw: dict[str, Any], topology: Topology) -> dict[str, Any]:
    """Return the bytes of the model, and the results of `_measured` for a start and a resumed run."""
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
    model_bytes = sum(torch.Size(state.shape(name)).numel() * 4 for name in state.parameters)
    return {"model": model_bytes, "started": started, "resumed": resumed}


def _measured(state: ZeroState, read: ReadBlock) -> dict[str, int]:
    """Load a state. Returns the bytes of weights that this rank reads, and those by which its resident memory grows."""
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
    """Return a field of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            kilobytes = value.split()[0]
            return int(kilobytes) * 1024
    raise AssertionError(f"no {field} in /proc/self/status")
