"""Create transformers' models, one at a time, and refuse folders whose weights are not the whole model's.

transformers replaces functions of its own and of torch while it makes or loads a model (`tie_weights`, those of
`torch.nn.init`, the default dtype) and puts back what it found. Two threads that do so at once can put back each
other's replacements: from then on no model in the process ties its weights or initialises them, and nothing says so.
A fleet of local engines, their restarts and the trainer load in several threads; all of them use these functions.

transformers also loads a folder in part: tensors that the files lack get random values, those that the model lacks are
dropped. So the names and shapes in the files are compared with the model's (`agentrl.models.tensors`). Whatever
transformers raises for a folder becomes one sentence that names it. Code that a folder brings runs only where it is
allowed (`agentrl.common.custom_code`), and nobody is ever asked.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agentrl.common import custom_code
from agentrl.common.untrusted import read_json
from agentrl.errors import ConfigError, InvalidInput, InvalidWeights, install_command
from agentrl.models import tensors
from agentrl.models.folders import refuse_adapter
from agentrl.models.vision_families import FAMILIES, REFUSED

_one_at_a_time = threading.Lock()


def load_causal_lm(folder: Path, dtype: Any, attention: str, **placed: Any) -> Any:
    """The language model of a Hugging Face folder, all of whose weights are from its files.

    Args:
        folder: the folder; nothing is fetched.
        dtype: torch's type of its weights.
        attention: transformers' name of the attention implementation.
        placed: where its parts are placed, as transformers' arguments (`device_map`, `offload_folder`).

    Raises:
        InvalidWeights: a tensor is missing, belongs to another model, or has another shape; the message names it.
        InvalidInput: the folder holds no model that transformers can load, or one that can't be trained.
    """
    config = loadable_config(folder)
    model, found = load_with_match(lambda: _model_class(folder), folder, config, dtype, attention, **placed)
    if faults := found.faults(model):
        raise InvalidWeights(f"model={str(folder)!r}: its files don't hold the weights of its config.json: {faults}")
    return model


def load_with_match(
    find_class: Callable[[], Any], folder: Path, config: Any, dtype: Any, attention: str, **placed: Any
) -> tuple[Any, tensors.TensorMatch]:
    """A folder's model as a class of transformers', and how its tensors fit the files; see `load_causal_lm`.

    Raises:
        InvalidInput: transformers can't load it.
    """
    with _one_at_a_time, _found_tensors() as found:
        try:
            model = find_class().from_pretrained(
                folder,
                config=config,
                dtype=dtype,
                attn_implementation=attention,
                local_files_only=True,
                trust_remote_code=False,  # code that may run was loaded by then
                ignore_mismatched_sizes=True,  # they are refused by name, by whoever asked
                **placed,
            )
        except Exception as error:  # of transformers and of hundreds of models
            if _out_of_memory(error):
                raise
            raise InvalidInput(f"can't load model={str(folder)!r}: {_reason(error, config, attention)}") from error
    return model, found[0]


def loadable_config(folder: Path, *, seeing: bool = False) -> Any:
    """`read_config` of a folder whose model `load_causal_lm` knows how to load, by its configuration.

    Args:
        folder: of Hugging Face.
        seeing: also of the known vision-language families (`vision.load_lm`).

    Raises:
        InvalidInput: there is no such configuration, its weights are quantised, or it is no causal language model's.
    """
    config = read_config(folder)
    _refuse_quantised(folder, config)
    if seeing and config.model_type in FAMILIES:
        return config
    if fault := _no_causal_lm(folder, config):
        raise InvalidInput(f"can't load model={str(folder)!r}: {fault}")
    return config


def new_causal_lm(config: Any, dtype: Any, attention: str) -> Any:
    """A language model with the random weights of a transformers configuration; one that sees where that is of one."""
    from transformers import AutoModelForImageTextToText, PreTrainedModel

    if config.model_type in FAMILIES:
        with _one_at_a_time:
            return AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=attention)
    model_class = _model_class(Path(config.name_or_path)) if getattr(config, "auto_map", None) else _model_class(None)
    with _one_at_a_time:
        if issubclass(model_class, PreTrainedModel):
            return model_class._from_config(config, dtype=dtype, attn_implementation=attention)
        return model_class.from_config(config, dtype=dtype, attn_implementation=attention, trust_remote_code=False)


def new_trunk(config: Any, dtype: Any, attention: str) -> Any:
    """The model of a transformers configuration without its head; its weights are not set."""
    from transformers import AutoModel
    from transformers.initialization import no_init_weights

    with _one_at_a_time, no_init_weights():
        return AutoModel.from_config(config, dtype=dtype, attn_implementation=attention)


def _model_class(folder: Path | None) -> Any:
    """The class of a folder's model: transformers' automatic one, or the folder's own where that may run.

    transformers would register the folder's own for its configuration's class, and use it for other folders of that
    class from then on.
    """
    from transformers import AutoModelForCausalLM
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    kind = AutoModelForCausalLM.__name__
    named = custom_code.list_named_classes(folder) if folder is not None and custom_code.is_allowed(folder) else {}
    if kind not in named:
        return AutoModelForCausalLM
    found = get_class_from_dynamic_module(named[kind], str(folder), local_files_only=True)
    found.register_for_auto_class(kind)  # so that what it saves has its code
    return found


def read_config(folder: Path) -> Any:
    """The configuration of a Hugging Face folder, by transformers' own class, or by code in the folder that may run.

    Raises:
        InvalidInput: there is none that transformers knows; the message says why.
    """
    from transformers import AutoConfig

    refuse_adapter(folder)
    try:
        return AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=custom_code.is_allowed(folder)
        )
    except Exception as error:  # of hundreds of kinds of configurations
        raise InvalidInput(f"can't load model={str(folder)!r}: {_config_fault(folder, error)}") from error


def _config_fault(folder: Path, error: Exception) -> str:
    try:
        settings = read_json((folder / "config.json").read_text())
        kind = settings.get("model_type")
    except (OSError, ValueError, AttributeError) as unreadable:
        return f"config.json is unreadable: {unreadable}"
    if refused := custom_code.refusal(folder):
        return refused
    if custom_code.is_allowed(folder):
        return f"its code (auto_map in config.json) raised {type(error).__name__}: {_in_short(error)}"
    if not kind:
        return "config.json has no model_type"
    quantised = settings.get("quantization_config")
    if quantised is not None and not isinstance(quantised, dict):
        return f"config.json has quantization_config={quantised!r}, not an object"
    if "does not recognize this architecture" in str(error):
        import transformers

        return f"transformers {transformers.__version__} knows no model_type={kind!r} (config.json)"
    return f"config.json is wrong: {_in_short(error)}"


def _in_short(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def _reason(error: Exception, config: Any, attention: str) -> str:
    """The error that transformers raised, as one sentence."""
    if isinstance(error, KeyError) and error.args == (attention,):
        return "its layers don't attend through transformers' attention interface"
    return unknown_value(error, config) or f"{type(error).__name__}: {_in_short(error)}"


def unknown_value(error: Exception, config: Any) -> str:
    """Return the field of a configuration whose value transformers looked up in vain; '' for other errors."""
    import transformers

    sought = error.args[0] if isinstance(error, KeyError) and error.args else None
    field = _field_of(config.to_dict(), sought) if isinstance(sought, str) else ""
    return f"transformers {transformers.__version__} knows no {field}={sought!r} (config.json)" if field else ""


def _field_of(settings: Mapping[str, Any], value: str) -> str:
    """The dotted name of the first field with a value; '' where none has it."""
    for name, found in settings.items():
        if found == value or (isinstance(found, list) and value in found):
            return name
        if isinstance(found, Mapping) and (below := _field_of(found, value)):
            return f"{name}.{below}"
    return ""


def _no_causal_lm(folder: Path, config: Any) -> str:
    """The reason why there is no causal language model of a configuration's kind; '' where there is one."""
    from transformers import AutoModelForCausalLM

    kind = AutoModelForCausalLM.__name__
    if config.is_encoder_decoder:
        return f"model_type={config.model_type!r} is an encoder with a decoder, and no causal language model"
    if type(config) in AutoModelForCausalLM._model_mapping:
        return ""
    if custom_code.is_allowed(folder):
        named = custom_code.list_named_classes(folder)
        return "" if kind in named else f"auto_map in config.json names no {kind}, but {', '.join(sorted(named))}"
    if config.get_text_config() is not config:
        if config.model_type in REFUSED:
            return f"model_type={config.model_type!r} can't be trained: {REFUSED[config.model_type]}"
        known = f"of these only trainer=torch and trainer=fsdp train any ({', '.join(FAMILIES)})"
        return f"model_type={config.model_type!r} is a model of images or sound; {known}"
    return f"model_type={config.model_type!r} is no causal language model"


