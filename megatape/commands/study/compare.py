"""Trains encodings with several seeds, and compares them in a table and a plot."""

from megatape.commands.cli.output import ParagraphPrinter
from megatape.commands.options.shared_options import ConfigOptions
from megatape.commands.options.study_options import RunsOptions
from megatape.commands.options.task_options import parse_task
from megatape.errors import UserError, flag
from megatape.registry import ENCODINGS
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape study compare --config configs/tape_tiny.json --encodings rope,tape --output runs/compare"


class Options(RunsOptions, ConfigOptions):
    """Encodings to compare.

    Attributes:
        encodings: encodings to compare, such as rope,tape,tape+yarn,tape:position_size=12
            (docs/compare_encodings.md)
        seeds: runs per encoding
        evaluate: task of `megatape evaluate` with its options, such as "passkey --lengths 1024",
            for every trained model; repeatable
        dry_run: print the runs with their memory, GPU-hours and price on the cluster of the
            configuration, and train nothing
        price: price of a GPU-hour in any currency, for --dry-run
    """

    encodings: str = option(metavar="A,B", completions=tuple(ENCODINGS))
    seeds: Count = option(3, metavar="S")
    evaluate: tuple[str, ...] = option((), metavar="TASK", repeatable=True)
    dry_run: bool = False
    price: float | None = option(None, ge=0, metavar="PRICE")


def run(options: Options) -> None:
    """Train and evaluate the models and print the table, or print the plan."""
    # Report errors before importing torch.
    options.load()
    if options.price is not None and not options.dry_run:
        raise UserError(f"{flag('price')} needs {flag('dry_run')}, which prints the cost")
    tasks = [parse_task(text) for text in options.evaluate]
    if options.dry_run:
        _print_plan(options)
        return
    from megatape.lab.study.comparison.compare import compare
    from megatape.lab.study.execution.pool import RunPool
    from megatape.lab.study.execution.study import Study

    compare(
        file=options.config,
        overrides=options.set,
        encodings=options.encodings,
        seeds=options.seeds,
        study=Study(options.output, RunPool(options.jobs, options.launcher), options.typed, ParagraphPrinter().print),
        tasks=tasks,
    )


def _print_plan(options: Options) -> None:
    """Print what the runs need on their cluster."""
    from megatape.lab.study.comparison.compare import configs_by_label
    from megatape.tools.planner.report.study_report import study_report

    configs = configs_by_label(options.config, options.set, options.encodings)
    print(study_report(configs, options.seeds, options.price))
