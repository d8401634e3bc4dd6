"""Progress of runs: state, and headline numbers at the top of a page."""

import math
import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from megatape.accounting.gpus import find_gpu
from megatape.lab.perplexity import perplexity
from megatape.lab.report.run import Run
from megatape.lab.report.run_state import RunState, describe_state, state_of
from megatape.reliability.goodput.table import format_goodput, summary
from megatape.utils.text.units import format_count, format_duration, format_number, plural

# Number of recent steps for measuring speed and mean loss.
RECENT = 50
# Events not mentioned in the headline.
UNMENTIONED = ("started", "finished")
# Event kinds that are nouns with a plural.
NOUNS = ("checkpoint", "spike", "rollback", "slow rank")
# Loss headline -> metrics column.
LOSSES = {"loss": "loss", "validation": "validation_loss", "EMA": "ema_validation_loss"}


@dataclass(frozen=True)
class Headline:
    """A headline number.

    Attributes:
        value: Value as text, None if unknown.
        note: Context, such as a mean or a total.
        best: Whether the value is the best among several runs.
    """

    value: str | None = None
    note: str | None = None
    best: bool = False


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        name: Run name.
        state: Run state.
        note: Phrase about the state, such as the remaining time.
        done: Share of finished steps, 0 to 1.
        headlines: Headlines by name.
    """

    name: str
    state: RunState
    note: str | None
    done: float
    headlines: dict[str, Headline]


def progress(runs: list[Run]) -> list[Progress]:
    """Return the progress of each run. Headlines unknown for all runs are omitted."""
    progress_by_run = [_progress(run) for run in runs]
    for name, column in LOSSES.items():
        best = _best_run(runs, column)
        if best is not None:
            headlines = progress_by_run[best].headlines
            headlines[name] = replace(headlines[name], best=True)

    known = []
    for name in progress_by_run[0].headlines:
        if any(one.headlines[name].value is not None for one in progress_by_run):
            known.append(name)
    shown = []
    for one in progress_by_run:
        headlines = {name: one.headlines[name] for name in known}
        shown.append(replace(one, headlines=headlines))
    return shown


def _best_run(runs: list[Run], column: str) -> int | None:
    """Return the index of the run with the lowest loss in a metrics column, or None if runs are not comparable."""
    losses = [run.last(column) for run in runs]
    samples: set[object] = set()
    for run, loss in zip(runs, losses, strict=True):
        if np.isnan(loss):
            continue
        if column == "loss":
            samples.add(run.config.data)
        else:
            samples.add(run.evaluated)
    if len(samples) != 1 or len(runs) == 1:
        return None
    return int(np.nanargmin(losses))


def _progress(run: Run) -> Progress:
    seconds = run.metrics["seconds"][-RECENT:]
    if np.isfinite(seconds).any():
        pace = float(np.nanmean(seconds))
    else:
        pace = math.nan
    now = time.time()
    state = state_of(run, pace, now)
    note = describe_state(run, state, pace, now)
    done = min(1.0, run.last_step / run.config.training.steps)
    return Progress(run.name, state, note, done, _headlines(run, pace))


def _headlines(run: Run, pace: float) -> dict[str, Headline]:
    """Return the headlines of a run by name, given its seconds per step (NaN if unknown)."""
    validation_note = _best(run.metrics["step"], run.metrics["validation_loss"])
    return {
        "loss": Headline(_nats(run.last("loss")), _recent_mean(run.metrics["loss"])),
        "validation": Headline(_nats(run.last("validation_loss")), validation_note),
        "EMA": Headline(_nats(run.last("ema_validation_loss")), "validation of the average"),
        "tokens": _tokens(run),
        "tokens/s": _speed(run, pace),
        "MFU": _mfu(run, pace),
        "time": _time(run),
        "goodput": _goodput(run),
        "events": _events(run),
    }


def _recent_mean(losses: np.ndarray) -> str | None:
    """Describe the mean of recent finite losses. Return None if there are fewer than two."""
    recent = losses[-RECENT:]
    recent = recent[np.isfinite(recent)]
    if recent.size < 2:
        return None
    return f"mean of {recent.size}: {recent.mean():.4f}"


def _tokens(run: Run) -> Headline:
    length = run.config.data.sequence_length
    samples = run.samples(run.last_step)
    total = format_count((samples + run.samples_left) * length)
    return Headline(format_count(samples * length), f"of {total}")


def _speed(run: Run, pace: float) -> Headline:
    if not pace > 0:
        return Headline()
    tokens = run.config.batches.of_step(run.last_step) * run.config.data.sequence_length
    return Headline(format_count(tokens / pace), f"{pace:.3g} s per step")


def _mfu(run: Run, pace: float) -> Headline:
    utilization = _utilization(run, pace)
    value = None if utilization is None else f"{utilization:.1%}"
    return Headline(value, run.environment.get("device"))


def _time(run: Run) -> Headline:
    seconds = float(np.nansum(run.metrics["seconds"]))
    value = format_duration(seconds) if seconds else None
    steps = plural(run.last_step, "step")
    return Headline(value, f"of {steps}")


def _goodput(run: Run) -> Headline:
    if not run.time.processes:
        return Headline()
    return Headline(format_goodput(run.time) or None, summary(run.time))


def _utilization(run: Run, pace: float) -> float | None:
    """Return the model FLOPs utilization, or None if the device's peak or the pace is unknown."""
    config = run.config
    gpu = find_gpu(run.environment.get("device", ""))
    ranks = run.environment.get("ranks", "")
    if gpu is None or config.training.precision != "bfloat16" or not pace > 0 or not ranks.isdecimal():
        return None
    sample_flops = _sample_flops(run)
    if sample_flops is None:
        return None
    step_flops = sample_flops * config.batches.of_step(run.last_step)
    return step_flops / pace / gpu.bfloat16_flops / max(1, int(ranks))


def _sample_flops(run: Run) -> int | None:
    """Return the training FLOPs per sample, as recorded or counted. Return None if neither is possible."""
    recorded = run.environment.get("sample_flops", "")
    if recorded.isdecimal():
        return int(recorded)
    if run.missing_modules:
        return None
    # Imported here because it imports torch, and only runs of earlier versions need it.
    from megatape.accounting.whole_model.flops import forward_flops

    config = run.config
    return 3 * forward_flops(config.model, config.data.sequence_length, config.training.num_shifted_groups)


def _best(steps: np.ndarray, losses: np.ndarray) -> str | None:
    """Describe the best validation loss: its perplexity if it is the last one, otherwise its step."""
    finite = np.isfinite(losses)
    if not finite.any():
        return None
    best = int(np.nanargmin(losses))
    if best == np.flatnonzero(finite)[-1]:
        return f"perplexity {format_number(perplexity(losses[best]))}"
    return f"best {losses[best]:.4f} at step {int(steps[best]):,}"


def _events(run: Run) -> Headline:
    if not run.events:
        return Headline()
    counts = Counter(event.kind for event in run.events)
    notes = []
    for name, count in counts.items():
        if name in NOUNS:
            notes.append(plural(count, name))
        elif name not in UNMENTIONED:
            notes.append(f"{count:,} {name}")
    return Headline(f"{counts.total():,}", ", ".join(notes))


def _nats(value: float) -> str | None:
    if math.isnan(value):
        return None
    return f"{value:.4f}"
