"""Tables of runs, of their data, of the fields in which their configurations differ, and of their history."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from megatape.config.differences import fields, plain
from megatape.data.shards.entries import Index
from megatape.imports import options_for
from megatape.lab.report.load import Run, entropy
from megatape.utils.tables import Table
from megatape.utils.units import format_bytes, plural

QUIET = ("checkpoint",)  # events shown as one line if several follow each other


def overview(runs: list[Run]) -> Table:
    """A column for each run."""
    return Table.of_columns({run.name: _overview(run) for run in runs})


def _overview(run: Run) -> dict[str, str]:
    model = run.config.model
    training = run.config.training
    length = run.config.data.sequence_length
    environment = run.environment
    software = zip(("Python", "torch", "DeepSpeed"), environment.get("python/torch/deepspeed", "").split("/"), strict=False)
    written = datetime.fromtimestamp(run.folder.metrics.stat().st_mtime, UTC) if run.last_step else None
    return {
        "encoding": model.encoding,
        **_parameters(run),
        "shape": f"{plural(model.num_layers, 'layer')} of width {model.hidden_size:,}, {plural(model.num_heads, 'head')}",
        "a step": f"{training.global_batch_size:,} × {length:,} tokens, {training.arithmetic}",
        "steps": f"{run.last_step:,} of {training.steps:,}",
        "validation samples": _evaluated_samples(run),
        "validation loss of parts": ", ".join(f"{part} {loss:.4f}" for part, loss in run.part_losses.items()),
        "ranks": describe_ranks(run),
        "device": environment.get("device", ""),
        "attention": environment.get("attention", ""),
        "code": " ".join(["MegaTAPE", environment["megatape"]]) if "megatape" in environment else "",
        "software": ", ".join(f"{name} {version}" for name, version in software if version),
        "command": environment.get("command", "").replace(" --", " \\\n  --"),  # an option a line, as a shell takes it
        "last step written": "" if written is None else f"{written:%Y-%m-%d %H:%M} UTC",
        "folder": str(run.folder.directory),
    }


def _evaluated_samples(run: Run) -> str:
    """Describe the validation samples of the run's evaluations; empty before the first one."""
    count = f"{run.config.evaluation.samples:,}"
    if run.config.data.mixture:
        count += " of each corpus"
    return {"first": f"the first {count}", "spread": f"{count}, evenly spaced"}.get(run.selection, "")


def incomparable(runs: Sequence[Run]) -> list[str]:
    """Return a note if runs on the same data were evaluated on different validation samples, in a list."""
    measured = [run for run in runs if run.selection]
    data = {run.evaluated[0] for run in measured}
    if len(data) == len({run.evaluated for run in measured}):
        return []
    samples = "; ".join(f"{run.name}: {_evaluated_samples(run)}" for run in measured)
    return [f"validation losses are not comparable: runs were evaluated on different samples ({samples})"]


def _parameters(run: Run) -> dict[str, str]:
    """Return the rows on the model's parameters, which cannot be counted without the run's modules."""
    if run.missing_modules:
        rows = ("trained", "of embedding and head", "of the position encoding")
        return {"parameters": f"not counted: add {options_for(run.missing_modules)}"} | dict.fromkeys(rows, "")
    from megatape.accounting.parameters import (  # imports torch, which the monitor does not need
        count_parameters,
        count_trainable,
    )

    model = run.config.model
    training = run.config.training
    count = count_parameters(model)
    trained = count_trainable(model, training.trainable, training.frozen)
    return {
        "parameters": f"{count.total:,}",
        "trained": "" if trained == count.total else f"{trained:,}",
        "of embedding and head": f"{count.embedding:,}",
        "of the position encoding": f"{count.position:,}",
    }


def describe_ranks(run: Run) -> str:
    """From the last start; empty for runs of earlier versions."""
    ranks = run.environment.get("ranks", "")
    hosts = run.environment.get("hosts", "1")
    if not ranks.isdecimal():
        return ""
    text = plural(int(ranks), "rank")
    if hosts.isdecimal() and hosts != "1":
        text += f" on {plural(int(hosts), 'host')}"
    return text


def data_table(runs: list[Run]) -> Table:
    """A column for each data directory."""
    paths = dict.fromkeys(path for run in runs for path in run.config.data.paths)
    return Table.of_columns({path: _data(path, [run for run in runs if path in run.config.data.paths]) for path in paths})


def _data(path: str, users: list[Run]) -> dict[str, str]:
    index = users[0].data.get(path)
    source = ", ".join(f"{name} {value}" for name, value in index.source.items()) if index else "not found here"
    return {
        "source": source,
        "training": _contained(index, "train") if index else "",
        "validation": _contained(index, "validation") if index else "",
        "vocabulary": f"{index.tokenizer.vocab_size:,}" if index else "",
        "unigram entropy": _nats(entropy(index)) if index else "",
        "runs": ", ".join(run.name for run in users),
    }


def _contained(index: Index, split: str) -> str:
    """Size of the learned part of a split: documents, or the answers of examples."""
    tokens = plural(index.splits[split].tokens, "token")
    if answers := index.answers.get(split):
        return f"{plural(answers.examples, 'example')}, {answers.tokens:,} of {tokens} in answers"
    return f"{plural(index.splits[split].documents, 'document')}, {tokens}, {format_bytes(index.splits[split].text_bytes)}"


def differing(runs: list[Run]) -> Table:
    """The configuration's fields on which the runs differ, and their values."""
    values = [{path: _shown(value) for path, _, value in fields(run.config)} for run in runs]
    paths = dict.fromkeys(path for one in values for path in one if path != "run.directory")
    rows = [(path, [one.get(path, "") for one in values]) for path in paths]
    return Table(["field", *(run.name for run in runs)], [(path, cells) for path, cells in rows if len(set(cells)) > 1])


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(plain(value))


def _nats(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f} nats"


@dataclass(frozen=True)
class Line:
    """One event, or several of a kind in a row. time, steps, detail: as text."""

    time: str
    event: str
    steps: str
    detail: str


def history(run: Run) -> list[Line]:
    """The events of a run, in order."""
    spans = groupby(enumerate(run.events), lambda entry: entry[1]["event"] if entry[1]["event"] in QUIET else entry[0])
    return [_line([event for _, event in span]) for _, span in spans]


def _line(span: list[dict]) -> Line:
    first = span[0]
    last = span[-1]
    if len(span) == 1:
        return Line(_clock(first["time"]), first["event"], f"{first['step']:,}", first["detail"])
    steps = f"{first['step']:,} to {last['step']:,}"
    begin = _clock(first["time"])
    end = _clock(last["time"])
    same_day = begin[:10] == end[:10]
    return Line(f"{begin} to {end[11:] if same_day else end}", f"{len(span)} {first['event']}s", steps, "")


def _clock(seconds: float) -> str:
    try:
        return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"
    except (ValueError, OverflowError, OSError):
        return "?"
