"""Watching a training step from outside: what it differentiates, which gradient it steps on, what changes.

Whatever optimizer the step uses, torch tells of each step before it is made; whatever loss it computes,
`torch.autograd.backward` sees it. So nothing of the user's is replaced.
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from rltriage_probes import aliases, tiny
from rltriage_probes.learning import Learner
from rltriage_probes.model import Subject
from rltriage_probes.selfs import Unknown

ROWS, PROMPT, REPLY = 8, 4, 7
WIDTH = PROMPT + REPLY
SCALE = 256.0


# What a step is given


@dataclass(frozen=True, kw_only=True)
class Frame:
    """One way in which the inputs of a step fit together."""

    split: bool = False
    """Prompt and completion apart; the masks and log-probs are those of the completion."""
    mask: int = WIDTH
    """Columns of the mask, of a sequence's `T` tokens."""
    logprobs: int = WIDTH - 1
    advantages: str = "[B]"
    kind: torch.dtype = torch.float32
    """Of the mask."""
    plain_logits: bool = False

    def says(self) -> str:
        widths = {WIDTH: "T", WIDTH - 1: "T - 1", REPLY: "C"}
        return (
            f"mask [B, {widths[self.mask]}] {str(self.kind).removeprefix('torch.')}, old log-probs "
            f"[B, {widths[self.logprobs]}], advantages {self.advantages}, the model gives "
            f"{'logits' if self.plain_logits else 'an output with logits'}"
        )


@dataclass(frozen=True, kw_only=True)
class Data:
    """Sequences of unequal length with their masks, float64 where real: prompts of one width in front."""

    ids: Tensor
    attention: Tensor
    mask: Tensor
    """[B, T], 1 on trained tokens."""
    advantages: Tensor

    def rows(self, index: Sequence[int]) -> Data:
        at = torch.tensor(list(index))
        return Data(ids=self.ids[at], attention=self.attention[at], mask=self.mask[at], advantages=self.advantages[at])

    def wider(self, columns: int) -> Data:
        """The same with padding behind."""
        pad = nn.functional.pad
        return Data(
            ids=pad(self.ids, (0, columns)), attention=pad(self.attention, (0, columns)),
            mask=pad(self.mask, (0, columns)), advantages=self.advantages,
        )  # fmt: skip


_LENGTHS = (7, 3, 5, 2, 6, 4, 7, 1)
_ADVANTAGES = (1.5, -0.5, -1.5, 0.5, -1.5, 0.5, 1.5, -0.5)


def data(*, hole: bool = True, seed: int = 0) -> Data:
    """Eight rows, one with tokens in the middle of its reply that are not trained (`hole`).

    The advantages have the mean 0 and the same std in each half, so that centring and scaling them changes nothing
    but a common factor.
    """
    g = torch.Generator().manual_seed(1000 + seed)
    ids = torch.randint(3, tiny.VOCAB, (ROWS, WIDTH), generator=g)
    lengths = torch.tensor(_LENGTHS)
    at = torch.arange(WIDTH)[None]
    real = at < PROMPT + lengths[:, None]
    ids = torch.where(real, ids, torch.zeros_like(ids))
    last = PROMPT + lengths - 1
    ended = lengths < REPLY
    ids[torch.arange(ROWS)[ended], last[ended]] = 2
    mask = real & (at >= PROMPT)
    if hole:
        mask[0, PROMPT + 2 : PROMPT + 4] = False
    return Data(ids=ids, attention=real.long(), mask=mask.double(), advantages=torch.tensor(_ADVANTAGES).double())


