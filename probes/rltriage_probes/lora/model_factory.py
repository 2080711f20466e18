"""Role `model_factory`: base model and settings -> policy, or policy and reference.

What a policy is made of is free; what it must do is not. Something can be trained and gets a gradient, adapters
change the output by `s B A x` with `s = alpha / r` (Hu et al. 2021, arXiv:2106.09685, section 4.1) or
`alpha / sqrt(r)` (Kalajdzievski 2023, arXiv:2312.03732), start at 0, and sit in the modules that were asked for;
the reference is the policy of step 0 and stays it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import probing, standins, tiny_hub
from rltriage_probes.contract import Check, NotRun, Severity
from rltriage_probes.invoke import NotReached, describe_error
from rltriage_probes.lora import building
from rltriage_probes.lora.building import ALPHA, RANK, Build
from rltriage_probes.model import CallFailed, Case, Pitfall, Role, Subject

ASKS = "base model and settings -> policy, or policy and reference"

FROZEN = Pitfall(id="MODEL-FROZEN", family="lora-frozen", says="returns a policy of which no weight can be trained")
BASE_TRAINED = Pitfall(
    id="LORA-BASE-TRAINED", family="lora-frozen", says="leaves the base weights under the adapters trainable"
)
NO_TARGET = Pitfall(
    id="LORA-NO-TARGET", family="lora-targets", says="puts an adapter into no module of the model, and says nothing"
)
TARGETS = Pitfall(
    id="LORA-TARGETS", family="lora-targets", says="puts adapters into other modules than it was told or documents"
)
SAVED = Pitfall(
    id="LORA-MODULES-TO-SAVE", family="lora-targets", says="does not train the modules that were to be trained whole"
)
SCALE = Pitfall(
    id="LORA-SCALE", family="lora-scale", says="scales the adapter by something else than alpha over the rank"
)
RANK_WRONG = Pitfall(id="LORA-RANK", family="lora-scale", says="makes adapters of another rank than it was told")
START = Pitfall(
    id="LORA-START", family="lora-scale", says="starts with adapters that already change the output of the base model"
)
NO_GRADIENT = Pitfall(
    id="MODEL-NO-GRADIENT", family="gradient-cut", says="has trainable weights that no gradient ever reaches"
)
INERT = Pitfall(
    id="LORA-INERT", family="inert-option", says="holds adapters whose weights have no effect on the output"
)
NOT_LOADED = Pitfall(
    id="LORA-NOT-LOADED", family="config", says="takes the weights of an earlier adapter and does not put them in"
)
REF_ALIASED = Pitfall(
    id="REF-ALIASED", family="aliasing", says="returns a reference that changes when the policy is trained"
)
REF_OTHER = Pitfall(
    id="REF-NOT-POLICY",
    family="reference-drift",
    says="returns a reference that is another model than the policy of step 0, so that the KL starts above 0",
)
REF_TRAINABLE = Pitfall(
    id="REF-TRAINABLE", family="reference-drift", says="returns a reference whose weights can be trained"
)
REF_NOISY = Pitfall(
    id="REF-DROPOUT", family="reference-drift", says="leaves the reference in training mode, so that its dropout acts"
)
REF_PRECISION = Pitfall(
    id="REF-PRECISION", family="precision", says="keeps policy and reference in different precisions"
)
OPTIMIZER = Pitfall(
    id="MODEL-OPTIMIZER", family="optimizer", says="returns an optimizer that does not hold the trainable weights"
)
PITFALLS = (
    FROZEN, BASE_TRAINED, NO_TARGET, TARGETS, SAVED, SCALE, RANK_WRONG, START, NO_GRADIENT, INERT, NOT_LOADED,
    REF_ALIASED, REF_OTHER, REF_TRAINABLE, REF_NOISY, REF_PRECISION, OPTIMIZER,
)  # fmt: skip

_LORA_WORDS = frozenset(("lora_r", "lora_alpha", "lora_targets", "adapter_state", "adapter_path", "use_rslora"))
_EXACT, _LOW = 1e-4, 5e-2
"""Relative difference of logits that counts as none, in float32 and in half precision."""
_ATTENTION = frozenset(("q_proj", "k_proj", "v_proj", "o_proj"))
_MLP = frozenset(("gate_proj", "up_proj", "down_proj"))


@dataclass
class Exam:
    """A factory that runs, and what it made without an earlier adapter."""

    subject: Subject
    made: Build
    settings: Mapping[str, Any]
    tokens: Tensor

    @property
    def names(self) -> frozenset[str]:
        return self.subject.bound.names

    def build(self, **inputs: Any) -> Build:
        return building.build(self.subject, **{**self.settings, **inputs})

    @property
    def low(self) -> bool:
        return any(p.dtype in (torch.bfloat16, torch.float16) for p in self.made.policy.parameters())

    @property
    def lora(self) -> bool:
        """Whether it is meant to make adapters."""
        text = f"{self.subject.source} {self.subject.doc}"
        return bool(self.made.adapters or _LORA_WORDS & self.names or re.search(r"lora", text, re.I))

    def same(self, a: Tensor, b: Tensor) -> bool:
        return _distance(a, b) < (_LOW if self.low else _EXACT)


def _distance(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))


def run(subject: Subject) -> Iterator[Check]:
    exam = _settle(subject)
    if isinstance(exam, Check):
        yield exam
        return
    frozen = _trainable(exam)
    yield frozen
    questions = (_base, _targets, _saved, _scale, _start, _gradient, _effect, _optimizer, _reference, _loaded)
    if not exam.made.trainable():
        questions = (_targets, _scale, _reference)
    for question in questions:
        try:
            yield from question(exam)
        except (CallFailed, NotReached):
            continue  # a setting that this factory is not made for


def _settle(subject: Subject) -> Exam | Check:
    bound = building.learner(subject)
    first: CallFailed | NotReached | None = None
    options: list[dict[str, Any]] = [
        {"lora_r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.0, "tokenizer": standins.StandInTokenizer()}
    ]
    options.append({k: v for k, v in options[0].items() if k == "tokenizer"})
    while True:
        for settings in options:
            settings["adapter_state"] = None
            try:
                folder = _folder(subject)
                if folder:
                    settings["adapter_path"] = folder
                made = building.build(subject, **settings)
                tokens = building.ids(made.policy, made.base)
                building.scored(made.policy, tokens)
            except (CallFailed, NotReached) as e:
                first = first or e
                continue
            except Exception as e:  # noqa: BLE001  the user's model
                first = first or NotReached(
                    f"the model that the factory returns can't be run on token ids: {describe_error(e)}",
                    "Name the factory of the causal model itself.",
                )
                continue
            return Exam(subject, made, settings, tokens)
        if not bound.fall_back():
            break
    reason = first.reason if isinstance(first, NotReached) else f"the factory raises: {getattr(first, 'error', '')}"
    do = first.do if isinstance(first, NotReached) else "Bind what it needs in the manifest."
    return Check(probe="model_factory.call", asks=ASKS, outcome=NotRun(reason=reason, do=do))


def _folder(subject: Subject) -> str:
    """A folder with an adapter of the stand-in library, where the factory must have one."""
    return _adapter_folder() if "adapter_path" in subject.bound.names and not _has_peft() else ""


def _has_peft() -> bool:
    import sys

    return getattr(sys.modules.get("peft"), "__file__", None) is not None


def _adapter_folder() -> str:
    """The name of an adapter of the stand-in library, with weights that are not 0."""
    name = "sft-adapter"
    config = tiny_hub.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=("q_proj", "v_proj", "up_proj"))
    model = tiny_hub.PeftModel(building.base_model(), config)
    g = torch.Generator().manual_seed(11)
    state = {
        n: torch.randn(p.shape, generator=g) * 0.3 for n, p in model.named_parameters() if "lora_" in n
    }  # fmt: skip
    tiny_hub.FOLDERS[name] = (config, state)
    return name


# Trainable weights


def _trainable(exam: Exam) -> Check:
    probe, asks = "model_factory.trainable", "can anything be trained?"
    chosen = exam.made.trainable()
    total = sum(p.numel() for p in exam.made.policy.parameters())
    count = sum(p.numel() for p in chosen.values())
    if chosen:
        return probing.holds(probe, asks, f"{len(chosen)} tensors with {count} of {total} weights are trainable")
    if not exam.made.adapters and {"lora_r", "lora_targets"} & exam.names:
        says = "a rank was given; no module of the policy holds a low-rank pair, and nothing can be trained"
        return probing.violation("model_factory.targets", asks, says, NO_TARGET)
    says = f"none of the policy's {total} weights requires a gradient"
    severity: Severity = "hard" if _is_to_be_trained(exam) else "soft"
    return probing.violation(probe, asks, says, FROZEN, severity=severity)


def _is_to_be_trained(exam: Exam) -> bool:
    """Whether the model that comes back is what is trained, and not one that somebody goes on preparing."""
    name = building.learner(exam.subject).loaded.qualname
    if re.search(r"prepare|freeze|frozen|eval|inference", name, re.I):
        return False
    if probing.claims(exam.subject, r"\binference\b|\bevaluat|\bserving\b"):
        return False
    made = exam.made
    came_along = made.adapters or made.optimizer is not None or made.reference is not None or _LORA_WORDS & exam.names
    return (
        bool(came_along)
        or re.search(r"polic|actor|train|fine-?tun|\bRL\b", f"{name} {exam.subject.doc}", re.I) is not None
    )


def _base(exam: Exam) -> Iterator[Check]:
    made = exam.made
    if not made.adapters:
        return
    probe, asks = "model_factory.base", "is the model under the adapters frozen?"
    ids = made.adapter_ids()
    if not any(p.requires_grad for a in made.adapters for p in (a.a, a.b)):
        says = f"none of the {len(made.adapters)} adapters can be trained, only other weights"
        yield probing.violation(probe, asks, says, FROZEN)
        return
    under = [a.path for a in made.adapters if a.weight.requires_grad]
    if under:
        says = f"the base weight of {len(under)} of {len(made.adapters)} adapters is trainable, e.g. {under[0]}"
        yield probing.violation(probe, asks, says, BASE_TRAINED)
        return
    inside = {id(p) for a in made.adapters for p in a.module.parameters()}
    others = [n for n, p in made.trainable().items() if id(p) not in ids | inside]
    plain = [n for n in others if not re.search(r"lora|adapter|norm|bias|head|embed|modules_to_save", n, re.I)]
    promised = probing.claims(
        exam.subject, r"frozen base|base (model )?(\w+ )?(is |stays |weights )?frozen|only the (lora|adapter)"
    )
    if plain or (others and promised and "modules_to_save" not in exam.names):
        first = (plain or others)[0]
        says = f"{len(plain or others)} other weights are trainable as well, e.g. {first}"
        severity: Severity = "hard" if promised else "soft"
        yield probing.violation(probe, asks, says, BASE_TRAINED, severity=severity)
        return
    yield probing.holds(probe, asks, f"the weights under {len(made.adapters)} adapters are frozen")


# Where adapters are


def _targets(exam: Exam) -> Iterator[Check]:
    if not exam.lora:
        return
    probe, asks = "model_factory.targets", "do adapters sit where they were asked for?"
    made = exam.made
    if not made.adapters:
        if "lora_r" in exam.names or "lora_targets" in exam.names:
            says = "a rank was given, and no module of the policy holds a low-rank pair"
            if made.trainable():
                yield probing.violation(probe, asks, says, NO_TARGET, severity="soft")
        return
    if "lora_targets" in exam.names:
        wanted = {"q_proj", "up_proj"}
        got = {a.leaf for a in exam.build(lora_targets=["q_proj", "up_proj"]).adapters}
        if got != wanted:
            says = f"asked for {_listed(wanted)}, adapters are in {_listed(got) or 'no module'}"
            yield probing.violation(probe, asks, says, TARGETS if got else NO_TARGET)
            return
    got = {a.leaf for a in made.adapters}
    promised = _promised(exam.subject.doc)
    if promised - got:
        says = f"the docstring promises adapters in {_listed(promised)}; {_listed(promised - got)} have none"
        yield probing.violation(probe, asks, says, TARGETS)
        return
    yield probing.holds(probe, asks, f"adapters in {_listed(got)}")


def _promised(doc: str) -> set[str]:
    """Modules in which a docstring says that adapters are."""
    sentences = [s for s in re.split(r"(?<=[.;])\s+|\n\s*\n", doc) if re.search(r"lora|adapter|low-rank", s, re.I)]
    text = " ".join(s for s in sentences if not re.search(r"\bif\b|\bor\b|optional|e\.g\.|\bnot\b|except", s, re.I))
    named = {m for m in _ATTENTION | _MLP if re.search(rf"\b{m}\b", text)}
    if re.search(r"\b(all|every|each)\b[\w\s-]{0,24}\b(linear|projection)", text, re.I):
        return set(_ATTENTION | _MLP)
    if re.search(r"\b(mlp|feed-?forward)\b", text, re.I):
        named |= _MLP
    return named


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names)[:8])


def _saved(exam: Exam) -> Iterator[Check]:
    if "modules_to_save" not in exam.names:
        return
    probe, asks = "model_factory.modules_to_save", "are the modules that were to be trained whole trainable?"
    made = exam.build(modules_to_save=["lm_head"])
    if any("lm_head" in n and id(p) not in made.adapter_ids() for n, p in made.trainable().items()):
        yield probing.holds(probe, asks, "lm_head is trained whole where that is asked for")
        return
    yield probing.violation(probe, asks, "asked to train lm_head whole, none of its weights is trainable", SAVED)


# What adapters do


def _scale(exam: Exam) -> Iterator[Check]:
    made = exam.made
    if not made.adapters:
        return
    probe, asks = "model_factory.scale", "is the adapter's scale alpha over its rank?"
    r = _setting(exam, "lora_r")
    alpha = _setting(exam, "lora_alpha")
    adapter = made.adapters[0]
    if r is not None and adapter.rank != int(r):
        says = f"a rank of {int(r)} was given, the matrices have rank {adapter.rank}"
        yield probing.violation(probe, asks, says, RANK_WRONG, numbers={"rank": float(adapter.rank), "r": float(r)})
        return
    measured = _measured_scale(adapter)
    if not measured or alpha is None:
        return
    yield _judge_scale(exam, probe, asks, measured, float(alpha), adapter.rank)


def _setting(exam: Exam, word: str) -> float | None:
    if "lora_config" in exam.names:
        return float({"lora_r": RANK, "lora_alpha": ALPHA}[word])
    value = exam.settings.get(word) if word in exam.names else exam.subject.bound.settings.get(word)
    if value is None or (word not in exam.settings and word in exam.names):
        value = exam.subject.bound.settings.get(word)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _judge_scale(exam: Exam, probe: str, asks: str, measured: float, alpha: float, rank: int) -> Check:
    plain, stabilised = alpha / rank, alpha / math.sqrt(rank)
    numbers = {"scale": measured, "alpha": alpha, "r": float(rank)}
    near = 0.05 if exam.low else 1e-3
    told = exam.subject.intent.get("use_rslora", exam.subject.bound.settings.get("use_rslora"))
    text = f"{exam.subject.source} {exam.subject.doc}"
    named = told is True or (told is None and re.search(r"rs_?lora|rank.stabili[sz]ed", text, re.I) is not None)
    if abs(measured / plain - 1) < near and told is not True:
        return probing.holds(probe, asks, f"scale alpha / r = {measured:.3g}")
    if abs(measured / stabilised - 1) < near and (named or told is None):
        if named or plain == stabilised:
            return probing.holds(probe, asks, f"scale alpha / sqrt(r) = {measured:.3g} (rank-stabilised)")
        says = f"the scale is alpha / sqrt(r) = {measured:.3g}, as in rsLoRA; is that meant?"
        return probing.violation(probe, asks, says, SCALE, numbers=numbers, severity="soft")
    want = stabilised if told is True else plain
    asked = f"alpha {alpha:g} and rank {rank} ask for a scale of {want:.4g}"
    says = f"{asked}; the adapter's output is multiplied by {measured:.4g}"
    return probing.violation(probe, asks, says, SCALE, numbers=numbers)


@torch.no_grad()
def _measured_scale(adapter: building.Adapter) -> float | None:
    """Factor in front of `B A x` in the output of the wrapped module; None where it can't be called so."""
    g = torch.Generator().manual_seed(2)
    kept = adapter.a.detach().clone(), adapter.b.detach().clone()
    was = adapter.module.training
    adapter.module.eval()
    try:
        x = torch.randn(5, adapter.weight.shape[1], generator=g).to(adapter.weight.dtype)
        adapter.a.copy_(torch.randn(adapter.a.shape, generator=g).to(adapter.a.dtype))
        adapter.b.copy_(torch.zeros_like(adapter.b))
        without = adapter.module(x)
        adapter.b.copy_(torch.randn(adapter.b.shape, generator=g).to(adapter.b.dtype))
        delta = (adapter.module(x) - without).double()
        want = x.double() @ adapter.product().double().T
    except Exception:  # noqa: BLE001  the user's module
        return None
    finally:
        adapter.a.copy_(kept[0])
        adapter.b.copy_(kept[1])
        adapter.module.train(was)
    scale, cosine = probing.scale_and_cosine(delta, want)
    return scale if cosine > 0.99 or scale == 0 else None


