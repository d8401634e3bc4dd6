"""megatape study finetune: training, measuring, the report and errors."""

import json
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import pytest
from transformers import AutoModelForCausalLM

from megatape.commands.study.finetune import Options
from megatape.config import load_config
from megatape.data.tokenizers.files import load_tokenizer
from megatape.data.tokenizers.sentencepiece import SentencePieceTokenizer, train_tokenizer
from megatape.hf.exporting.tokenizer import write_tokenizer
from megatape.hf.loading.load import load_exported
from megatape.hf.loading.loaded_model import LoadedModel
from megatape.lab.study.finetuning.finetune import OPTION_OF
from megatape.lab.study.finetuning.methods import BASE, METHODS
from megatape.lab.study.results.text_result import TextResult
from megatape.lab.tasks.perplexity.validation import evaluate_perplexity
from tests.helpers.checks import bounds
from tests.helpers.checks.bounds import assert_close
from tests.helpers.checks.cells import cells
from tests.helpers.models.tiny_models import save_tiny
from tests.helpers.processes.command import Command, Result, assert_refused
from tests.helpers.runs.config_differences import changed_samples, num_trained

# Length of the base's samples, in tokens
LENGTH = 32
# Lengths measured by a study on it
MEASURED_LENGTHS = [8, 16, 32, 64]
RECIPE = (
    "training.global_batch_size=4",
    "training.micro_batch_size=4",
    "evaluation.samples=8",
    "optimizer.learning_rate=0.01",
)

Study = Callable[..., Result]


