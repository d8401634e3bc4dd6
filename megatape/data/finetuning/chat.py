"""Format of conversations. The model learns each message from the assistant, unless its weight is 0.

A record is {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}. The tokenizer's chat
template (chat_template.py) writes the text around the messages. A plain one is used if the tokenizer has none.
"""

from collections import Counter
from typing import Any, ClassVar

from megatape.data.finetuning.chat_template import ChatTemplate
from megatape.data.finetuning.conversation import OPENAI, SHAREGPT, Conversation, MessageFields, parse_conversation
from megatape.data.finetuning.format import Example, Format, Limits, RecordDropped
from megatape.data.finetuning.rendered_conversation import Spans
from megatape.data.tokenizers.huggingface import JsonTokenizer
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError, UserError, flag


class Chat(Format):
    """Conversations up to the last answer. Long ones are cut after the last exchange that fits."""

    fields: ClassVar[MessageFields] = OPENAI

    def __init__(self, tokenizer: Tokenizer, limits: Limits) -> None:
        super().__init__(tokenizer, limits)
        self.reads = (self.fields.messages, "system", "tools")
        for option, value in limits.options.items():
            if option != "sequence_length":
                raise UserError(f"{flag(option)} is {value}, but conversations are cut after whole messages only: remove it")
        self._template = None
        if isinstance(tokenizer, JsonTokenizer) and tokenizer.chat_template is not None:
            self._template = ChatTemplate(tokenizer, tokenizer.chat_template)
            self.notes = self._template.notes
        else:
            self.notes = ['the tokenizer has no chat template: conversations are written as "User: ...\\nAssistant: ..."']

    def example(self, record: dict[str, Any]) -> Example:
        conversation = parse_conversation(record, self.fields)
        messages = conversation.messages
        if not conversation.answers:
            raise RecordDropped("conversation without an assistant")
        if not conversation.learned:
            raise RecordDropped("conversation without an answer of weight 1")
        for index in conversation.learned:
            if not messages[index]["content"].strip() and "tool_calls" not in messages[index]:
                raise RecordDropped("empty answer")
        ids, spans = self._tokens(conversation)
        limit = self.limits.sequence_length + 1
        answers = [(begin, end) for begin, end in spans if end <= limit]
        if not answers:
            raise RecordDropped("first exchange longer than a sequence")
        _, last_end = answers[-1]
        first_answer = conversation.answers[0]
        prompt = "\n".join(message["content"] for message in messages[:first_answer])
        return Example(ids[:last_end], answers, prompt, _counts(conversation, spans, len(answers)))

    def _tokens(self, conversation: Conversation) -> tuple[list[int], Spans]:
        if self._template is not None:
            return self._template.tokens(conversation)
        check_without_tools(conversation)
        return plain_tokens(conversation, self.tokenizer)


def _counts(conversation: Conversation, spans: Spans, num_fitting: int) -> Counter[str]:
    """Count the parts of a conversation that are not learned, by reason. `num_fitting` of its spans fit into a sequence."""
    counts = Counter[str]()
    counts["answers of weight 0"] = len(conversation.answers) - len(conversation.learned)
    counts["answers without a mark of the template"] = len(conversation.learned) - len(spans)
    num_cut = len(spans) - num_fitting
    if num_cut:
        counts["conversations cut"] = 1
        counts["answers cut"] = num_cut
        counts["tokens cut from conversations"] = spans[-1][1] - spans[num_fitting - 1][1]
    return +counts


def check_without_tools(conversation: Conversation) -> None:
    """Raise RecordError if a conversation has tools, tool calls or tool results, which the plain template cannot write."""
    uses_tools = any(message["role"] == "tool" or "tool_calls" in message for message in conversation.messages)
    if conversation.tools or uses_tools:
        raise RecordError("the tokenizer has no chat template that writes `tools`: use one that has, or remove the tools")


def plain_prompt(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of a conversation up to the next answer, in the form of `plain_tokens`.

    Raises:
        RecordError: The conversation has tools.
    """
    check_without_tools(conversation)
    answered = Conversation([*conversation.messages, {"role": "assistant", "content": ""}])
    ids, answers = plain_tokens(answered, tokenizer)
    return ids[: answers[-1][0]]


def plain_tokens(conversation: Conversation, tokenizer: Tokenizer) -> tuple[list[int], Spans]:
    r"""Return the tokens of `<s>System: ...\nUser: ...\nAssistant: ... </s>`, and the spans of the learned answers.

    An answer is the text after `Assistant:`, with its end token.
    """
    ids = list(tokenizer.begin)
    answers = []
    context = ""
    learned = conversation.learned
    for index, message in enumerate(conversation.messages):
        if message["role"] == "assistant":
            ids += tokenizer.encode(f"{context}Assistant:")
            answer = [*tokenizer.encode(f" {message['content']}"), tokenizer.eos_id]
            if index in learned:
                answers.append((len(ids), len(ids) + len(answer)))
            ids += answer
            context = ""
        else:
            context += f"{message['role'].title()}: {message['content']}\n"
    return ids, answers


class ShareGPT(Chat):
    """Conversations with ShareGPT's names for fields and roles."""

    fields = SHAREGPT
