"""Tables about the setup of runs: overview, data, differences between configurations."""

import json
import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from megatape.config.fields.differences import fields, plain
from megatape.data.shards.entries import Index
from megatape.imports import options_for
from megatape.lab.report.run import Run, entropy
from megatape.utils.text.tables import Table
from megatape.utils.text.units import format_bytes, plural

# Selection of validation samples -> description of the samples.
SELECTED = {"first": "the first {}", "spread": "{}, evenly spaced"}

PARAMETER_ROWS = ("parameters", "trained", "of embedding and head", "of the position encoding")


def overview(runs: list[Run]) -> Table:
    """Return the overview table, with a column for each run."""
    return Table.of_columns({run.name: _overview(run) for run in runs})


def _overview(run: Run) -> dict[str, str]:
    last_write = ""
    if run.last_step:
        last_write = f"{datetime.fromtimestamp(run.folder.metrics.stat().st_mtime, UTC):%Y-%m-%d %H:%M} UTC"
    return {
        **_model_rows(run),
        **_training_rows(run),
        **_environment_rows(run),
        "last step written": last_write,
        "folder": str(run.folder.directory),
    }


def _model_rows(run: Run) -> dict[str, str]:
    model = run.config.model
    layers = plural(model.num_layers, "layer")
    heads = plural(model.num_heads, "head")
    return {
        "encoding": model.encoding,
        **_parameters(run),
        "shape": f"{layers} of width {model.hidden_size:,}, {heads}",
    }


def _training_rows(run: Run) -> dict[str, str]:
    training = run.config.training
    length = run.config.data.sequence_length
    part_losses = [f"{part} {loss:.4f}" for part, loss in run.part_losses.items()]
    return {
        "per step": f"{training.global_batch_size:,} × {length:,} tokens, {training.arithmetic}",
        "steps": f"{run.last_step:,} of {training.steps:,}",
        "validation samples": _evaluated_samples(run),
        "validation loss of parts": ", ".join(part_losses),
    }


def _environment_rows(run: Run) -> dict[str, str]:
    environment = run.environment
    code = ""
    if "megatape" in environment:
        code = f"MegaTAPE {environment['megatape']}"
    return {
        "ranks": describe_ranks(run) or "",
        "device": environment.get("device", ""),
        "attention": environment.get("attention", ""),
        "code": code,
        "software": _software(environment),
        # One option per line, in the syntax of a shell.
        "command": environment.get("command", "").replace(" --", " \\\n  --"),
    }


def _software(environment: dict[str, str]) -> str:
    """Return names and recorded versions of software."""
    versions = environment.get("python/torch/deepspeed", "").split("/")
    known = []
    for name, version in zip(("Python", "torch", "DeepSpeed"), versions, strict=False):
        if version:
            known.append(f"{name} {version}")
    return ", ".join(known)


def _evaluated_samples(run: Run) -> str:
    """Describe a run's validation samples. Empty before the first evaluation."""
    count = f"{run.config.evaluation.samples:,}"
    if run.config.data.mixture:
        count += " of each corpus"
    return SELECTED.get(run.selection, "").format(count)


def note_if_incomparable(runs: Sequence[Run]) -> str | None:
    """Return a note if runs on the same data were evaluated on different validation samples."""
    evaluated = [run for run in runs if run.selection]
    data = {run.evaluated.data for run in evaluated}
    if len(data) == len({run.evaluated for run in evaluated}):
        return None
    samples = "; ".join(f"{run.name}: {_evaluated_samples(run)}" for run in evaluated)
    return f"validation losses are not comparable: runs were evaluated on different samples ({samples})"


def _parameters(run: Run) -> dict[str, str]:
    """Return the rows about parameters, which cannot be counted without the run's modules."""
    if run.missing_modules:
        rows = dict.fromkeys(PARAMETER_ROWS, "")
        rows["parameters"] = f"not counted: add {options_for(run.missing_modules)}"
        return rows
    # Imported here because it imports torch, and the monitor does without.
    from megatape.accounting.whole_model.parameters import count_parameters, count_trainable

    model = run.config.model
    training = run.config.training
    count = count_parameters(model)
    num_trained = count_trainable(model, training.trainable, training.frozen)
    trained = "" if num_trained == count.total else f"{num_trained:,}"
    cells = (f"{count.total:,}", trained, f"{count.embedding:,}", f"{count.position:,}")
    return dict(zip(PARAMETER_ROWS, cells, strict=True))


def describe_ranks(run: Run) -> str | None:
    """Describe ranks and hosts at the last start. None if not recorded, in runs of earlier versions."""
    ranks = run.environment.get("ranks", "")
    hosts = run.environment.get("hosts", "1")
    if not ranks.isdecimal():
        return None
    text = plural(int(ranks), "rank")
    if hosts.isdecimal() and hosts != "1":
        host_count = plural(int(hosts), "host")
        text += f" on {host_count}"
    return text


def data_table(runs: list[Run]) -> Table:
    """Return a table with a column for each data directory."""
    runs_by_path: dict[str, list[Run]] = {}
    for run in runs:
        for path in run.config.data.paths:
            runs_by_path.setdefault(path, []).append(run)
    return Table.of_columns({path: _data(path, users) for path, users in runs_by_path.items()})


def _data(path: str, runs: list[Run]) -> dict[str, str]:
    """Describe a data directory and the runs using it."""
    index = runs[0].data.get(path)
    names = ", ".join(run.name for run in runs)
    if index is None:
        unknown = ("training", "validation", "vocabulary", "unigram entropy")
        return {"source": "not found here", **dict.fromkeys(unknown, ""), "runs": names}
    return {
        "source": ", ".join(f"{name} {value}" for name, value in index.source.items()),
        "training": _split_size(index, "train"),
        "validation": _split_size(index, "validation"),
        "vocabulary": f"{index.tokenizer.vocab_size:,}",
        "unigram entropy": _nats(entropy(index)),
        "runs": names,
    }


def _split_size(index: Index, name: str) -> str:
    """Describe a split's size: documents, or examples with their answers."""
    split = index.splits[name]
    tokens = plural(split.tokens, "token")
    answers = index.answers.get(name)
    if answers:
        examples = plural(answers.examples, "example")
        return f"{examples}, {answers.tokens:,} of {tokens} in answers"
    documents = plural(split.documents, "document")
    return f"{documents}, {tokens}, {format_bytes(split.text_bytes)}"


def differences(runs: list[Run]) -> Table:
    """Return a table of the configuration fields in which the runs differ."""
    values = []
    paths: dict[str, None] = {}
    for run in runs:
        shown = {path: _shown(value) for path, _, value in fields(run.config)}
        values.append(shown)
        paths |= dict.fromkeys(shown)
    paths.pop("run.directory", None)

    rows = []
    for path in paths:
        cells = [shown.get(path, "") for shown in values]
        if len(set(cells)) > 1:
            rows.append((path, cells))
    return Table(["field", *(run.name for run in runs)], rows)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    return json.dumps(plain(value))


def _nats(value: float) -> str:
    if math.isnan(value):
        return ""
    return f"{value:.4f} nats"