def words(batch: Data, frame: Frame, model: nn.Module, zero: bool = False) -> dict[str, Any]:
    """The batch by word of the vocabulary, in the form of the frame; the old policy is the model as it is."""
    with torch.no_grad():
        logprobs = tiny.token_logprobs(model, batch.ids, batch.attention).float()
    full = nn.functional.pad(logprobs, (1, 0))
    wide = batch.ids.shape[1] - WIDTH
    columns = {WIDTH: 0, WIDTH - 1: 1, REPLY: PROMPT}
    at, mask_at = columns[frame.logprobs], columns[frame.mask]
    scored = full[:, at:]
    advantages = batch.advantages.float() * (0.0 if zero else 1.0)
    if frame.advantages == "[B, T]":
        advantages = advantages[:, None].expand(-1, scored.shape[1]).clone()
    elif frame.advantages == "[B, 1]":
        advantages = advantages[:, None]
    mask = batch.mask[:, mask_at:].to(frame.kind)
    labels = torch.where(batch.mask.bool(), batch.ids, torch.full_like(batch.ids, -100))
    half = len(batch.ids) // 2
    pairs: dict[str, Any] = {}
    for side, rows in (("chosen", slice(0, half)), ("rejected", slice(half, None))):
        pairs |= {
            f"{side}_ids": batch.ids[rows].clone(), f"{side}_attention": batch.attention[rows].clone(),
            f"{side}_mask": mask[rows].clone(), f"{side}_labels": labels[rows].clone(),
            f"ref_{side}_logprobs": (logprobs * batch.mask[:, 1:]).sum(1).float()[rows],
        }  # fmt: skip
    return {
        **pairs, "token_ids": batch.ids.clone(), "attention_mask": batch.attention.clone(), "completion_mask": mask,
        "labels": labels, "advantages": advantages, "rewards": batch.advantages.float() * (0.0 if zero else 1.0),
        "old_logprobs": scored.clone(), "ref_logprobs": scored.clone(), "rollout_logprobs": scored.clone(),
        "prompt_ids": batch.ids[:, :PROMPT].clone(), "prompt_mask": batch.attention[:, :PROMPT].clone(),
        "completion_ids": batch.ids[:, PROMPT:].clone(), "prompt_length": PROMPT, "completion_length": REPLY + wide,
        "lengths": batch.attention[:, PROMPT:].sum(1), "group_ids": torch.arange(len(batch.ids)) // 4,
    }  # fmt: skip


# Surroundings


class Scaler:
    """What a gradient scaler does, on any device: losses times a factor, gradients divided by it before the step."""

    def __init__(self) -> None:
        self._unscaled: set[int] = set()

    def scale(self, loss: Any) -> Any:
        return loss * SCALE

    def unscale_(self, optimizer: Any) -> None:
        if id(optimizer) not in self._unscaled:
            self._unscaled.add(id(optimizer))
            for group in optimizer.param_groups:
                for p in group["params"]:
                    if p.grad is not None:
                        p.grad.div_(SCALE)

    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        self.unscale_(optimizer)
        return optimizer.step(*args, **kwargs)

    def update(self, *args: Any) -> None:
        self._unscaled.clear()

    def get_scale(self) -> float:
        return SCALE

    def is_enabled(self) -> bool:
        return True

    def state_dict(self) -> dict[str, Any]:
        return {}


