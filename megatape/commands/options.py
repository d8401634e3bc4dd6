"""Groups of options that several commands share, and what commands do with them."""

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from pydantic import AfterValidator, Field

from megatape.config import Config, load_config
from megatape.config.kinds import Registered
from megatape.data.sources.limits import MAX_BAD_FRACTION, MAX_RECORD_BYTES, MAX_SKIPPED_FRACTION
from megatape.errors import UserError
from megatape.hf.folder_name import ADAPTER, check_model_folder
from megatape.imports import OPTION
from megatape.registry import SOURCES, TOKEN_FORMATS, Entry
from megatape.utils.masking import mask
from megatape.utils.options import CommandOptions, Count, Words, option
from megatape.utils.units import plural

if TYPE_CHECKING:
    from tqdm import tqdm

    from megatape.data.counts import RecordCounts
    from megatape.data.io.listing import SkippedFiles
    from megatape.data.shards.entries import Index
    from megatape.data.sources.source import Source
    from megatape.data.tokenizers.tokenizer import Tokenizer
    from megatape.lab.study.subjects import Subject


def describe(entries: Mapping[str, Entry]) -> str:
    """The help of an option that takes a name of a registry."""
    return "; ".join(f"{name}: {entry.description}" for name, entry in entries.items())


TokenFormat = Annotated[str, AfterValidator(Registered(TOKEN_FORMATS)), option(description=describe(TOKEN_FORMATS))]


class ImportOptions(CommandOptions):
    """Modules of commands that read a configuration, a run, a checkpoint or an export. `run_command` imports them.

    Attributes:
        imports: import a module of your own, or a .py file, that registers encodings, optimizers,
            sinks or others; repeatable
    """

    imports: tuple[str, ...] = option((), flag=OPTION, metavar="MODULE", repeatable=True)


class OverrideOptions(CommandOptions):
    """Changes of a configuration.

    Attributes:
        set: override one configuration value; repeatable
    """

    set: tuple[str, ...] = option((), metavar="SECTION.KEY=VALUE", repeatable=True)


class ConfigOptions(OverrideOptions, ImportOptions):
    """A configuration and changes of it.

    Attributes:
        config: JSON configuration (docs/config.md)
    """

    config: str = option(metavar="FILE")

    def load(self) -> Config:
        """The configuration. Raises FileNotFoundError or UserError."""
        return load_config(self.config, self.set)


class LaunchedOptions(CommandOptions):
    """Options of commands that a launcher starts on every rank.

    Attributes:
        verbose: show DeepSpeed's full log, not only its errors
    """

    verbose: bool = False


class RecordLimitOptions(CommandOptions):
    """Limits for commands that read lines of JSON.

    Attributes:
        max_record_bytes: skip longer lines and text files; memory grows with it
        max_bad_fraction: end if more of the records are malformed or too long
        max_skipped_fraction: end if more of a folder's files or bytes, or of the samples of tars,
            are skipped because of file names
    """

    max_record_bytes: Count = option(MAX_RECORD_BYTES, metavar="N")
    max_bad_fraction: Annotated[float, Field(le=1)] = option(MAX_BAD_FRACTION, ge=0, metavar="P")
    max_skipped_fraction: Annotated[float, Field(le=1)] = option(MAX_SKIPPED_FRACTION, ge=0, metavar="P")


class SourceOptions(RecordLimitOptions, ImportOptions):
    """Where documents come from.

    Attributes:
        source: type of source (docs/data.md)
        input: files, folders and URLs; for hub, the name of a dataset
        subset: configuration of a hub dataset
        split: split of a hub dataset
        text_field: field of records that has the text
        partial: accept folders that lack files of a set such as c4-train.00000-of-01024.json.gz
        expect: end if files are missing or differ from this list of sizes or checksums, of lines as
            sha256sum prints or SIZE NAME
    """

    source: Annotated[str, AfterValidator(Registered(SOURCES))]
    input: tuple[str, ...] = ()
    subset: str | None = None
    split: str = "train"
    text_field: str = option("text", metavar="NAME")
    partial: bool = False
    expect: Path | None = option(None, metavar="FILE")

    def read_source(self, **more: Any) -> "Source":
        """Return the source, and print which files are skipped because of their names.

        Args:
            more: Other fields of the source.

        Raises:
            UserError: Options contradict each other, or the files are not the expected ones.
        """
        from megatape.data.sources.expected import check_expected
        from megatape.data.sources.source import Source

        source = self.fill(Source, kind=self.source, inputs=self.input, **more)
        if self.expect is not None:
            check_expected(source, self.expect)
        report_skipped_files(source.skipped_files())
        return source


class HeldOutOptions(CommandOptions):
    """The size of the validation split.

    Attributes:
        validation_share: fraction of documents, or of prompts, in the validation split
    """

    validation_share: Annotated[float, Field(gt=0, lt=1)] = option(0.02, metavar="P")


class NewDataOptions(CommandOptions):
    """A data directory to write.

    Attributes:
        output: data directory to write
    """

    output: Path = option(metavar="FOLDER")


