"""Generates text with a trained model, or chats with it (--chat)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.cli.terminal import take_lines
from megatape.commands.generation.continuations import print_continuations, write_continuations
from megatape.commands.generation.prompts import read_conversation, read_prompts, with_system
from megatape.commands.options.shared_options import ModelOptions
from megatape.errors import UserError, flag, path_errors
from megatape.errors.text_checks import check_text
from megatape.hf.generation.sampling import CHAT_TOKENS, Sampling
from megatape.utils.files.atomic import check_absent
from megatape.utils.values.options import option

if TYPE_CHECKING:
    from megatape.data.finetuning.conversation import Message
    from megatape.hf.loading.loaded_model import LoadedModel

EXAMPLE = 'megatape generate exported --prompt "Once upon a time"'


class Options(Sampling, ModelOptions):
    """A model, prompts, and sampling options.

    Attributes:
        folder: exported model, checkpoint, import, or pretrained transformers model
        prompt: text to continue
        prompts: file with prompts: a .txt file with one per line, or a .jsonl file whose lines have
            `prompt` or `messages`
        interactive: read prompts from the terminal, one per line
        chat: chat in the terminal, with the model's chat template or, if it has none, in the format
            of fine-tuning
        system: with --chat: system prompt
        conversation: with --chat: file of the conversation, which is continued if it exists and
            saved after each answer
        output: with --prompts: file of JSON lines to write (default: standard output)
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


@dataclass(frozen=True)
class Inputs:
    """Files that the options name.

    Attributes:
        records: Records with `prompt` or `messages`, one per line of the prompts file.
        messages: Messages of the conversation, with the system prompt.
    """

    records: "list[dict[str, Any]]"
    messages: "list[Message]"


@path_errors()
def run(options: Options) -> None:
    """Continue a prompt, all prompts in a file, or lines typed in the terminal; or chat."""
    if options.chat and "max_new_tokens" not in options.model_fields_set:
        options = options.model_copy(update={"max_new_tokens": CHAT_TOKENS})
    _check_combinations(options)
    # Check all texts before importing torch, which takes seconds.
    inputs = _read_inputs(options)
    options.check_folders(options.folder)

    import torch
    from transformers.utils.logging import disable_progress_bar

    from megatape.commands.generation.chat import Chat
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
            Chat(loaded, options, inputs.messages, options.conversation).run()
        elif options.prompts is not None:
            write_continuations(loaded, options.prompts, inputs.records, options, options.output)
        elif options.interactive:
            take_lines(partial(_continue_line, loaded, options))
        else:
            assert options.prompt is not None
            print_continuations(loaded, options.prompt, options, repeat=True)


def _read_inputs(options: Options) -> Inputs:
    """Check the prompt, and read the prompts file and the conversation.

    Raises:
        UserError: A text or file is invalid, or the output exists.
    """
    if options.output is not None:
        check_absent(options.output)
    if options.prompt is not None:
        check_text(options.prompt, flag("prompt"))
    records = read_prompts(options.prompts) if options.prompts is not None else []
    messages = []
    if options.conversation is not None:
        messages = read_conversation(options.conversation)
    if options.system is not None:
        messages = with_system(messages, check_text(options.system, flag("system")))
    return Inputs(records, messages)


def _check_combinations(options: Options) -> None:
    """Check that no option without effect is given.

    Raises:
        UserError: An option has no effect in combination with the others.
    """
    for name, needed in {"output": "prompts", "system": "chat", "conversation": "chat"}.items():
        if getattr(options, name) is not None and not getattr(options, needed):
            raise UserError(f"{flag(name)} only works with {flag(needed)}: give {flag(needed)}, or leave it out")
    if options.samples > 1 and options.chat:
        raise UserError(f"{flag('samples')} is {options.samples}, but a conversation continues with one answer: leave it out")
    if options.temperature:
        return
    for name in ("top_k", "top_p", "samples"):
        value = getattr(options, name)
        if value != Options.model_fields[name].default:
            raise UserError(f"{flag(name)} {value} has no effect on the likeliest text: give {flag('temperature')} above 0")


def _continue_line(loaded: "LoadedModel", sampling: Sampling, line: str) -> None:
    """Print the continuation of a typed line."""
    print_continuations(loaded, check_text(line, "a line"), sampling, repeat=False)
