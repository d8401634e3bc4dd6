"""Conversations without a chat template: answers and their weights, long conversations, and refused records."""

from typing import Any

import pytest

from megatape.data.finetuning.chat import Chat, ShareGPT
from megatape.data.finetuning.format import Example, Limits, RecordDropped
from megatape.data.tokenizers.tokenizer import Tokenizer
from megatape.errors import RecordError
from tests.helpers.data.conversations import MESSAGES, conversation

TOOLS = [{"type": "function", "function": {"name": "search", "parameters": {}}}]
TURNS = [("system", "Be brief."), ("human", "What?"), ("gpt", "That."), ("user", "Why?"), ("assistant", "So.")]


def example_of(tokenizer: Tokenizer, messages: list[dict[str, Any]], limit: int = 256) -> Example:
    return Chat(tokenizer, Limits(limit)).example(conversation(messages))


def test_a_tokenizer_without_a_template_uses_a_plain_one(tokenizer: Tokenizer) -> None:
    """Each answer follows the prompt seen by generation, and ends with the end token."""
    form = Chat(tokenizer, Limits(256))
    assert "no chat template" in form.notes[0]

    example = form.example(conversation(MESSAGES))
    (first_begin, first_end), (second_begin, second_end) = example.answers
    first_prompt = "System: Be brief.\nUser: What is the assert statement?\nAssistant:"
    second_prompt = "User: And <tool> del?\n\nAssistant:"
    assert example.ids[:first_begin] == [tokenizer.bos_id, *tokenizer.encode(first_prompt)]
    assert example.ids[first_begin:first_end] == [*tokenizer.encode(" A way to insert assertions."), tokenizer.eos_id]
    assert example.ids[first_end:second_begin] == tokenizer.encode(second_prompt)
    assert example.ids[second_begin:] == [*tokenizer.encode(" It deletes.\n\nSee also: 12 "), tokenizer.eos_id]
    assert second_end == len(example.ids)


def test_a_conversation_of_exactly_the_limit_is_complete(tokenizer: Tokenizer) -> None:
    complete = example_of(tokenizer, MESSAGES)
    num_tokens = len(complete.ids)
    example = example_of(tokenizer, MESSAGES, limit=num_tokens - 1)
    assert example == complete
    assert not example.counts


def test_a_long_conversation_keeps_the_exchanges_that_fit(tokenizer: Tokenizer) -> None:
    complete = example_of(tokenizer, MESSAGES)
    (_, first_end), (_, second_end) = complete.answers
    example = example_of(tokenizer, MESSAGES, limit=second_end - 2)
    assert example.ids == complete.ids[:first_end]
    assert example.answers == complete.answers[:1]
    assert example.counts == {
        "conversations cut": 1,
        "answers cut": 1,
        "tokens cut from conversations": second_end - first_end,
    }


def test_a_conversation_whose_first_exchange_is_too_long_is_dropped(tokenizer: Tokenizer) -> None:
    complete = example_of(tokenizer, MESSAGES)
    _, first_end = complete.answers[0]
    with pytest.raises(RecordDropped, match="first exchange longer than a sequence"):
        example_of(tokenizer, MESSAGES, limit=first_end - 2)


def test_messages_after_the_last_answer_are_not_needed(tokenizer: Tokenizer) -> None:
    longer = [*MESSAGES, {"role": "user", "content": "Thanks."}]
    assert example_of(tokenizer, longer) == example_of(tokenizer, MESSAGES)


def tool_call(arguments: str) -> dict[str, Any]:
    """Return a message calling a tool."""
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


