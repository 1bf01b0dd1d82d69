"""Chat templates of the kind that each family has, as small as can be: what they insist on, and what they do not take.

Each lists its control tokens: special ones, and added ones that are not special.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

import octavo_worker

DEMO = Path(octavo_worker.__file__).parent / "bundled" / "demo"


@dataclass(frozen=True)
class Family:
    """`formats` are the names that `family_of` gives. `end` is the token that ends an answer."""

    source: str
    special: tuple[str, ...]
    added: tuple[str, ...]
    formats: tuple[str, str]
    end: str

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.special, *self.added)

    def tokenizer(self) -> Tokenizer:
        tokenizer = Tokenizer.from_file(str(DEMO / "tokenizer.json"))
        tokenizer.add_special_tokens(list(self.special))
        tokenizer.add_tokens(list(self.added))
        return tokenizer

    def write(self, folder: Path) -> Path:
        """A model's folder without weights."""
        folder.mkdir(exist_ok=True)
        self.tokenizer().save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": self.source}))
        end = self.tokenizer().token_to_id(self.end)
        (folder / "config.json").write_text(json.dumps({"model_type": "llama", "eos_token_id": end}))
        return folder


CHATML = ("<|im_start|>", "<|im_end|>")

HERMES = Family(
    # Qwen 3's kind: tools as JSON lines, calls by tojson of an object, null content would be printed as None
    """{%- if tools %}<|im_start|>system
Tools: <tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools> Call with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|im_start|>user
<tool_response>
{{ m.content }}
</tool_response><|im_end|>
{% elif m.role == 'assistant' %}<|im_start|>assistant
{% if m.reasoning_content %}<think>
{{ m.reasoning_content }}
</think>

{% endif %}{{ m.content }}{% for call in m.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% else %}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endif %}{% endfor %}<|im_start|>assistant
{% if enable_thinking is defined and not enable_thinking %}<think>

</think>

{% endif %}""",
    CHATML,
    ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
    ("hermes", "think"),
    "<|im_end|>",
)

QWEN_CODER = Family(
    # XML of every argument, so arguments must be an object
    """{%- for tool in tools or [] %}<tool>{{ tool.function.name }}: {{ tool.function.description }}
{%- for name, spec in tool.function.parameters.properties | items %} {{ name }}={{ spec | tojson }}{% endfor %}</tool>
{% endfor %}
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>{% else %}{{ m.content or '' }}{{ m.reasoning_content or '' }}{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
""",
    CHATML,
    ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"),
    ("qwen3_coder", "none"),
    "<|im_end|>",
)

LLAMA = Family(
    # one call at most, results as JSON, a role of its own for them
    """{%- for m in messages %}
{%- if m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>

{{ m.content | tojson if m.content is mapping else m.content }}<|eot_id|>
{%- elif m.tool_calls %}
{%- if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif -%}
<|start_header_id|>assistant<|end_header_id|>

{% set call = m.tool_calls[0].function -%}
{"name": "{{ call.name }}", "parameters": {{ call.arguments | tojson }}}<|eot_id|>
{%- else %}<|start_header_id|>{{ m.role }}<|end_header_id|>

{% if loop.first and tools %}Answer with {"name": its name, "parameters": dictionary of argument name and its value}.
{% for tool in tools %}{{ tool | tojson }}

{% endfor %}{% endif %}{{ m.content }}{{ m.reasoning_content or '' }}<|eot_id|>{% endif %}{% endfor %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}""",
    ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>", "<|python_tag|>"),
    (),
    ("llama3_json", "none"),
    "<|eot_id|>",
)

_MISTRAL_SPECIAL = ("[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]")
MISTRAL = Family(
    # ids of nine letters or digits, and no other
    """{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'system' %}[INST]{{ m.content }}[/INST]
{%- elif m.role == 'tool' %}
{%- if m.tool_call_id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif -%}
[TOOL_RESULTS]{"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.tool_calls %}[TOOL_CALLS][{% for call in m.tool_calls %}
{%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif -%}
{{ call.function | tojson }}{{ ', ' if not loop.last }}{% endfor %}]</s>
{%- else %}{{ m.content }}{{ m.reasoning_content or '' }}</s>{% endif %}{% endfor %}""",
    (*_MISTRAL_SPECIAL, "[/TOOL_RESULTS]", "</s>"),
    (),
    ("mistral", "none"),
    "</s>",
)

MAGISTRAL = Family(
    # the newer form, thoughts with markers of their own, content as a list of parts
    """{%- if tools %}[AVAILABLE_TOOLS]{{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}[TOOL_RESULTS]{{ m.content }}[/TOOL_RESULTS]
{%- elif m.role == 'assistant' %}{% if m.reasoning_content %}[THINK]{{ m.reasoning_content }}[/THINK]{% endif %}
{%- for part in m.content %}{{ part.text }}{% endfor %}
{%- for call in m.tool_calls or [] %}[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}</s>
{%- else %}[INST]{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}[/INST]
{%- endif %}{% endfor %}""",
    (*_MISTRAL_SPECIAL, "[/TOOL_RESULTS]", "</s>", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]"),
    (),
    ("mistral_args", "mistral"),
    "</s>",
)

