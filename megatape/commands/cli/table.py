"""Table of commands, and the parser of their command lines."""

import argparse
import re
from collections.abc import Sequence
from functools import partial
from importlib import import_module

from megatape.commands.cli.arguments import add_options
from megatape.commands.cli.parser import Parser
from megatape.commands.cli.running import run_command

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
    "init": "write a configuration of this project, to begin with",
    "constraints": "print the versions of packages with which this version was tested",
    "completion": "print a script by which a shell completes commands and options",
    "benchmark": "measure speed, memory and start-up",
    "benchmark gpu": "measure kernels, training steps and serving on a GPU",
    "benchmark roofline": "estimate the training steps of that benchmark without a GPU",
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


def parser(words: Sequence[str] | None = None) -> Parser:
    """Return the argument parser of all commands. Its namespace has `run`, the function of the command.

    Args:
        words: Words that it will parse. Only commands named there get their options, because each takes an import. By default
            all commands get them.
    """
    root = Parser(prog="megatape", description="Distributed pretraining of language models on DeepSpeed.")
    version = root.add_argument("--version", action=ShowVersion, nargs=0, help="show version and commit, and exit")
    root.options.append(version)
    groups = {"": root.add_commands()}
    for name, description in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        command = groups[group].add_parser(word, help=description, description=sentence(description))
        is_group = any(other.startswith(f"{name} ") for other in COMMANDS)
        if is_group:
            groups[name] = command.add_commands()
        elif words is None or word in words:
            module = import_module(f"megatape.commands.{name.replace(' ', '.')}")
            command.epilog = f"example:\n  {example(name, module.__doc__)}"
            add_options(command, module.Options)
            command.set_defaults(run=partial(run_command, module.Options, module.run))
    return root


class ShowVersion(argparse.Action):
    """Prints the version. Its modules are imported here, because other commands do not need them."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from megatape.utils.software import package_version

        print(f"megatape {package_version()}")
        parser.exit()


def example(name: str, docstring: str | None) -> str:
    """Return the example of a command: the first text in backquotes of its module's docstring, by default its name alone."""
    found = re.search(r"`(.*?)`", docstring or "")
    if found is None:
        return f"megatape {name}"
    return found[1]


def sentence(description: str) -> str:
    """Return the description of a command as a sentence."""
    return f"{description[0].upper()}{description[1:]}."
