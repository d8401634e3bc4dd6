"""Imports a pretrained transformers model, to start a run from it."""  # noqa: N999 (the command's name)

from pathlib import Path

from megatape.commands.options.shared_options import ImportOptions
from megatape.config.sections.model import EncodingName
from megatape.hf.folder_name import PRETRAINED, check_model_folder
from megatape.registry import ENCODINGS
from megatape.utils.files.atomic import check_absent
from megatape.utils.values.options import Count, option

EXAMPLE = "megatape import Llama-3.2-1B runs/llama --encoding tape"


class Options(ImportOptions):
    """A pretrained transformers model, and settings of its training.

    Attributes:
        folder: pretrained model: folder with config.json and safetensors files, or with --download
            its id on the Hugging Face hub
        out: folder to write; must not exist. It refers to the weights, which are not copied
        encoding: position encoding to train with, such as tape, alibi or nope (docs/model.md lists
            all)
        length: tokens per sample (default: the model's context, at most 4096)
        download: first download the model to the new folder DIR (default: the last part of its id)
    """

    folder: Path = option(positional=True, metavar="FOLDER")
    out: Path = option(positional=True, metavar="OUT")
    encoding: EncodingName = option("rope", metavar="NAME", completions=tuple(ENCODINGS))
    length: Count | None = option(None, metavar="N")
    download: str | None = option(None, metavar="DIR", nargs="?", const="")


def run(options: Options) -> None:
    """Import the model, after comparing its logits with those of transformers, and print commands to run next."""
    if options.download is None:
        check_model_folder(options.folder, PRETRAINED)

    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.importing.download import download_model
    from megatape.hf.importing.importer import import_model

    disable_progress_bar()
    folder = options.folder
    hub_id = None
    if options.download is not None:
        check_absent(options.out)
        folder = Path(options.download or options.folder.name)
        hub_id = str(options.folder)
        download_model(hub_id, folder)
        print(f"downloaded {options.folder} to {folder}")
    record = import_model(folder, options.out, options.encoding, options.length, hub_id)
    print(f"{record.family}: logits differ from transformers' own by {record.difference:.1e} of the largest")
    print(f"wrote {options.out}, which refers to the weights in {record.source}; now, for example:")
    if {"tokenizer.json", "tokenizer.model"} & set(record.tokenizer):
        print(f"  megatape prepare corpus --source text --input TEXTS --output DATA --tokenizer {folder}")
    train = f"deepspeed --module megatape pretrain --config {options.out}/config.json"
    print(f"  {train} --set data.path=DATA --set training.steps=1000")
