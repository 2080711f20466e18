"""Small parts in place of `transformers` and `peft` where those are missing: enough to build a policy with an adapter.

They do what the libraries document: an adapter starts at 0, the rest of the model is frozen, an adapter that is
loaded is frozen as well unless training was asked for.
"""

from __future__ import annotations

import contextlib
import fnmatch
import math
import re
from collections.abc import Generator, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rltriage_probes import standins, tiny
from rltriage_probes.invoke import NotReached


def provide(module: str, name: str) -> Any:
    """The part that stands for `module.name`, or None."""
    top = module.split(".", maxsplit=1)[0]
    if top == "peft":
        return _PEFT.get(name)
    if name in ("AutoTokenizer", "PreTrainedTokenizerFast", "PreTrainedTokenizer"):
        return _Tokenizers
    if re.search(r"ForCausalLM|^PreTrainedModel$", name):
        return tiny.TinyForCausalLM
    if name.endswith("Config") and name not in ("BitsAndBytesConfig", "GenerationConfig"):
        return tiny.TinyConfig
    return {"set_seed": torch.manual_seed, "BitsAndBytesConfig": _Settings, "GenerationConfig": _Settings}.get(name)


class _Tokenizers:
    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> standins.StandInTokenizer:
        return standins.StandInTokenizer()