@pytest.fixture
def save_base(data_directory: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Return a function: save_base("llama") saves a tiny random Llama with the data's tokenizer in this folder."""

    def save(name: str) -> Path:
        folder = tmp_path / name
        save_tiny("llama", folder, max_position_embeddings=LENGTH)
        write_tokenizer(load_tokenizer(data_directory / "tokenizer.model"), LENGTH, folder)
        return folder

    return save


@pytest.fixture
def base(save_base: Callable[[str], Path]) -> Path:
    return save_base("llama")


@pytest.fixture
def study(command: Command, base: Path, data_directory: Path, tmp_path: Path) -> Study:
    """Return a function: study("--methods", "tape") runs the command on the tests' base and data."""
    recipe = []
    for setting in RECIPE:
        recipe += ["--set", setting]

    def call(*words: object, source: Path = base, data: Path = data_directory, out: Path = tmp_path / "out") -> Result:
        return command("study", "finetune", "--base", source, "--data", data, "--output", out, "--steps", 3, *recipe, *words)

    return call


Table = dict[str, dict[str, str]]


def printed_table(printed: str) -> Table:
    """Return the cells in the first table by row and column. Studying two methods gives three rows."""
    lines = [cells(line) for line in printed.splitlines() if line.startswith("|") and "--" not in line]
    header = lines[0]
    return {row[0].strip("`"): dict(zip(header, row, strict=True)) for row in lines[1:4]}


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("quick_children")
def test_methods_are_compared_with_the_base(
    study: Study,
    command: Command,
    base: Path,
    save_base: Callable[[str], Path],
    data_directory: Path,
    tmp_path: Path,
) -> None:
    """Study two methods, checking what is printed and written, and continuing in several ways."""
    out = tmp_path / "out"

    status, printed, errors = study("--methods", "lora,tape")

    assert status == 0, errors
    assert "3 runs, 3 of them to do" in printed
    assert (out / "finetune.md").read_text().strip() in printed
    results = {name: TextResult.read(out / name / "outcome.json") for name in ("base", "lora", "tape")}
    table = printed_table(printed)
    _check_table(table, out)
    _check_training(results, out)
    _check_perplexity(command, table, results, base, data_directory, tmp_path)
    _check_published_table(printed)
    pixels = matplotlib.image.imread(out / "finetune.png")
    height, width = pixels.shape[:2]
    assert width > height
    assert pixels.std() > 0.05

    _check_continuation(study, results["tape"], out)
    _check_other_settings_are_refused(study)
    other = save_base("other")
    assert_refused(study(source=other), f"is an import of {base}, not of {other}: choose another --output")


def _check_table(table: Table, out: Path) -> None:
    """Check the printed columns that do not depend on training."""
    assert list(table) == ["base", "lora", "tape"]
    columns = [title for title in table["base"] if "perplexity" in title]
    assert columns == [f"perplexity at {length}" for length in MEASURED_LENGTHS]
    assert table["base"]["trained parameters"] == "0"
    assert table["base"]["tokens/s"] == ""
    for name in ("lora", "tape"):
        config = load_config(out / name / "config.json")
        assert table[name]["trained parameters"] == f"{num_trained(config):,}"
        assert config.data.sequence_length == 64
        assert config.model.scaling
        assert config.model.scaling.factor == 2


def _check_training(results: dict[str, TextResult], out: Path) -> None:
    """Check that both methods start from the same model and samples.

    Adapters and position updates start at zero."""
    lora = results["lora"].figures
    tape = results["tape"].figures
    assert changed_samples(load_config(out / "lora" / "config.json"), load_config(out / "tape" / "config.json")) == []
    assert lora.first_loss is not None
    assert tape.first_loss is not None
    assert_close([lora.first_loss], [tape.first_loss], bounds.TRAINED)
    assert lora.last_loss != tape.last_loss

    last_step = json.loads((out / "tape" / "metrics.jsonl").read_text().splitlines()[-1])
    assert tape.validation_loss == last_step["validation_loss"]
    assert tape.peak_memory == last_step["peak_memory"] / 2**30
    assert tape.peak_memory > 0


def _check_perplexity(
    command: Command, table: Table, results: dict[str, TextResult], base: Path, data_directory: Path, tmp_path: Path
) -> None:
    """Compare perplexity with the public export's, and with that of transformers' own model of the base."""
    exported = tmp_path / "exported"
    status, _, errors = command("export", tmp_path / "out" / "tape" / "checkpoints" / "step-00000003", exported)
    assert status == 0, errors
    models = {
        "tape": load_exported(exported),
        "base": LoadedModel("base", AutoModelForCausalLM.from_pretrained(base), None),
    }
    for name, model in models.items():
        expected = [evaluate_perplexity(model, data_directory, length, 64) for length in MEASURED_LENGTHS]
        printed = [float(table[name][f"perplexity at {length}"]) for length in MEASURED_LENGTHS]
        assert_close(list(results[name].curve.values()), expected, bounds.PERPLEXITY)
        assert printed == pytest.approx(expected, rel=1e-3)


def _check_published_table(printed: str) -> None:
    published = printed[printed.index("The paper's perplexity") :]
    assert "9.791" in published
    assert "7.063" in published
    assert "`base`" not in published
    assert "passkey at 8000" in published
    assert "passkey at 32" not in printed


def _check_continuation(study: Study, tape: TextResult, out: Path) -> None:
    """Remove a measurement and continue: the training stays, and what was removed is measured again."""
    outcome = out / "tape" / "outcome.json"
    metrics = out / "tape" / "metrics.jsonl"
    trained = metrics.stat().st_mtime_ns
    outcome.unlink()

    status, printed, errors = study("--methods", "base,tape", source=out / "import")

    assert status == 0, errors
    assert "2 runs, 1 of them to do" in printed
    assert metrics.stat().st_mtime_ns == trained
    assert TextResult.read(outcome) == tape


def _check_other_settings_are_refused(study: Study) -> None:
    def assert_tape_refused(option: str, value: object, message: str) -> None:
        assert_refused(study("--methods", "tape", option, value), message)

    assert_tape_refused("--steps", 4, "was trained with training.steps 3, now it is 4")
    assert_tape_refused("--length", 96, "was trained with model.max_positions 64, the configuration says 96")
    assert_tape_refused("--set", "training.seed=1", "was trained with training.seed 1234, the configuration says 1")


@pytest.mark.slow
@pytest.mark.numerics
@pytest.mark.usefixtures("quick_children")
def test_all_methods_train(study: Study, tmp_path: Path) -> None:
    status, printed, errors = study("--methods", ",".join(METHODS))

    assert status == 0, errors
    for name in (BASE, *METHODS):
        assert f"`{name}`" in printed
    first_losses = {}
    last_losses = {}
    for name in METHODS:
        figures = TextResult.read(tmp_path / "out" / name / "outcome.json").figures
        assert figures.first_loss, name
        first_losses[name] = figures.first_loss
        last_losses[name] = figures.last_loss
    # Only theta and longlora change what the model computes before anything is trained.
    for name in METHODS:
        if name not in ("theta", "longlora"):
            assert_close([first_losses[name]], [first_losses["full"]], bounds.TRAINED)
    assert len(set(first_losses.values())) > 1
    assert len(set(last_losses.values())) == len(METHODS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "lora,qlora"), "'qlora' is not a method: did you mean lora? choose one of base, lora, "),
        (("--methods", "lora,lora"), "lora is listed twice"),
        (("--length", LENGTH), f"length {LENGTH} is no longer than the {LENGTH} tokens"),
        (("--length", 10**6), "sequence length is 1000000"),
        (("--methods", "longlora", "--length", 36), "data.sequence_length 36 is not a multiple of 8"),
        (("--jobs", 0), "--jobs: must be greater than or equal to 1, got '0'"),
        (("--set", "training.trainable=[]"), "the study sets training.trainable itself"),
        (("--set", "model.lora.rank=4"), "the study sets model.lora itself"),
        (("--set", "training.init_from=x"), "the study sets training.init_from itself"),
        (("--set", "training.step=3"), "training.step: unknown key"),
        (("--set", "data.mask_documents=true"), "perplexity by length needs packed text"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(str(word) for word in value),
)
def test_bad_options_are_refused(study: Study, tmp_path: Path, words: tuple[object, ...], message: str) -> None:
    assert_refused(study(*words), message)
    assert not (tmp_path / "out" / "base").exists()


