"""Trains the same model with several encodings and seeds, evaluates each, and compares the results.

OUT/tape/seed-1234/             a run of `megatape pretrain`, with its log.txt
    outcome.json                its results; outcome+yarn.json: the same with scaled frequencies
OUT/comparison.md, comparison.png
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from megatape.config import load_config
from megatape.errors import UserError
from megatape.lab.processes import interruptible
from megatape.lab.study.comparison.measure import check_measurable, measure
from megatape.lab.study.comparison.report import report
from megatape.lab.study.comparison.variants import Variant, parse_variants
from megatape.lab.study.execution.lock import locked_study
from megatape.lab.study.execution.pool import RunPool
from megatape.lab.study.execution.run import Run, raise_failures
from megatape.lab.study.outcomes.outcome import Outcome
from megatape.run_folder import RunFolder


def compare(
    file: str,
    settings: Sequence[str],
    encodings: str,
    seeds: int,
    out: Path,
    pool: RunPool,
    command: str,
) -> Iterator[str]:
    """Execute the missing runs, and write the table and the plot.

    Args:
        file: Configuration.
        settings: Overrides of the configuration.
        encodings: Labels of variants with commas.
        seeds: Number of seeds, from training.seed upwards. With the same seed, all encodings have the same samples in the same
            order, and weights of the same name have the same initial values.
        out: Folder of the comparison.
        pool: Executes the runs.
        command: Command line of the user, for the table.

    Yields:
        Messages about the progress, then the table.

    Raises:
        UserError: An argument or a run in `out` does not fit. No run has started.
        OSError: A file cannot be read or written.
        RunsFailed: Some runs failed; the others are complete.
    """
    base = load_config(file, settings)
    if base.model.scaling is not None:
        raise UserError(
            "model.scaling is set, but encodings are trained without it: remove it, and compare, for example, tape+yarn"
        )
    variants = parse_variants(encodings)
    seed_range = range(base.training.seed, base.training.seed + seeds)
    runs = []
    # Ordered by seed, so that every encoding has results early.
    for seed in seed_range:
        runs += _runs_of_seed(file, settings, variants, seed, out, pool)

    with interruptible(), locked_study(out) as lock:
        failures = yield from pool.finish(runs, out, lock)
        rows = []
        notes = []
        for variant in variants:
            outcomes = _outcomes(variant, seed_range, out)
            if outcomes:
                rows.append((variant.label, outcomes))
            if variant.control:
                config = load_config(file, [*settings, *variant.settings])
                notes.append(variant.describe_control(config))
        if rows:
            yield report(rows, notes, command, out)
    raise_failures(failures, runs)


def _runs_of_seed(
    file: str,
    settings: Sequence[str],
    variants: list[Variant],
    seed: int,
    out: Path,
    pool: RunPool,
) -> list[Run[Outcome]]:
    """Return the runs of a seed. Variants that differ only in their scaling share a run.

    Raises:
        UserError: Two runs are the same model, or a run could not be measured.
    """
    variants_of: dict[str, list[Variant]] = {}
    for variant in variants:
        variants_of.setdefault(variant.trained, []).append(variant)

    runs = []
    label_of_model: dict[str, str] = {}
    for trained, sharing in variants_of.items():
        folder = _folder(out, trained, seed)
        # Their settings are equal.
        variant = sharing[-1]
        changes = variant.settings_for(load_config(file, [*settings, *variant.settings]))
        run_settings = [*settings, *changes, f"training.seed={seed}", f"run.directory={folder.directory}"]
        config = load_config(file, run_settings)
        same = label_of_model.setdefault(config.model.model_dump_json(), trained)
        if same != trained:
            raise UserError(f"encodings: {same} and {trained} are the same model: remove one of them")
        measures = {}
        for each in sharing:
            check_measurable(config, each.scaling)
            measures[folder.outcome(each.scaling)] = (measure, str(folder.directory), each.scaling)
        train = pool.pretrain_command(file, run_settings)
        runs.append(Run(f"{trained}, seed {seed}", config, train, measures, Outcome.read))
    return runs


def _outcomes(variant: Variant, seed_range: range, out: Path) -> list[Outcome]:
    """Read the outcomes of a variant that exist."""
    outcomes = []
    for seed in seed_range:
        path = _folder(out, variant.trained, seed).outcome(variant.scaling)
        if path.exists():
            outcomes.append(Outcome.read(path))
    return outcomes


def _folder(out: Path, trained: str, seed: int) -> RunFolder:
    return RunFolder(out / trained.replace(":", "_") / f"seed-{seed}")
