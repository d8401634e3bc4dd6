"""megatape generate: `megatape generate exported --prompt "Once upon a time"`, or a conversation with --chat."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from megatape.commands.options import ModelOptions
from megatape.commands.terminal import visible, visible_json
from megatape.errors import MissingPath, UserError, check_text, content_errors, path_errors
from megatape.hf.sampling import CHAT_TOKENS, Sampling
from megatape.utils.files import as_type, check_absent, parse_json, read_json, write_atomically
from megatape.utils.options import option

if TYPE_CHECKING:
    from megatape.data.finetuning.conversation import Conversation, Message
    from megatape.hf.generation import Prompt
    from megatape.hf.loaded_model import LoadedModel

BATCH_TOKENS = 2**14  # of prompts and continuations that are generated together
MIN_ANSWER = 64  # tokens that an answer may have even beyond the model's positions


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
    """Print the prompt and its continuation as it comes, converse, answer line by line, or write a file.

    All texts of the user are checked before torch is imported, which takes seconds.
    """
    if options.chat and "max_new_tokens" not in options.model_fields_set:
        options = options.model_copy(update={"max_new_tokens": CHAT_TOKENS})
    _check_uses(options)
    if options.output is not None:
        check_absent(options.output)
    if options.prompt is not None:
        check_text(options.prompt, "prompt")
    records = [] if options.prompts is None else read_prompts(options.prompts)
    messages = [] if options.conversation is None else read_conversation(options.conversation)
    if options.system is not None:
        messages = with_system(messages, check_text(options.system, "system"))
    options.check_folders(options.folder)

    import torch
    from transformers.utils.logging import disable_progress_bar

    from megatape.hf.loading import load_trained

    disable_progress_bar()
    with options.fill(load_trained) as loaded:
        torch.manual_seed(options.seed)
        if options.chat:
            Chat(loaded, options, messages, options.conversation).run()
        elif options.prompts is not None:
            _write(loaded, records, options)
        elif options.interactive:
            _take_lines(lambda line: _print(loaded, check_text(line, "a line"), options, repeat=False))
        else:
            assert options.prompt is not None
            _print(loaded, options.prompt, options, repeat=True)


def _check_uses(options: Options) -> None:
    """Raise UserError for an option that the chosen kind of input does not use."""
    for name, user in {"output": "prompts", "system": "chat", "conversation": "chat"}.items():
        if getattr(options, name) is not None and not getattr(options, user):
            raise UserError(f"{name} is for texts of `{user}`: give `{user}`, or leave it out")
    if options.samples > 1 and options.chat:
        raise UserError(f"samples is {options.samples}, but a conversation continues with one answer: leave it out")
    for name in ("top_k", "top_p", "samples"):
        if (value := getattr(options, name)) != Options.model_fields[name].default and not options.temperature:
            raise UserError(f"{name} {value} has no effect on the likeliest text: give `temperature` above 0")


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """The lines of a .jsonl file, each an object with `prompt` or `messages`, or those of a .txt file as prompts.

    Raises MissingPath, or UserError naming the line that has neither.
    """
    if path.suffix not in (".jsonl", ".txt"):
        raise UserError(f"prompts {path}: give a .jsonl file, or a .txt file with one prompt per line")
    if not path.exists():
        raise MissingPath(f"prompts {path}: no such file: give a .jsonl or .txt file")
    with content_errors(f"prompts {path} is not UTF-8 text", "convert it"):
        text = path.read_text(encoding="utf-8").rstrip("\n")
    if not text:
        raise UserError(f"prompts {path} is empty: give at least one prompt")
    records = []
    for number, line in enumerate(text.split("\n"), start=1):
        place = f"prompts {path}:{number}"
        try:
            record = {"prompt": line} if path.suffix == ".txt" else parse_json(line)
        except ValueError as error:
            raise UserError(f"{place}: not JSON ({error})") from None
        if not isinstance(record, dict) or ("messages" in record) == isinstance(record.get("prompt"), str):
            raise UserError(f'{place}: no object with either a text "prompt" or "messages": {line[:80]}')
        try:
            if "messages" not in record:
                check_text(record["prompt"], "the prompt")
            else:
                last = checked_conversation(record).messages[-1]["role"]
                if last not in ("user", "tool"):
                    raise UserError(f"the last message is of the {last}: end with one of the user or a tool, for an answer")
        except UserError as error:
            raise UserError(f"{place}: {error}") from None
        records.append(record)
    return records


def _prompts(loaded: "LoadedModel", records: list[dict[str, Any]], options: Options) -> list["Prompt"]:
    """The prompt of each record of a file."""
    from megatape.hf.generation import ConversationPrompts, read_prompt

    conversations = None
    prompts = []
    for number, record in enumerate(records, start=1):
        try:
            if "messages" not in record:
                prompts.append(read_prompt(loaded, record["prompt"]))
                continue
            conversations = conversations or ConversationPrompts(loaded)
            prompts.append(conversations.prompt(checked_conversation(record)))
        except UserError as error:
            raise UserError(f"prompts {options.prompts}:{number}: {error}") from None
    return prompts


def _print(loaded: "LoadedModel", prompt: str, sampling: Sampling, repeat: bool) -> None:
    """Samples one after the other. repeat: print the prompt before each."""
    from megatape.hf.generation import check_room, continue_prompts, read_prompt

    tokens = read_prompt(loaded, prompt)
    check_room(loaded, len(tokens.ids), sampling)
    for number in range(1, sampling.samples + 1):
        if sampling.samples > 1:
            _show(f"--- {number} ---\n")
        if repeat:
            _show(prompt)
        continue_prompts(loaded, [tokens], sampling.model_copy(update={"samples": 1}), _show)
        _show("\n")


def _write(loaded: "LoadedModel", records: list[dict[str, Any]], options: Options) -> None:
    """A line per sample, a batch at a time, so that what is there when the command is interrupted is whole."""
    from megatape.hf.generation import check_room, continue_prompts

    prompts = _prompts(loaded, records, options)
    output = options.output
    lengths = [len(prompt.ids) for prompt in prompts]
    check_room(loaded, max(lengths), options)
    # JSON allows lone surrogates in `records` as escapes only, and so is anything else that a terminal's encoding lacks.
    opened = nullcontext(sys.stdout) if output is None else output.open("x", encoding="utf-8", errors="backslashreplace")
    with opened as file:
        for begin, end in _batches(lengths, options):
            found = continue_prompts(loaded, prompts[begin:end], options)
            for record, continuations in zip(records[begin:end], found, strict=True):
                for number, continuation in enumerate(continuations):
                    line = record | {"sample": number, "continuation": continuation.text, "end": continuation.end}
                    text = json.dumps(line, ensure_ascii=file.encoding != "utf-8")
                    if output is None:
                        text = visible_json(text)
                    print(text, file=file)
            file.flush()


def _batches(lengths: list[int], sampling: Sampling) -> Iterator[tuple[int, int]]:
    """Begin and end of consecutive prompts of these lengths that are batched.

    A batch is padded to at most BATCH_TOKENS, if one prompt alone is not longer.
    """
    begin = 0
    longest = 0
    for end, length in enumerate(lengths):
        longest = max(longest, length)
        if end > begin and (end + 1 - begin) * sampling.samples * (longest + sampling.max_new_tokens) > BATCH_TOKENS:
            yield begin, end
            begin = end
            longest = length
    yield begin, len(lengths)


def _take_lines(take: Callable[[str], None]) -> None:
    """Give each line of standard input that is not empty to `take`, and print the error of one that it refuses."""
    prompt = "> " if sys.stdin.isatty() and sys.stdout.isatty() else ""
    while True:
        try:
            line = input(prompt).removesuffix("\n")  # of pasted lines
            if line.strip():
                take(line)
        except EOFError:
            return
        except KeyboardInterrupt:
            if not sys.stdin.isatty():
                raise
            note("\n(Ctrl-D ends)")
        except (UserError, ChildProcessError) as error:
            note(f"error: {error}")


def _show(text: str) -> None:
    print(visible(text), end="", flush=True)


def checked_conversation(record: dict[str, Any]) -> "Conversation":
    """Return the conversation of a record. Raises RecordError or UserError."""
    from megatape.data.finetuning.conversation import parse_conversation

    conversation = parse_conversation(record)
    for number, message in enumerate(conversation.messages, start=1):
        check_text(message["content"], f"message {number}")
    return conversation


@path_errors()
def read_conversation(path: Path) -> "list[Message]":
    """The messages of a saved conversation, none if the file is yet to be written.

    Raises MissingPath if its folder is, UserError if it is no conversation or ends without an answer.
    """
    if not path.parent.is_dir():
        raise MissingPath(f"conversation {path}: {path.parent} is not a folder: create it, or give another file")
    if not path.exists():
        return []
    with content_errors(f'{path} is not a conversation {{"messages": [...]}}', "give another file"):
        conversation = checked_conversation(as_type(read_json(path), dict[str, Any]))
        messages = conversation.messages
        if conversation.tools or conversation.not_learned:
            raise UserError("it has tools or weights, which would be lost when the chat is saved: give it to `prompts` instead")
        if messages[-1]["role"] == "user":
            raise UserError("its last message is of the user, which `prompts` answers")
    return messages


def with_system(messages: "list[Message]", text: str) -> "list[Message]":
    """A conversation with this system prompt instead of its own, without one if the text is empty."""
    rest = messages[1:] if messages and messages[0]["role"] == "system" else messages
    return [{"role": "system", "content": text}, *rest] if text else rest


def conversation_with(messages: "list[Message]", text: str) -> "Conversation":
    """Return a conversation with one more message of the user."""
    from megatape.data.finetuning.conversation import Conversation

    return Conversation([*messages, {"role": "user", "content": text}])


class Chat:
    """A conversation in the terminal.

    Answers are printed to the standard output, everything else to the errors. An exchange is added to the conversation when
    its answer has ended, so an error at any moment leaves whole exchanges.

    Args:
        loaded: The model.
        sampling: Of each answer.
        messages: The conversation to continue.
        file: Written after each answer; None: no file.

    Attributes:
        messages: The conversation.

    Raises:
        UserError: The chat template refuses the conversation.
    """

    def __init__(self, loaded: "LoadedModel", sampling: Sampling, messages: "list[Message]", file: Path | None) -> None:
        from megatape.hf.generation import ConversationPrompts

        self._loaded = loaded
        self._prompts = ConversationPrompts(loaded)
        self._sampling = sampling
        self._file = file
        self.messages: list[Message] = []
        self._continue(messages)

    def run(self) -> None:
        """Converse until the end of the input."""
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # edits lines, and has former ones

                readline.parse_and_bind("set enable-bracketed-paste on")  # pasted lines are one message
            note(
                f"{self._loaded.name}; messages so far: {len(self.messages)}; /reset begins a new conversation, /system TEXT "
                "changes the system prompt, Ctrl-C ends an answer, Ctrl-D the conversation"
            )
        _take_lines(self._take)

    def _take(self, line: str) -> None:
        """Follow a command, or answer a message."""
        name, _, text = line.partition(" ")
        if name == "/reset":
            self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
            self._file = None
            note("(a new conversation, which is not saved)")
        elif name == "/system":
            self._continue(with_system(self.messages, check_text(text.strip(), "the system prompt")))
            note(f"(system prompt: {text.strip() or 'none'})")
        elif name.startswith("/"):
            raise UserError(f"{name} is not a command: give /reset or /system TEXT, or begin a message with a space")
        else:
            self._answer(line)

    def _continue(self, messages: "list[Message]") -> None:
        """Continue a conversation instead of this one. Raises UserError if the template refuses it."""
        self._prompts.prompt(conversation_with(messages, "a"))
        self.messages = messages

    def _answer(self, text: str) -> None:
        """Print the answer to a message, and add both to the conversation."""
        import torch

        from megatape.hf.generation import check_room, continue_prompts

        conversation = conversation_with(self.messages, check_text(text, "the message"))
        answer = ""
        end = "interrupted"

        def show(piece: str) -> None:
            """Print the answer as it comes, without space before it, which templates write themselves."""
            nonlocal answer
            new = piece if answer else piece.lstrip()
            answer += new
            _show(new)

        with suppress(KeyboardInterrupt):  # the answer is the part that was shown
            prompt = self._prompts.prompt(conversation)
            room = max(self._loaded.max_positions - len(prompt.ids), MIN_ANSWER)
            sampling = self._sampling.model_copy(update={"max_new_tokens": min(self._sampling.max_new_tokens, room)})
            check_room(self._loaded, len(prompt.ids), sampling, ": /reset begins a new conversation")
            try:
                end = continue_prompts(self._loaded, [prompt], sampling, show)[0][0].end
            except torch.OutOfMemoryError:
                raise UserError("the conversation does not fit into memory: /reset begins a new one") from None
        print(flush=True)
        if end == "length":
            note(f"(cut after {sampling.max_new_tokens} tokens; --max-new-tokens and the model's positions limit an answer)")
        if not answer:
            note("(no answer: the conversation is as it was before the message)")
            return
        self.messages = [*conversation.messages, {"role": "assistant", "content": answer}]
        if self._file is not None:
            with path_errors():
                write_atomically(self._file, json.dumps({"messages": self.messages}, ensure_ascii=False).encode() + b"\n")


def note(text: str) -> None:
    """Print to the standard error, where answers are not."""
    print(text, file=sys.stderr, flush=True)
