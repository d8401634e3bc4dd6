"""megatape study compare: what it trains, evaluates and reports, and that it continues where it was stopped."""

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import torch
from torch import Tensor

from megatape.config import ModelConfig, ScalingConfig, parse_config
from megatape.data.prepare.addition import ALPHABET, AdditionTask, longest_document, prepare_addition
from megatape.data.tokenizers.sentencepiece import character_tokenizer
from megatape.data.training.dataset import TokenDataset
from megatape.hf.loading import LoadedModel
from megatape.study import measure
from megatape.study.compare import compare
from megatape.study.comparison import report
from megatape.study.measure import loss_curve
from megatape.study.outcome import Outcome
from megatape.study.runs import RunsFailed
from megatape.study.variants import Variant, parse_variants, with_scaling
from megatape.tasks import perplexity
from megatape.tasks.addition import AdditionGrid
from megatape.tasks.perplexity import evaluate_perplexity
from tests import bounds
from tests.bounds import assert_close
from tests.conftest import VOCAB_SIZE
from tests.study.cells import cells


def test_variants() -> None:
    rope, scaled, wide = parse_variants("rope, tape+yarn,tape:position_size=12:num_kv_heads=4")
    assert rope == Variant("rope", ("model.encoding=rope",), None)
    assert scaled == Variant("tape", ("model.encoding=tape",), "yarn") and scaled.label == "tape+yarn"
    assert wide.settings == ("model.encoding=tape", "model.position_size=12", "model.num_kv_heads=4")
    assert wide.label == "tape:position_size=12:num_kv_heads=4"
    for text, message in [
        ("ropes", "'ropes' is not an encoding: choose from tape, "),
        ("rope,,tape", "'' is not an encoding"),
        ("rope,rope", "rope is listed twice"),
        ("tape+yarn,tape+yarn", "tape\\+yarn is listed twice"),
        ("alibi+yarn", "alibi has no frequencies to scale; only tape and rope do"),
        ("tape+ntk", "'ntk' is not a scaling: choose from linear, theta, yarn"),
        ("tape:12", "'12' is not a model setting"),
        ("tape:encoding=rope", "'encoding=rope' is not a model setting"),
        ("tape:scaling.kind=yarn", "'scaling.kind=yarn' is not a model setting"),
    ]:
        with pytest.raises(ValueError, match=message):
            parse_variants(text)


def test_scaling_is_for_tests_longer_than_training(raw_config: dict[str, Any]) -> None:
    model = parse_config(raw_config, "test").model
    assert with_scaling(model, "yarn", 32, 32) is model
    yarn, linear = (with_scaling(model, kind, 32, 48).scaling for kind in ("yarn", "linear"))
    assert yarn is not None and (yarn.kind, yarn.factor, yarn.original_length) == ("yarn", 1.5, 32)
    assert linear is not None and (linear.kind, linear.factor, linear.original_length) == ("linear", 1.5, None)


class Unigrams:
    """A model that predicts every token by its log frequency, whatever came before, and records its inputs."""

    device = torch.device("cpu")

    def __init__(self, log_frequencies: Tensor) -> None:
        self.logits = log_frequencies
        self.asked: list[Tensor] = []

    def __call__(self, input_ids: Tensor, use_cache: bool) -> SimpleNamespace:
        self.asked.append(input_ids)
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


@pytest.mark.parametrize("max_tokens", [2**15, 300])
def test_every_length_predicts_the_same_text(data_directory: Path, monkeypatch: pytest.MonkeyPatch, max_tokens: int) -> None:
    monkeypatch.setattr(perplexity, "MAX_TOKENS", max_tokens)
    monkeypatch.setattr(perplexity, "BATCH_TOKENS", 96)
    longest = 64
    dataset = TokenDataset(data_directory, "validation", longest)
    count = min(dataset.num_samples, max_tokens // longest)
    text = np.concatenate([dataset.tokens(index)[:-1] for index in range(count)] + [dataset.tokens(count - 1)[-1:]])
    log_frequencies = torch.log_softmax(torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(0)), 0)
    expected = math.exp(-log_frequencies.double()[text[1:]].mean())
    for length in (64, 32, 16):
        model = Unigrams(log_frequencies)
        found = evaluate_perplexity(LoadedModel("unigrams", model, None), data_directory, length, longest)
        assert_close([found], [expected], bounds.PERPLEXITY)
        assert np.array_equal(torch.cat(model.asked).flatten().numpy(), text[:-1])
        assert {asked.shape[1] for asked in model.asked} == {length}


