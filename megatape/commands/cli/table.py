"""Table of commands, in the order in which they are used."""

# Use -> name of a command -> description. Help shows a command and its description on one line of 80 columns.
COMMANDS_BY_USE = {
    "data": {
        "prepare": "make a data directory of texts, chats or generated problems",
        "prepare corpus": "tokenize a corpus into shards",
        "prepare addition": "generate addition problems with reversed digits",
        "prepare finetuning": "tokenize prompts and answers; only answers are learned",
        "data": "inspect data directories and train tokenizers",
        "data report": "print a summary of a data directory",
        "data status": "show the progress of an unfinished preparation",
        "data where": "show the document that contains a token",
        "data merge": "merge data directories with the same tokenizer",
        "data subset": "select documents of a data directory for a new one",
        "data import": "convert another system's token files to a data directory",
        "data export": "convert a data directory to another system's token files",
        "data tiktoken": "convert a tiktoken file to a tokenizer.json",
        "data tokenizer": "train a SentencePiece BPE tokenizer with byte fallback",
    },
    "train": {
        "init": "copy an example configuration, or list all of them",
        "import": "start from a pretrained transformers model",
        "plan": "estimate memory, traffic and step time on a cluster",
        "preflight": "check all ranks before a run: devices, network, folders, clocks",
        "pretrain": "train a language model",
        "supervise": "start a pretraining run, and restart it if a rank dies",
        "submit": "submit a pretraining run to a Slurm cluster",
        "branch": "create a run that decays the learning rate of a checkpoint",
        "average": "average the weights of several checkpoints",
    },
    "watch": {
        "monitor": "show runs live in a terminal: loss, speed, memory, ranks, events",
        "report": "write a page about runs: curves, events, evaluations",
        "ledger": "verify which samples a run trained on, or where its time went",
    },
    "use": {
        "export": "export a checkpoint to a folder that transformers can load",
        "push": "upload an exported model to the Hugging Face hub",
        "generate": "generate text with a trained model, or chat with it",
    },
    "evaluate": {
        "evaluate": "evaluate trained models on tasks",
        "scores": "score predictions with the metrics of SCROLLS",
    },
    "compare": {
        "study": "compare encodings and methods, as the paper does",
        "study shift": "measure how added tokens and shifted position ids change attention",
        "study attention": "plot dot products of the position tensors, and attention",
        "study compare": "train encodings and seeds, and compare them in a table and plot",
        "study suite": "compare position encodings on synthetic tasks that separate them",
        "study finetune": "compare methods of fine-tuning a model to longer texts",
        "benchmark": "measure speed, memory and start-up",
        "benchmark gpu": "measure kernels, training steps and serving on a GPU",
        "benchmark roofline": "estimate the training steps of `benchmark gpu` without a GPU",
        "benchmark efficiency": "measure parameters, FLOPs, memory and time of the encodings",
        "benchmark serving": "compare exported models with a Llama: speed, memory, cache",
        "benchmark loader": "compare the speed of reading samples with webdataset's",
        "benchmark memory": "measure host memory per rank, by ZeRO stage and tp ranks",
        "benchmark saves": "measure how long training waits for saves, and restoring",
        "benchmark duplicates": "compare the speed of finding duplicates with numpy's sort",
        "benchmark preparation": "compare the speed of data preparation with its tokenizer's",
    },
    "tools": {
        "constraints": "print the tested versions of all packages",
        "completion": "print a shell script that completes commands and options",
    },
}
# Name of a command -> description.
COMMANDS = {name: description for commands in COMMANDS_BY_USE.values() for name, description in commands.items()}


def is_group(name: str) -> bool:
    """Whether a name is a group of commands, such as "data", which cannot be run without a further word."""
    return any(other.startswith(f"{name} ") for other in COMMANDS)


def sentence(description: str) -> str:
    """Return the description of a command as a sentence."""
    return f"{description[0].upper()}{description[1:]}."
