"""Continuations of prompts, printed while they are generated or written to a file."""

import codecs
import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.cli.terminal import show, visible_json
from megatape.commands.generation.prompts import checked_conversation
from megatape.errors import UserError, flag

if TYPE_CHECKING:
    from megatape.hf.generation.prompts import Prompt
    from megatape.hf.generation.sampling import Sampling
    from megatape.hf.loading.loaded_model import LoadedModel

# Maximum number of tokens in a batch, prompts and continuations together.
BATCH_TOKENS = 2**14


def print_continuations(loaded: "LoadedModel", prompt: str, sampling: "Sampling", repeat: bool) -> None:
    """Print samples one after the other, while they are generated.

    Args:
        loaded: Loaded model.
        prompt: Text to continue.
        sampling: Sampling options.
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
    """Write a line per sample, one batch at a time. After an interrupt, the file only has complete lines.

    Args:
        loaded: Loaded model.
        prompts_file: Prompts file, for error messages.
        records: Records of the prompts file.
        sampling: Sampling options.
        output: File to write, or None for standard output.
    """
    from megatape.hf.generation.continuations import continue_prompts
    from megatape.hf.generation.prompts import check_room

    prompts = _prompts(loaded, prompts_file, records)
    lengths = [len(prompt.ids) for prompt in prompts]
    check_room(loaded, max(lengths), sampling)
    opened: Any = nullcontext(sys.stdout)
    if output is not None:
        # Lone surrogates from `records` can only be written to JSON as escapes.
        opened = output.open("x", encoding="utf-8", errors="backslashreplace")
    with opened as file:
        # A terminal's encoding may lack characters, which are then written as escapes, too.
        ensure_ascii = codecs.lookup(file.encoding).name != "utf-8"
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
    """Return each record's prompt."""
    from megatape.hf.generation.prompts import ConversationPrompts, read_prompt

    conversations = None
    prompts = []
    for number, record in enumerate(records, start=1):
        try:
            if "messages" in record:
                # Create it once, and only if it is needed, because it reads the model's chat template.
                conversations = conversations or ConversationPrompts(loaded)
                prompt = conversations.prompt(checked_conversation(record))
            else:
                prompt = read_prompt(loaded, record["prompt"])
        except UserError as error:
            raise UserError(f"{flag('prompts')} {file}:{number}: {error}") from None
        prompts.append(prompt)
    return prompts


def batches(lengths: list[int], sampling: "Sampling") -> Iterator[tuple[int, int]]:
    """Split consecutive prompts into batches, and yield their begin and end indices.

    A padded batch has at most BATCH_TOKENS tokens, unless a single prompt has more.

    Args:
        lengths: Tokens in each prompt.
        sampling: Sampling options, for the number and length of samples.
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
