"""Templates render as transformers renders them; whatever a template raises is a 400 with its words."""

from __future__ import annotations

from typing import Any

import pytest

from exahpc.errors import DeploymentError, RequestError
from exahpc.openai.request import Message
from exahpc.openai.template import ChatTemplate, fold_system

ALTERNATING = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "[{{ m['role'] }}]{{ m['content'] | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}[model]{% endif %}"
)
SYSTEM, USER, ASSISTANT = Message("system", "be brief"), Message("user", "hi"), Message("assistant", "yes")


def render(source: str, *messages: Message, fold: bool = False, options: dict[str, Any] | None = None) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>"}, fold_system=fold)
    return template.render(messages or (USER,), 86_400, options or {})


def test_a_conversation_ends_where_the_assistant_begins() -> None:
    assert render(ALTERNATING, USER, ASSISTANT, USER) == "<s>[user]hi\n[assistant]yes\n[user]hi\n[model]"


@pytest.mark.case("B32")
@pytest.mark.parametrize(
    ("messages", "words"),
    [((SYSTEM, USER), "System role not supported"), ((USER, USER), "Conversation roles must alternate")],
)
def test_what_the_template_refuses_is_400_in_its_words(messages: tuple[Message, ...], words: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(ALTERNATING, *messages)
    assert (caught.value.status, caught.value.param) == (400, "messages")
    assert words in caught.value.message


@pytest.mark.parametrize(
    "source", ["{{ 1 / 0 }}", "{{ x.y.z }}", "{{ range(10**9) | list }}", "{{ messages.append(1) }}"]
)
def test_a_template_that_breaks_or_leaves_the_sandbox_is_400(source: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(source)
    assert caught.value.status == 400


@pytest.mark.case("B32")
def test_folding_puts_the_system_text_before_the_next_user_message() -> None:
    assert render(ALTERNATING, SYSTEM, USER, fold=True) == "<s>[user]be brief\n\nhi\n[model]"
    assert fold_system([SYSTEM, SYSTEM, USER, ASSISTANT]) == [
        Message("user", "be brief\n\nbe brief\n\nhi"),
        ASSISTANT,
    ]
    assert fold_system([USER, SYSTEM]) == [USER, Message("user", "be brief")]
    assert fold_system([USER, ASSISTANT]) == [USER, ASSISTANT]


def test_whitespace_json_dates_loop_controls_and_generation_marks_are_transformers() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny"
    assert render("{{ {'a': '<é>'} | tojson }}") == '{"a": "<é>"}'
    assert render("{{ strftime_now('%Y-%m-%d') }}") == "1970-01-02"
    assert render("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "01"
    assert render("a{% generation %}b{{ bos_token }}{% endgeneration %}c") == "ab<s>c"
    assert render("{{ undefined_name }}|{{ tools is none }}") == "|True"


def test_clients_may_set_variables_but_not_the_servers() -> None:
    assert render("{{ enable_thinking }}", options={"enable_thinking": False}) == "False"
    for name in ("messages", "bos_token", "add_generation_prompt", "raise_exception", "strftime_now"):
        with pytest.raises(RequestError) as caught:
            render("x", options={name: 1})
        assert caught.value.param == "chat_template_kwargs"


def test_an_error_that_quotes_the_conversation_stays_short() -> None:
    with pytest.raises(RequestError) as caught:
        render("{{ raise_exception(messages[0].content) }}", Message("user", "x" * 10**6))
    assert len(caught.value.message) < 1000
    with pytest.raises(RequestError):
        render("{{ x }}", options={"messages": "x" * 10**6})


def test_user_text_is_data_never_template() -> None:
    assert "{{ 7 * 7 }}" in render(ALTERNATING, Message("user", "{{ 7 * 7 }}"))


def test_a_template_that_does_not_compile_is_told_at_load() -> None:
    with pytest.raises(DeploymentError, match="chat template"):
        ChatTemplate("{% if %}", {})


def test_templates_render_as_transformers_does() -> None:
    utils = pytest.importorskip("transformers.utils.chat_template_utils")
    messages = [m.for_template() for m in (USER, ASSISTANT, USER)]
    (expected,), _ = utils.render_jinja_template(
        [messages], chat_template=ALTERNATING, add_generation_prompt=True, bos_token="<s>"
    )
    assert render(ALTERNATING, USER, ASSISTANT, USER) == expected
