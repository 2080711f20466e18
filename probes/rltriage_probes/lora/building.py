"""Calling a model factory on a small base model, and finding what it made: policy, reference, optimizer, adapters."""

from __future__ import annotations

import contextlib
import copy
import re
import sys
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rltriage_probes import tiny
from rltriage_probes.invoke import NotReached
from rltriage_probes.learning import Learner
from rltriage_probes.model import Subject

RANK, ALPHA = 4, 12
"""alpha / r = 3, alpha / sqrt(r) = 6: no two scales that people write are the same."""


# The base model


def base_model() -> Any:
    """A small causal model: of `transformers` where the user's module has that, else one of our own."""
    transformers = sys.modules.get("transformers")
    if getattr(transformers, "__file__", None) is None or transformers is None:
        return tiny.base_model()
    config = transformers.LlamaConfig(
        vocab_size=tiny.VOCAB, hidden_size=tiny.WIDTH, intermediate_size=2 * tiny.WIDTH, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=64, pad_token_id=0, eos_token_id=2,
        bos_token_id=1,
    )  # fmt: skip
    state = torch.random.get_rng_state()
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config)
    with torch.no_grad():
        for p in made.parameters():
            if p.dim() == 2:
                p.normal_(0.0, 0.4)
    torch.random.set_rng_state(state)
    return made


def lora_config() -> Any:
    """An adapter's configuration: of `peft` where the user's module has that, else of our own."""
    from rltriage_probes import tiny_hub

    peft = sys.modules.get("peft")
    kind: Any = tiny_hub.LoraConfig if peft is None or getattr(peft, "__file__", None) is None else peft.LoraConfig
    return kind(r=RANK, lora_alpha=ALPHA, target_modules=["q_proj", "v_proj"])


