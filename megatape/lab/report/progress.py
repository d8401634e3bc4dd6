"""How far runs are: the figures that a page opens on."""

import math
import time
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from megatape.accounting.gpus import named
from megatape.lab.report.load import STARTS, Run, last_written
from megatape.utils.units import format_count, format_duration, format_number, plural

RECENT = 50  # steps over which speed is measured
ENDS = ("finished", "stopped", "failed")
QUIET = ("started", "finished")  # events that need no mention
NOUNS = ("checkpoint", "spike", "rollback", "slow rank")
LOSSES = {"loss": "loss", "validation": "validation_loss", "EMA": "ema_validation_loss"}  # figures and their columns
CLOCK_TOLERANCE = 10.0  # maximum difference between clocks of hosts, in seconds, that is not reported
# without a step for both, a run is silent
QUIET_SECONDS = 120.0
QUIET_STEPS = 20


@dataclass(frozen=True)
class Headline:
    """A headline number.

    Attributes:
        value: As text, "" where it is not known.
        note: What to hold it against.
        best: Whether it is the best of several runs.
    """

    value: str = ""
    note: str = ""
    best: bool = False


@dataclass(frozen=True)
class Progress:
    """Where a run is.

    Attributes:
        name: Of the run.
        state: "not begun", "training", "silent", or one of ENDS.
        note: A phrase about the state.
        done: Share of its steps, 0 to 1.
        figures: By their names.
    """

    name: str
    state: str
    note: str
    done: float
    figures: dict[str, Headline]


def progress(runs: list[Run]) -> list[Progress]:
    """Progress of each run; figures that no run has are omitted."""
    found = [_progress(run) for run in runs]
    for name, column in LOSSES.items():
        values = [run.last(column) for run in runs]
        measured = [run.config.data if column == "loss" else run.evaluated for run in runs]
        on_same_samples = len({samples for samples, value in zip(measured, values, strict=True) if not np.isnan(value)}) == 1
        if on_same_samples and len(values) > 1:
            figures = found[int(np.nanargmin(values))].figures
            figures[name] = replace(figures[name], best=True)
    known = [name for name in found[0].figures if any(one.figures[name].value for one in found)]
    return [replace(one, figures={name: one.figures[name] for name in known}) for one in found]


def _progress(run: Run) -> Progress:
    steps = run.config.training.steps
    seconds = run.metrics["seconds"]
    batches = run.config.batches
    pace = float(np.nanmean(seconds[-RECENT:])) if np.isfinite(seconds[-RECENT:]).any() else math.nan
    state = _state(run, pace)
    left = ""
    if pace > 0:
        left = f"{format_duration(run.samples_left / batches.of_step(run.last_step) * pace)} left"
    if is_ahead(last_written(run)):
        left = f"perhaps: the last line is {describe_age(last_written(run))}"
    notes = {
        "training": left,
        "silent": f"last step {describe_age(last_written(run))}",
        "failed": run.events[-1]["detail"] if run.events else "",
    }
    return Progress(run.name, state, notes.get(state, ""), min(1.0, run.last_step / steps), _figures(run, pace))


def is_ahead(written: float) -> bool:
    """Whether a file's time lies in the future, because the clocks of this machine and the file's host differ.

    Args:
        written: Time in seconds since 1970.
    """
    return written > time.time() + CLOCK_TOLERANCE


def describe_age(written: float) -> str:
    """Describe the age of a file, such as "41 s ago", or how far its time is ahead of this machine's clock.

    Args:
        written: Time in seconds since 1970.
    """
    age = time.time() - written
    if is_ahead(written):
        return f"{format_duration(-age)} ahead of this machine's clock"
    return f"{format_duration(max(0.0, age))} ago"


def _figures(run: Run, pace: float) -> dict[str, Headline]:
    loss = run.metrics["loss"]
    validation = run.metrics["validation_loss"]
    recent = loss[-RECENT:][np.isfinite(loss[-RECENT:])]
    seconds = float(np.nansum(run.metrics["seconds"]))
    length = run.config.data.sequence_length
    batches = run.config.batches
    done = run.samples(run.last_step)
    speed = format_count(batches.of_step(run.last_step) * length / pace) if pace > 0 else ""
    utilization = _utilization(run, pace)
    return {
        "loss": Headline(_nats(run.last("loss")), f"mean of {recent.size}: {recent.mean():.4f}" if recent.size > 1 else ""),
        "validation": Headline(_nats(run.last("validation_loss")), _best(run.metrics["step"], validation)),
        "EMA": Headline(_nats(run.last("ema_validation_loss")), "validation of the average"),
        "tokens": Headline(format_count(done * length), f"of {format_count((done + run.samples_left) * length)}"),
        "tokens/s": Headline(speed, f"{pace:.3g} s a step" if speed else ""),
        "MFU": Headline("" if utilization is None else f"{utilization:.1%}", run.environment.get("device", "")),
        "time": Headline(format_duration(seconds) if seconds else "", f"of {plural(run.last_step, 'step')}"),
        "events": _events(run),
    }


def _state(run: Run, pace: float) -> str:
    kinds = [event["event"] for event in run.events if event["event"] in (*STARTS, *ENDS)]
    if kinds and kinds[-1] in ENDS:
        return str(kinds[-1])
    if run.last_step >= run.config.training.steps:
        return "finished"
    if not kinds and not run.last_step:
        return "not begun"
    quiet = max(QUIET_SECONDS, QUIET_STEPS * pace) if pace > 0 else QUIET_SECONDS * QUIET_STEPS  # before the first step
    return "training" if time.time() - last_written(run) < quiet else "silent"


def _utilization(run: Run, pace: float) -> float | None:
    """Model FLOPs utilization, None where the device's peak is not known."""
    config = run.config
    gpu = named(run.environment.get("device", ""))
    ranks = run.environment.get("ranks", "")
    if gpu is None or config.training.precision != "bfloat16" or not pace > 0 or not ranks.isdecimal():
        return None
    sample_flops = _sample_flops(run)
    if sample_flops is None:
        return None
    return sample_flops * config.batches.of_step(run.last_step) / pace / gpu.bfloat16_flops / max(1, int(ranks))


def _sample_flops(run: Run) -> int | None:
    """Return the FLOPs of training on one sample, as recorded or counted, or None if neither is possible."""
    recorded = run.environment.get("sample_flops", "")
    if recorded.isdecimal():
        return int(recorded)
    if run.missing_modules:
        return None
    from megatape.accounting.flops import forward_flops  # imports torch, which only runs of earlier versions need

    config = run.config
    return 3 * forward_flops(config.model, config.data.sequence_length, config.training.num_shifted_groups)


def _best(steps: np.ndarray, losses: np.ndarray) -> str:
    finite = np.isfinite(losses)
    if not finite.any():
        return ""
    best = int(np.nanargmin(losses))
    if best == np.flatnonzero(finite)[-1]:
        return f"perplexity {format_number(math.exp(min(700.0, losses[best])))}"
    return f"best {losses[best]:.4f} at step {int(steps[best]):,}"


def _events(run: Run) -> Headline:
    counts = Counter(event["event"] for event in run.events)
    notes = []
    for name, count in counts.items():
        if name in NOUNS:
            notes.append(plural(count, name))
        elif name not in QUIET:
            notes.append(f"{count:,} {name}")
    return Headline(f"{counts.total():,}" * bool(counts), ", ".join(notes))


def _nats(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"