def _start(exam: Exam) -> Iterator[Check]:
    made = exam.made
    if not made.adapters or "adapter_path" in exam.settings:
        return
    probe, asks = "model_factory.start", "is the policy the base model before its first update?"
    now = building.scored(made.policy, exam.tokens)
    if made.base is not None:
        low = next((p.dtype for p in made.policy.parameters() if p.dtype in (torch.bfloat16, torch.float16)), None)
        before = building.scored(made.base if low is None else made.base.to(low), exam.tokens)
    else:
        before = _with_b_zero(exam)
    if exam.same(now, before):
        yield probing.holds(probe, asks, "fresh adapters change nothing")
        return
    gap = _distance(now, before)
    says = f"fresh adapters change the logits by {gap:.1%} of the largest one"
    zero = _with_b_zero(exam)
    if (made.base is not None and not exam.same(now, zero)) or made.base is None:
        yield probing.violation(probe, asks, says, START, numbers={"distance": gap})
    else:
        says = f"without its adapters the policy is not the base model that was handed over: logits differ by {gap:.1%}"
        yield Check(probe=probe, asks=asks, outcome=probing.diverges(says, None, {"distance": gap}))


def _with_b_zero(exam: Exam) -> Tensor:
    kept = [(a.b, a.b.detach().clone()) for a in exam.made.adapters]
    with torch.no_grad():
        for b, _ in kept:
            b.zero_()
        out = building.scored(exam.made.policy, exam.tokens)
        for b, value in kept:
            b.copy_(value)
    return out