class SubjectOptions(ImportOptions):
    """Checkpoints that a study examines, and their text.

    Attributes:
        checkpoints: folder such as checkpoints/step-00000100
        samples: sequences to average over
        length: tokens per sequence (default: data.sequence_length)
        data: data directory of the text (default: the checkpoint's data.path)
    """

    checkpoints: tuple[Path, ...] = option(positional=True, metavar="CHECKPOINT")
    samples: Count = option(8, metavar="N")
    length: int | None = option(None, ge=2, metavar="N")
    data: Path | None = option(None, metavar="FOLDER")

    def load(self) -> "list[Subject]":
        """The models. Raises UserError or FileNotFoundError as `load_subjects`."""
        from megatape.lab.study.subjects import load_subjects

        return self.fill(load_subjects)


class RunsOptions(CommandOptions):
    """Options of studies that train. typed: the command line, for the record.

    Attributes:
        out: folder for the runs, the table and the plot
        jobs: runs in parallel
        launcher: launcher for each run, such as "deepspeed --num_accelerators 8"
    """

    resumable = True

    out: Path = option(metavar="FOLDER")
    jobs: Count = option(1, metavar="J")
    launcher: Words | None = option(None, metavar="COMMAND")
    typed: str = ""


class FrozenBaseOptions(ImportOptions):
    """Where the frozen weights are that a checkpoint does not hold.

    Attributes:
        base: of a checkpoint that holds only what was trained: where its base is, if it moved
            (docs/finetune.md)
    """

    base: Path | None = option(None, metavar="DIR")


class ModelOptions(FrozenBaseOptions):
    """How a model folder is opened. Nothing in it is run without `trust_remote_code`.

    Attributes:
        adapter: adapter that `megatape export --adapter` wrote, to merge into the model that it was
            trained on
        trust_remote_code: run the Python files in MODEL_DIR: for models that `megatape export` did
            not write
    """

    adapter: Path | None = option(None, metavar="DIR")
    trust_remote_code: bool = False

    def check_folders(self, *models: Path) -> None:
        """Check that the models and the adapter exist, without importing torch. Raises MissingPath."""
        for model in models:
            check_model_folder(model)
        if self.adapter is not None:
            check_model_folder(self.adapter, ADAPTER)


def prepare_deepspeed(verbose: bool = False) -> None:
    """Check the environment variables that DeepSpeed reads on import, and unless `verbose` only log its errors.

    The same holds for the log of torch's C++ code: when rank 0 has ended, each other rank would print a warning with stack
    frames for every call that no longer reaches the store. Torch reads the variable on import.

    Args:
        verbose: Whether to show the whole logs of DeepSpeed and torch.

    Raises:
        UserError: As `limits_of_environment`.
    """
    from megatape.reliability.limits import limits_of_environment

    limits_of_environment()
    if not verbose:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
        logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)


def read_tokenizer(path: Path) -> "Tokenizer":
    """The tokenizer in a file or folder; warns if models that train with it cannot be exported.

    Raises FileNotFoundError or UserError.
    """
    from megatape.data.tokenizers.files import load_tokenizer
    from megatape.hf.tokenizer import special_tokens

    tokenizer = load_tokenizer(path)
    try:
        special_tokens(tokenizer)
    except UserError as error:
        print(f"warning: a model trained on this data cannot be exported. {error}", file=sys.stderr)
    return tokenizer


def report_skipped(counts: "RecordCounts", max_record_bytes: int) -> None:
    """Print which records were skipped, if any."""
    if counts.too_long:
        print(
            f"skipped {plural(counts.too_long, 'record')} longer than {max_record_bytes:,} bytes (raise --max-record-bytes to "
            f"keep them), the first one: {counts.first_too_long}"
        )
    if counts.unverified:
        noun = "file has" if counts.unverified == 1 else "files have"
        print(
            f"{counts.unverified:,} compressed {noun} no checksums, so damage may go unnoticed (pack with zstd --check, or xz "
            f"--check=crc64), the first one: {counts.first_unverified}"
        )
    if counts.bad:
        examples = map(mask, counts.bad_examples)
        print(f"skipped {plural(counts.bad, 'bad record')}, the first ones:", *examples, sep="\n  ")


def report_skipped_files(skipped: "Mapping[str, SkippedFiles]") -> None:
    """Print the files that are skipped because of their names, by input."""
    from megatape.data.printable import printable

    for name, files in skipped.items():
        print(f"{mask(printable(name))}: {files}")


def report_written(index: "Index", output: Path) -> None:
    """Print the splits of a data directory that was written."""
    for name, split in index.splits.items():
        documents = plural(split.documents, "document")
        tokens = plural(split.tokens, "token")
        print(f"{name}: {documents}, {tokens}, {plural(len(split.shards), 'shard')}")
    print(f"wrote {output}")


def token_bar(what: str) -> "tqdm[NoReturn]":
    """A progress bar of tokens."""
    from tqdm import tqdm

    return tqdm(desc=what, unit=" tokens", unit_scale=True, delay=0.5)
