"""Continuations of prompts, printed as they are generated or written to a file."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.cli.terminal import show, visible_json
from megatape.commands.generation.prompts import checked_conversation
from megatape.errors import UserError

if TYPE_CHECKING:
    from megatape.hf.generation.prompts import Prompt
    from megatape.hf.generation.sampling import Sampling
    from megatape.hf.loading.loaded_model import LoadedModel

BATCH_TOKENS = 2**14  # maximum tokens of the prompts and continuations that are generated together


def print_continuations(loaded: "LoadedModel", prompt: str, sampling: "Sampling", repeat: bool) -> None:
    """Print samples one after the other, while they are generated.

    Args:
        loaded: The model.
        prompt: Text to continue.
        sampling: Options of the continuations.
        repeat: Whether to print the prompt before each sample.
    """
    from megatape.hf.generation.continuations import continue_prompts
    from megatape.hf.generation.prompts import check_room, read_prompt

    tokens = read_prompt(loaded, prompt)
    check_room(loaded, len(tokens.ids), sampling)
    single = sampling.model_copy(update={"samples": 1})
    for number in range(1, sampling.samples + 1):
        if sampling.samples > 1:
            show(f"--- {number} ---\n")
        if repeat:
            show(prompt)
        continue_prompts(loaded, [tokens], single, show)
        show("\n")


def write_continuations(
    loaded: "LoadedModel", prompts_file: Path, records: list[dict[str, Any]], sampling: "Sampling", output: Path | None
) -> None:
    """Write a line per sample, a batch at a time: an interrupt leaves whole lines.

    Args:
        loaded: The model.
        prompts_file: File of the prompts, for errors.
        records: Records of the file.
        sampling: Options of the continuations.
        output: File to write. None: standard output.
    """
    from megatape.hf.generation.continuations import continue_prompts
    from megatape.hf.generation.prompts import check_room

    prompts = _prompts(loaded, prompts_file, records)
    lengths = [len(prompt.ids) for prompt in prompts]
    check_room(loaded, max(lengths), sampling)
    opened: Any = nullcontext(sys.stdout)
    if output is not None:
        # JSON allows lone surrogates in `records` as escapes only.
        opened = output.open("x", encoding="utf-8", errors="backslashreplace")
    with opened as file:
        # A terminal's encoding may lack characters. They are written as escapes, too.
        ensure_ascii = file.encoding != "utf-8"
        for begin, end in batches(lengths, sampling):
            continuations = continue_prompts(loaded, prompts[begin:end], sampling)
            for record, samples in zip(records[begin:end], continuations, strict=True):
                for number, sample in enumerate(samples):
                    line = record | {"sample": number, "continuation": sample.text, "end": sample.end}
                    text = json.dumps(line, ensure_ascii=ensure_ascii)
                    if output is None:
                        text = visible_json(text)
                    print(text, file=file)
            file.flush()


def _prompts(loaded: "LoadedModel", file: Path, records: list[dict[str, Any]]) -> list["Prompt"]:
    """Return the prompt of each record of a file."""
    from megatape.hf.generation.prompts import ConversationPrompts, read_prompt

    conversations = None
    prompts = []
    for number, record in enumerate(records, start=1):
        try:
            if "messages" in record:
                # Made once, and only if the model has a chat template to read.
                conversations = conversations or ConversationPrompts(loaded)
                prompt = conversations.prompt(checked_conversation(record))
            else:
                prompt = read_prompt(loaded, record["prompt"])
        except UserError as error:
            raise UserError(f"prompts {file}:{number}: {error}") from None
        prompts.append(prompt)
    return prompts


def batches(lengths: list[int], sampling: "Sampling") -> Iterator[tuple[int, int]]:
    """Yield the begin and the end of consecutive prompts that form a batch.

    A padded batch has at most BATCH_TOKENS tokens, unless a single prompt has more.

    Args:
        lengths: Number of tokens of each prompt.
        sampling: Number of samples, and their maximum length.
    """
    begin = 0
    longest = 0
    for end, length in enumerate(lengths):
        longest = max(longest, length)
        num_texts = (end + 1 - begin) * sampling.samples
        num_tokens = num_texts * (longest + sampling.max_new_tokens)
        if end > begin and num_tokens > BATCH_TOKENS:
            yield begin, end
            begin = end
            longest = length
    yield begin, len(lengths)
