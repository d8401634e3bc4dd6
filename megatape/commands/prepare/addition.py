"""Generates a data directory of addition problems with reversed digits."""

from megatape.commands.cli.data_messages import token_bar
from megatape.commands.options.data_options import NewDataOptions
from megatape.utils.text.units import plural
from megatape.utils.values.options import option, settings_from

EXAMPLE = "megatape prepare addition --digits 5 --output runs/data/addition_5"


class Options(NewDataOptions):
    """Addition problems to generate.

    Attributes:
        digits: maximum number of digits of an operand
        per_cell: training problems per cell of the D x D grid of operand lengths
        seed: random seed of the problems and the held-out split
    """

    digits: int = option(metavar="D")
    per_cell: int = option(10_000, metavar="N")
    seed: int = 0


def run(options: Options) -> None:
    """Write the data directory."""
    from megatape.data.synthetic.addition_problems import AdditionTask, longest_document, prepare_addition

    task = settings_from(options, AdditionTask)
    with token_bar("generated") as bar:
        index = prepare_addition(task, options.output, bar.update)
    for name, split in index.splits.items():
        problems = plural(split.documents, "problem")
        tokens = plural(split.tokens, "token")
        shards = plural(len(split.shards), "shard")
        print(f"{name}: {problems}, {tokens}, {shards}")
    longest = longest_document(options.digits)
    print(f"the longest problem has {longest} tokens: data.sequence_length must be at least {longest - 1}")
    print(f"wrote {options.output}")
