"""Compares methods of fine-tuning a model to longer texts."""

from pathlib import Path

from megatape.commands.cli.output import ParagraphPrinter
from megatape.commands.options.shared_options import ImportOptions, OverrideOptions
from megatape.commands.options.study_options import RunsOptions
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape study finetune --base Llama-2-7b-hf --data runs/data/books --output runs/extended"


class Options(RunsOptions, OverrideOptions, ImportOptions):
    """A model, and the methods to compare.

    Attributes:
        base: transformers model, or its import by megatape import
        data: data directory, prepared with the base's tokenizer
        methods: methods to compare with the base (docs/compare_encodings.md)
        length: tokens per sample (default: twice those of the base)
        steps: steps of each method
    """

    base: Path = option(metavar="FOLDER")
    data: Path = option(metavar="FOLDER")
    methods: str = option("base,lora,longlora,theta,tape,full", metavar="A,B")
    length: Count | None = option(None, metavar="N")
    steps: Count = option(1000, metavar="S")


def run(options: Options) -> None:
    """Train and evaluate the models, and print the table."""
    from transformers.utils.logging import disable_progress_bar

    from megatape.lab.study.execution.pool import RunPool
    from megatape.lab.study.execution.study import Study
    from megatape.lab.study.finetuning.finetune import Request, finetune

    disable_progress_bar()
    request = Request(
        base=options.base,
        data=options.data,
        methods=options.methods,
        length=options.length,
        steps=options.steps,
        overrides=options.set,
    )
    study = Study(options.output, RunPool(options.jobs, options.launcher), options.typed, ParagraphPrinter().print)
    finetune(request, study)
