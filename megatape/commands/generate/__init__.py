"""megatape generate: `megatape generate exported --prompt "Once upon a time"`, or a conversation with --chat."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.cli.shared_options import ModelOptions
from megatape.commands.cli.terminal import show, take_lines, visible_json
from megatape.commands.generate.prompts import checked_conversation, read_conversation, read_prompts, with_system
from megatape.errors import UserError, path_errors
from megatape.errors.text_checks import check_text
from megatape.hf.generation.sampling import CHAT_TOKENS, Sampling
from megatape.utils.atomic import check_absent
from megatape.utils.options import option

if TYPE_CHECKING:
    from megatape.hf.generation.prompts import Prompt
    from megatape.hf.loading.loaded_model import LoadedModel

BATCH_TOKENS = 2**14  # maximum tokens of the prompts and continuations that are generated together


class Options(Sampling, ModelOptions):
    """A model, texts for it to continue, and how it samples.

    Attributes:
        folder: exported model, checkpoint, import, or pretrained model of transformers
        prompt: text to continue
        prompts: texts to continue: one per line of a .txt, or `prompt` or `messages` in a line of a
            .jsonl
        interactive: read texts to continue from the terminal, one per line
        chat: converse in the terminal by the model's chat template, or as fine-tuning writes
            conversations without one
        system: with --chat: system prompt
        conversation: with --chat: conversation to continue, if there is one, and to save after each
            answer
        output: with --prompts: JSON lines to write (default: standard output)
    """

    exactly_one = (("prompt", "prompts", "interactive", "chat"),)

    folder: Path = option(positional=True, metavar="MODEL_DIR")
    prompt: str | None = None
    prompts: Path | None = option(None, metavar="FILE")
    interactive: bool = False
    chat: bool = False
    system: str | None = option(None, metavar="TEXT")
    conversation: Path | None = option(None, metavar="FILE")
    output: Path | None = option(None, metavar="FILE")


@path_errors()
def run(options: Options) -> None:
    """Print a prompt and its continuation as it is generated, converse, answer line by line, or write a file.

    All texts of the user are checked before torch is imported, which takes seconds.
    """
    if options.chat and "max_new_tokens" not in options.model_fields_set:
        options = options.model_copy(update={"max_new_tokens": CHAT_TOKENS})
    _check_uses(options)
    if options.output is not None:
        check_absent(options.output)
    if options.prompt is not None:
        check_text(options.prompt, "prompt")
    records = []
    if options.prompts is not None:
        records = read_prompts(options.prompts)
    messages = []
    if options.conversation is not None:
        messages = read_conversation(options.conversation)
    if options.system is not None:
        messages = with_system(messages, check_text(options.system, "system"))
    options.check_folders(options.folder)

    import torch
    from transformers.utils.logging import disable_progress_bar

    from megatape.commands.generate.chat import Chat
    from megatape.hf.loading.load import load_trained

    disable_progress_bar()
    loading = load_trained(
        options.folder,
        trust_remote_code=options.trust_remote_code,
        base=options.base,
        adapter=options.adapter,
    )
    with loading as loaded:
        torch.manual_seed(options.seed)
        if options.chat:
            Chat(loaded, options, messages, options.conversation).run()
        elif options.prompts is not None:
            _write(loaded, records, options)
        elif options.interactive:
            take_lines(partial(_continue_line, loaded, options))
        else:
            assert options.prompt is not None
            _print(loaded, options.prompt, options, repeat=True)


def _check_uses(options: Options) -> None:
    """Check that the chosen kind of input uses all options that are given.

    Raises:
        UserError: It does not use one of them.
    """
    for name, user in {"output": "prompts", "system": "chat", "conversation": "chat"}.items():
        if getattr(options, name) is not None and not getattr(options, user):
            raise UserError(f"{name} is for texts of `{user}`: give `{user}`, or leave it out")
    if options.samples > 1 and options.chat:
        raise UserError(f"samples is {options.samples}, but a conversation continues with one answer: leave it out")
    if options.temperature:
        return
    for name in ("top_k", "top_p", "samples"):
        value = getattr(options, name)
        if value != Options.model_fields[name].default:
            raise UserError(f"{name} {value} has no effect on the likeliest text: give `temperature` above 0")


def _continue_line(loaded: "LoadedModel", sampling: Sampling, line: str) -> None:
    """Print the continuation of a line that the user has typed."""
    _print(loaded, check_text(line, "a line"), sampling, repeat=False)


def _print(loaded: "LoadedModel", prompt: str, sampling: Sampling, repeat: bool) -> None:
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


def _write(loaded: "LoadedModel", records: list[dict[str, Any]], options: Options) -> None:
    """Write a line per sample, a batch at a time: an interrupt leaves whole lines."""
    from megatape.hf.generation.continuations import continue_prompts
    from megatape.hf.generation.prompts import check_room

    prompts = _prompts(loaded, records, options)
    lengths = [len(prompt.ids) for prompt in prompts]
    check_room(loaded, max(lengths), options)
    output: Any = nullcontext(sys.stdout)
    if options.output is not None:
        # JSON allows lone surrogates in `records` as escapes only.
        output = options.output.open("x", encoding="utf-8", errors="backslashreplace")
    with output as file:
        # A terminal's encoding may lack characters. They are written as escapes, too.
        ensure_ascii = file.encoding != "utf-8"
        for begin, end in _batches(lengths, options):
            continuations = continue_prompts(loaded, prompts[begin:end], options)
            for record, samples in zip(records[begin:end], continuations, strict=True):
                for number, sample in enumerate(samples):
                    line = record | {"sample": number, "continuation": sample.text, "end": sample.end}
                    text = json.dumps(line, ensure_ascii=ensure_ascii)
                    if options.output is None:
                        text = visible_json(text)
                    print(text, file=file)
            file.flush()


def _prompts(loaded: "LoadedModel", records: list[dict[str, Any]], options: Options) -> list["Prompt"]:
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
            raise UserError(f"prompts {options.prompts}:{number}: {error}") from None
        prompts.append(prompt)
    return prompts


def _batches(lengths: list[int], sampling: Sampling) -> Iterator[tuple[int, int]]:
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
