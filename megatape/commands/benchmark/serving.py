"""megatape benchmark serving: `megatape benchmark serving --lengths 128,1024,3000 --batches 1,8`."""

from typing import Literal

from megatape.commands.options import check_config
from megatape.commands.paragraphs import show
from megatape.options import CommandOptions, Count, Listed, option


class Options(CommandOptions):
    """Models and sizes to measure."""

    config: str | None = option("configuration of the shape (default: the paper's 155M model)", None, metavar="FILE")
    layers: Count | None = option("number of layers (default: the model's)", None, metavar="N")
    encodings: str = option("encodings to measure", "tape", metavar="A,B")
    lengths: Listed[Count] = option("tokens of the prompts", (128, 1024, 3000), metavar="N,N")
    batches: Listed[Count] = option("prompts at a time", (1, 8), metavar="B,B")
    padding: Literal["none", "left", "both"] = option("pad the first half of every second prompt", "both")
    dtype: Literal["float32", "bfloat16"] = option("precision of the weights", "float32")
    threads: Count = option("threads on a CPU", 1, metavar="N")
    rounds: Count = option("timing rounds, after a warm-up round", 5, metavar="N")


def run(options: Options) -> int:
    """Measure and print."""
    check_config(options.config)
    from megatape.benchmark.serving import measure

    paddings = ("none", "left") if options.padding == "both" else (options.padding,)
    return show(options.fill(measure, file=options.config, paddings=paddings))
