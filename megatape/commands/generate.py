"""megatape generate: `megatape generate exported --prompt "Once upon a time"`."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.options import ModelOptions
from megatape.errors import UserError, path_errors
from megatape.files import check_absent, parse_json
from megatape.options import option

if TYPE_CHECKING:
    from megatape.hf.generation import Sampling
    from megatape.hf.loading import LoadedModel

BATCH_TOKENS = 2**14  # of prompts and continuations that are generated together


class Options(ModelOptions):
    """A model, texts for it to continue, and how it samples (megatape.hf.generation.Sampling)."""

    exactly_one = (("prompt", "prompts", "interactive"),)

    folder: Path = option(
        "exported model, checkpoint, import, or pretrained model of transformers", positional=True, metavar="MODEL_DIR"
    )
    prompt: str | None = option("text to continue", None)
    prompts: Path | None = option(
        "texts to continue: one per line of a .txt, or `prompt` in a line of a .jsonl", None, metavar="FILE"
    )
    interactive: bool = option("read texts to continue from the terminal, one per line", False)
    output: Path | None = option("with --prompts: JSON lines to write (default: standard output)", None, metavar="FILE")
    max_new_tokens: int = option("maximum number of new tokens", 64, metavar="N")
    temperature: float = option("sampling temperature; 0 is greedy", 0.0, metavar="T")
    top_k: int | None = option("sample from the K likeliest tokens", None, metavar="K")
    top_p: float | None = option("sample from the fewest tokens of probability P together", None, metavar="P")
    stop: tuple[str, ...] = option("end a text before this string; repeatable", (), metavar="TEXT", repeatable=True)
    samples: int = option("samples of each prompt", 1, metavar="K")
    seed: int = option("seed of sampling", 0)


@path_errors()
def run(options: Options) -> int:
    """Print the prompt and its continuation as it comes, answer line by line, or write a file."""
    import torch
    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.generation import Sampling, check_text
    from megatape.hf.loading import load_trained

    disable_progress_bar()
    sampling = options.fill(Sampling)
    if options.output is not None and options.prompts is None:
        raise UserError("output is for texts of `prompts`: give `prompts`, or leave it out")
    if options.output is not None:
        check_absent(options.output)
    if options.prompt is not None:
        check_text(options.prompt, "prompt")
    records = [] if options.prompts is None else read_prompts(options.prompts)
    with options.fill(load_trained) as loaded:
        torch.manual_seed(sampling.seed)
        if options.prompts is not None:
            _write(loaded, records, sampling, options.output)
        elif options.interactive:
            for line in _typed_lines():
                try:
                    check_text(line, "a line")
                except UserError as error:
                    _warn(str(error))
                    continue
                _print(loaded, line, sampling, repeat=False)
        else:
            assert options.prompt is not None
            _print(loaded, options.prompt, sampling, repeat=True)
    return 0


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file, each an object with a `prompt`, or those of a .txt file as such objects.

    Raises FileNotFoundError, or UserError naming the line that has no prompt.
    """
    from megatape.hf.generation import check_text

    if path.suffix not in (".jsonl", ".txt"):
        raise UserError(f"prompts {path}: give a .jsonl file, or a .txt file with one prompt per line")
    try:
        text = path.read_text(encoding="utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"prompts {path} is not UTF-8 text ({error}): convert it") from None
    if not text:
        raise UserError(f"prompts {path} is empty: give at least one prompt")
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"prompts {path}:{number}"
        try:
            record = {"prompt": line} if path.suffix == ".txt" else parse_json(line)
        except ValueError as error:
            raise UserError(f"{place}: not JSON ({error})") from None
        if not isinstance(record, dict) or not isinstance(record.get("prompt"), str):
            raise UserError(f'{place}: no object with a text "prompt": {line[:80]}')
        check_text(record["prompt"], f"{place}: the prompt")
        records.append(record)
    return records


def _print(loaded: "LoadedModel", prompt: str, sampling: "Sampling", repeat: bool) -> None:
    """Samples one after the other. repeat: print the prompt before each."""
    from megatape.hf.generation import continue_prompts, prompt_ids, too_long

    ids = prompt_ids(loaded, prompt)
    _warn(too_long(loaded, len(ids), sampling))
    for number in range(1, sampling.samples + 1):
        if sampling.samples > 1:
            _show(f"--- {number} ---\n")
        if repeat:
            _show(prompt)
        continue_prompts(loaded, [ids], replace(sampling, samples=1), _show)
        _show("\n")


def _write(loaded: "LoadedModel", records: list[dict[str, Any]], sampling: "Sampling", output: Path | None) -> None:
    """A line per sample, a batch at a time, so that what is there when the command is interrupted is whole."""
    from megatape.hf.generation import continue_prompts, prompt_ids, too_long

    prompts = [prompt_ids(loaded, record["prompt"]) for record in records]
    _warn(too_long(loaded, max(map(len, prompts)), sampling))
    # JSON allows lone surrogates in `records` as escapes only, and so is anything else that a terminal's encoding lacks.
    opened = nullcontext(sys.stdout) if output is None else output.open("x", encoding="utf-8", errors="backslashreplace")
    with opened as file:
        for begin, end in _batches([len(prompt) for prompt in prompts], sampling):
            found = continue_prompts(loaded, prompts[begin:end], sampling)
            for record, continuations in zip(records[begin:end], found, strict=True):
                for number, continuation in enumerate(continuations):
                    line = record | {"sample": number, "continuation": continuation.text, "end": continuation.end}
                    print(json.dumps(line, ensure_ascii=file.encoding != "utf-8"), file=file)
            file.flush()


def _batches(lengths: list[int], sampling: "Sampling") -> Iterator[tuple[int, int]]:
    """Begin and end of consecutive prompts of these lengths that are batched.

    A batch is padded to at most BATCH_TOKENS, if one prompt alone is not longer.
    """
    begin, longest = 0, 0
    for end, length in enumerate(lengths):
        longest = max(longest, length)
        if end > begin and (end + 1 - begin) * sampling.samples * (longest + sampling.max_new_tokens) > BATCH_TOKENS:
            yield begin, end
            begin, longest = end, length
    yield begin, len(lengths)


def _typed_lines() -> Iterator[str]:
    """Lines of standard input that are not empty, asked for by "> " on a terminal."""
    while True:
        if sys.stdin.isatty():
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _show(text: str) -> None:
    print(text, end="", flush=True)


def _warn(warning: str | None) -> None:
    if warning:
        print(warning, file=sys.stderr, flush=True)
