"""Scores predictions with the metrics of SCROLLS."""

from pathlib import Path

from megatape.utils.values.options import CommandOptions, option

EXAMPLE = "megatape scores predictions.json --scrolls scrolls --set qasper"


class Options(CommandOptions):
    """Predictions, and the set of questions they answer.

    Attributes:
        predictions: JSON file {id: answer}, the format of SCROLLS' leaderboard
        scrolls: folder with the unpacked zip files of SCROLLS
        set: set of SCROLLS, or NAME=METRIC for a set of your own (docs/evaluate.md)
        split: split of the set
    """

    predictions: Path = option(positional=True, metavar="PREDICTIONS")
    scrolls: Path = option(metavar="FOLDER")
    set: str = option(metavar="NAME")
    split: str = option("validation", metavar="NAME")


def run(options: Options) -> None:
    """Print the scores."""
    from megatape.lab.tasks.scores import score
    from megatape.lab.tasks.scrolls.predictions import check_coverage, read_predictions
    from megatape.lab.tasks.scrolls.questions import read_set
    from megatape.lab.tasks.scrolls.sets import parse_set
    from megatape.utils.text.tables import columns

    chosen = parse_set(options.set)
    predictions = read_predictions(options.predictions)
    questions = read_set(options.scrolls, chosen.name, options.split, encode=lambda text: [])
    check_coverage(predictions, questions, options.predictions)
    scores: list[dict[str, float]] = []
    for question in questions:
        scores.append(score(chosen.metric, predictions[question.id], question.references))
    print(f"{chosen.name}, {options.split}: {len(questions):,} questions")
    print(columns(_score_rows(chosen.metric, scores)))


def _score_rows(chosen_metric: str, scores: list[dict[str, float]]) -> list[tuple[str, str, str]]:
    """Return rows of metric name, mean, and uncertainty if known."""
    from megatape.lab.tasks.engine.result import wilson
    from megatape.lab.tasks.scores import mean_scores

    rows: list[tuple[str, str, str]] = []
    for metric, score in mean_scores(scores).items():
        uncertainty = ""
        if chosen_metric == "exact_match":
            low, high = wilson(score.mean / 100, len(scores))
            uncertainty = f"({low:.4f} to {high:.4f})"
        elif score.error is not None:
            uncertainty = f"± {score.error:.4f}"
        rows.append((metric, f"{score.mean:.4f}", uncertainty))
    return rows