def _gradient(exam: Exam) -> Iterator[Check]:
    """At B = 0 the gradient of A is 0, so that weights are moved once before what has none is looked for."""
    probe, asks = "model_factory.gradient", "does a gradient reach every trainable weight?"
    made = exam.build()
    chosen = made.trainable()
    if made.adapters and _inert(exam):
        return  # asked for by itself
    try:
        first = building.gradients(made.policy, exam.tokens)
        building.nudge(made.policy)
        second = building.gradients(made.policy, exam.tokens)
    except RuntimeError as e:
        if "does not require grad" not in str(e):
            return
        yield probing.violation(probe, asks, f"no gradient flows from the logits: {describe_error(e)}", NO_GRADIENT)
        return
    dead = [n for n in chosen if not _alive(first, n) and not _alive(second, n) and not _other_head(n)]
    if not dead:
        yield probing.holds(probe, asks, f"all {len(chosen)} trainable tensors have a gradient")
        return
    says = f"{len(dead)} of {len(chosen)} trainable tensors never have a gradient, e.g. {', '.join(dead[:3])}"
    adapters = {n for n, p in made.policy.named_parameters() if id(p) in made.adapter_ids()}
    severity: Severity = "hard" if len(dead) == len(chosen) or set(dead) & adapters else "soft"
    yield probing.violation(probe, asks, says, NO_GRADIENT, severity=severity)


