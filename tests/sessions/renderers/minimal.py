"""Chat templates of families that no package at hand carries, as short as shows their format."""

from __future__ import annotations

_MARKED = "{{% for m in messages %}}{opening}{{{{ m['content'] }}}}{closing}{{% endfor %}}{prompt}"


def _prompting(opening: str) -> str:
    return "{% if add_generation_prompt %}" + opening + "{% endif %}"


def _header(opening: str, closing: str, start: str = "") -> str:
    """Every role as `opening` (with ROLE in it), its text, and `closing`."""
    role = "{{ m['role'] }}"
    prompt = _prompting(opening.replace("ROLE", "assistant"))
    return start + _MARKED.format(opening=opening.replace("ROLE", role), closing=closing, prompt=prompt)


_LISTED = (
    "{%- if tools -%}<|im_start|>system\n{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n"
    "{% endif %}BEGIN{% for tool in tools %}{{ tool | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}END"
    "<|im_end|>\n{%- elif messages[0]['role'] == 'system' -%}<|im_start|>system\n{{ messages[0]['content'] }}<|im_end|>"
    "\n{%- endif -%}"
)
_TURNS = (
    "{%- for m in messages -%}{%- if m['role'] == 'assistant' -%}<|im_start|>assistant\n{{ m['content'] }}"
    "{%- if m['tool_calls'] -%}CALLS{%- endif -%}<|im_end|>\n"
    "{%- elif m['role'] == 'tool' -%}<|im_start|>RESULT\n{{ m['content'] }}<|im_end|>\n"
    "{%- elif m['role'] == 'user' -%}<|im_start|>user\n{{ m['content'] }}<|im_end|>\n{%- endif -%}{%- endfor -%}"
    "{%- if add_generation_prompt -%}<|im_start|>assistant\n{%- endif -%}"
)
_TURNS = _TURNS.replace("\n", "{{ '\\n' }}")
_LISTED = _LISTED.replace("\n", "{{ '\\n' }}")

_PYTHONIC = (
    "{%- for call in m['tool_calls'] -%}{{ call.function.name }}("
    "{%- for key, value in call.function.arguments.items() -%}{{ key }}={{ value | tojson }}"
    "{%- if not loop.last %}, {% endif -%}{%- endfor -%}){%- if not loop.last -%}DIVIDER{%- endif -%}{%- endfor -%}"
)


def _chatml(begin: str, end: str, calls: str, result: str) -> str:
    listed = _LISTED.replace("BEGIN", begin).replace("END", end)
    return listed + _TURNS.replace("CALLS", calls).replace("RESULT", result)


PHI_4 = _header("<|im_start|>ROLE<|im_sep|>", "<|im_end|>")
OLMO_2 = (
    "{{ bos_token }}{% for m in messages %}<|{{ m['role'] }}|>{{ '\\n' + m['content'] }}"
    "{% if m['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{{ '\\n' }}{% endif %}"
)
OLMO_3 = _chatml(
    "You may call functions. <functions>[",
    "]</functions>",
    "<function_calls>" + _PYTHONIC.replace("DIVIDER", "{{ '\\n' }}") + "</function_calls>",
    "environment",
)
FALCON_H1 = "{{ bos_token }}" + _chatml(
    "You may call the functions in <tools>[",
    "]</tools>",
    "{%- for call in m['tool_calls'] -%}{{ '\\n<tool_call>\\n' }}{{ call.function | tojson }}{{ '\\n</tool_call>' }}"
    "{%- endfor -%}",
    "tool",
)
LLAMA_4 = (
    "{{ bos_token }}{%- if tools -%}<|header_start|>system<|header_end|>{{ '\\n\\n' }}Call functions as "
    "[name(key=value)].{% for tool in tools %}{{ tool | tojson }}{% endfor %}<|eot|>{%- endif -%}"
    "{%- for m in messages -%}<|header_start|>{{ 'ipython' if m['role'] == 'tool' else m['role'] }}<|header_end|>"
    "{{ '\\n\\n' + m['content'] }}{%- if m['tool_calls'] -%}["
    + _PYTHONIC.replace("DIVIDER", "{{ ', ' }}")
    + "]{%- endif -%}<|eot|>{%- endfor -%}"
    + _prompting("<|header_start|>assistant<|header_end|>{{ '\\n\\n' }}")
)
JAMBA = (
    "<|startoftext|>{%- if tools -%}<|bom|><|system|># Tools{% for tool in tools %}{{ '\\n' }}{{ tool | tojson }}"
    "{% endfor %}<|eom|>{%- endif -%}{%- for m in messages -%}<|bom|><|{{ m['role'] }}|> {{ m['content'] }}"
    "{%- if m['tool_calls'] -%}<tool_calls>[{%- for call in m['tool_calls'] -%}{{ '\\n    ' }}"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson | tojson }}}'
    "{%- if not loop.last -%},{%- endif -%}{%- endfor -%}{{ '\\n' }}]</tool_calls>{%- endif -%}<|eom|>{%- endfor -%}"
    + _prompting("<|bom|><|assistant|>")
)
INTERNLM_2 = _header("<|im_start|>ROLE{{ '\\n' }}", "<|im_end|>{{ '\\n' }}", "{{ bos_token }}")
YI = _header("<|im_start|>ROLE{{ '\\n' }}", "<|im_end|>{{ '\\n' }}")
ZEPHYR = _header("<|ROLE|>{{ '\\n' }}", "{{ eos_token + '\\n' }}")
MINICPM_3 = _header("<|im_start|>ROLE{{ '\\n' }}", "<|im_end|>{{ '\\n' }}", "{{ bos_token }}")
QWQ = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\\n' + m['content'].split('</think>')[-1].lstrip('\\n') }}"
    "<|im_end|>{{ '\\n' }}{% endfor %}" + _prompting("<|im_start|>assistant{{ '\\n' }}<think>{{ '\\n' }}")
)
LLAMA_2 = (
    "{% for m in messages %}{% if m['role'] == 'system' %}{% elif m['role'] == 'user' %}{{ bos_token }}[INST] "
    "{% if loop.index0 == 1 and messages[0]['role'] == 'system' %}<<SYS>>{{ '\\n' + messages[0]['content'] + '\\n' }}"
    "<</SYS>>{{ '\\n\\n' }}{% endif %}{{ m['content'] }} [/INST]{% else %} {{ m['content'] }} {{ eos_token }}"
    "{% endif %}{% endfor %}"
)
HERMES_3 = INTERNLM_2
"""The template named "default"; "tool_use" is among the collected ones."""
