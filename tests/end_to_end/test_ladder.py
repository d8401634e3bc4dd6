"""Every file in configs/ loads, fits its own cluster section, and builds at full size on the meta device."""

import re
from pathlib import Path

import pytest
import torch

from megatape.accounting.gpus import load_gpu
from megatape.accounting.layout import TrainingLayout
from megatape.accounting.memory.rank_memory import plan_memory
from megatape.accounting.shapes.rank_model import build_rank_model
from megatape.accounting.whole_model.parameters import count_parameters
from megatape.accounting.workload import Workload
from megatape.config import Config, load_config
from megatape.data.synthetic.addition_problems import ALPHABET, longest_document
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.nn.parameters import is_sharded
from megatape.optim.adamw import AdamWOptions
from megatape.tools.planner.memory_requirements import memory_requirements
from megatape.tools.planner.planned_cluster import PlannedCluster
from tests.helpers.checks.slow import slow_but

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted(CONFIGS.rglob("*.json"))
# Size in a file's name -> number of parameters
SIZES = {
    "124m": 124e6,
    "155m": 155 * 2**20,
    "350m": 350e6,
    "1b": 1.3e9,
    "3b": 3.3e9,
    "7b": 6.74e9,
    "8b": 8.03e9,
    "13b": 13.0e9,
    "70b": 70.6e9,
}
LADDER = ("tiny", "155m", "350m", "1b", "3b", "7b", "8b_gqa", "13b", "70b_gqa")


def test_the_ladder_is_complete() -> None:
    names = {path.stem for path in FILES}
    assert {f"tape_{size}" for size in LADDER} <= names
    assert {"rope_155m", "rope_350m", "rope_1b", "rope_7b"} <= names