def _other_head(name: str) -> bool:
    """Whether a weight belongs to a head that another loss trains."""
    return re.search(r"value|v_head|critic|score|reward", name, re.I) is not None


def _alive(gradients: Mapping[str, Tensor], name: str) -> bool:
    return name in gradients and float(gradients[name].abs().sum()) > 0


def _effect(exam: Exam) -> Iterator[Check]:
    if not exam.made.adapters:
        return
    probe, asks = "model_factory.effect", "do the adapters change the output?"
    if _inert(exam):
        says = f"other values in all {len(exam.made.adapters)} adapters leave the logits as they are"
        yield probing.violation(probe, asks, says, INERT)
        return
    yield probing.holds(probe, asks, "the adapters change the output")


def _inert(exam: Exam) -> bool:
    """Whether the logits are the same whatever the adapters hold."""
    made = exam.build()
    before = building.scored(made.policy, exam.tokens)
    with torch.no_grad():
        for a in made.adapters:
            a.a.normal_(0, 0.5)
            a.b.normal_(0, 0.5)
    return torch.equal(before, building.scored(made.policy, exam.tokens))


def _optimizer(exam: Exam) -> Iterator[Check]:
    made = exam.made
    if made.optimizer is None:
        return
    probe, asks = "model_factory.optimizer", "does the optimizer hold what can be trained?"
    held = {id(p) for g in made.optimizer.param_groups for p in g["params"]}
    chosen = made.trainable()
    missing = [n for n, p in chosen.items() if id(p) not in held]
    foreign = {id(p) for p in made.reference.parameters()} & held if made.reference is not None else set[int]()
    foreign -= {id(p) for p in made.policy.parameters()}
    rates = [float(g["lr"]) for g in made.optimizer.param_groups]
    if missing or foreign or not held:
        says = (
            f"{len(missing)} of {len(chosen)} trainable tensors are not in the optimizer, e.g. {', '.join(missing[:3])}"
        )
        says = "the optimizer holds weights of the reference" if foreign and not missing else says
        yield probing.violation(probe, asks, says, OPTIMIZER)
    elif rates and max(rates) == 0:
        yield probing.violation(probe, asks, "the learning rate is 0", OPTIMIZER, severity="soft")
    else:
        yield probing.holds(probe, asks, f"it holds all {len(chosen)} trainable tensors")


