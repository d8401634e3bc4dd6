"""Trains the same model with several encodings and seeds, evaluates each, and compares the results.

OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
    outcome.json                its results; outcome+yarn.json: the same with scaled frequencies
OUT/comparison.md, comparison.png
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from megatape.accounting.parameters import count_parameters
from megatape.config import Config, load_config
from megatape.data.training.selection import Selection
from megatape.errors import UserError
from megatape.lab.pictures import save
from megatape.lab.processes import interruptible
from megatape.lab.study.lock import locked_study
from megatape.lab.study.measure import check_measurable, measure
from megatape.lab.study.outcome import PERPLEXITY, VALIDATION_LOSS, Outcome
from megatape.lab.study.pool import RunPool
from megatape.lab.study.run import Run, check_all
from megatape.lab.study.variants import Variant, parse_variants
from megatape.run_folder import RunFolder
from megatape.utils.tables import markdown
from megatape.utils.units import format_number, plural

OF_TEXT = (VALIDATION_LOSS, PERPLEXITY)  # Names of figures measured on validation text begin with one of these.
SELECTION_NOTES: dict[Selection, str] = {"first": " (the first samples)", "spread": " (samples of the whole split)"}

Metrics = dict[str, float]
Curve = dict[int, float]
Row = tuple[str, list[Outcome]]  # label of a variant, and one outcome per seed


def compare(
    file: str,
    settings: Sequence[str],
    encodings: str,
    seeds: int,
    out: Path,
    pool: RunPool,
    command: str,
) -> Iterator[str]:
    """Train and evaluate the missing runs, write table and plot; yields progress messages, then the table.

    Args:
        file: Configuration.
        settings: Overrides of the configuration.
        encodings: Variants to compare, with commas between them.
        seeds: Number of seeds, from training.seed upwards. A seed gives all encodings the same samples in the same order, and
            weights of the same name the same initial values.
        out: Folder of the comparison.
        pool: Pool that runs them.
        command: Command line of the user, for the table.

    Raises:
        UserError: An argument or a run in `out` does not fit; before training.
        OSError: A file cannot be read or written.
        RunsFailed: Runs failed; at the end.
    """
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise UserError(
            "model.scaling is set, but encodings are trained without it: remove it, and compare, for example, tape+yarn"
        )
    variants = parse_variants(encodings)
    seed_range = range(base.training.seed, base.training.seed + seeds)
    runs = _runs(file, settings, variants, seed_range, out, pool)

    with interruptible(), locked_study(out) as lock:
        failures = yield from pool.finish(runs, out, lock)
        rows = [(variant.label, _outcomes(variant, seed_range, out)) for variant in variants]
        if rows := [row for row in rows if row[1]]:
            controls = [variant for variant in variants if variant.control]
            notes = [one.describe_control(load_config(file, [*settings, *one.settings])) for one in controls]
            yield report(rows, notes, command, out)
    check_all(failures, runs)


def _runs(
    file: str, settings: Sequence[str], variants: list[Variant], seed_range: range, out: Path, pool: RunPool
) -> list[Run[Outcome]]:
    """All runs, ordered by seed so that every encoding has results early.

    Raises UserError if two are the same model, or if one could not be measured.
    """
    runs = []
    for seed in seed_range:
        models: dict[Any, str] = {}
        for trained, variant in {variant.trained: variant for variant in variants}.items():
            folder = _folder(out, trained, seed)
            changes = variant.settings_for(load_config(file, [*settings, *variant.settings]))
            own = [*settings, *changes, f"training.seed={seed}", f"run.directory={folder.directory}"]
            config = load_config(file, own)
            same = models.setdefault(config.model.model_dump_json(), trained)
            if same != trained:
                raise UserError(f"encodings: {same} and {trained} are the same model: remove one of them")
            scalings = [variant.scaling for variant in variants if variant.trained == trained]
            for scaling in scalings:
                check_measurable(config, scaling)
            measures = {folder.outcome(scaling): (measure, str(folder.directory), scaling) for scaling in scalings}
            runs.append(Run(f"{trained}, seed {seed}", config, pool.pretrain(file, own), measures, Outcome.read))
    return runs


def _outcomes(variant: Variant, seed_range: range, out: Path) -> list[Outcome]:
    """Outcomes of a variant, from all seeds that have one."""
    paths = [_folder(out, variant.trained, seed).outcome(variant.scaling) for seed in seed_range]
    return [Outcome.read(path) for path in paths if path.exists()]


def _folder(out: Path, trained: str, seed: int) -> RunFolder:
    return RunFolder(out / trained.replace(":", "_") / f"seed-{seed}")


def report(rows: list[Row], notes: list[str], command: str, out: Path) -> str:
    """Write comparison.md and comparison.png into `out`; returns the text of the former.

    rows: the others are compared with the first. notes: what controls cost. command: what the user typed.
    """
    config = rows[0][1][0].config
    setting = f"{describe_shape(config)}, {describe_training(config)}. Mean over seeds (minimum to maximum)."
    distinguish = are_evaluated_differently([outcome for _, outcomes in rows for outcome in outcomes])
    figures = {label: [figures_of(one, distinguish) for one in outcomes] for label, outcomes in rows}
    lines = [f"    {command}", setting, *notes, _table(rows, figures)]
    first = rows[0][0]
    reference = {outcome.seed: figures_of(outcome, distinguish) for outcome in rows[0][1]}
    differences = {
        label: [_minus(figures_of(one, distinguish), reference[one.seed]) for one in outcomes if one.seed in reference]
        for label, outcomes in rows[1:]
    }
    if any(differences.values()):
        lines += [f"Difference from `{first}` of the same seed:", _table(rows[1:], differences)]
    return write_report("comparison", lines, lambda figure: draw_curves(figure, rows), out)


def are_evaluated_differently(outcomes: Iterable[Outcome]) -> bool:
    """Whether losses and perplexities were measured on different text, because an earlier version began some of the runs."""
    return len({outcome.selection for outcome in outcomes if _measures_text(outcome)}) > 1


def _measures_text(outcome: Outcome) -> bool:
    return any(name.startswith(OF_TEXT) for name in outcome.figures)


def figures_of(outcome: Outcome, distinguish: bool) -> Metrics:
    """Return the figures of an outcome by column.

    Args:
        outcome: Results of a model.
        distinguish: Whether to add the selection of the validation text to the columns' names. Figures measured on different
            text are then in different columns and are not compared.
    """
    if not distinguish:
        return outcome.figures
    figures = {}
    for name, value in outcome.figures.items():
        if name.startswith(OF_TEXT):
            name += SELECTION_NOTES[outcome.selection]
        figures[name] = value
    return figures


def _table(rows: list[Row], metrics: dict[str, list[Metrics]]) -> str:
    columns = list(dict.fromkeys(name for seeds in metrics.values() for one in seeds for name in one))
    table = []
    for label, outcomes in rows:
        seeds = metrics[label]
        parameters = count_parameters(outcomes[0].config.model).total
        spreads = (_spread([one[column] for one in seeds if column in one]) for column in columns)
        table.append([f"`{label}`", f"{parameters:,}", str(len(seeds)), *spreads])
    return markdown(["encoding", "parameters", "seeds", *columns], table)


def _spread(values: list[float]) -> str:
    if not values:
        return ""
    return f"{format_number(fmean(values))} ({format_number(min(values))} to {format_number(max(values))})"


def _minus(metrics: Metrics, reference: Metrics) -> Metrics:
    return {name: value - reference[name] for name, value in metrics.items() if name in reference}


def draw_curves(figure: Figure, rows: list[Row]) -> None:
    """Draw loss curves, and a metric by length: a line for the mean over seeds, a band from the minimum to the maximum.

    The losses of a variant with scaling are those of the variant without.
    """
    figure.set_size_inches(13, 5)
    losses, measured = figure.subplots(1, 2)
    for (label, outcomes), look in zip(rows, rcParams["axes.prop_cycle"](), strict=False):  # the same colour on both sides
        if outcomes[0].scaling is None:
            _band(losses, [outcome.losses for outcome in outcomes], look)
        _band(measured, [outcome.curve for outcome in outcomes], look | {"label": label, "marker": "."})
    losses.set(xlabel="step", ylabel="training loss (nats)", yscale="log")
    first = rows[0][1][0]
    measured.set(xlabel=first.axes[0], ylabel=first.axes[1])
    if first.axes[0] == "tokens":
        measured.set_xscale("log", base=2)
    measured.set_xticks(list(first.curve))
    measured.legend()


def draw_extension(figure: Figure, rows: list[Row], original: int) -> None:
    """`draw_curves` of methods that extend a model's context, with its original length marked."""
    draw_curves(figure, rows)
    losses, measured = figure.axes
    losses.set_yscale("linear")
    measured.set_yscale("log")
    measured.axvline(original, color="grey", linewidth=0.8)
    lengths = list(rows[0][1][0].curve)
    measured.set_xticks(lengths, list(map(str, lengths)))
    measured.yaxis.set_major_formatter(LogFormatter())  # numbers, not powers of ten
    measured.yaxis.set_minor_formatter(LogFormatter())