def test_no_two_train_in_one_folder() -> None:
    directories = {load_config(path).run.directory for path in FILES}
    assert len(directories) == len(FILES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_file(path: Path) -> None:
    config = load_config(path)
    assert Path(config.run.directory).name == path.stem
    assert config.zero.stage == expected_stage(path.stem)
    if path.parent.name != "finetune":
        assert path.stem.startswith((config.model.encoding, "mixture", "first_run"))
    size = re.search(r"_(\d+[mb])", path.stem)
    if size is not None:
        check_size(config, SIZES[size[1]])
    check_shards(config)


def expected_stage(name: str) -> int:
    if name.endswith("_addition_5"):
        # A single process shards nothing.
        return 1
    if name.endswith("_7b_8k"):
        return 2  # the paper's recipe
    if name == "rope_124m":
        # A single GPU, as many of which run side by side as there are models.
        return 2
    return 3


def check_size(config: Config, num_parameters: float) -> None:
    """Check the number of parameters, and that the run fits the file's own cluster section."""
    cluster = config.cluster
    assert cluster is not None
    load_gpu(cluster.gpu)
    assert config.num_micro_batches(cluster.world_size) >= 1
    assert cluster.gpus_per_node % config.parallel.tp == 0  # tensor-parallel ranks stay inside a node
    assert count_parameters(config.model).total == pytest.approx(num_parameters, rel=0.08)


def check_shards(config: Config) -> None:
    """Check that tensor-parallel shards add up to the model, except for padding."""
    with torch.device("meta"):
        rank_model = build_rank_model(Workload.from_config(config), config.model.num_layers)
    total = 0
    for parameter in rank_model.parameters():
        if is_sharded(parameter):
            total += parameter.numel() * config.parallel.tp
        else:
            total += parameter.numel()
    assert total == pytest.approx(count_parameters(config.model).total, rel=1e-4)


ROPE_FILES = sorted([*CONFIGS.glob("rope_*.json"), *(CONFIGS / "long").glob("rope_*.json")])


@pytest.mark.parametrize("path", ROPE_FILES, ids=lambda path: path.stem)
def test_twins_differ_in_the_encoding_only(path: Path) -> None:
    rope = load_config(path)
    tape = load_config(path.with_name(path.name.replace("rope", "tape")))
    model = tape.model.model_copy(update={"encoding": "rope", "position_size": rope.model.position_size})
    training = tape.training.model_copy(update={"init_from": rope.training.init_from})
    assert rope == tape.model_copy(update={"run": rope.run, "model": model, "training": training})


# End of a file's name -> mixture of layers
HYBRID = {
    "nope_fourth": "rope@full*3, nope@full",
    "swa_nope": "rope@1024*3, nope@full",
    "swa_rope": "tape@full, rope@1024*3",
}


def test_hybrid_files_differ_in_their_layers_only() -> None:
    for size in ("155m", "1b"):
        configs = {path.stem: load_config(path) for path in (CONFIGS / "hybrid").glob(f"*_{size}_*.json")}
        assert {name.split(f"_{size}_")[1]: config.model.layers for name, config in configs.items()} == HYBRID
        base, *others = configs.values()
        for other in others:
            changes = {"layers": base.model.layers, "encoding": base.model.encoding, "position_size": base.model.position_size}
            model = other.model.model_copy(update=changes)
            assert other.model_copy(update={"model": model, "run": base.run}) == base


def test_recipe_of_the_paper() -> None:
    config = load_config(CONFIGS / "tape_155m.json")
    training = config.training
    optimizer = config.optimizer
    schedule = config.schedule
    assert config.data.sequence_length == 1024
    assert training.global_batch_size == 512
    assert training.steps == 10_000
    assert isinstance(optimizer, AdamWOptions)
    assert optimizer.learning_rate == 1e-4
    assert optimizer.weight_decay == 0.01
    assert (optimizer.beta1, optimizer.beta2, optimizer.eps) == (0.9, 0.999, 1e-8)
    assert (schedule.kind, schedule.warmup_fraction, schedule.final_fraction) == ("linear", 0.02, 0.0)
    assert training.gradient_clip == 1.0


LONG = sorted((CONFIGS / "long").glob("tape_*.json"))


@pytest.mark.parametrize("path", slow_but(LONG[:1], LONG), ids=lambda path: path.stem)
def test_long_samples_fit(path: Path) -> None:
    """Each file and its twin have the length in their names, start from a file in the ladder, and fit their clusters."""
    for encoding in ("tape", "rope"):
        name = path.stem.replace("tape", encoding)
        config = load_config(path.with_stem(name))
        base, _, length = name.rpartition("_")
        num_tokens = 1024 * int(length.removesuffix("k"))
        assert config.model.encoding == encoding
        assert config.data.sequence_length == num_tokens
        assert config.model.max_positions == num_tokens
        assert f"runs/{base}/" in str(config.training.init_from)
        assert config.run.directory == f"runs/long/{name}"
        cluster = config.cluster
        assert cluster is not None
        assert cluster.gpus_per_node % config.parallel.sample_ranks == 0
        memory = plan_memory(TrainingLayout.from_config(config, cluster.world_size), on_gpu=True)
        assert memory_requirements(memory, PlannedCluster.load(cluster)).fits


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*_addition_*.json")), ids=lambda path: path.stem)
def test_addition(path: Path) -> None:
    """The number in the name is D: samples hold the longest problem of D digits, positions the longest of 2 D."""
    config = load_config(path)
    _, _, suffix = path.stem.rpartition("_")
    digits = int(suffix)
    assert config.data.path.endswith(f"data/addition_{digits}")
    assert config.data.samples == "documents"
    assert config.data.prompt_end == "="
    assert longest_document(digits) - 1 <= config.data.sequence_length <= longest_document(digits) + 4
    assert longest_document(2 * digits) - 1 <= config.model.max_positions
    assert config.model.vocab_size == character_tokenizer(ALPHABET).vocab_size


def test_recipe_of_the_paper_for_scrolls() -> None:
    config = load_config(CONFIGS / "finetune" / "scrolls_155m.json")
    base = load_config(CONFIGS / "tape_155m.json")
    training = config.training
    optimizer = config.optimizer
    schedule = config.schedule
    assert config.model == base.model
    assert config.data.samples == "examples"
    assert config.data.sequence_length == 1024
    assert training.init_from == f"{base.run.directory}/checkpoints/step-{base.training.steps:08d}"
    assert training.global_batch_size == 64
    assert training.steps == 1000
    assert optimizer.learning_rate == 1e-5
    assert optimizer.weight_decay == 0.01
    assert schedule.warmup_fraction == 0.1


@pytest.mark.parametrize("digits", [20, 40])
def test_recipe_of_the_paper_for_addition(digits: int) -> None:
    config = load_config(CONFIGS / f"tape_addition_{digits}.json")
    training = config.training
    assert training.global_batch_size == 512
    assert training.steps == 20_000
    assert config.optimizer.learning_rate == 1e-4
    assert config.cluster is not None
    assert config.num_micro_batches(config.cluster.world_size) == 1
