"""The tiny model's template shows tools, calls and results, and plain chats as ever."""

import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from runtime.local.model import CHAT_TEMPLATE


def render(messages: list[dict[str, Any]], **more: Any) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    # As the transformers library has it: jinja's own escapes HTML.
    environment.filters["tojson"] = json.dumps
    template = environment.from_string(CHAT_TEMPLATE)
    return template.render(messages=messages, add_generation_prompt=True, **more)


def test_a_plain_chat_is_rendered_as_ever() -> None:
    """Figures and golden files depend on these bytes."""
    chat = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "u"},
        {"role": "assistant", "content": " a"},
        {"role": "user", "content": "v"},
    ]
    assert render(chat) == (
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
        "<|im_start|>assistant\n a<|im_end|>\n<|im_start|>user\nv<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
    assert render(chat, tools=None) == render(chat, tools=[]) == render(chat)


@pytest.mark.parametrize("content", [" looking", "", None])
def test_an_answer_with_calls_begins_with_its_text(content: str | None) -> None:
    """The text stands first: its KV is that of the answer; calls and results follow."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"at": "<1>"}}}
    tools = [{"type": "function", "function": {"name": "f"}}]
    shown = render(
        [
            {"role": "user", "content": "u"},
            {"role": "assistant", "content": content, "tool_calls": [call]},
            {"role": "tool", "content": "r", "tool_call_id": "c"},
        ],
        tools=tools,
    )
    before = render([{"role": "user", "content": "u"}], tools=tools)
    assert shown == (
        f"{before}{content or ''}{json.dumps([call])}<|im_end|>\n"
        "<|im_start|>tool\nr<|im_end|>\n<|im_start|>assistant\n"
    )
    assert before.startswith(f"<|im_start|>tools\n{json.dumps(tools)}<|im_end|>\n")
