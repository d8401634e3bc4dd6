"""megatape evaluate: megatape evaluate perplexity,passkey exported --data data/c4 --lengths 1024,2048 --output evaluated"""

import argparse
from dataclasses import fields
from pathlib import Path

from megatape.commands.options import add_adapter, add_base, add_import, add_local_rank, add_trust, prepare_deepspeed
from megatape.registry import TASKS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the tasks; the other arguments depend on them."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = "\n".join(["tasks:", *(f"  {name:<14}{entry.description}" for name, entry in TASKS.items())])
    add_local_rank(parser)
    add_import(parser)
    parser.add_argument("tasks", type=_tasks, metavar="TASK[,TASK]", help="what to evaluate; add --help for its options")
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="MODEL_DIR [MODEL_DIR ...] --output FOLDER [options]")


def arguments(tasks: list[str]) -> argparse.ArgumentParser:
    """The parser of what follows the tasks. An option of several tasks is declared once, and all of them get it."""
    parents = []
    for name in tasks:
        parent = argparse.ArgumentParser(add_help=False)
        TASKS[name].load().add_arguments(parent)
        parents.append(parent)
    parser = argparse.ArgumentParser(prog=f"megatape evaluate {','.join(tasks)}", parents=parents, conflict_handler="resolve")
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL_DIR", help="checkpoint or exported model")
    parser.add_argument(
        "--output",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder for the results; an evaluation that was stopped goes on in the same",
    )
    add_adapter(parser)
    add_base(parser)
    add_trust(parser)
    add_import(parser)
    parser.add_argument(
        "--training-code",
        action="store_true",
        help="run the model by the code that trains it, without an export and without a cache: slow where texts are generated",
    )
    parser.add_argument(
        "--tp",
        type=int,
        default=1,
        metavar="T",
        help="processes that divide one model, which the training code then runs (default %(default)s)",
    )
    return parser


def run(args: argparse.Namespace) -> int:
    """Evaluate, write the results, print a summary."""
    given = arguments(args.tasks).parse_args(args.rest)

    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from megatape.tasks.models import evaluate_models
    from megatape.tasks.ranks import FailedElsewhere, launched_ranks

    prepare_deepspeed()
    disable_progress_bar()
    set_verbosity_error()  # transformers warns of texts that are longer than the model was made for
    kinds = {name: TASKS[name].load() for name in args.tasks}
    tasks = {name: kind(**{field.name: getattr(given, field.name) for field in fields(kind)}) for name, kind in kinds.items()}
    try:
        with launched_ranks(given.tp) as ranks:
            how = (given.trust_remote_code, given.base, given.adapter, given.training_code or given.tp > 1)
            text = evaluate_models(tasks, given.models, given.output, ranks, *how)
            if ranks.is_main:
                print(text)
    except FailedElsewhere:
        return 2
    return 0


def _tasks(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in TASKS or names.count(name) > 1:
            fault = "is given twice" if name in TASKS else "is no task"
            raise argparse.ArgumentTypeError(f"{name!r} {fault}: give some of {', '.join(TASKS)}, such as perplexity,passkey")
    return names
