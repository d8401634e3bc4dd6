"""Table of commands, in the order of their use."""

# Use -> its commands: name -> description. `megatape --help` shows a command of one word on one line.
COMMANDS_BY_USE = {
    "data": {
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
    },
    "train": {
        "init": "write a configuration of this project, to begin with",
        "import": "make a pretrained model of transformers the start of training",
        "plan": "estimate memory, traffic and step time on a cluster",
        "preflight": "check all ranks before a run: devices, network, folders, clocks",
        "pretrain": "train a language model",
        "supervise": "start a pretraining run, and again if a rank dies",
        "submit": "submit a pretraining run to a Slurm cluster",
        "branch": "make a run that decays the learning rate from a checkpoint",
        "average": "average the weights of checkpoints of a run",
    },
    "watch": {
        "monitor": "show runs live in a terminal: loss, speed, memory, ranks, events",
        "report": "write a page about runs: curves, events, evaluations",
        "ledger": "verify which samples a run trained on, and list skipped ones",
    },
    "use": {
        "export": "export a checkpoint to a folder that transformers can load",
        "generate": "continue a prompt with an exported model",
    },
    "evaluate": {
        "evaluate": "evaluate a trained model on a task",
        "scores": "score a file of predictions as SCROLLS does",
    },
    "compare": {
        "study": "compare encodings and methods, as the paper does",
        "study shift": "measure how added tokens and shifted position ids change attention",
        "study attention": "plot dot products of the position tensors, and attention",
        "study compare": "train several encodings and seeds, and compare them in a table and a plot",
        "study suite": "compare position encodings on synthetic tasks that separate them",
        "study finetune": "fine-tune a pretrained model to longer texts by several methods, and compare them",
        "benchmark": "measure speed, memory and start-up",
        "benchmark gpu": "measure kernels, training steps and serving on a GPU",
        "benchmark roofline": "estimate the training steps of that benchmark without a GPU",
        "benchmark efficiency": "measure parameters, FLOPs, memory and time of the encodings",
        "benchmark serving": "measure exported models against a Llama: reading prompts, decoding, memory, cache",
        "benchmark loader": "measure how fast training samples are read, beside webdataset",
        "benchmark memory": "measure resident memory per rank by ZeRO stage and tensor-parallel ranks",
        "benchmark preparation": "measure the preparation of data against its tokenizer alone, with gigatoken and without",
    },
    "tools": {
        "constraints": "print the versions of packages that this version is tested with",
        "completion": "print a script by which a shell completes commands and options",
    },
}
# Name -> description, of all commands
COMMANDS = {name: description for commands in COMMANDS_BY_USE.values() for name, description in commands.items()}


def is_group(name: str) -> bool:
    """Whether the table has commands that begin with this one, which then cannot be run by itself."""
    return any(other.startswith(f"{name} ") for other in COMMANDS)


def sentence(description: str) -> str:
    """Return the description of a command as a sentence."""
    return f"{description[0].upper()}{description[1:]}."
