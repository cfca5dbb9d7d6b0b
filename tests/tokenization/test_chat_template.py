from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from tests.fakes.vocabularies import CHATML_TEMPLATE

from kvist.core.errors import ConfigError, InvalidRequestError
from kvist.tokenization.chat_messages import parse_messages
from kvist.tokenization.chat_template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]


def make_template(source: str) -> ChatTemplate:
    now = datetime(2024, 7, 26, 12, 0, tzinfo=UTC)
    return ChatTemplate(source, named_tokens={"bos_token": "<s>"}, now=lambda: now, origin="a test")


def render(source: str, messages: object = None, **options: object) -> str:
    return make_template(source).render(parse_messages(messages or USER), **options)


def test_a_chat_is_rendered_and_the_assistants_turn_opened():
    assert render(CHATML_TEMPLATE) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert render(CHATML_TEMPLATE, add_generation_prompt=False) == "<|im_start|>user\nHi<|im_end|>\n"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}", "<s>"),
        ("{{ strftime_now('%d %b %Y') }}", "26 Jul 2024"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "Hi"}]'),
        ("{{ {'é': '<&'} | tojson }}", '{"é": "<&"}'),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        (
            "{% for i in range(3) %}{{ loop.index }}/{{ loop.length }}{{ ' ' if not loop.last }}{% endfor %}",
            "1/3 2/3 3/3",
        ),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% if tools is none and documents is none %}plain{% endif %}", "plain"),
        ("{{ ' a b ' | trim | upper | replace('A', 'c') }}{{ ['x', 'y'] | join(', ') }}{{ ['x'] }}", "c Bx, y['x']"),
        (
            "{{ 'x\ny' | indent(2) }}{{ '-'.join(['1', '2']) }}{{ messages | map(attribute='role') | join }}",
            "x\n  y1-2user",
        ),
        ("{{ 'a' ~ 1 ~ 'b' }}{{ '%02d' % 7 }}{{ '{:>3}'.format(5) }}", "a1b07  5"),
    ],
)
def test_the_conventions_of_hugging_face_hold(source, expected):
    assert render(source) == expected


def test_the_final_message_is_left_open_to_be_continued():
    messages = [*USER, {"role": "assistant", "content": "Once upon "}]
    text = render(CHATML_TEMPLATE, messages, add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("<|im_start|>assistant\nOnce upon ")

    trimming = "{% for message in messages %}[{{ message.content | trim }}]{% endfor %}"
    text = render(trimming, messages, add_generation_prompt=False, continue_final_message=True)
    assert text == "[Hi][Once upon"

    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    text = render(CHATML_TEMPLATE, parts, add_generation_prompt=False, continue_final_message=True)
    assert text == "<|im_start|>user\na\nb"


def test_a_final_message_that_the_template_hides_cannot_be_continued():
    with pytest.raises(InvalidRequestError, match="does not show"):
        render("{{ messages[0].role }}", add_generation_prompt=False, continue_final_message=True)


def test_continuing_and_opening_a_turn_exclude_each_other():
    with pytest.raises(InvalidRequestError, match="add_generation_prompt=false"):
        render(CHATML_TEMPLATE, continue_final_message=True)


def test_template_variables_come_from_the_request_if_the_template_knows_them():
    source = "{% if not thinking is defined %}{% set thinking = true %}{% endif %}{{ thinking }}"
    assert render(source) == "True"
    assert render(source, template_kwargs={"thinking": False}) == "False"
    with pytest.raises(InvalidRequestError, match="takes no 'thinkin'; it takes: thinking") as caught:
        render(source, template_kwargs={"thinkin": False})
    assert caught.value.param == "chat_template_kwargs"
    with pytest.raises(InvalidRequestError):
        render(source, template_kwargs={"messages": []})


def test_text_parts_are_joined_unless_the_template_takes_parts():
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert render("{% for m in messages %}{{ m.content }}{% endfor %}", parts) == "a\nb"
    assert (
        render("{% for m in messages %}{% for p in m['content'] %}{{ p.text }};{% endfor %}{% endfor %}", parts)
        == "a;b;"
    )


def test_developer_becomes_system_unless_the_template_knows_it():
    messages = [{"role": "developer", "content": "Be brief."}]
    assert render("{{ messages[0].role }}", messages) == "system"
    assert render("{% if messages[0].role == 'developer' %}yes{% endif %}", messages) == "yes"


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        ("Hi", "messages"),
        (["Hi"], "messages[0]"),
        ([{"content": "Hi"}], "messages[0].role"),
        ([*USER, {"role": "tool", "content": "Hi"}], "messages[1].role"),
        ([{"role": ["user"], "content": "Hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": 3}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], "messages[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text", "text": None}]}], "messages[0].content[0].text"),
        ([{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}], "messages[0].tool_calls"),
        ([{"role": "user", "content": "Hi", "name": 1}], "messages[0].name"),
    ],
)
def test_bad_messages_are_refused_by_name(messages, param):
    with pytest.raises(InvalidRequestError) as caught:
        parse_messages(messages)
    assert caught.value.param == param


def test_null_and_empty_keys_of_other_features_are_taken_as_absent():
    echoed = {"role": "assistant", "content": "Hi", "refusal": None, "tool_calls": None, "annotations": []}
    assert parse_messages([echoed]) == [{"role": "assistant", "content": "Hi"}]


def test_what_the_template_raises_names_the_messages():
    with pytest.raises(InvalidRequestError, match="roles must alternate") as caught:
        render("{{ raise_exception('roles must alternate') }}")
    assert caught.value.param == "messages"
    for source in ("{{ a.b.c }}", "{{ messages[7].role }}", "{{ 1 / 0 }}", "{{ messages + 1 }}"):
        with pytest.raises(InvalidRequestError):
            render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% for i in range(1000000) %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
        "{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor %}",
        "{% set n = namespace(x=9) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x ~ 'a' }}",
        "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ n.x | upper }}",
        "{% set n = namespace(x=[]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}{% endfor %}{{ '%s' % n.x }}",
        "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x | replace('a', n.x) %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x | join(n.x) %}{% endfor %}",
        "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x.join(n.x) %}{% endfor %}",
        "{{ ('\n' * 1000000) | indent(9999) }}",
        "{{ 'a' * 1000000000 }}",
        "{{ messages * 1000000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999d}'.format(1) }}",
        "{{ 'a'.center(1000000000) }}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
        "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
        "{% for i in range(90000) %}{{ messages[0].content * 1000 }}{% endfor %}",
    ],
)
def test_a_template_that_wants_too_much_is_stopped(source):
    with pytest.raises(InvalidRequestError, match="template"):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now.__globals__.json }}",
        "{% include 'x' %}",
    ],
)
def test_a_template_cannot_leave_its_sandbox(source):
    with pytest.raises(InvalidRequestError):
        render(source)


def test_rendering_does_not_change_the_messages():
    messages = parse_messages(USER)
    before = json.dumps(messages)
    make_template(CHATML_TEMPLATE).render(messages)
    assert json.dumps(messages) == before


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{{ x", "{% for a in b recursive %}{% endfor %}", "{{ 1 | nothing }}", "(" * 9 + "{{" + "(" * 5000],
)
def test_a_template_that_does_not_compile_is_a_configuration_error(source):
    with pytest.raises(ConfigError, match="chat template of a test"):
        make_template(source)
