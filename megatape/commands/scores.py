"""megatape scores: `megatape scores predictions.json --scrolls scrolls --set qasper`."""

from pathlib import Path

from megatape.utils.options import CommandOptions, option


class Options(CommandOptions):
    """Predictions, and the set that they answer.

    Attributes:
        predictions: JSON file {id: answer}, as SCROLLS takes it
        scrolls: the sets as SCROLLS' zip files unpack
        set: the set, or NAME=METRIC (docs/evaluation.md)
        split: split of the set
    """

    predictions: Path = option(positional=True, metavar="PREDICTIONS")
    scrolls: Path = option(metavar="FOLDER")
    set: str = option(metavar="NAME")
    split: str = option("validation", metavar="NAME")


def run(options: Options) -> None:
    """Print the scores."""
    from megatape.lab.tasks.engine.task import wilson
    from megatape.lab.tasks.scores import mean_scores, score
    from megatape.lab.tasks.scrolls import check_coverage, parse_set, read_predictions, read_set
    from megatape.utils.tables import columns

    chosen = parse_set(options.set)
    predictions = read_predictions(options.predictions)
    questions = read_set(options.scrolls, chosen.name, options.split, encode=lambda text: [])
    check_coverage(predictions, questions, options.predictions)
    found = mean_scores([score(chosen.metric, predictions[each.id], each.references) for each in questions])
    rows = [(name, f"{mean:.4f}", "" if error is None else f"± {error:.4f}") for name, (mean, error) in found.items()]
    if chosen.metric == "exact_match":
        low, high = wilson(found[chosen.metric][0] / 100, len(questions))
        rows = [(*rows[0][:2], f"({low:.4f} to {high:.4f})")]
    print(f"{chosen.name}, {options.split}: {len(questions):,} questions", columns(rows), sep="\n")