# The reference


def _reference(exam: Exam) -> Iterator[Check]:
    yield from _of_reference(exam, exam.made, "")


def _of_reference(exam: Exam, made: Build, after: str) -> Iterator[Check]:
    ref = made.reference
    if ref is None:
        return
    probe, asks = "model_factory.reference", "is the reference the policy of step 0, and does it stay that?"
    chosen = [n for n, p in ref.named_parameters() if p.requires_grad]
    policy, reference = building.scored(made.policy, exam.tokens), building.scored(ref, exam.tokens)
    if not exam.same(reference, policy):
        yield from _other_reference(exam, made, probe, asks, policy, reference, after)
        return
    if made.trainable():
        building.nudge(made.policy)
        moved = not torch.equal(reference, building.scored(ref, exam.tokens))
        if moved:
            says = "moving the policy's trainable weights moves the reference's logits with them"
            yield probing.violation(probe, asks, says, REF_ALIASED)
            return
    if chosen and ref is not made.policy:
        promised = probing.claims(exam.subject, r"\bfrozen\b|\bfreez")
        says = f"{len(chosen)} tensors of the reference require a gradient, e.g. {chosen[0]}"
        yield probing.violation(probe, asks, says, REF_TRAINABLE, severity="hard" if promised else "soft")
    noisy = [n for n, m in ref.named_modules() if isinstance(m, torch.nn.Dropout) and m.p > 0 and m.training]
    if noisy:
        yield probing.violation(probe, asks, f"{len(noisy)} dropouts of the reference are active", REF_NOISY)
    kinds = [{p.dtype for p in m.parameters()} for m in (made.policy, ref)]
    if {torch.bfloat16, torch.float16} & kinds[1] - kinds[0]:
        says = (
            f"the policy is in {_kinds(kinds[0])}, the reference in {_kinds(kinds[1])}: the KL starts at rounding noise"
        )
        yield probing.violation(probe, asks, says, REF_PRECISION, severity="soft")
    yield probing.holds(probe, asks, f"the reference is a copy of the policy{after}")


