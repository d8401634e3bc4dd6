"""Conversation in the terminal, for `megatape generate --chat`."""

import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from megatape.commands.cli.terminal import note, show, take_lines
from megatape.commands.generation.prompts import conversation_with, with_system
from megatape.errors import UserError, path_errors
from megatape.errors.text_checks import check_text
from megatape.utils.files.atomic import write_atomically

if TYPE_CHECKING:
    from megatape.data.finetuning.conversation import Conversation, Message
    from megatape.hf.generation.prompts import Prompt
    from megatape.hf.generation.sampling import Sampling
    from megatape.hf.loading.loaded_model import LoadedModel

# An answer may have this many tokens even if it exceeds the model's maximum position.
MIN_ANSWER_TOKENS = 64


class ShownAnswer:
    """Answer that is printed while it is generated.

    Attributes:
        text: Text shown so far. It has no leading space, because chat templates add it.
    """

    def __init__(self) -> None:
        self.text = ""

    def add(self, piece: str) -> None:
        """Print the next piece of the answer."""
        if not self.text:
            piece = piece.lstrip()
        self.text += piece
        show(piece)


class Chat:
    """A conversation in the terminal.

    Answers are printed to standard output, everything else to standard error. A message is added to the conversation together
    with its answer, so an error never leaves a message unanswered.

    Args:
        loaded: Model that answers.
        sampling: Sampling options of each answer.
        messages: Conversation to continue.
        file: File to write after each answer, or None.

    Attributes:
        messages: Messages of the conversation.

    Raises:
        UserError: The chat template rejects the conversation.
    """

    def __init__(self, loaded: "LoadedModel", sampling: "Sampling", messages: "list[Message]", file: Path | None) -> None:
        from megatape.hf.generation.prompts import ConversationPrompts

        self._loaded = loaded
        self._prompts = ConversationPrompts(loaded)
        self._sampling = sampling
        self._file = file
        self.messages: list[Message] = []
        self._continue(messages)

    def run(self) -> None:
        """Chat until the end of the input."""
        if sys.stdin.isatty():
            with suppress(ImportError):
                import readline  # Importing it gives `input` editing and a history.

                # Make several pasted lines one message.
                readline.parse_and_bind("set enable-bracketed-paste on")
            note(
                f"{self._loaded.name}; messages so far: {len(self.messages)}; /reset starts a new conversation, /system TEXT "
                "changes the system prompt, Ctrl-C ends an answer, Ctrl-D the conversation"
            )
        take_lines(self._take)

    def _take(self, line: str) -> None:
        """Run a command such as /reset, or answer a message."""
        name, _, text = line.partition(" ")
        if name == "/reset":
            self._reset()
        elif name == "/system":
            text = text.strip()
            self._continue(with_system(self.messages, check_text(text, "the system prompt")))
            note(f"(system prompt: {text or 'none'})")
        elif name.startswith("/"):
            raise UserError(f"{name} is not a command: give /reset or /system TEXT, or begin a message with a space")
        else:
            self._answer(line)

    def _reset(self) -> None:
        """Start a new conversation with the same system prompt. It is not saved."""
        self.messages = [message for message in self.messages[:1] if message["role"] == "system"]
        self._file = None
        note("(a new conversation, which is not saved)")

    def _continue(self, messages: "list[Message]") -> None:
        """Replace the conversation.

        Raises:
            UserError: The chat template rejects the conversation.
        """
        self._prompts.prompt(conversation_with(messages, "a"))
        self.messages = messages

    def _answer(self, text: str) -> None:
        """Print the answer to a message, and add both to the conversation."""
        conversation = conversation_with(self.messages, check_text(text, "the message"))
        answer = ShownAnswer()
        max_tokens = None
        # After Ctrl-C, the answer is the part shown so far.
        with suppress(KeyboardInterrupt):
            max_tokens = self._generate(conversation, answer)
        print(flush=True)
        if max_tokens is not None:
            note(f"(cut after {max_tokens} tokens; --max-new-tokens and the model's positions limit an answer)")
        if not answer.text:
            note("(no answer: the message was not added to the conversation)")
            return
        self.messages = [*conversation.messages, {"role": "assistant", "content": answer.text}]
        self._save()

    def _generate(self, conversation: "Conversation", answer: ShownAnswer) -> int | None:
        """Generate the answer to a conversation.

        Args:
            conversation: Conversation that ends with a message from the user.
            answer: Receives the answer.

        Returns:
            The maximum number of tokens if the answer was cut there, or None.
        """
        import torch

        from megatape.hf.generation.continuations import continue_prompts
        from megatape.hf.generation.prompts import check_room

        prompt = self._prompts.prompt(conversation)
        sampling = self._limited(prompt)
        check_room(self._loaded, len(prompt.ids), sampling, ": /reset starts a new conversation")
        try:
            ((continuation,),) = continue_prompts(self._loaded, [prompt], sampling, answer.add)
        except torch.OutOfMemoryError:
            raise UserError("the conversation does not fit into memory: /reset starts a new one") from None
        if continuation.end == "length":
            return sampling.max_new_tokens
        return None

    def _limited(self, prompt: "Prompt") -> "Sampling":
        """Return sampling options that end the answer at the model's maximum position, if enough positions are left."""
        room = max(self._loaded.max_positions - len(prompt.ids), MIN_ANSWER_TOKENS)
        max_new_tokens = min(self._sampling.max_new_tokens, room)
        return self._sampling.model_copy(update={"max_new_tokens": max_new_tokens})

    def _save(self) -> None:
        """Write the conversation to its file, if it has one."""
        if self._file is None:
            return
        content = json.dumps({"messages": self.messages}, ensure_ascii=False)
        with path_errors():
            write_atomically(self._file, content.encode() + b"\n")
