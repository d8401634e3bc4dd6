"""megatape study finetune: methods, the paper's figures, training, measuring, the report and errors."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from transformers import AutoModelForCausalLM

from megatape.accounting.parameters import count_trainable
from megatape.config import Config, ScalingConfig, differences, load_config
from megatape.config.section import ResumeRule
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.hf.architecture import read_architecture
from megatape.hf.exporting.tokenizer import write_tokenizer
from megatape.hf.importing.config import starting_config
from megatape.hf.loading.load import load_exported
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.execution.settings import Settings, as_overrides
from megatape.lab.study.finetuning.methods import BASE, METHODS, extension
from megatape.lab.study.results.text_result import TextResult
from megatape.lab.tasks.perplexity.validation import evaluate_perplexity
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.cells import cells
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command

CONFIGS = Path(__file__).parents[4] / "configs"
LENGTHS = {"llama2_7b_8k": (4096, 8192), "tiny": (256, 512)}  # of the base, and of the samples

LLAMA2_7B: dict[str, Any] = {  # config.json of the published folder
    "architectures": ["LlamaForCausalLM"],
    "bos_token_id": 1,
    "eos_token_id": 2,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "initializer_range": 0.02,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "pretraining_tp": 1,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "use_cache": True,
    "vocab_size": 32000,
}
# The paper: 131.08M, which has a row for a padding token, + 0.27M (its code trains both with every method), 8.39M, 17.04M.
EMBEDDING = 32000 * 4096
NORMS = 65 * 4096
LORA = 32 * 4 * 2 * 8 * 4096
TAPE = 32 * (128 * 4096 + 2 * 128 * 32 + 32)  # in every layer a matrix on h, W_up, W_down, a gain for each channel


def configured(name: str, size: str = "llama2_7b_8k", settings: Settings | None = None) -> Config:
    return load_config(CONFIGS / "finetune" / f"{name}_{size}.json", as_overrides(settings or {}))


@pytest.mark.parametrize("size", LENGTHS)
@pytest.mark.parametrize("name", METHODS)
def test_configuration_files_match_the_methods(name: str, size: str) -> None:
    """Applied to the file that trains everything."""
    settings = extension(*LENGTHS[size]) | METHODS[name].settings() | {"run.directory": f"runs/finetune/{name}_{size}"}
    assert configured(name, size) == configured("full", size, settings)


def test_base_matches_the_import_of_llama_2(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA2_7B))
    (tmp_path / "model.safetensors").touch()
    raw = starting_config(read_architecture(tmp_path), tmp_path, Path("runs/llama2_7b"), "rope", 8192, "float16")
    raw["data"]["path"] = "data"
    raw["training"]["steps"] = 1000
    (tmp_path / "imported.json").write_text(json.dumps(raw))
    settings = as_overrides(extension(4096, 8192) | METHODS["full"].settings())
    changed = {found.path for found in differences(load_config(tmp_path / "imported.json", settings), configured("full"))}
    free = {"zero.stage", "evaluation.interval", "evaluation.samples", "checkpoint.interval", "checkpoint.keep", "cluster"}
    assert changed <= {"run.directory", "data.path", "training.init_from"} | free


def test_small_base_matches_the_documentation() -> None:
    base = load_config(CONFIGS / "tape_tiny.json", ["model.encoding=rope"]).model
    extended = base.model_copy(update={"max_positions": 512, "scaling": ScalingConfig(kind="linear", factor=2.0)})
    assert configured("full", "tiny").model == extended


def test_trained_weights_match_the_paper() -> None:
    configs = {name: configured(name) for name in METHODS}
    counts = {
        name: count_trainable(config.model, config.training.trainable, config.training.frozen)
        for name, config in configs.items()
    }
    others = EMBEDDING + NORMS
    for name in ("lora", "longlora", "theta"):
        assert counts[name] == LORA + others
    assert counts["tape"] == TAPE + others
    assert counts["tape_lora"] == TAPE + LORA + others
    assert counts["full"] == 6_738_415_616  # of Llama 2 7B


def test_all_methods_see_the_same_samples_at_the_same_positions() -> None:
    configs = {name: configured(name) for name in METHODS}
    for name, config in configs.items():
        assert config.data.sequence_length == config.model.max_positions == 8192
        assert config.model.scaling == ScalingConfig(kind="linear", factor=2.0)
        assert config.model.rotary_base == (1e6 if name == "theta" else 1e4)
        changed = {found.path for found in differences(configs["full"], config) if found.rule is ResumeRule.SAMPLES}
        assert not changed
    with pytest.raises(ValueError, match="length 4096 is no longer than the 4096 tokens"):
        extension(4096, 4096)


def test_recipe_matches_the_paper() -> None:
    config = configured("tape")
    training = config.training
    optimizer = config.optimizer
    schedule = config.schedule
    assert (training.steps, training.global_batch_size, training.precision) == (1000, 64, "bfloat16")
    assert (optimizer.learning_rate, optimizer.weight_decay) == (2e-5, 0.0)
    assert (schedule.kind, schedule.warmup_fraction * training.steps) == ("constant", 50)
    assert config.model.position_size == 128
    assert config.cluster is not None
    assert config.cluster.world_size == 8
    assert config.accumulation(8) == 8


LENGTH = 32  # that the base is made for
RECIPE = ("training.global_batch_size=4", "training.micro_batch_size=4", "evaluation.samples=8", "optimizer.learning_rate=0.01")

Study = Callable[..., tuple[int, str, str]]


@pytest.fixture
def base(tmp_path: Path, data_directory: Path) -> Path:
    """A tiny random Llama with the tokenizer of the data."""
    folder = tmp_path / "llama"
    save_tiny("llama", folder, max_position_embeddings=LENGTH)
    write_tokenizer(load_tokenizer(data_directory / "tokenizer.model"), LENGTH, folder)
    return folder


@pytest.fixture
def study(command: Command, base: Path, data_directory: Path, tmp_path: Path) -> Study:
    """study("--methods", "tape"): the command on the base and the data of the tests."""
    recipe = [word for setting in RECIPE for word in ("--set", setting)]

    def call(*words: object, source: Path = base, data: Path = data_directory, out: Path = tmp_path / "out") -> Any:
        return command("study", "finetune", "--base", source, "--data", data, "--out", out, "--steps", 3, *recipe, *words)

    return call


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_methods_are_compared_with_the_base(
    study: Study, command: Command, base: Path, data_directory: Path, tmp_path: Path
) -> None:
    code, printed, errors = study("--methods", "lora,tape")
    assert code == 0, errors
    out = tmp_path / "out"
    assert "3 runs, 3 of them to do" in printed
    assert (out / "finetune.md").read_text().strip() in printed
    header, *rows = [cells(line) for line in printed.splitlines() if line.startswith("|") and "--" not in line][:4]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert list(table) == ["`base`", "`lora`", "`tape`"]
    lengths = [8, 16, 32, 64]
    assert [name for name in header if "perplexity" in name] == [f"perplexity at {length}" for length in lengths]

    configs = {name: load_config(out / name / "config.json") for name in ("lora", "tape")}
    for name, config in configs.items():
        trained = count_trainable(config.model, config.training.trainable, config.training.frozen)
        assert table[f"`{name}`"]["trained parameters"] == f"{trained:,}"
        assert config.data.sequence_length == 64
        assert config.model.scaling
        assert config.model.scaling.factor == 2
    assert table["`base`"]["trained parameters"] == "0"
    assert table["`base`"]["tokens/s"] == ""
    # The same samples, in the same order; and as adapters and position updates start at zero, the same model.
    assert not [each for each in differences(*configs.values()) if each.rule is ResumeRule.SAMPLES]
    found = {name: TextResult.read(out / name / "outcome.json") for name in ("base", "lora", "tape")}
    first_losses = {name: found[name].figures.first_loss for name in ("lora", "tape")}
    assert first_losses["lora"] is not None and first_losses["tape"] is not None
    assert_close([first_losses["lora"]], [first_losses["tape"]], bounds.TRAINED)
    assert found["lora"].figures.last_loss != found["tape"].figures.last_loss
    entries = [json.loads(line) for line in (out / "tape" / "metrics.jsonl").read_text().splitlines()]
    assert found["tape"].figures.validation_loss == entries[-1]["validation_loss"]
    assert found["tape"].figures.peak_memory == entries[-1]["peak_memory"] / 2**30 > 0

    # Perplexity, from the public export and from transformers' own model of the base.
    code, _, errors = command("export", out / "tape" / "checkpoints" / "step-00000003", tmp_path / "exported")
    assert code == 0, errors
    theirs = LoadedModel("base", AutoModelForCausalLM.from_pretrained(base), None)
    for name, loaded in {"tape": load_exported(tmp_path / "exported"), "base": theirs}.items():
        expected = [evaluate_perplexity(loaded, data_directory, length, 64) for length in lengths]
        assert_close(list(found[name].curve.values()), expected, bounds.PERPLEXITY)
        assert [float(table[f"`{name}`"][f"perplexity at {length}"]) for length in lengths] == pytest.approx(expected, rel=1e-3)
    published = printed[printed.index("The paper's perplexity") :]
    assert "9.791" in published
    assert "7.063" in published
    assert "`base`" not in published
    assert "passkey at 8000" in published
    assert "passkey at 32" not in printed
    pixels = matplotlib.image.imread(out / "finetune.png")
    assert pixels.shape[1] > pixels.shape[0]
    assert pixels.std() > 0.05

    # Again: what is there stays, and what was removed is measured again.
    (out / "tape" / "outcome.json").unlink()
    before = (out / "tape" / "metrics.jsonl").stat().st_mtime_ns
    code, printed, errors = study("--methods", "base,tape", source=out / "import")
    assert code == 0, errors
    assert "2 runs, 1 of them to do" in printed
    assert (out / "tape" / "metrics.jsonl").stat().st_mtime_ns == before
    assert TextResult.read(out / "tape" / "outcome.json") == found["tape"]

    for words, message in [
        (("--steps", 4), "was trained with training.steps 3, now it is 4"),
        (("--length", 96), "was trained with model.max_positions 64, the configuration says 96"),
        (("--set", "training.seed=1"), "was trained with training.seed 1234, the configuration says 1"),
    ]:
        code, _, errors = study("--methods", "tape", *words)
        assert code == 2 and message in errors, errors
    other = tmp_path / "other"
    save_tiny("llama", other, max_position_embeddings=LENGTH)
    write_tokenizer(load_tokenizer(data_directory / "tokenizer.model"), LENGTH, other)
    code, _, errors = study(source=other)
    assert code == 2
    assert f"is an import of {base}, not of {other}: choose another --out" in errors


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_all_methods(study: Study, tmp_path: Path) -> None:
    code, printed, errors = study("--methods", ",".join(METHODS))
    assert code == 0, errors
    found = {name: TextResult.read(tmp_path / "out" / name / "outcome.json") for name in METHODS}
    assert all(f"`{name}`" in printed for name in (BASE, *METHODS))
    # Only theta and longlora change what the model computes before anything is trained.
    first = {name: result.figures.first_loss or 0.0 for name, result in found.items()}
    assert all(first.values())
    same = [name for name in METHODS if name not in ("theta", "longlora")]
    assert_close([first[name] for name in same], [first["full"]] * len(same), bounds.TRAINED)
    assert len(set(first.values())) > 1
    assert len({result.figures.last_loss for result in found.values()}) == len(METHODS)


@pytest.mark.numerics
def test_bad_input(study: Study, base: Path, data_directory: Path, tmp_path: Path) -> None:
    for words, message in [
        (("--methods", "lora,qlora"), "'qlora' is not a method: did you mean lora? choose one of base, lora, "),
        (("--methods", "lora,lora"), "lora is listed twice"),
        (("--length", LENGTH), f"length {LENGTH} is no longer than the {LENGTH} tokens"),
        (("--length", 10**6), "sequence length is 1000000"),
        (("--methods", "longlora", "--length", 36), "data.sequence_length 36 is not a multiple of 8"),
        (("--jobs", 0), "--jobs: must be greater than or equal to 1, got '0'"),
        (("--set", "training.steps=3"), "--set training.steps: give --steps instead"),
        (("--set", "training.trainable=[]"), "the study sets training.trainable itself"),
        (("--set", "model.lora.rank=4"), "the study sets model.lora itself"),
        (("--set", "training.init_from=x"), "the study sets training.init_from itself"),
        (("--set", "training.step=3"), "training.step: unknown key"),
        (("--set", "data.mask_documents=true"), "perplexity by length needs packed text"),
    ]:
        code, _, errors = study(*words)
        assert code == 2 and errors.startswith("error: ") and message in errors, errors
    assert not (tmp_path / "out" / "base").exists()

    def refused(**changes: Any) -> str:
        code, _, errors = study(**changes)
        assert code == 2 and errors.startswith("error: "), errors
        return errors

    assert "no such folder" in refused(source=tmp_path / "nowhere")
    assert "nowhere" in refused(data=tmp_path / "nowhere")
    (tmp_path / "compared" / "tape" / "seed-1").mkdir(parents=True)
    assert "holds runs of megatape study compare" in refused(out=tmp_path / "compared")
    bare = tmp_path / "bare"
    save_tiny("llama", bare, max_position_embeddings=LENGTH)
    assert "it holds no tokenizer" in refused(source=bare)
    foreign = SentencePieceTokenizer(train_tokenizer(["abc " * 9 + "fed ghi"], 270))
    write_tokenizer(foreign, LENGTH, bare)
    assert f"was not prepared with the tokenizer of {bare}" in refused(source=bare)
    scaled = tmp_path / "scaled"
    save_tiny("linear", scaled)
    assert "its frequencies are scaled already (linear)" in refused(source=scaled)
    window = tmp_path / "window"
    save_tiny("mistral", window, max_position_embeddings=LENGTH, sliding_window=48)
    assert "attends to the last 48 tokens only" in refused(source=window)