def test_loss_curve() -> None:
    assert loss_curve([5.0, 4.0, 3.0]) == {1: 5.0, 2: 4.0, 3: 3.0}
    curve = loss_curve([float(step) for step in range(1, 201)])
    assert len(curve) == 50 and curve[4] == 2.5 and curve[200] == 198.5


def test_table_and_picture(raw_config: dict[str, Any], tmp_path: Path) -> None:
    def outcome(encoding: str, seed: int, figure: float, loss: float | None = None) -> Outcome:
        raw = raw_config | {"model": raw_config["model"] | {"encoding": encoding}}
        config = parse_config(raw | {"training": raw["training"] | {"seed": seed}}, "test")
        figures = {"figure": figure} if loss is None else {"validation loss": loss, "figure": figure}
        scaling = "yarn" if loss is None else None
        return Outcome(config, {"data": "d"}, scaling, figures, {1: 5.0, 2: 3.0}, {1: figure, 2: 2.0}, ("tokens", "figure"))

    rows = [
        ("rope", [outcome("rope", 1, 10.0, 3.0), outcome("rope", 2, 14.0, 4.0)]),
        ("tape", [outcome("tape", 1, 9.0, 2.5), outcome("tape", 2, 12.0, 3.7), outcome("tape", 3, 1.0, 1.0)]),
        ("tape+yarn", [outcome("tape", 1, 8.0)]),
    ]
    kept = tmp_path / "outcome.json"
    rows[0][1][0].write(kept)
    assert Outcome.read(kept) == rows[0][1][0]
    kept.write_text(kept.read_text()[:-10])
    with pytest.raises(ValueError, match="outcome.json is corrupted"):
        Outcome.read(kept)

    text = report(rows, "the command", tmp_path)
    assert (tmp_path / "comparison.md").read_text().strip() in text and text.startswith("    the command\n")
    lines = [cells(line) for line in text.splitlines() if line.startswith("| `")]
    spreads = [[name, *others] for name, _, *others in lines]  # without the parameters
    assert spreads == [
        ["`rope`", "2", "3.500 (3.000 to 4.000)", "12.00 (10.00 to 14.00)"],
        ["`tape`", "3", "2.400 (1.000 to 3.700)", "7.333 (1.000 to 12.00)"],
        ["`tape+yarn`", "1", "", "8.000 (8.000 to 8.000)"],
        # Differences are of equal seeds only.
        ["`tape`", "2", "-0.400 (-0.500 to -0.300)", "-1.500 (-2.000 to -1.000)"],
        ["`tape+yarn`", "1", "", "-2.000 (-2.000 to -2.000)"],
    ]
    pixels = matplotlib.image.imread(tmp_path / "comparison.png")
    assert pixels.shape[1] > pixels.shape[0] and pixels.std() > 0.05


def run(file: Path, out: Path, encodings: str, seeds: int, *settings: str, jobs: int = 1, launcher: str | None = None) -> str:
    """Output of the command."""
    return "\n".join(compare(str(file), list(settings), encodings, seeds, out, jobs, launcher, "typed"))


def steps(run: Path) -> list[dict[str, float]]:
    """Metrics of a run; none if it has not started."""
    metrics = run / "metrics.jsonl"
    return [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []


def wait_for(condition: Callable[[], bool], what: str, seconds: float = 200) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} took more than {seconds} s"
        time.sleep(0.1)