@pytest.mark.parametrize("form", [Chat, ShareGPT])
@pytest.mark.parametrize(
    ("first", "second", "learned"),
    [
        ({"weight": 0}, {"weight": 1}, [1]),
        ({"weight": 0.0}, {}, [1]),
        ({"train": False}, {"train": True}, [1]),
        ({"weight": 1, "train": True}, {"weight": 0}, [0]),
        ({"weight": None}, {"train": None}, [0, 1]),
    ],
)
def test_answers_of_weight_0_are_not_learned(
    tokenizer: Tokenizer, form: type[Chat], first: dict[str, Any], second: dict[str, Any], learned: list[int]
) -> None:
    """An answer excluded from learning remains context for later answers, as in generation."""
    fields = form.fields
    turns = [{fields.role: message["role"], fields.content: message["content"]} for message in MESSAGES]
    complete = form(tokenizer, Limits(256)).example({fields.messages: turns})
    turns[2] |= first
    turns[4] |= second
    example = form(tokenizer, Limits(256)).example({fields.messages: turns})
    _, last_end = example.answers[-1]
    assert example.answers == [complete.answers[index] for index in learned]
    assert example.ids == complete.ids[:last_end]
    assert example.prompt == complete.prompt
    assert example.counts["answers of weight 0"] == 2 - len(learned)


def test_an_answer_that_is_not_learned_may_be_empty(tokenizer: Tokenizer) -> None:
    empty: dict[str, Any] = {"role": "assistant", "content": "", "weight": 0}
    messages: list[dict[str, Any]] = [MESSAGES[1], empty, *MESSAGES[3:]]
    assert len(example_of(tokenizer, messages).answers) == 1


def test_a_system_prompt_may_have_its_own_field(tokenizer: Tokenizer) -> None:
    """LLaMA-Factory's ShareGPT format has the system prompt in a separate field."""
    form = Chat(tokenizer, Limits(256))
    unlearned: dict[str, Any] = {**MESSAGES[2], "weight": 0}
    weighted: list[dict[str, Any]] = [*MESSAGES[:2], unlearned, *MESSAGES[3:]]
    expected = form.example(conversation(weighted))
    assert len(expected.answers) == 1

    system = {"system": MESSAGES[0]["content"]}
    assert form.example(conversation(weighted[1:]) | system) == expected
    assert form.example(conversation(weighted) | system) == expected, "the same system prompt twice"
    empty_fields: dict[str, Any] = {"system": "", "tools": None, "images": []}
    assert form.example(conversation(weighted) | empty_fields) == expected