@pytest.mark.parametrize(("key", "option"), OPTION_OF.items())
def test_settings_with_an_option_are_refused(study: Study, key: str, option: str) -> None:
    """The message names an option that the command has."""
    assert option in Options.model_fields
    assert_refused(study("--set", f"{key}=3"), f"--set {key}: give --{option} instead")


def test_missing_folders_are_refused(study: Study, tmp_path: Path) -> None:
    assert_refused(study(source=tmp_path / "nowhere"), "no such folder")
    assert_refused(study(data=tmp_path / "nowhere"), "nowhere")


def test_folder_of_another_study_is_refused(study: Study, tmp_path: Path) -> None:
    (tmp_path / "compared" / "tape" / "seed-1").mkdir(parents=True)

    assert_refused(study(out=tmp_path / "compared"), "holds runs of megatape study compare")


def test_base_without_a_tokenizer_is_refused(study: Study, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    save_tiny("llama", bare, max_position_embeddings=LENGTH)

    assert_refused(study(source=bare), "it holds no tokenizer")


def test_data_of_another_tokenizer_is_refused(study: Study, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    save_tiny("llama", foreign, max_position_embeddings=LENGTH)
    tokenizer = SentencePieceTokenizer(train_tokenizer(["abc " * 9 + "fed ghi"], 270))
    write_tokenizer(tokenizer, LENGTH, foreign)

    assert_refused(study(source=foreign), f"was not prepared with the tokenizer of {foreign}")


def test_base_with_scaled_frequencies_is_refused(study: Study, tmp_path: Path) -> None:
    scaled = tmp_path / "scaled"
    save_tiny("linear", scaled)

    assert_refused(study(source=scaled), "its frequencies are scaled already (linear)")