@pytest.mark.slow
@pytest.mark.usefixtures("measured_here")
def test_goes_on_where_it_was_stopped(raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEGATAPE_THREADS", "1")  # in a model this small, more threads only wait
    raw_config["training"]["steps"] = 30
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    first, other = out / "rope" / "seed-1234", out / "rope" / "seed-1235"
    command = [sys.executable, "-m", "megatape", "study", "compare", "--config", str(file), "--out", str(out)]
    with subprocess.Popen(
        [*command, "--encodings", "rope", "--seeds", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as stopped:
        wait_for(lambda: stopped.poll() is not None or len(steps(first)) > 2, "training's start")
        with pytest.raises(ValueError, match="is in use by another study"):
            run(file, out, "rope", 2)
        stopped.send_signal(signal.SIGTERM)  # only the command itself tells its children
        _, errors = stopped.communicate(timeout=100)
    assert stopped.returncode == 130 and "run the same command again to continue" in errors, errors
    saved = max(int(path.name[5:]) for path in (first / "checkpoints").glob("step-*"))
    assert 3 <= saved < 30 and len(steps(first)) == saved  # it saved a checkpoint, and no process is still training
    assert not other.exists() and not (out / "comparison.md").exists()

    printed = run(file, out, "rope", 1, launcher=f"env OMP_NUM_THREADS=1 {sys.executable}")
    assert "1 runs, 1 of them to do" in printed and (out / "comparison.md").exists()
    assert "resumed from" in (first / "log.txt").read_text()
    assert [entry["step"] for entry in steps(first)] == list(range(1, 31))


@pytest.mark.slow
@pytest.mark.usefixtures("quick_children")
def test_encodings_and_scalings(raw_config: dict[str, Any], tmp_path: Path) -> None:
    raw_config["training"]["steps"] = 20
    raw_config["model"]["max_positions"] = 128
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    rope, tape = out / "rope" / "seed-1234", out / "tape" / "seed-1234"
    printed = run(file, out, "rope,tape,tape+linear", 1)
    assert "2 runs, 2 of them to do" in printed
    # Same samples and initial weights: until its gains learn, TAPE equals RoPE.
    assert_close([steps(rope)[0]["loss"]], [steps(tape)[0]["loss"]], bounds.TRAINED)
    assert steps(rope)[-1]["loss"] != pytest.approx(steps(tape)[-1]["loss"], rel=10 * bounds.TRAINED.limit)
    outcomes = [Outcome.read(path) for path in (tape / "outcome.json", tape / "outcome+linear.json")]
    assert [list(outcome.curve) for outcome in outcomes] == [[128], [128]] and outcomes[0].curve != outcomes[1].curve
    assert all("`tape+linear`" in printed and f"{outcome.curve[128]:.4g}" in printed for outcome in outcomes)
    assert outcomes[0].figures["validation loss"] == steps(tape)[-1]["validation_loss"]


@pytest.mark.usefixtures("quick_children")
def test_goes_on_with_another_seed(raw_config: dict[str, Any], tmp_path: Path) -> None:
    """Outcomes that exist stay, also without checkpoints; the new run sees other samples; other settings are refused."""
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    first, second = (out / "rope" / f"seed-{seed}" for seed in (1234, 1235))
    assert "1 runs, 1 of them to do" in run(file, out, "rope", 1)
    shutil.rmtree(first / "checkpoints")
    before = (first / "outcome.json").stat().st_mtime_ns
    printed = run(file, out, "rope", 2)
    assert "2 runs, 1 of them to do" in printed and (first / "outcome.json").stat().st_mtime_ns == before
    assert steps(second)[0]["loss"] != pytest.approx(steps(first)[0]["loss"], rel=1e-4)

    with pytest.raises(ValueError, match="was trained with optimizer.learning_rate 0.01, now it is 0.5"):
        run(file, out, "rope", 1, "optimizer.learning_rate=0.5")
    with pytest.raises(ValueError, match="was trained with model.norm_eps 1e-05, the configuration says 0.1"):
        run(file, out, "rope", 1, "model.norm_eps=0.1")


@pytest.mark.usefixtures("quick_children")
def test_addition(raw_config: dict[str, Any], tmp_path: Path) -> None:
    data = tmp_path / "addition"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=3), data, lambda tokens: None)
    raw_config["data"] = {"path": str(data), "samples": "documents", "sequence_length": longest_document(2), "prompt_end": "="}
    raw_config["model"] |= {"vocab_size": character_tokenizer(ALPHABET).vocab_size, "encoding": "randpe"}
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    printed = run(file, out, "rope+yarn", 1)
    outcome = Outcome.read(out / "rope" / "seed-1234" / "outcome+yarn.json")
    assert list(outcome.figures) == ["trained lengths (%)", "beyond (%)", "all (%)"] and list(outcome.curve) == [1, 2, 3, 4]
    assert "`rope+yarn`" in printed and (out / "comparison.png").exists()

    with pytest.raises(ValueError, match="need 16 positions, but model.max_positions is 15: raise it"):
        run(file, tmp_path / "none", "rope", 1, "model.max_positions=15")


def test_scaling_reaches_the_model_that_adds(
    raw_config: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training has 2 digits, 11 tokens; the test has 4 digits, 16 tokens."""
    asked = []

    @contextmanager
    def load(checkpoint: Path, model: ModelConfig) -> Iterator[None]:
        asked.append((checkpoint, model.scaling))
        yield

    data = tmp_path / "addition"
    prepare_addition(AdditionTask(digits=2, per_cell=20, seed=3), data, lambda tokens: None)
    raw_config["data"] = {"path": str(data), "samples": "documents", "sequence_length": longest_document(2), "prompt_end": "="}
    config = parse_config(raw_config, "test")
    cells = [[1] * 4] * 4
    monkeypatch.setattr(measure, "load_trained", load)
    monkeypatch.setattr(measure, "evaluate", lambda task, loaded: AdditionGrid(2, cells, cells))
    for scaling in (None, "linear"):
        measure._addition(config, tmp_path, scaling)
    assert asked == [(tmp_path, None), (tmp_path, ScalingConfig(kind="linear", factor=16 / 11))]


def test_bad_input(raw_config: dict[str, Any], tmp_path: Path) -> None:
    file, out = tmp_path / "config.json", tmp_path / "out"
    file.write_text(json.dumps(raw_config))
    with pytest.raises(RunsFailed, match="2 of 2 runs failed") as failed:
        run(file, out, "rope", 2, launcher="false")
    for seed in (1234, 1235):
        assert f"rope, seed {seed}: training exited with status 1" in str(failed.value)
        assert str(out / "rope" / f"seed-{seed}" / "log.txt") in str(failed.value)

    def refused(encodings: str, *settings: str) -> str:
        with pytest.raises(ValueError) as error:
            run(file, tmp_path / "none", encodings, 1, *settings)
        return str(error.value)

    assert "'ropes' is not an encoding" in refused("ropes")
    assert "model.position_siz: unknown key; did you mean position_size" in refused("rope,tape:position_siz=3")
    assert "head_dim 5 is odd" in refused("nope,rope:head_dim=5")
    assert "model.scaling is set" in refused("rope", 'model.scaling={"kind": "linear", "factor": 2.0}', "model.encoding=rope")
    assert "set data.samples to packed" in refused("rope", "data.samples=documents", "data.sequence_length=32")
    assert "set data.samples to packed" in refused("rope", "data.mask_documents=true")
    assert "tape and tape:position_size=6 are the same model" in refused("tape,tape:position_size=6")
    assert "tape+yarn: no test is longer than the 32 tokens of training" in refused("tape+yarn")
    with pytest.raises(ValueError, match="jobs is 2, but a run started by `launcher`"):
        run(file, tmp_path / "none", "rope", 1, jobs=2, launcher="mpirun")
    assert not (tmp_path / "none").exists()
