"""The commands, and the one place where their errors become messages and exit statuses.

0    done
1    a child process failed
2    something the user can fix: arguments, configuration, files, a package that is not installed
130  interrupted

A run that ends in another way says so by a status of its own (docs/training.md).
"""

import argparse
import shlex
import sys
from importlib import import_module

from safetensors import SafetensorError

# Each command is the module of its name: `study loss` is megatape/commands/study/loss.py. It has `add_arguments(parser)` and
# `run(args)`, which returns the exit status, and imports whatever takes long, such as torch, inside of `run`.
COMMANDS = {
    "pretrain": "train a language model",
    "plan": "what a configuration needs, and how fast it may run on a cluster",
    "preflight": "check all ranks before a run: versions, devices, network, collectives, folders, clocks",
    "submit": "queue a pretraining run on a Slurm cluster",
    "prepare": "write a data directory",
    "prepare corpus": "tokenize a corpus",
    "prepare addition": "write addition problems with reversed digits",
    "data": "data directories and tokenizers",
    "data report": "print what a data directory holds",
    "data tokenizer": "train a SentencePiece BPE tokenizer with byte fallback",
    "export": "write a checkpoint as a folder that transformers loads",
    "generate": "continue a prompt with an exported model",
    "evaluate": "measure a trained model",
    "study": "the paper's studies and this system's benchmarks",
    "study efficiency": "parameters, operations, memory and time of every encoding",
    "study shift": "what added tokens and shifted position ids change",
    "study attention": "picture of the position tensors' dot products and of attention",
    "study compare": "train several encodings and seeds: one table and picture",
    "study precision": "drift of bfloat16, by precision of the position residual",
    "study loss": "bytes of the loss: by chunks, and all logits at once",
    "study memory": "resident memory per rank by ZeRO stage and tensor-parallel ranks",
    "study scaling": "step time by layers, length and processes",
    "study startup": "seconds from the command to the first step of tape_tiny",
}


def parser() -> argparse.ArgumentParser:
    """Of all commands. What it parses has `run`, the command's function."""
    root = argparse.ArgumentParser(prog="megatape", description="Distributed pretraining of language models on DeepSpeed.")
    # `deepspeed --module megatape pretrain ...` puts it before the command.
    root.add_argument("--local_rank", help=argparse.SUPPRESS)
    groups = {"": root.add_subparsers(metavar="COMMAND", required=True)}
    for name, description in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        command = groups[group].add_parser(word, help=description, description=f"{description[0].upper()}{description[1:]}.")
        if any(other.startswith(f"{name} ") for other in COMMANDS):
            groups[name] = command.add_subparsers(metavar="COMMAND", required=True)
            continue
        module = import_module(f"megatape.commands.{name.replace(' ', '.')}")
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return root


def main(words: list[str] | None = None) -> int:
    """Run a command, by default the one that was typed. Returns the exit status; argparse exits by itself, with 2."""
    words = sys.argv[1:] if words is None else words
    args = parser().parse_args(words, argparse.Namespace(typed=shlex.join(["megatape", *words])))
    try:
        status: int = args.run(args)
        return status
    except KeyboardInterrupt as interrupt:
        print("; ".join(["interrupted", *map(str, interrupt.args)]), file=sys.stderr)
        return 130
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        return _fail(f"{error}: pictures need matplotlib, pip install -c constraints.txt -e .[plots]", 2)
    except ChildProcessError as error:
        return _fail(error, 1)
    except (ValueError, OSError, SafetensorError) as error:
        return _fail(error, 2)


def _fail(error: object, status: int) -> int:
    print(f"error: {error}", file=sys.stderr, flush=True)
    return status