class Accelerator:
    """The part of `accelerate.Accelerator` that a training step uses, for one process."""

    num_processes = 1
    process_index = local_process_index = 0
    is_main_process = is_local_main_process = True
    sync_gradients = True
    mixed_precision = "no"
    scaler = parallelism_config = ring_attn_group = None

    def __init__(self, steps: int = 1) -> None:
        self.gradient_accumulation_steps = steps
        self.device = torch.device("cpu")

    def backward(self, loss: Tensor, **kwargs: Any) -> None:
        """Divides by the accumulation steps, as accelerate does."""
        (loss / self.gradient_accumulation_steps).backward(**kwargs)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2.0) -> Tensor:
        return nn.utils.clip_grad_norm_(parameters, max_norm, norm_type)

    def gather(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value

    gather_for_metrics = reduce = pad_across_processes = all_reduce = unwrap_model = gather

    def prepare(self, *args: Any) -> Any:
        return args if len(args) != 1 else args[0]

    @contextlib.contextmanager
    def accumulate(self, *models: Any) -> Generator[None, None, None]:
        yield

    @contextlib.contextmanager
    def autocast(self, *args: Any, **kwargs: Any) -> Generator[None, None, None]:
        yield

    no_sync = accumulate

    def print(self, *args: Any, **kwargs: Any) -> None:
        pass

    def log(self, *args: Any, **kwargs: Any) -> None:
        pass

    wait_for_everyone = log

    def __getattr__(self, name: str) -> Any:
        """What else a launcher carries."""
        if name.startswith("__"):
            raise AttributeError(name)
        return False if aliases.is_flag(name) else Unknown(f"accelerator.{name}")


class Schedule:
    """A learning-rate scheduler that leaves the rate as it is."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.steps = 0

    def step(self, *args: Any) -> None:
        self.steps += 1

    def get_last_lr(self) -> list[float]:
        return [g["lr"] for g in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        return {}


# What a step did


@dataclass(kw_only=True)
class Step:
    """One call of an optimizer's `step`, as it was about to be made."""

    optimizer: Any
    raw: dict[str, Tensor]
    """Gradients behind the last backward, by parameter, before anything was clipped; float64."""
    given: dict[str, Tensor]
    """Gradients that the optimizer stepped on."""
    covered: set[str]
    lr: float
    backwards: int
    """Backward passes since the call began."""


@dataclass(kw_only=True)
class Trace:
    """Everything that one call did to the model."""

    model: nn.Module
    steps: list[Step] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    """Values of what was differentiated, in order."""
    left: dict[str, Tensor] = field(default_factory=dict)
    """Gradients that were there when the call ended."""
    before: dict[str, Tensor] = field(default_factory=dict)
    after: dict[str, Tensor] = field(default_factory=dict)
    result: Any = None
    training: tuple[bool, bool] = (True, True)
    ref_moved: bool = False
    own_optimizer: bool = False
    """Whether the optimizer that stepped is none that the probe handed over."""

    @property
    def moved(self) -> set[str]:
        return {n for n, p in self.after.items() if n in self.before and not torch.equal(p, self.before[n])}

    @property
    def gradient(self) -> dict[str, Tensor]:
        """What the call adds up to: over all optimizer steps, else what it left in the parameters."""
        parts = [s.raw for s in self.steps] or [self.left]
        names = dict.fromkeys(n for p in parts for n in p)
        return {n: cast(Tensor, sum(p[n] for p in parts if n in p)) for n in names}


@dataclass(kw_only=True)
class World:
    """A model with all that goes with it."""

    model: Any
    ref_model: Any
    optimizer: Any
    scheduler: Any
    scaler: Any
    accelerator: Any


LR = 1e-2


def world(frame: Frame, lr: float = LR, steps: int = 1, adamw: bool = False) -> World:
    """A fresh model with the weights of always; its reference is a frozen copy."""
    model, ref = tiny.base_model(), tiny.base_model().requires_grad_(False).eval()
    model.plain_logits = ref.plain_logits = frame.plain_logits
    model.train()
    made = torch.optim.AdamW if adamw else torch.optim.SGD
    optimizer = made(model.parameters(), lr=lr)
    return World(
        model=model, ref_model=ref, optimizer=optimizer, scheduler=Schedule(optimizer), scaler=Scaler(),
        accelerator=Accelerator(steps),
    )  # fmt: skip


def surroundings(w: World) -> dict[str, Any]:
    return {
        "model": w.model, "ref_model": w.ref_model, "optimizer": w.optimizer, "scheduler": w.scheduler,
        "scaler": w.scaler, "accelerator": w.accelerator,
    }  # fmt: skip


def learner(subject: Subject) -> Learner:
    assert isinstance(subject.bound, Learner)
    return subject.bound


class Watch:
    """Hooks that note what a call does; `frozen`: every optimizer steps with a learning rate of 0."""

    def __init__(self, trace: Trace, *, frozen: bool = False) -> None:
        self.trace = trace
        self.frozen = frozen
        self._raw: dict[int, Tensor] = {}
        self._backwards = 0

    def _names(self) -> dict[int, str]:
        return {id(p): n for n, p in named(self.trace.model).items()}

    def _gradients(self, parameters: Sequence[Tensor]) -> dict[int, Tensor]:
        return {id(p): p.grad.detach().double().clone() for p in parameters if p.grad is not None}

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        parameters = [p for g in optimizer.param_groups for p in g["params"]]
        names = self._names()
        given = self._gradients(parameters)
        raw = {n: g for i, g in self._raw.items() if (n := names.get(i))}
        self.trace.steps.append(
            Step(
                optimizer=optimizer, raw=raw, given={names[i]: g for i, g in given.items() if i in names},
                covered={names[id(p)] for p in parameters if id(p) in names},
                lr=float(optimizer.param_groups[0]["lr"]) if optimizer.param_groups else 0.0,
                backwards=self._backwards,
            )
        )  # fmt: skip
        if self.frozen:
            for group in optimizer.param_groups:
                group["lr"] = 0.0

    @contextlib.contextmanager
    def on(self) -> Generator[None, None, None]:
        handle = register_optimizer_step_pre_hook(self.before_step)
        original = torch.autograd.backward

        def backward(tensors: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(tensors, *args, **kwargs)
            first = tensors if isinstance(tensors, Tensor) else next(iter(tensors), None)
            if isinstance(first, Tensor) and first.numel() == 1:
                self.trace.losses.append(float(first.detach()))
            self._backwards += 1
            self._raw = self._gradients(list(self.trace.model.parameters()))
            return result

        torch.autograd.backward = backward
        try:
            yield
        finally:
            torch.autograd.backward = original
            handle.remove()


_KNOWN = tuple(n for n, _ in tiny.base_model().named_parameters())


def named(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters under the names that the small model has, whatever it is wrapped in."""
    out: dict[str, nn.Parameter] = {}
    for name, p in model.named_parameters():
        known = next((k for k in _KNOWN if name == k or name.endswith(f".{k}")), name)
        out[known] = p
    return out


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {n: p.detach().clone() for n, p in named(model).items()}


def call(
    subject: Subject, w: World, inputs: Mapping[str, Any], *, frozen: bool = False, model: nn.Module | None = None
) -> Trace:
    """One call of the user's step on a world, inside a session. Raises `CallFailed` or `NotReached`."""
    given = {**surroundings(w), **inputs}
    trainer = learner(subject).prepare(given)
    trained = model if model is not None else trained_model(w, trainer)
    trace = Trace(model=trained, before=weights(trained))
    was = trained.training
    watch = Watch(trace, frozen=frozen)
    torch.manual_seed(0)
    with watch.on():
        trace.result = learner(subject).call_raw(given)
    loss = differentiable(trace.result)
    if loss is not None and not trace.losses and not trace.steps:
        trace.losses.append(float(loss.detach()))
        loss.backward()
    trace.after = weights(trained)
    trace.left = {n: p.grad.detach().double().clone() for n, p in named(trained).items() if p.grad is not None}
    trace.training = (was, trained.training)
    return trace


def trained_model(w: World, trainer: Any) -> nn.Module:
    """The model that was handed over, unless the trainer has put another one of the same weights in its place."""
    if trainer is None:
        return w.model
    modules = list(tiny.modules_of(trainer if isinstance(trainer, nn.Module) else vars(trainer)))
    if any(inner is w.model for m in modules for inner in m.modules()) or not modules:
        return w.model
    others = [m for m in modules if m is not w.ref_model and any(p.requires_grad for p in m.parameters())]
    return max(others, key=lambda m: sum(p.numel() for p in m.parameters()), default=w.model)


def differentiable(result: Any) -> Tensor | None:
    """A loss that a step hands back with its graph."""
    if isinstance(result, Tensor):
        return result if result.requires_grad and result.numel() == 1 else None
    if isinstance(result, tuple) and result:
        return differentiable(result[0])
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    return differentiable(loss) if isinstance(loss, Tensor) else None


def reported(result: Any) -> float | None:
    """The loss that a step reports, where it reports one."""
    value: Any = result
    if isinstance(result, tuple) and result:
        value = result[0]
    if isinstance(value, Mapping):
        mapping: Mapping[Any, Any] = value
        names = (
            "loss",
            "train/loss",
            "policy_loss",
            "pg_loss",
            "train_loss",
            "actor_loss",
            "total_loss",
            "loss/policy",
        )
        value = next((mapping[n] for n in names if n in mapping), None)
    elif not isinstance(value, (int, float, Tensor)):
        value = getattr(value, "loss", None)
    try:
        return None if value is None or isinstance(value, bool) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None


def flat(gradient: Mapping[str, Tensor], names: Sequence[str]) -> Tensor:
    """One vector of the gradients of these parameters, 0 where there is none."""
    shapes = {n: p.shape for n, p in tiny.base_model().named_parameters()}
    return torch.cat(
        [gradient[n].flatten() if n in gradient else torch.zeros(shapes[n]).double().flatten() for n in names]
    )