_DEEPSEEK_CALLS = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>")
_DEEPSEEK_SPECIAL = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")
DEEPSEEK_V3 = Family(
    # calls only where content is null, arguments glued to strings, the prompt ends inside a thought
    """{%- for tool in tools or [] %}## {{ tool.function.name }} {{ tool | tojson }}
{% endfor %}
{%- for m in messages %}
{%- if m.role == 'system' %}{{ m.content }}
{%- elif m.role == 'user' %}<｜User｜>{{ m.content }}
{%- elif m.role == 'assistant' and m.content is none %}<｜Assistant｜><｜tool▁calls▁begin｜>
{%- for call in m.tool_calls %}
{{- '<｜tool▁call▁begin｜>function<｜tool▁sep｜>' + call.function.name + '\\n```json\\n' }}
{{- call.function.arguments + '\\n```' + '<｜tool▁call▁end｜>' }}{% endfor %}<｜tool▁calls▁end｜><｜end▁of▁sentence｜>
{%- elif m.role == 'assistant' %}<｜Assistant｜>{{ m.content.split('</think>')[-1] }}<｜end▁of▁sentence｜>
{%- elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>{% endif %}{% endfor %}
{{- '<｜Assistant｜><think>\\n' }}""",
    (*_DEEPSEEK_SPECIAL, *_DEEPSEEK_CALLS, "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ("<think>", "</think>"),
    ("deepseek_v3", "think"),
    "<｜end▁of▁sentence｜>",
)

DEEPSEEK_V31 = Family(
    # thinking by a variable, off by default
    """{%- for tool in tools or [] %}## {{ tool.function.name }} {{ tool | tojson }}
{% endfor %}
{%- for m in messages %}
{%- if m.role == 'user' or m.role == 'system' %}<｜User｜>{{ m.content }}
{%- elif m.role == 'tool' %}<｜tool▁output▁begin｜>{{ m.content }}<｜tool▁output▁end｜>
{%- else %}<｜Assistant｜></think>{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}{{ '<｜tool▁calls▁begin｜>' if loop.first }}<｜tool▁call▁begin｜>
{{- call.function.name + '<｜tool▁sep｜>' }}{% if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}<｜tool▁call▁end｜>
{{- '<｜tool▁calls▁end｜>' if loop.last }}{% endfor %}<｜end▁of▁sentence｜>{% endif %}{% endfor %}
{{- '<｜Assistant｜>' + ('<think>' if thinking else '</think>') }}""",
    (*_DEEPSEEK_SPECIAL, *_DEEPSEEK_CALLS, "<｜tool▁sep｜>", "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>"),
    ("<think>", "</think>"),
    ("deepseek_v3_1", "think"),
    "<｜end▁of▁sentence｜>",
)

GLM = Family(
    # a macro that takes strings and parts, arguments by items()
    """{%- macro said(content) %}{% if content is string %}{{ content }}{% else %}
{%- for part in content %}{{ part.text }}{% endfor %}{% endif %}{% endmacro %}
{%- if tools %}<|system|>{% for tool in tools %}{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{% endif %}
{%- for m in messages %}
{%- if m.role == 'tool' %}<|observation|><tool_response>{{ said(m.content) }}</tool_response>
{%- else %}<|{{ m.role }}|>
{{ said(m.content) }}{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for k, v in call.function.arguments.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v if v is string else v | tojson(ensure_ascii=False) }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endif %}{% endfor %}<|assistant|>
""",
    (
        "<|system|>",
        "<|user|>",
        "<|assistant|>",
        "<|observation|>",
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
    ),
    ("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "<tool_response>", "</tool_response>"),
    ("glm4", "think"),
    "<|user|>",
)

KIMI = Family(
    # names of speakers, arguments as they are if they are text
    """{%- if tools %}<|im_system|>tool_declare<|im_middle|>{{ tools | tojson }}<|im_end|>{% endif %}
{%- for m in messages %}<|im_{{ 'system' if m.role in ['tool', 'system'] else m.role }}|>{{ m.get('name') or m.role }}
{{- '<|im_middle|>' }}{% if m.role == 'tool' %}## Return of {{ m.tool_call_id }}
{% endif %}{{ m.content or '' }}{{ m.reasoning_content or '' }}
{%- for call in m.tool_calls or [] %}{{ '<|tool_calls_section_begin|>' if loop.first }}<|tool_call_begin|>{{ call.id }}
{{- '<|tool_call_argument_begin|>' }}{% if call.function.arguments is string %}{{ call.function.arguments }}
{%- else %}{{ call.function.arguments | tojson }}{% endif %}<|tool_call_end|>
{{- '<|tool_calls_section_end|>' if loop.last }}{% endfor %}<|im_end|>{% endfor %}
{{- '<|im_assistant|>assistant<|im_middle|>' }}""",
    (
        *("<|im_system|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_end|>"),
        *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
        "<|tool_call_argument_begin|>",
    ),
    (),
    ("kimi_k2", "none"),
    "<|im_end|>",
)

HARMONY = Family(
    # a TypeScript-like list of tools, one call a turn, results in the name of the tool, thoughts or content, not both
    """<|start|>system<|message|>Reasoning: {{ reasoning_effort or 'medium' }}<|end|>
{%- if tools %}<|start|>developer<|message|>namespace functions {
{%- for tool in tools %}
{{ '// ' + tool.function.description }}
type {{ tool.function.name }} = (_: { {% for name, spec in tool.function.parameters.properties.items() -%}
{{ name }}: {{ spec.type }}{% if spec.enum %} {{ spec.enum | tojson }}{% endif %}, {% endfor %} }) => any;{% endfor %}
}<|end|>{% endif %}
{%- set last = namespace(name=none) %}
{%- for m in messages %}
{%- if m.role == 'assistant' and m.tool_calls %}
{%- if m.content and m.thinking %}{{ raise_exception('content and thinking together') }}{% endif %}
{%- if m.content or m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.content or m.thinking }}<|end|>
{%- endif %}{% set call = m.tool_calls[0].function %}{% set last.name = call.name -%}
<|start|>assistant to=functions.{{ call.name }}<|channel|>commentary json<|message|>
{{- call.arguments | tojson }}<|call|>
{%- elif m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|end|>
{%- elif m.role == 'tool' %}
{%- if last.name is none %}{{ raise_exception('a result without a call') }}{% endif -%}
<|start|>functions.{{ last.name }} to=assistant<|channel|>commentary<|message|>{{ m.content | tojson }}<|end|>
{%- else %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}<|start|>assistant""",
    (
        *("<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>"),
        "<|endoftext|>",
    ),
    (),
    ("harmony", "harmony"),
    "<|return|>",
)

GEMMA_4 = Family(
    # strings between markers of their own
    """{%- for tool in tools or [] %}<|tool>declaration:{{ tool.function.name }}{description:<|"|>
{{- tool.function.description }}<|"|>,parameters:{{ tool.function.parameters | tojson }}}<tool|>{% endfor %}
{%- for m in messages %}<|turn>{{ 'model' if m.role == 'assistant' else m.role }}
{% if m.reasoning_content %}<|channel>thought
{{ m.reasoning_content }}<channel|>{% endif %}{{ m.content or '' }}
{%- for call in m.tool_calls or [] %}<|tool_call>call:{{ call.function.name }}{
{%- for k, v in call.function.arguments | dictsort %}{{ k }}:{% if v is string %}<|"|>{{ v }}<|"|>
{%- else %}{{ v | tojson }}{% endif %}{{ ',' if not loop.last }}{% endfor %}}<tool_call|>{% endfor %}<turn|>
{% endfor %}<|turn>model
""",
    (
        *("<|turn>", "<turn|>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>"),
        "<channel|>",
    ),
    (),
    ("gemma4", "gemma4"),
    "<turn|>",
)

FUNCTION_GEMMA = Family(
    # results in the name of the tool, which OpenAI's clients do not send
    """{%- for tool in tools or [] %}<start_function_declaration>{{ tool.function.name }}<escape>
{{- tool.function.description }}<escape>{{ tool.function.parameters | tojson }}<end_function_declaration>{% endfor %}
{%- for m in messages %}<start_of_turn>{{ m.role }}
{% if m.role == 'tool' %}
{%- if not m.name %}{{ raise_exception('a result needs the name of its tool') }}{% endif -%}
<start_function_response>{{ m.name }}<escape>{{ m.content }}<escape><end_function_response>
{%- else %}{{ m.content or '' }}{{ m.reasoning_content or '' }}{% for call in m.tool_calls or [] -%}
<start_function_call>call:{{ call.function.name }}{
{%- for k, v in call.function.arguments.items() %}{{ k }}:<escape>{{ v }}<escape>{{ ',' if not loop.last }}{% endfor -%}
}<end_function_call>{% endfor %}{% endif %}<end_of_turn>
{% endfor %}<start_of_turn>model
""",
    (
        *("<start_of_turn>", "<end_of_turn>", "<escape>", "<start_function_call>", "<end_function_call>"),
        *("<start_function_declaration>", "<end_function_declaration>"),
        *("<start_function_response>", "<end_function_response>"),
    ),
    (),
    ("functiongemma", "none"),
    "<end_of_turn>",
)

FAMILIES = {
    "hermes": HERMES,
    "qwen3_coder": QWEN_CODER,
    "llama3_json": LLAMA,
    "mistral": MISTRAL,
    "mistral_args": MAGISTRAL,
    "deepseek_v3": DEEPSEEK_V3,
    "deepseek_v3_1": DEEPSEEK_V31,
    "glm4": GLM,
    "kimi_k2": KIMI,
    "harmony": HARMONY,
    "gemma4": GEMMA_4,
    "functiongemma": FUNCTION_GEMMA,
}

PLAIN = Family(
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ("<|eot|>",), (), ("none", "none"), "<|eot|>"
)
