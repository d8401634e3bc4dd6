"""megatape study finetune: what it trains, measures and reports, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.image
import pytest
from transformers import AutoModelForCausalLM

from megatape.config import differences, load_config
from megatape.config.section import Identity
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.hf.loading import LoadedModel, load_exported
from megatape.hf.tokenizer import write_tokenizer
from megatape.model.accounting import count_trainable
from megatape.study.methods import BASE, METHODS
from megatape.study.outcome import Outcome
from megatape.tasks.perplexity import evaluate_perplexity
from tests.helpers import bounds
from tests.helpers.bounds import assert_close
from tests.helpers.cells import cells
from tests.helpers.command import Command
from tests.helpers.tiny_models import save_tiny

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


@pytest.mark.usefixtures("quick_children")
def test_methods_are_compared_with_the_base(
    study: Study, command: Command, base: Path, data_directory: Path, tmp_path: Path
) -> None:
    code, printed, errors = study("--methods", "lora,tape")
    assert code == 0, errors
    out = tmp_path / "out"
    assert "3 runs, 3 of them to do" in printed and (out / "finetune.md").read_text().strip() in printed
    header, *rows = [cells(line) for line in printed.splitlines() if line.startswith("|") and "--" not in line][:4]
    table = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    assert list(table) == ["`base`", "`lora`", "`tape`"]
    lengths = [8, 16, 32, 64]
    assert [name for name in header if "perplexity" in name] == [f"perplexity at {length}" for length in lengths]

    configs = {name: load_config(out / name / "config.json") for name in ("lora", "tape")}
    for name, config in configs.items():
        trained = count_trainable(config.model, config.training.trainable, config.training.frozen)
        assert table[f"`{name}`"]["trained parameters"] == f"{trained:,}"
        assert config.data.sequence_length == 64 and config.model.scaling and config.model.scaling.factor == 2
    assert table["`base`"]["trained parameters"] == "0" and table["`base`"]["tokens/s"] == ""
    # The same samples, in the same order; and as adapters and position updates start at zero, the same model.
    assert not [each for each in differences(*configs.values()) if each.identity is Identity.SAMPLES]
    found = {name: Outcome.read(out / name / "outcome.json") for name in ("base", "lora", "tape")}
    assert_close([found["lora"].figures["first loss"]], [found["tape"].figures["first loss"]], bounds.TRAINED)
    assert found["lora"].figures["last loss"] != found["tape"].figures["last loss"]
    entries = [json.loads(line) for line in (out / "tape" / "metrics.jsonl").read_text().splitlines()]
    assert found["tape"].figures["validation loss"] == entries[-1]["validation_loss"]
    assert found["tape"].figures["peak memory (GiB)"] == entries[-1]["peak_memory"] / 2**30 > 0

    # Perplexity, from the public export and from transformers' own model of the base.
    code, _, errors = command("export", out / "tape" / "checkpoints" / "step-00000003", tmp_path / "exported")
    assert code == 0, errors
    theirs = LoadedModel("base", AutoModelForCausalLM.from_pretrained(base), None)
    for name, loaded in {"tape": load_exported(tmp_path / "exported"), "base": theirs}.items():
        expected = [evaluate_perplexity(loaded, data_directory, length, 64) for length in lengths]
        assert_close(list(found[name].curve.values()), expected, bounds.PERPLEXITY)
        assert [float(table[f"`{name}`"][f"perplexity at {length}"]) for length in lengths] == pytest.approx(expected, rel=1e-3)
    published = printed[printed.index("The paper's perplexity") :]
    assert "9.791" in published and "7.063" in published and "`base`" not in published
    assert "passkey at 8000" in published and "passkey at 32" not in printed  # no question has room in these lengths
    pixels = matplotlib.image.imread(out / "finetune.png")
    assert pixels.shape[1] > pixels.shape[0] and pixels.std() > 0.05

    # Again: what is there stays, and what was removed is measured again.
    (out / "tape" / "outcome.json").unlink()
    before = (out / "tape" / "metrics.jsonl").stat().st_mtime_ns
    code, printed, errors = study("--methods", "base,tape", source=out / "import")
    assert code == 0, errors
    assert "2 runs, 1 of them to do" in printed and (out / "tape" / "metrics.jsonl").stat().st_mtime_ns == before
    assert Outcome.read(out / "tape" / "outcome.json") == found["tape"]

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
    assert code == 2 and f"is an import of {base}, not of {other}: choose another --out" in errors


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_all_methods(study: Study, tmp_path: Path) -> None:
    code, printed, errors = study("--methods", ",".join(METHODS))
    assert code == 0, errors
    found = {name: Outcome.read(tmp_path / "out" / name / "outcome.json") for name in METHODS}
    assert all(f"`{name}`" in printed for name in (BASE, *METHODS))
    # Only theta and longlora change what the model computes before anything is trained.
    first = {name: outcome.figures["first loss"] for name, outcome in found.items()}
    same = [name for name in METHODS if name not in ("theta", "longlora")]
    assert_close([first[name] for name in same], [first["full"]] * len(same), bounds.TRAINED)
    assert len(set(first.values())) > 1
    assert len({outcome.figures["last loss"] for outcome in found.values()}) == len(METHODS)


@pytest.mark.numerics
def test_bad_input(study: Study, base: Path, data_directory: Path, tmp_path: Path) -> None:
    for words, message in [
        (("--methods", "lora,qlora"), "'qlora' is not a method: choose from base, lora, "),
        (("--methods", "lora,lora"), "lora is listed twice"),
        (("--length", LENGTH), f"length {LENGTH} is no longer than the {LENGTH} tokens"),
        (("--length", 10**6), "sequence length is 1000000"),
        (("--methods", "longlora", "--length", 36), "data.sequence_length 36 is not a multiple of 8"),
        (("--jobs", 0), "--jobs: must be at least 1, got 0"),
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
