"""A causal language model of a few thousand weights, named as Hugging Face names its parts, with nothing to install.

What a training step trains and a factory wraps where the user has no model that would fit into a probe.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import checkpoint

VOCAB = 29
WIDTH = 16


class TinyConfig:
    """Settings of a model as `transformers` spells them; takes any others along."""

    model_type = "llama"
    is_encoder_decoder = False
    use_cache = False

    def __init__(self, **kwargs: Any) -> None:
        self.vocab_size = VOCAB
        self.hidden_size = WIDTH
        self.intermediate_size = 2 * WIDTH
        self.num_hidden_layers = 2
        self.num_attention_heads = 2
        self.num_key_value_heads = 2
        self.tie_word_embeddings = False
        self.pad_token_id = 0
        self.eos_token_id = 2
        self._name_or_path = "tiny"
        self.architectures = ["LlamaForCausalLM"]
        self.__dict__.update(kwargs)

    def get(self, key: str, default: Any = None) -> Any:
        return getattr(self, key, default)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))

    @classmethod
    def from_pretrained(cls, *_: Any, **__: Any) -> TinyConfig:
        return cls()


class TinyOutput(dict[str, Any]):
    """What a causal model returns: by key, by attribute and by position."""

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in ("loss", "past_key_values", "hidden_states", "attentions"):
            return None
        raise AttributeError(name)

    def __getitem__(self, key: Any) -> Any:
        return dict.__getitem__(self, key) if isinstance(key, str) else self.to_tuple()[key]

    def to_tuple(self) -> tuple[Any, ...]:
        return tuple(self.values())


class TinyAttention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        scores = q @ k.transpose(-1, -2) / math.sqrt(x.shape[-1])
        scores = scores.masked_fill(~allowed, torch.finfo(scores.dtype).min)
        return self.o_proj(scores.softmax(-1) @ v)


class TinyMLP(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))


class TinyNorm(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6).to(x.dtype) * self.weight


class TinyLayer(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.self_attn = TinyAttention(config.hidden_size)
        self.mlp = TinyMLP(config.hidden_size, config.intermediate_size)
        self.input_layernorm = TinyNorm(config.hidden_size)
        self.post_attention_layernorm = TinyNorm(config.hidden_size)

    def forward(self, x: Tensor, allowed: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), allowed)
        return x + self.mlp(self.post_attention_layernorm(x))


class TinyBackbone(nn.Module):
    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([TinyLayer(config) for _ in range(config.num_hidden_layers)])
        self.norm = TinyNorm(config.hidden_size)
        self.checkpointing: bool | None = None
        """None: off; else whether the re-entrant variant is used."""

    def forward(self, input_ids: Tensor, attention_mask: Any = None, position_ids: Any = None, **_: Any) -> TinyOutput:
        length = input_ids.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=input_ids.device).expand(input_ids.shape)
        x = self.embed_tokens(input_ids) + _places(position_ids, self.config.hidden_size).to(
            self.embed_tokens.weight.dtype
        )
        allowed = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).tril()[None]
        if attention_mask is not None and attention_mask.dim() == 2:
            allowed = allowed & attention_mask.bool()[:, None, :]
        allowed = allowed | torch.eye(length, dtype=torch.bool, device=input_ids.device)
        for layer in self.layers:
            if self.checkpointing is not None and self.training and torch.is_grad_enabled():
                x = checkpoint.checkpoint(layer, x, allowed, use_reentrant=self.checkpointing)
            else:
                x = layer(x, allowed)
        return TinyOutput(last_hidden_state=self.norm(x))


def _places(position_ids: Tensor, width: int) -> Tensor:
    at = position_ids[..., None].float() / 10 ** (torch.arange(width, device=position_ids.device) / width)
    return 0.3 * torch.where(torch.arange(width, device=position_ids.device) % 2 == 0, at.sin(), at.cos())


class TinyForCausalLM(nn.Module):
    """`model(input_ids, attention_mask=, position_ids=, labels=).logits`; the same weights for the same seed."""

    plain_logits = False
    """Whether a call gives the logits themselves in place of an output object."""

    def __init__(self, config: Any = None, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.config = config if config is not None else TinyConfig(**kwargs)
        self.generation_config = TinyConfig()
        self.model = TinyBackbone(self.config)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        if getattr(self.config, "tie_word_embeddings", False):
            self.lm_head.weight = self.model.embed_tokens.weight
        self.name_or_path = "tiny"

    @classmethod
    def from_pretrained(cls, *_: Any, **kwargs: Any) -> TinyForCausalLM:
        """The seeded model, in the precision that was asked for, whatever the name."""
        made = base_model()
        dtype = kwargs.get("torch_dtype", kwargs.get("dtype"))
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, None)
        return made.to(dtype) if isinstance(dtype, torch.dtype) else made

    @classmethod
    def from_config(cls, config: Any = None, **_: Any) -> TinyForCausalLM:
        return cls(config)

    _from_config = from_config

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def get_input_embeddings(self) -> nn.Module:
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        return self.lm_head

    def set_input_embeddings(self, value: nn.Module) -> None:
        setattr(self.model, "embed_tokens", value)  # noqa: B010  any module, as in the library

    def set_output_embeddings(self, value: nn.Module) -> None:
        self.lm_head = value

    def tie_weights(self) -> None:
        if getattr(self.config, "tie_word_embeddings", False):
            self.lm_head.weight = self.model.embed_tokens.weight  # pyright: ignore[reportAttributeAccessIssue]

    def resize_token_embeddings(self, size: int | None = None, *args: Any, **kwargs: Any) -> nn.Module:
        return self.model.embed_tokens

    def gradient_checkpointing_enable(self, gradient_checkpointing_kwargs: Mapping[str, Any] | None = None) -> None:
        self.model.checkpointing = bool((gradient_checkpointing_kwargs or {}).get("use_reentrant", True))

    def gradient_checkpointing_disable(self) -> None:
        self.model.checkpointing = None

    @property
    def is_gradient_checkpointing(self) -> bool:
        return self.model.checkpointing is not None

    def enable_input_require_grads(self) -> None:
        self.model.embed_tokens.register_forward_hook(lambda module, args, output: output.requires_grad_(True))

    def num_parameters(self, only_trainable: bool = False) -> int:
        return sum(p.numel() for p in self.parameters() if p.requires_grad or not only_trainable)

    def forward(self, input_ids: Any = None, attention_mask: Any = None, labels: Any = None, **kwargs: Any) -> Any:
        hidden = self.model(input_ids, attention_mask=attention_mask, **_only(kwargs, "position_ids")).last_hidden_state
        keep = kwargs.get("logits_to_keep") or kwargs.get("num_logits_to_keep")
        logits = self.lm_head(hidden[:, -int(keep) :] if isinstance(keep, int) and keep else hidden)
        if self.plain_logits:
            return logits
        out = TinyOutput()
        if labels is not None:
            flat = logits[:, :-1].float().reshape(-1, logits.shape[-1])
            out["loss"] = nn.functional.cross_entropy(flat, labels[:, 1:].reshape(-1).long(), ignore_index=-100)
        out["logits"] = logits
        if kwargs.get("output_hidden_states"):
            out["hidden_states"] = (hidden,)
        return out


def _only(kwargs: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if k in names}


def base_model(seed: int = 0, **settings: Any) -> TinyForCausalLM:
    """A seeded model; weights of the size of a trained one's, so that its distribution is neither flat nor sharp."""
    state = torch.random.get_rng_state()
    torch.manual_seed(seed)
    made = TinyForCausalLM(TinyConfig(**settings))
    with torch.no_grad():
        for p in made.parameters():
            if p.dim() == 2:
                p.normal_(0.0, 0.4)
        made.get_parameter("lm_head.weight").normal_(0.0, 0.6)
    torch.random.set_rng_state(state)
    return made


def token_logprobs(model: nn.Module, ids: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Log-probs [B, T - 1] of `ids[:, 1:]` under a model that gives logits or an output with logits."""
    out = model(ids, attention_mask=attention_mask)
    logits = out if isinstance(out, Tensor) else out.logits
    return logits[:, :-1].double().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)


def modules_of(value: Any, depth: int = 3) -> Iterator[nn.Module]:
    """Modules that an object holds, itself included, outermost first."""
    if isinstance(value, nn.Module):
        yield value
    elif depth and isinstance(value, (list, tuple)):
        for item in value:
            yield from modules_of(item, depth - 1)
    elif depth and isinstance(value, dict):
        for item in value.values():
            yield from modules_of(item, depth - 1)
    elif depth and hasattr(value, "__dict__") and not isinstance(value, type):
        for item in list(vars(value).values()):
            yield from modules_of(item, depth - 1)