def _band(axes: Axes, curves: Sequence[Curve], look: dict[str, Any]) -> None:
    steps = list(curves[0])
    values = [[curve[step] for curve in curves] for step in steps]
    axes.plot(steps, [fmean(each) for each in values], **look)
    axes.fill_between(steps, [min(each) for each in values], [max(each) for each in values], color=look["color"], alpha=0.15)


def write_report(name: str, paragraphs: list[str], draw: Callable[[Figure], object], out: Path) -> str:
    """Write NAME.md and NAME.png, which `draw` draws, into `out`; returns the text of the former, and where it is."""
    text = "\n\n".join(paragraphs)
    (out / f"{name}.md").write_text(text + "\n", encoding="utf-8")
    save(out / f"{name}.png", draw)
    return f"{text}\n\nwrote {out / f'{name}.md'}, {out / f'{name}.png'}"


def describe_shape(config: Config) -> str:
    """The size of a model."""
    return f"{plural(config.model.num_layers, 'layer')} of width {config.model.hidden_size}"


def describe_training(config: Config) -> str:
    """The length of a training and its data."""
    training = config.training
    data = config.data
    return (
        f"{plural(training.steps, 'step')} of {training.global_batch_size} x {data.sequence_length} tokens of {data.path}, "
        f"{training.precision}"
    )