@contextlib.contextmanager
def offline() -> Generator[None, None, None]:
    """Inside, `from_pretrained` of any causal model gives the small one, whatever the name."""
    transformers = sys.modules.get("transformers")
    if transformers is None or getattr(transformers, "__file__", None) is None:
        yield
        return
    from rltriage_probes.standins import StandInTokenizer

    def pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = base_model()
        dtype = kwargs.get("dtype", kwargs.get("torch_dtype"))
        if isinstance(dtype, str):
            dtype = getattr(torch, dtype, None)
        return made.to(dtype) if isinstance(dtype, torch.dtype) else made

    def tokenizer(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return StandInTokenizer()

    def config(cls: Any, *args: Any, **kwargs: Any) -> Any:
        made = base_model().config
        made.architectures = ["LlamaForCausalLM"]
        return made

    changed: list[tuple[Any, Any]] = []
    places = (
        (transformers.AutoConfig, config),
        (transformers.AutoModelForCausalLM, pretrained),
        (transformers.PreTrainedModel, pretrained),
    )
    for owner, function in (*places, (transformers.AutoTokenizer, tokenizer)):
        changed.append((owner, owner.__dict__.get("from_pretrained")))
        owner.from_pretrained = classmethod(function)
    try:
        yield
    finally:
        for owner, original in changed:
            if original is not None:
                owner.from_pretrained = original


# What the factory made


@dataclass(kw_only=True)
class Adapter:
    """One pair of low-rank matrices: `a` [r, in], `b` [out, r] beside a weight [out, in], or both transposed."""

    path: str
    module: nn.Module
    weight: nn.Parameter
    a: nn.Parameter
    b: nn.Parameter
    rank: int
    transposed: bool

    @property
    def leaf(self) -> str:
        parts = [p for p in self.path.split(".") if p not in ("base_layer", "base", "linear", "original")]
        return parts[-1] if parts else self.path

    def product(self) -> Tensor:
        """B A, [out, in]."""
        return (self.a @ self.b).T if self.transposed else self.b @ self.a


@dataclass(kw_only=True)
class Build:
    """A policy with what came along with it."""

    policy: nn.Module
    reference: nn.Module | None = None
    optimizer: Any = None
    base: nn.Module | None = None
    """The base model as it was before, where the probe handed it over."""
    adapters: list[Adapter] = field(default_factory=list)

    def trainable(self) -> dict[str, nn.Parameter]:
        return {n: p for n, p in self.policy.named_parameters() if p.requires_grad}

    def adapter_ids(self) -> set[int]:
        return {id(p) for a in self.adapters for p in (a.a, a.b)}


def learner(subject: Subject) -> Learner:
    assert isinstance(subject.bound, Learner)
    return subject.bound


def build(subject: Subject, **inputs: Any) -> Build:
    """One call of the factory. Raises `CallFailed` or `NotReached`."""
    torch.manual_seed(1)
    base = base_model()
    kept = copy.deepcopy(base)
    given = {
        "model": base,
        "model_path": "tiny",
        "lora_config": lora_config(),
        **{k: v for k, v in inputs.items() if v is not None},
    }
    if "adapter_state" in inputs and inputs["adapter_state"] is None and _demands(subject, "adapter_state"):
        given["adapter_state"] = {}
    bound = learner(subject)
    with offline(), bound.session():
        me = bound.prepare(given)
        result = bound.call_raw(given)
    found = _parts(result, me)
    if found.reference is None and "model" in bound.names and _makes_reference(bound.loaded.qualname):
        found = Build(policy=base, reference=found.policy)
    if found.policy is base or "model" in bound.names:
        found.base = kept
    found.adapters = list(adapters(found.policy))
    return found


def _makes_reference(name: str) -> bool:
    """Whether a function that gives one model gives the reference: `create_reference_model`."""
    parts = set(re.split(r"[_.]|(?<=[a-z])(?=[A-Z])", name.rpartition(".")[2].lower()))
    return bool(parts & {"ref", "reference"}) and not parts & {"policy", "actor", "and"}


def _demands(subject: Subject, word: str) -> bool:
    return any(s.meaning == word and s.how != "default" for s in subject.bound.report.slots)


_REFERENCE = ("ref", "reference", "frozen", "anchor", "initial", "old")


def _parts(result: Any, me: Any) -> Build:
    """Policy, reference and optimizer in whatever the factory gave, or in its `self`."""
    named = list(_named(result))
    modules = [(n, v) for n, v in named if isinstance(v, nn.Module)]
    if not modules and me is not None:
        named = list(_named(me))
        modules = [(n, v) for n, v in named if isinstance(v, nn.Module)]
    if not modules:
        kind = type(result).__name__
        raise NotReached(
            f"the factory returns a {kind} in which no torch module is", "Name the function that returns the model."
        )
    references = [v for n, v in modules if set(n.lower().split("_")) & set(_REFERENCE)]
    policies = [v for _, v in modules if not any(v is r for r in references)]
    if not policies:
        policies, references = [modules[0][1]], [v for _, v in modules[1:]]
    if not references and len(policies) > 1 and all(n.isdigit() for n, _ in modules):
        references = policies[1:2]
    optimizer = next((v for _, v in named if isinstance(v, torch.optim.Optimizer)), None)
    return Build(policy=policies[0], reference=references[0] if references else None, optimizer=optimizer)


def _named(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        yield "policy", value
    elif isinstance(value, Mapping):
        yield from ((str(k), v) for k, v in value.items())
    elif hasattr(value, "_fields"):
        yield from zip(value._fields, value, strict=True)
    elif isinstance(value, (tuple, list)):
        yield from ((str(i), v) for i, v in enumerate(value))
    elif hasattr(value, "__dict__"):
        yield from vars(value).items()


def adapters(model: nn.Module) -> Iterator[Adapter]:
    """Low-rank pairs beside a weight, whatever they are called: found by their shapes."""
    taken: set[int] = set()
    for path, module in sorted(model.named_modules(), key=lambda m: -len(m[0].split(".")) if m[0] else 0):
        own = {n: p for n, p in module.named_parameters() if p.dim() == 2 and id(p) not in taken}
        if not 3 <= len(own) <= 9 or any(isinstance(c, nn.ModuleList) for c in module.children()):
            continue
        found = _pair(path, module, own)
        if found is not None:
            taken |= {id(found.a), id(found.b), id(found.weight)}
            yield found


def _pair(path: str, module: nn.Module, own: Mapping[str, nn.Parameter]) -> Adapter | None:
    for name, weight in own.items():
        out, inner = weight.shape
        rest = [(n, p) for n, p in own.items() if n != name]
        for na, a in rest:
            for nb, b in rest:
                if na == nb or min(a.shape) >= min(out, inner):
                    continue
                low = "lora" in f"{na}{nb}".lower() or _first_of_two(na, nb)
                if low and a.shape[1] == inner and b.shape == (out, a.shape[0]):
                    return Adapter(path=path, module=module, weight=weight, a=a, b=b, rank=a.shape[0], transposed=False)
                if low and a.shape[0] == inner and b.shape == (a.shape[1], out):
                    return Adapter(path=path, module=module, weight=weight, a=a, b=b, rank=a.shape[1], transposed=True)
    return None


def _first_of_two(na: str, nb: str) -> bool:
    """Whether two names are those of the first and the second matrix: `A`/`B`, `down`/`up`."""
    one, two = na.lower().split(".")[0], nb.lower().split(".")[0]
    return any(x in one and y in two for x, y in (("a", "b"), ("down", "up"), ("in", "out"), ("u", "v")))


# Running it


def ids(model: nn.Module, base: nn.Module | None) -> Tensor:
    """Token ids [3, 9] that the model knows."""
    largest = min(
        (p.shape[0] for n, p in model.named_parameters() if "embed" in n and p.dim() == 2), default=tiny.VOCAB
    )
    g = torch.Generator().manual_seed(5)
    return torch.randint(3, min(largest, tiny.VOCAB), (3, 9), generator=g)


def logits(model: nn.Module, tokens: Tensor) -> Tensor:
    out = model(tokens)
    if isinstance(out, Tensor):
        return out.double()
    first = out.logits if hasattr(out, "logits") else out[0]
    return first.double()


@torch.no_grad()
def scored(model: nn.Module, tokens: Tensor) -> Tensor:
    """Logits in evaluation mode, the mode left as it was."""
    was = model.training
    model.eval()
    try:
        return logits(model, tokens)
    finally:
        model.train(was)


def loss(model: nn.Module, tokens: Tensor) -> Tensor:
    out = logits(model, tokens)[:, :-1].log_softmax(-1)
    return -out.gather(-1, tokens[:, 1:, None]).mean()


def gradients(model: nn.Module, tokens: Tensor) -> dict[str, Tensor]:
    """Gradients of a supervised loss in training mode; absent where there is none."""
    model.zero_grad(set_to_none=True)
    was = model.training
    model.train()
    try:
        loss(model, tokens).backward()
    finally:
        model.train(was)
    return {n: p.grad.detach().double() for n, p in model.named_parameters() if p.grad is not None}


def nudge(model: nn.Module, size: float = 0.05) -> None:
    """Moves every trainable weight."""
    g = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            if p.requires_grad:
                p.add_((torch.randn(p.shape, generator=g) * size).to(p.dtype))