class _Settings:
    """Holds whatever it is made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.__dict__.update(kwargs)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


class LoraConfig(_Settings):
    def __init__(self, **kwargs: Any) -> None:
        self.r: int = 8
        self.lora_alpha: float = 8
        self.lora_dropout: float = 0.0
        self.target_modules: Any = ("q_proj", "v_proj")
        self.modules_to_save: Any = None
        self.use_rslora = False
        self.init_lora_weights: Any = True
        self.inference_mode = False
        self.bias = "none"
        self.task_type: Any = None
        super().__init__(**kwargs)

    @classmethod
    def from_pretrained(cls, path: Any, **_: Any) -> LoraConfig:
        return _folder(path)[0]


class LoraLinear(nn.Module):
    """W x + s B A x, with B = 0 at first (Hu et al. 2021, arXiv:2106.09685, eq. 3)."""

    def __init__(self, base: nn.Linear, config: LoraConfig) -> None:
        super().__init__()
        self.base_layer = base
        self.lora_A = nn.ModuleDict()
        self.lora_B = nn.ModuleDict()
        self.scaling: dict[str, float] = {}
        self.drop = nn.Dropout(config.lora_dropout)
        self.disable_adapters = False
        self.merged = False
        self.add("default", config)

    def add(self, name: str, config: LoraConfig) -> None:
        a = nn.Linear(self.base_layer.in_features, config.r, bias=False)
        b = nn.Linear(config.r, self.base_layer.out_features, bias=False)
        nn.init.kaiming_uniform_(a.weight, a=math.sqrt(5))
        nn.init.zeros_(b.weight)
        kind = self.base_layer.weight.dtype
        self.lora_A[name], self.lora_B[name] = a.to(kind), b.to(kind)
        self.scaling[name] = config.lora_alpha / (math.sqrt(config.r) if config.use_rslora else config.r)
        self.active = name

    @property
    def weight(self) -> Tensor:
        return self.base_layer.weight

    def delta(self) -> Tensor:
        a, b = self.lora_A[self.active], self.lora_B[self.active]
        return b.weight @ a.weight * self.scaling[self.active]  # pyright: ignore[reportOperatorIssue]

    def forward(self, x: Tensor) -> Tensor:
        out = self.base_layer(x)
        if self.disable_adapters or self.merged:
            return out
        low = self.lora_A[self.active](self.drop(x))
        return out + self.lora_B[self.active](low) * self.scaling[self.active]


class Saved(nn.Module):
    """A module of which a trained copy stands in front."""

    def __init__(self, original: nn.Module) -> None:
        import copy

        super().__init__()
        self.original_module = original
        self.modules_to_save = nn.ModuleDict({"default": copy.deepcopy(original)})
        self.disable_adapters = False

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return (self.original_module if self.disable_adapters else self.modules_to_save["default"])(*args, **kwargs)


class _Tuner(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.model(*args, **kwargs)


class PeftModel(nn.Module):
    """A causal model with adapters in the modules that the configuration names."""

    def __init__(self, model: nn.Module, config: LoraConfig, adapter_name: str = "default", **_: Any) -> None:
        super().__init__()
        self.base_model = _Tuner(model)
        self.peft_config: dict[str, LoraConfig] = {"default": config}
        self.active_adapter = "default"
        model.requires_grad_(False)
        _insert(model, config)
        if config.inference_mode:
            self.requires_grad_(False)

    @classmethod
    def from_pretrained(
        cls, model: nn.Module, model_id: Any, *_: Any, is_trainable: bool = False, **__: Any
    ) -> PeftModel:
        config, state = _folder(model_id)
        config.inference_mode = not is_trainable
        made = cls(model, config)
        _load(made, state)
        return made

    def load_adapter(self, model_id: Any, adapter_name: str = "default", is_trainable: bool = False, **_: Any) -> None:
        config, state = _folder(model_id)
        for layer in self._layers():
            layer.add(adapter_name, config)
        renamed = {k.replace(".default.", f".{adapter_name}."): v for k, v in state.items()}
        _load(self, renamed)
        for n, p in self.named_parameters():
            if f".{adapter_name}." in n:
                p.requires_grad_(is_trainable)
        self.set_adapter(self.active_adapter)
        self.peft_config[adapter_name] = config

    def set_adapter(self, name: str) -> None:
        self.active_adapter = name
        for layer in self._layers():
            layer.active = name

    def _layers(self) -> Iterator[LoraLinear]:
        return (m for m in self.modules() if isinstance(m, LoraLinear))

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base_model").model, name)  # pyright: ignore[reportAttributeAccessIssue]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.base_model(*args, **kwargs)

    @contextlib.contextmanager
    def disable_adapter(self) -> Generator[None, None, None]:
        parts = [m for m in self.modules() if isinstance(m, (LoraLinear, Saved))]
        for m in parts:
            m.disable_adapters = True
        try:
            yield
        finally:
            for m in parts:
                m.disable_adapters = False

    def get_base_model(self) -> nn.Module:
        return self.base_model.model

    def merge_and_unload(self, *args: Any, **kwargs: Any) -> nn.Module:
        for layer in self._layers():
            layer.base_layer.weight.data += layer.delta()
            layer.merged = True
        return _without(self.base_model.model)

    def get_nb_trainable_parameters(self) -> tuple[int, int]:
        counts = [(p.numel() if p.requires_grad else 0, p.numel()) for p in self.parameters()]
        return sum(c[0] for c in counts), sum(c[1] for c in counts)

    def print_trainable_parameters(self) -> None:
        pass


def _without(model: nn.Module) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, LoraLinear):
                setattr(parent, name, child.base_layer)
    return model


def _insert(model: nn.Module, config: LoraConfig) -> None:
    saved: list[str] = list(config.modules_to_save or [])
    hit = 0
    for path, module in list(model.named_modules()):
        for name, child in list(module.named_children()):
            whole = f"{path}.{name}" if path else name
            if name in saved:
                setattr(module, name, Saved(child))
            elif isinstance(child, nn.Linear) and _targeted(config.target_modules, whole, name):
                hit += 1
                setattr(module, name, LoraLinear(child, config))
    if not hit:
        raise ValueError(f"Target modules {config.target_modules} not found in the base model.")
    for n, p in model.named_parameters():
        if "lora_" in n or "modules_to_save" in n:
            p.requires_grad_(True)


def _targeted(targets: Any, path: str, name: str) -> bool:
    if targets == "all-linear":
        return name != "lm_head"
    if isinstance(targets, str):
        return re.fullmatch(targets, path) is not None
    return any(path == t or path.endswith(f".{t}") or fnmatch.fnmatch(name, t) for t in targets or ())


FOLDERS: dict[str, tuple[LoraConfig, dict[str, Tensor]]] = {}
"""Adapters that a probe made, by the folder that it hands over."""


def _folder(path: Any) -> tuple[LoraConfig, dict[str, Tensor]]:
    if str(path) not in FOLDERS:
        raise NotReached(
            f"there is no adapter in {str(path)[:80]!r}", "Let the function take the folder as an argument."
        )
    config, state = FOLDERS[str(path)]
    return LoraConfig(**vars(config)), state


def _load(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in state.items():
            if name in own:
                own[name].copy_(value)


def get_peft_model(model: nn.Module, peft_config: LoraConfig, *args: Any, **kwargs: Any) -> PeftModel:
    return PeftModel(model, peft_config)


def prepare(model: nn.Module, use_gradient_checkpointing: bool = True, *args: Any, **kwargs: Any) -> nn.Module:
    return model.requires_grad_(False)


class TaskType:
    CAUSAL_LM = "CAUSAL_LM"
    TOKEN_CLS = "TOKEN_CLS"  # noqa: S105  the library's name
    SEQ_CLS = "SEQ_CLS"


_PEFT: dict[str, Any] = {
    "LoraConfig": LoraConfig, "PeftConfig": LoraConfig, "PeftModel": PeftModel, "PeftModelForCausalLM": PeftModel,
    "AutoPeftModelForCausalLM": None, "get_peft_model": get_peft_model, "TaskType": TaskType,
    "prepare_model_for_kbit_training": prepare,
    "get_peft_model_state_dict": lambda model, *a, **k: {  # pyright: ignore[reportUnknownLambdaType]
        n: p for n, p in model.state_dict().items() if "lora_" in n or "modules_to_save" in n
    },
    "set_peft_model_state_dict": lambda model, state, *a, **k: _load(model, state),  # pyright: ignore[reportUnknownLambdaType]
}  # fmt: skip