def _kinds(kinds: set[torch.dtype]) -> str:
    return ", ".join(sorted(str(k).removeprefix("torch.") for k in kinds))


def _other_reference(
    exam: Exam, made: Build, probe: str, asks: str, policy: Tensor, reference: Tensor, after: str
) -> Iterator[Check]:
    gap = _distance(policy, reference)
    says = f"policy and reference differ before the first update{after}: logits by {gap:.1%} of the largest one"
    low = {p.dtype for p in made.reference.parameters()} & {torch.bfloat16, torch.float16} if made.reference else set()
    if low and gap < 3 * _LOW:
        yield probing.violation(probe, asks, says, REF_PRECISION, severity="soft")
        return
    bare = probing.claims(
        exam.subject,
        r"reference (model )?is the (base|bare|original|pre-?trained)"
        r"|(base|bare|pre-?trained) model as (the )?reference"
        r"|adapters? (disabled|off|switched off) (for|in) the reference",
    )
    if bare and after:
        yield probing.holds(probe, asks, "the reference is the base model, as documented")
        return
    yield probing.violation(probe, asks, says, REF_OTHER, numbers={"distance": gap})


# An adapter of an earlier stage


def _loaded(exam: Exam) -> Iterator[Check]:
    if "adapter_state" not in exam.names or not exam.made.adapters:
        return
    probe, asks = "model_factory.adapter", "does the policy go on with the adapter that it is given?"
    g = torch.Generator().manual_seed(11)
    ids = exam.made.adapter_ids()
    fresh = exam.build()
    ids = fresh.adapter_ids()
    state = {
        n: (torch.randn(p.shape, generator=g) * 0.3).to(p.dtype)
        for n, p in fresh.policy.named_parameters()
        if id(p) in ids
    }
    made = exam.build(adapter_state={n: v.clone() for n, v in state.items()})
    own = dict(made.policy.named_parameters())
    lost = [n for n, v in state.items() if n not in own or not torch.allclose(own[n].float(), v.float(), atol=1e-2)]
    if lost:
        says = f"{len(lost)} of {len(state)} tensors of the given adapter are not in the policy, e.g. {lost[0]}"
        yield probing.violation(probe, asks, says, NOT_LOADED)
        return
    if not made.trainable() and exam.made.trainable():
        yield probing.violation(probe, asks, "with a given adapter nothing can be trained", FROZEN)
        return
    if exam.made.trainable().keys() - made.trainable().keys():
        gone = sorted(exam.made.trainable().keys() - made.trainable().keys())
        yield probing.violation(
            probe, asks, f"with a given adapter {len(gone)} tensors are frozen, e.g. {gone[0]}", FROZEN
        )
        return
    yield probing.holds(probe, asks, "a given adapter is in the policy and goes on being trained")
    yield from _of_reference(exam, made, " when it goes on with a given adapter")


def example(intent: Mapping[str, Any]) -> Case:
    return Case(
        name="model-factory",
        inputs={
            "model": building.base_model(), "model_path": "tiny", "lora_r": RANK, "lora_alpha": ALPHA,
            "tokenizer": standins.StandInTokenizer(),
        },
    )  # fmt: skip


Question = Callable[[Exam], Iterator[Check]]

ROLE = Role(
    name="model_factory",
    stage="lora",
    asks=ASKS,
    takes=(
        "model", "model_path", "adapter_state", "adapter_path", "lora_r", "lora_alpha", "lora_dropout", "use_rslora",
        "lora_targets", "lora_config", "modules_to_save", "lr", "tokenizer", "beta",
    ),
    needs=(),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