def test_content_may_be_parts_of_text(tokenizer: Tokenizer) -> None:
    parts = [{"type": "text", "text": "What is the "}, {"type": "text", "text": "assert statement?"}]
    messages: list[dict[str, Any]] = [MESSAGES[0], {"role": "user", "content": parts}, *MESSAGES[2:]]
    assert example_of(tokenizer, messages) == example_of(tokenizer, MESSAGES)


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({}, "'messages' is missing; the record has no fields"),
        (conversation([]), "`messages` is .*, not a list"),
        ({"messages": [1]}, "message 1 is 1, not an object"),
        (
            conversation([{"role": "function", "content": "a"}]),
            "message 1: `role` is 'function', not one of system, user, assistant, tool",
        ),
        (conversation([{"role": "user"}]), "message 1: `content` is None, not a string"),
        (conversation([{"role": "user", "content": [{"type": "text"}]}]), "message 1: `content` has the part {'type': 'text'}"),
        (
            conversation([{"role": "user", "content": [{"type": "image_url", "text": "a"}]}]),
            "has the part {'type': 'image_url'",
        ),
        (conversation([MESSAGES[1] | {"tool_calls": [1]}]), "has `tool_calls`: only `role`, `content`, `weight`, `train` are"),
        (conversation([MESSAGES[1] | {"name": "Ann"}]), "has `name`: only `role`, `content`, `weight`, `train` are"),
        (
            conversation([MESSAGES[1], {"role": "assistant", "tool_calls": 1}]),
            "message 2: `tool_calls` is 1, not a list of calls",
        ),
        (
            conversation([MESSAGES[1], {"role": "assistant", "tool_calls": [1]}]),
            "message 2: `tool_calls` has the call 1, without",
        ),
        (conversation([MESSAGES[1], tool_call("{")]), "`tool_calls` calls search with '{', not an object"),
        (conversation([MESSAGES[1], tool_call("{}")]), "the tokenizer has no chat template that writes `tools`"),
        (conversation([*MESSAGES[:3], {"role": "tool", "content": "a"}]), "has no chat template that writes `tools`"),
        (conversation([{"role": "tool", "content": "a"}]), "message 1 is of the tool: there is nothing"),
        (conversation([MESSAGES[1] | {"masked": False}]), "message 1 has `masked`: only"),
        (conversation([MESSAGES[1], MESSAGES[2] | {"weight": 0.5}]), "message 2: `weight` is 0.5: only 0, not learned, and 1"),
        (conversation([MESSAGES[1], MESSAGES[2] | {"train": "no"}]), "message 2: `train` is 'no': only 0"),
        (
            conversation([MESSAGES[1] | {"weight": 1}]),
            "message 1: `weight` is 1, but only messages of the assistant are learned",
        ),
        (conversation([MESSAGES[1], MESSAGES[2] | {"weight": 0}]), "conversation without an answer of weight 1"),
        (conversation(MESSAGES) | {"images": ["a.png"]}, "the record has `images`, which is not supported"),
        (conversation(MESSAGES) | {"chat_template_kwargs": {"a": 1}}, "has `chat_template_kwargs`, which is not supported"),
        (conversation(MESSAGES) | {"tools": "[search]"}, r"`tools` is '\[search\]', not a list of JSON schemas"),
        (conversation(MESSAGES) | {"tools": TOOLS}, "the tokenizer has no chat template that writes `tools`"),
        (conversation(MESSAGES) | {"system": 1}, "`system` is 1, not a string"),
        (conversation(MESSAGES) | {"system": "Another."}, "a system prompt in `system` and another one in its messages"),
        (conversation(MESSAGES[2:]), "message 1 is of the assistant"),
        (conversation(MESSAGES[:2]), "conversation without an assistant"),
        (conversation([MESSAGES[1], {"role": "assistant", "content": " "}]), "empty answer"),
    ],
)
def test_unfit_conversations_are_refused(tokenizer: Tokenizer, record: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chat(tokenizer, Limits(256)).example(record)


def test_sharegpt_gives_the_same_example_as_messages(tokenizer: Tokenizer) -> None:
    roles = {"human": "user", "gpt": "assistant"}
    messages = [{"role": roles.get(role, role), "content": text} for role, text in TURNS]
    turns = [{"from": role, "value": text, "weight": None} for role, text in TURNS]
    expected = example_of(tokenizer, messages)
    example = ShareGPT(tokenizer, Limits(256)).example({"id": "x", "conversations": turns})
    assert len(expected.answers) == 2
    assert example == expected


@pytest.mark.parametrize(
    ("record", "message"),
    [
        ({"conversation": []}, r"'conversations' is missing; the record has 'conversation' \(did you mean conversation\?\)"),
        ({"conversations": "x"}, "`conversations` is 'x', not a list of messages"),
        ({"conversations": [{"from": "bot", "value": "x"}]}, "message 1: `from` is 'bot', not one of system, human, user, gpt"),
        ({"conversations": [{"from": ["gpt"], "value": "x"}]}, r"message 1: `from` is \['gpt'\]"),
        ({"conversations": [{"from": "human"}]}, "message 1: `value` is None, not a string"),
        (
            {"conversations": [{"from": "human", "value": "x", "tool": "y"}]},
            "message 1 has `tool`: only `from`, `value`, `weight`, `train`",
        ),
        ({"conversations": [{"from": "gpt", "value": "x"}]}, "message 1 is of the assistant"),
        ({"conversations": [{"from": "observation", "value": "x"}]}, "message 1: `from` is 'observation', not one of"),
    ],
)
def test_unfit_sharegpt_records_are_refused(tokenizer: Tokenizer, record: dict[str, object], message: str) -> None:
    with pytest.raises(RecordError, match=message):
        ShareGPT(tokenizer, Limits(256)).example(record)