def _refuse_quantised(folder: Path, config: Any) -> None:
    """Refuse a model whose weights are packed: transformers would widen them or not, by the machine that it is on."""
    if quantised := getattr(config, "quantization_config", None):
        method = quantised.get("quant_method") if isinstance(quantised, dict) else quantised.quant_method
        raise InvalidInput(
            f"model={str(folder)!r} is quantised (quantization_config.quant_method={str(method)!r} in config.json), "
            "which is trained only by trainer=megatron, from fp8: use a copy in bfloat16"
        )
    if packed := tensors.find_packed(folder):
        raise InvalidInput(
            f"model={str(folder)!r} is quantised ({packed}), which is trained only by trainer=megatron, from fp8: "
            "use a copy in bfloat16"
        )


def _out_of_memory(error: Exception) -> bool:
    import torch

    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)


@contextmanager
def _found_tensors() -> Iterator[list[tensors.TensorMatch]]:
    """Collect how the next model that is loaded fits its files, as transformers compared them.

    Its own report leaves out what a model's class says may be missing or dropped, so the comparison is read before.

    Raises:
        ConfigError: this version of transformers compares them otherwise.
    """
    import transformers
    from transformers import PreTrainedModel

    found = list[tensors.TensorMatch]()
    original = getattr(PreTrainedModel, "_adjust_missing_and_unexpected_keys", None)
    if original is None or len(inspect.signature(original).parameters) != 2:
        raise ConfigError(
            f"transformers {transformers.__version__} loads models otherwise than 5.1 to 5.24, which are known here: "
            + install_command("train")
        )

    def keep(model: Any, info: Any) -> None:
        found.append(tensors.TensorMatch(set(info.missing_keys), set(info.unexpected_keys), set(info.mismatched_keys)))
        original(model, info)

    def other_than_the_table(record: logging.LogRecord) -> bool:
        return "LOAD REPORT" not in record.getMessage()  # of the same names

    log = logging.getLogger("transformers.modeling_utils")
    log.addFilter(other_than_the_table)
    PreTrainedModel._adjust_missing_and_unexpected_keys = keep
    try:
        yield found
    finally:
        PreTrainedModel._adjust_missing_and_unexpected_keys = original
        log.removeFilter(other_than_the_table)
