"""Role `train_step`: model, batch and optimizer -> one update of the weights.

No formula covers a step, but where old and new policy are the same every policy-gradient loss has one
gradient, and that of a supervised loss has it with advantages of 1:

    g = -sum_it u_it grad log pi(y_it | y_i<t),   u_it = c A_i m_it  or  c A_i m_it / |y_i|

(Williams 1992, REINFORCE; Schulman et al. 2017, arXiv:1707.06347, eq. 6 at ratio 1; DeepSeekMath, arXiv:2402.03300,
eq. 3 for the mean by sequence). So the weight `u_it` with which a step trains each token can be read from
its gradient: the per-token gradients are independent, and `g` is a combination of them or holds something else.
"""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from rltriage_probes import learning, probing, tiny
from rltriage_probes.contract import Agrees, Check, Convention, NotRun, Severity
from rltriage_probes.invoke import NotReached
from rltriage_probes.loss import stepping
from rltriage_probes.loss.stepping import PROMPT, REPLY, ROWS, WIDTH, Data, Frame, Trace, World
from rltriage_probes.model import CallFailed, Case, Pitfall, Role, Subject

ASKS = "model, batch and optimizer -> one update"

NO_GRADIENT = Pitfall(
    id="STEP-NO-GRADIENT", family="gradient-cut", says="steps the optimizer on no gradient: nothing is trained"
)
BEFORE = Pitfall(
    id="STEP-BEFORE-BACKWARD",
    family="optimizer",
    says="steps the optimizer before the backward pass, on the gradient of the last call or none",
)
ZEROED = Pitfall(
    id="STEP-GRAD-ZEROED", family="optimizer", says="clears the gradient between the backward pass and the step"
)
NOT_TAKEN = Pitfall(
    id="STEP-NOT-TAKEN", family="optimizer", says="takes an optimizer and computes a gradient, but makes no step"
)
STALE = Pitfall(
    id="STEP-OPTIMIZER-STALE",
    family="optimizer",
    says="steps an optimizer that does not hold the weights of the model that it differentiates",
)
KEPT = Pitfall(
    id="STEP-GRAD-KEPT",
    family="optimizer",
    says="does not clear gradients, so that each update contains all earlier ones",
)
WRONG_WAY = Pitfall(
    id="STEP-WRONG-WAY",
    family="sign",
    says="makes tokens of positive advantage less likely and of negative more likely",
)
SHIFT = Pitfall(
    id="STEP-SHIFT", family="shift", says="scores each token with the logits of its own position, which have seen it"
)
LEAK = Pitfall(id="STEP-MASK-LEAK", family="mask-leak", says="trains tokens that the mask leaves out")
IGNORED = Pitfall(
    id="STEP-ADVANTAGE-IGNORED",
    family="gradient-cut",
    says="takes advantages and trains every sampled token with the same weight, good or bad",
)
LOST_TOKEN = Pitfall(
    id="STEP-TOKEN-LOST", family="shift", says="does not train the first or the last token of the completions"
)
NOT_DIVIDED = Pitfall(
    id="STEP-ACCUM-NOT-DIVIDED",
    family="denominator",
    says="sums the mean losses of micro-batches, so that the gradient grows with their number",
)
DIVIDED_TWICE = Pitfall(
    id="STEP-ACCUM-DIVIDED-TWICE",
    family="denominator",
    says="divides by the number of micro-batches once more than the loss needs, so that the gradient shrinks with it",
)
MICRO_MEAN = Pitfall(
    id="STEP-MICRO-MEAN",
    family="denominator",
    says="averages the token means of micro-batches, so that tokens of a short micro-batch weigh more",
)
LAST_ONLY = Pitfall(id="STEP-ACCUM-LOST", family="optimizer", says="loses the gradient of all micro-batches but some")
EVERY = Pitfall(
    id="STEP-EVERY-MICRO", family="optimizer", says="steps after each micro-batch that it was to accumulate"
)
CLIP = Pitfall(
    id="STEP-CLIP-INERT",
    family="inert-option",
    says="takes a gradient norm to clip at, and steps on the whole gradient",
)
CLIP_SCALED = Pitfall(
    id="STEP-CLIP-SCALED", family="optimizer", says="clips gradients that are still multiplied by the loss scale"
)
ABSORBED = Pitfall(
    id="STEP-LOW-PRECISION",
    family="precision",
    says="updates half-precision weights whose spacing is wider than the update, which is rounded away",
)
PADDING = Pitfall(
    id="STEP-PADDING",
    family="denominator",
    says="makes another update of the same sequences when they are padded further",
)
REF_MOVES = Pitfall(id="STEP-REF-MOVES", family="reference-drift", says="changes the weights of the reference model")
NOT_FINITE = Pitfall(
    id="STEP-NOT-FINITE",
    family="nonfinite",
    says="steps on a gradient that is not finite when all advantages are equal",
)
AGGREGATION = Pitfall(
    id="STEP-AGGREGATION", family="denominator", says="averages tokens in another way than the pipeline declares"
)
REPORT = Pitfall(
    id="STEP-LOSS-REPORT", family="inert-metric", says="reports a loss that depends on the number of micro-batches"
)
PARTIAL = Pitfall(
    id="STEP-OPTIMIZER-PARTIAL", family="optimizer", says="differentiates weights that its optimizer does not hold"
)
PITFALLS = (
    NO_GRADIENT, BEFORE, ZEROED, NOT_TAKEN, STALE, KEPT, WRONG_WAY, IGNORED, SHIFT, LEAK, LOST_TOKEN, NOT_DIVIDED,
    DIVIDED_TWICE, MICRO_MEAN, LAST_ONLY, EVERY, CLIP, CLIP_SCALED, ABSORBED, PADDING, REF_MOVES, NOT_FINITE,
    AGGREGATION, REPORT, PARTIAL,
)  # fmt: skip

Kind = Literal["advantages", "rewards", "supervised", "pairs"]
"""What a token's weight is a multiple of; `pairs`: 1 in a preferred answer, -1 in the other one."""
Shape = Literal["token", "sequence"]
SHAPES: tuple[Shape, ...] = ("token", "sequence")
SHAPE_SAYS = {
    "token": "every trained token of the batch with the same weight",
    "sequence": "every sequence with the same weight, its tokens sharing it",
}
PATIENCE_S = 8.0
"""How long forms of the batch are tried out."""
FITS, FITS_LOW = 2e-3, 0.15
"""Relative distance of a gradient from what it should be: float32 right code stays under 1e-5, bfloat16 under 0.1."""


# The step under examination


@dataclass
class Exam:
    """A step that runs, the frame in which it does, and what it computes on the plain batch."""

    subject: Subject
    frame: Frame
    batch: Data
    first: Trace
    kind: Kind
    low: bool
    """Whether half precision is involved anywhere."""

    @property
    def names(self) -> frozenset[str]:
        return self.subject.bound.names

    @property
    def fits(self) -> float:
        return FITS_LOW if self.low else FITS

    def run(self, *, batch: Data | None = None, frozen: bool = True, zero: bool = False, **settings: Any) -> Trace:
        return run_once(self.subject, self.frame, batch or self.batch, frozen=frozen, zero=zero, **settings)

    def parameters(self) -> list[str]:
        known = dict(tiny.base_model().named_parameters())
        return [n for n in known if n in self.first.gradient]

    def vector(self, trace: Trace) -> Tensor:
        return stepping.flat(gradient(self.subject, trace), self.parameters())


def gradient(subject: Subject, trace: Trace) -> dict[str, Tensor]:
    """What a call's steps add up to, the loss scale taken out."""
    if "scaler" not in subject.bound.names or not trace.steps:
        return trace.gradient
    names = dict.fromkeys(n for s in trace.steps for n in s.given)
    return {n: sum((s.given[n] for s in trace.steps if n in s.given), torch.zeros(())) for n in names}


def inputs_of(
    subject: Subject, frame: Frame, batch: Data, w: World, *, zero: bool = False, k: int = 1, **settings: Any
) -> dict[str, Any]:
    """Everything that a step may take, for `k` micro-batches."""
    rows = len(batch.ids)
    values = stepping.words(batch, frame, w.model, zero)
    size = -(-rows // k)
    parts = [batch.rows(range(at, min(at + size, rows))) for at in range(0, rows, size)]
    values["batches"] = [stepping.words(p, frame, w.model, zero) for p in parts]
    values |= {"accumulation_steps": k, "micro_batch_size": size, "max_grad_norm": 1e9, **settings}
    if "temperature" not in subject.bound.settings:
        values["temperature"] = 1.0
    return values


def run_once(
    subject: Subject, frame: Frame, batch: Data, *, frozen: bool = True, zero: bool = False, k: int = 1,
    lr: float = stepping.LR, adamw: bool = False, **settings: Any,
) -> Trace:  # fmt: skip
    """One call on a fresh world. Raises `CallFailed` or `NotReached`."""
    w = stepping.world(frame, lr, k, adamw)
    ref_before = stepping.weights(w.ref_model)
    with stepping.learner(subject).session():
        values = inputs_of(subject, frame, batch, w, zero=zero, k=k, **settings)
        trace = stepping.call(subject, w, values, frozen=frozen)
    trace.ref_moved = any(not torch.equal(p, ref_before[n]) for n, p in stepping.weights(w.ref_model).items())
    trace.own_optimizer = all(s.optimizer is not w.optimizer for s in trace.steps)
    return trace


def frames(subject: Subject) -> Iterator[Frame]:
    """Ways in which the inputs may fit together, the likeliest first."""
    names, text = subject.bound.names, _text(subject)
    split = "completion_ids" in names and "token_ids" not in names
    hf = re.search(r"\.logits\b|\[.logits.\]|\.loss\b|\.last_hidden_state", text) is not None
    widths = [(WIDTH, WIDTH - 1), (WIDTH - 1, WIDTH - 1), (REPLY, REPLY), (WIDTH, WIDTH), (WIDTH, REPLY)]
    if split or ("completion_ids" in names and "prompt_ids" in names):
        widths.insert(0, widths.pop(2))
    kinds = [torch.float32, torch.bool, torch.long]
    for plain, advantages in itertools.product((not hf, hf), ("[B]", "[B, T]", "[B, 1]")):
        for (mask, logprobs), kind in itertools.product(widths, kinds):
            yield Frame(split=split, mask=mask, logprobs=logprobs, advantages=advantages, kind=kind, plain_logits=plain)


def _text(subject: Subject) -> str:
    return learning.text_of(stepping.learner(subject).loaded)


def settle(subject: Subject) -> Exam | Check:
    """The first frame in which the step runs, else what to say of it."""
    first: CallFailed | NotReached | None = None
    batch = stepping.data(hole="attention_mask" in subject.bound.names)
    bound = stepping.learner(subject)
    started = time.perf_counter()
    while True:
        for frame in frames(subject):
            if time.perf_counter() - started > PATIENCE_S:
                break
            try:
                trace = run_once(subject, frame, batch, frozen=True)
            except (CallFailed, NotReached) as e:
                first = _more_telling(first, e)
                continue
            return Exam(subject, frame, batch, trace, _kind(subject), _is_low(subject, trace))
        if not bound.fall_back():
            break
    assert first is not None
    return _unsettled(first)


def _more_telling(first: CallFailed | NotReached | None, e: CallFailed | NotReached) -> CallFailed | NotReached:
    return e if first is None or (_no_graph(e) and not _no_graph(first)) else first


def _no_graph(e: CallFailed | NotReached) -> bool:
    return isinstance(e, CallFailed) and "does not require grad" in e.error


def _unsettled(e: CallFailed | NotReached) -> Check:
    if isinstance(e, NotReached):
        return Check(probe="train_step.call", asks=ASKS, outcome=NotRun(reason=e.reason, do=e.do))
    if _no_graph(e):
        says = f"the loss that is differentiated hangs on no weight: {e.error} ({e.where})"
        return probing.violation("train_step.gradient", "does a gradient reach the weights?", says, NO_GRADIENT)
    return Check(
        probe="train_step.call",
        asks=ASKS,
        outcome=NotRun(
            reason=f"the step raises on every form of the batch; at first {e.error} ({e.where})",
            do="Bind its entries in the manifest, or name a step that takes a batch of ids, masks and advantages.",
        ),
    )


def _kind(subject: Subject) -> Kind:
    names = subject.bound.names
    if "chosen_ids" in names:
        return "pairs"
    if "advantages" in names:
        return "advantages"
    return "rewards" if "rewards" in names else "supervised"


def _is_low(subject: Subject, trace: Trace) -> bool:
    low = any(p.dtype in (torch.bfloat16, torch.float16) for p in trace.after.values())
    return low or re.search(r"autocast|bfloat16|\.half\(|float16", _text(subject)) is not None


def run(subject: Subject) -> Iterator[Check]:
    exam = settle(subject)
    if isinstance(exam, Check):
        yield exam
        return
    broken = _no_update(exam)
    if broken is not None:
        yield broken
        return
    weights = _weights(exam)
    yield weights
    if isinstance(weights.outcome, NotRun):
        return
    for question in (_clears, _accumulates, _clips, _precision, _covers, _pads, _equal_advantages, _reference):
        try:
            answer = question(exam)
        except (CallFailed, NotReached):
            continue  # another setting than the plain one is not what every step is made for
        if answer is not None:
            yield answer


# Is there an update at all?


def _no_update(exam: Exam) -> Check | None:
    """What keeps the weights from moving, or None."""
    probe, asks = "train_step.gradient", "does a gradient reach the weights?"
    trace = exam.first
    size = sum(float(g.abs().sum()) for g in trace.gradient.values())
    if not trace.steps:
        return _no_step(exam, size)
    step = trace.steps[0]
    given = sum(float(g.abs().sum()) for g in step.given.values())
    if given > 0 or given != given:
        return _no_movement(exam)
    if size > 0 and not step.covered:
        return _no_movement(exam)
    if step.backwards == 0 and trace.losses:
        says = "the first step of the optimizer comes before any backward pass, so that it has no gradient"
        return probing.violation(probe, asks, says, BEFORE)
    if size > 0:
        says = "the backward pass gives a gradient, and at the optimizer's step it is gone"
        return probing.violation(probe, asks, says, ZEROED)
    if step.covered or not trace.losses:
        says = f"{len(trace.losses)} backward passes and {len(trace.steps)} steps, and no weight has a gradient"
        return probing.violation(probe, asks, says, NO_GRADIENT)
    return _no_movement(exam)


def _no_step(exam: Exam, size: float) -> Check | None:
    probe, asks = "train_step.step", "does the optimizer step?"
    names = exam.names
    if size > 0 and not {"optimizer", "scaler"} & names and not _makes_optimizer(exam):
        return None  # the caller steps
    if "optimizer" in names or _makes_optimizer(exam):
        if _steps_later(exam):
            return None
        if size > 0:
            says = "eight calls in a row gave gradients, and the optimizer made no step"
            return probing.violation(probe, asks, says, NOT_TAKEN)
    says = "the function neither steps an optimizer nor differentiates nor returns a loss with its graph"
    do = "Name the function that runs the backward pass."
    return Check(probe="train_step.call", asks=ASKS, outcome=NotRun(reason=says, do=do))


def _makes_optimizer(exam: Exam) -> bool:
    me = stepping.learner(exam.subject).last_self
    held = vars(me).values() if hasattr(me, "__dict__") else ()
    return any(isinstance(v, torch.optim.Optimizer) for v in held)


def _steps_later(exam: Exam) -> bool:
    """Whether a step comes within eight calls on one trainer: it counts calls."""
    w = stepping.world(exam.frame)
    with stepping.learner(exam.subject).session():
        for i in range(8):
            values = inputs_of(exam.subject, exam.frame, exam.batch, w)
            if stepping.call(exam.subject, w, {**values, "step_index": i}).steps:
                return True
    return False


def _no_movement(exam: Exam) -> Check | None:
    """A step on a real gradient after which every weight is as before."""
    trace = exam.run(frozen=False)
    if trace.moved or any(s.lr == 0 for s in trace.steps):
        return None
    probe, asks = "train_step.moves", "do the weights change?"
    if exam.low and any(p.dtype in (torch.bfloat16, torch.float16) for p in trace.after.values()):
        return None  # asked below, at the learning rate that the step has
    if not trace.steps[0].covered:
        says = "none of the model's weights is among those that the optimizer holds"
        return probing.violation(probe, asks, says, STALE)
    return None


# Which tokens are trained, and how much


@dataclass(frozen=True, kw_only=True)
class Pull:
    """The gradients of the log-probs of all tokens, and what each should weigh."""

    rows: Tensor
    """[B * (T - 1), P]: gradient of the log-prob of each next token."""
    own: Tensor
    """[B * T, P]: the same for the token at each position itself."""
    mask: Tensor
    """[B, T - 1]"""
    base: Tensor
    """Advantage of each trained token, 1 where the step is supervised; 0 elsewhere."""

    def by(self, shape: Shape) -> Tensor:
        """Weights [B, T - 1] with which a right step trains the tokens, up to a factor."""
        base = self.base
        if shape == "sequence":
            base = base / self.mask.sum(1, keepdim=True).clamp(min=1)
        return base


def pull(exam: Exam, batch: Data | None = None) -> Pull:
    b = batch or exam.batch
    model = tiny.base_model().double()
    names = exam.parameters()
    parameters = [p for n, p in model.named_parameters() if n in names]
    logits = model(b.ids, attention_mask=b.attention)["logits"].log_softmax(-1)

    def rows(targets: Tensor) -> Tensor:
        chosen = logits[:, : targets.shape[1]].gather(-1, targets[..., None]).flatten()
        eye = torch.eye(chosen.numel(), dtype=torch.float64)
        parts = torch.autograd.grad(chosen, parameters, eye, retain_graph=True, is_grads_batched=True)
        return torch.cat([p.reshape(chosen.numel(), -1) for p in parts], 1)

    mask = b.mask[:, 1:]
    return Pull(rows=rows(b.ids[:, 1:]), own=rows(b.ids), mask=mask, base=mask * _signs(exam)[:, None])


def fit(g: Tensor, rows: Tensor, weights: Tensor) -> tuple[float, float]:
    """Factor `c` of `g = -c sum u grad log pi`, and the relative distance that remains."""
    want = -(weights.flatten() @ rows)
    square = float(want @ want)
    c = float(g @ want) / square if square else 0.0
    return c, float((g - c * want).norm() / g.norm().clamp(min=1e-30))


def _weights(exam: Exam) -> Check:
    probe, asks = "train_step.tokens", "does it make tokens of positive advantage likelier, and trains those alone?"
    if not exam.parameters():
        reason = "the step trains another model than the one that it was given"
        return Check(probe=probe, asks=asks, outcome=NotRun(reason=reason, do="Let it take the model as an argument."))
    g = exam.vector(exam.first)
    if not bool(g.isfinite().all()):
        return Check(
            probe=probe, asks=asks, outcome=probing.diverges("the gradient is not finite on a plain batch", None)
        )
    p = pull(exam)
    told = exam.kind
    others: tuple[Kind, ...] = () if told == "pairs" else ("supervised", "advantages")
    kinds: list[Kind] = [told, *(k for k in others if k != told)]
    for kind in kinds:
        exam.kind = kind
        p = Pull(rows=p.rows, own=p.own, mask=p.mask, base=p.mask * _signs(exam)[:, None])
        for shape in SHAPES:
            c, off = fit(g, p.rows, p.by(shape))
            if off < exam.fits and told in (kind, "supervised"):
                return _recognised(exam, probe, asks, shape, c)
            if off < exam.fits:
                exam.kind = told
                says = "every trained token has the same weight: the advantages have no part in the update"
                return probing.violation(probe, asks, says, IGNORED, numbers={"weight": c})
    exam.kind = told
    p = Pull(rows=p.rows, own=p.own, mask=p.mask, base=p.mask * _signs(exam)[:, None])
    for shape in SHAPES:
        nothing = torch.zeros_like(exam.batch.mask[:, :1])
        for mask in (exam.batch.mask, torch.cat([exam.batch.mask[:, 1:], nothing], 1)):
            base = mask * _signs(exam)[:, None]
            base = base / mask.sum(1, keepdim=True).clamp(min=1) if shape == "sequence" else base
            _, off = fit(g, p.own, base)
            if off < exam.fits:
                says = "the gradient is that of the log-prob of each token under the logits of its own position"
                return probing.violation(probe, asks, says, SHIFT, numbers={"distance": off})
    return _unusual(exam, probe, asks, g, p)


def _signs(exam: Exam) -> Tensor:
    ones = torch.ones(ROWS, dtype=torch.float64)
    if exam.kind == "pairs":
        return torch.cat([ones[: ROWS // 2], -ones[ROWS // 2 :]])
    return ones if exam.kind == "supervised" else exam.batch.advantages


def _recognised(exam: Exam, probe: str, asks: str, shape: Shape, c: float) -> Check:
    if c < 0:
        says = f"the update goes the wrong way: weight {c:.3g} times the advantage"
        if exam.kind == "pairs":
            says = f"the update makes preferred answers less likely and the others more likely: weight {c:.3g}"
        if exam.kind == "supervised":
            says = f"the update makes the labels less likely: weight {c:.3g}"
        return probing.violation(probe, asks, says, WRONG_WAY, numbers={"weight": c})
    words = f"trains {SHAPE_SAYS[shape]}, {_scale(exam, shape, c)}"
    declared = exam.subject.intent.get("aggregation")
    other = {"token": "token-mean", "sequence": "sequence-mean"}[shape]
    if declared in ("token-mean", "sequence-mean") and declared != other and exam.kind in ("advantages", "rewards"):
        says = f"the step {words}, where the pipeline declares {declared}"
        return probing.violation(probe, asks, says, AGGREGATION, numbers={"weight": c})
    way = {"supervised": "", "pairs": "; preferred answers up, the others down"}
    summary = f"{words}{way.get(exam.kind, '; in the direction of the advantages')}"
    return Check(probe=probe, asks=asks, outcome=Agrees(convention=Convention(summary=summary, knobs={"weight": c})))


def _scale(exam: Exam, shape: Shape, c: float) -> str:
    tokens = float(exam.batch.mask[:, 1:].sum())
    if exam.kind == "pairs":
        return f"with a factor of {c:.4g}"
    if shape == "sequence":
        known = {"mean over sequences": 1 / ROWS, "sum over sequences": 1.0}
    else:
        known = {
            "mean over tokens": 1 / tokens, "sum over tokens": 1.0, "sum of each sequence, mean over them": 1 / ROWS,
            "divided by the padded size": 1 / (ROWS * (WIDTH - 1)),
            "divided by B times the reply's width": 1 / ROWS / REPLY,
        }  # fmt: skip
    return next((says for says, x in known.items() if abs(c / x - 1) < 5 * exam.fits), f"with a factor of {c:.4g}")


def _unusual(exam: Exam, probe: str, asks: str, g: Tensor, p: Pull) -> Check:
    """What can be said of a gradient that fits neither average: from the weight of each token, where it has one."""
    u = -torch.linalg.lstsq(p.rows.T, g[:, None], driver="gelsd").solution[:, 0]
    off = float((g + u @ p.rows).norm() / g.norm().clamp(min=1e-30))
    cosine = _cosine(-g, p)
    if off > 10 * exam.fits or exam.low:
        if cosine < -0.5:
            says = f"the update moves away from what the advantages ask for (cosine {cosine:.2f})"
            return probing.violation(probe, asks, says, WRONG_WAY, numbers={"cosine": cosine})
        says = f"the gradient holds more than the log-probs of the sampled tokens (cosine {cosine:.2f} with their pull)"
        return Check(probe=probe, asks=asks, outcome=probing.diverges(says, None, {"distance": off, "cosine": cosine}))
    return _read(exam, probe, asks, u.view(p.mask.shape), p, cosine)


def _cosine(ascent: Tensor, p: Pull) -> float:
    pulls = [p.by(s).flatten() @ p.rows for s in SHAPES]
    cosines = [float(torch.nn.functional.cosine_similarity(ascent, x, dim=0)) for x in pulls]
    return max(cosines, key=abs)


def _read(exam: Exam, probe: str, asks: str, u: Tensor, p: Pull, cosine: float) -> Check:
    """A gradient in the span of the sampled tokens' log-probs, by the weight of each token."""
    tokens = p.mask.bool()
    total = float(u.abs().sum())
    outside = float(u[~tokens].abs().sum()) / total
    numbers = {"share outside the mask": outside, "cosine": cosine}
    if outside > 0.02:
        where = _where_outside(exam, u, tokens)
        says = f"{outside:.0%} of the update's weight lies on tokens that the mask leaves out ({where})"
        return probing.violation(probe, asks, says, LEAK, numbers=numbers, severity=_masked(exam))
    signed = u * p.base
    large = tokens & (p.base.abs() >= (1.0 if exam.kind == "advantages" else 0.5))
    wrong = signed[large] < -1e-3 * float(u.abs().max())
    if bool(wrong.any()) and exam.kind != "rewards":
        says = f"{int(wrong.sum())} of {int(large.sum())} tokens are pushed against their advantage"
        return probing.violation(probe, asks, says, WRONG_WAY, numbers=numbers)
    idle = tokens & (u.abs() < 1e-3 * float(u.abs().max()))
    edge = _edge(tokens, idle)
    if edge:
        return probing.violation(probe, asks, f"the {edge} token of each completion is not trained", LOST_TOKEN)
    says = "the tokens' weights in the update are those of no average that is known"
    return Check(probe=probe, asks=asks, outcome=probing.diverges(says, None, numbers))


def _masked(exam: Exam) -> Severity:
    """Whether the step is told which tokens count."""
    told = {"completion_mask", "labels", "completion_ids", "prompt_length", "chosen_mask", "chosen_labels"} & exam.names
    if exam.kind == "supervised" and exam.subject.intent.get("train_on_inputs"):
        return "soft"
    return "hard" if told else "soft"


def _where_outside(exam: Exam, u: Tensor, tokens: Tensor) -> str:
    b = exam.batch
    at = torch.arange(1, WIDTH)[None].expand_as(u)
    parts = {
        "the prompt": (at < PROMPT) & ~tokens,
        "padding": (b.attention[:, 1:] == 0) & ~tokens,
        "text that a tool wrote": (at >= PROMPT) & (b.attention[:, 1:] == 1) & ~tokens,
    }
    heavy = {name: float(u[where].abs().sum()) for name, where in parts.items()}
    return ", ".join(n for n, x in heavy.items() if x > 0.01 * float(u.abs().sum())) or "here and there"


def _edge(tokens: Tensor, idle: Tensor) -> str:
    """`first` or `last` where exactly that token of every row is idle."""
    several = tokens.sum(1) > 1
    at = torch.arange(tokens.shape[1])[None]
    first = torch.where(tokens, at, torch.full_like(at, 10**6)).min(1, keepdim=True).values
    last = torch.where(tokens, at, torch.full_like(at, -1)).max(1, keepdim=True).values
    for name, place in (("first", first), ("last", last)):
        here = tokens & (at == place)
        elsewhere = (idle & ~here)[several].sum()
        if bool(idle[several][here[several]].all()) and int(elsewhere) <= 2:
            return name
    return ""


# Over several calls, micro-batches and settings


def _relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).norm() / b.norm().clamp(min=1e-30))


def _clears(exam: Exam) -> Check | None:
    """Two calls on one batch with weights that don't move give the same gradient twice."""
    if not exam.first.steps:
        return None
    probe, asks = "train_step.clears", "does the second update contain the first one's gradient?"
    w = stepping.world(exam.frame)
    with stepping.learner(exam.subject).session():
        values = inputs_of(exam.subject, exam.frame, exam.batch, w)
        one = stepping.call(exam.subject, w, values, frozen=True)
        two = stepping.call(exam.subject, w, values, frozen=True)
    if not one.steps or len(one.steps) != len(two.steps):
        return None
    names = [n for n in exam.parameters() if any(n in s.covered for s in one.steps)]
    if not names:
        return None
    first = stepping.flat(gradient(exam.subject, one), names)
    second = stepping.flat(gradient(exam.subject, two), names)
    if _relative(second, first) < exam.fits:
        return probing.holds(probe, asks, "each call starts from gradients of 0")
    ratio, cosine = probing.scale_and_cosine(second, first)
    if cosine > 0.99 and ratio > 1.5:
        says = f"the same batch on the same weights gives {ratio:.2f} times the gradient in the second call"
        return probing.violation(probe, asks, says, KEPT, numbers={"ratio": ratio, "cosine": cosine})
    return None


def _splits(exam: Exam) -> tuple[str, ...]:
    """Through which setting the number of micro-batches is chosen."""
    return tuple(w for w in ("accumulation_steps", "micro_batch_size", "batches", "accelerator") if w in exam.names)


_SAME = (
    r"same (update|gradient|step) as|\bthe same as (that|one|a|the)\b|equal\w* (to )?(the|a|one) (full|whole|large)"
    r"|as (if|though) .{0,40}(whole|full) batch"
    r"|of the whole batch|full[- ]batch|regardless of|independent of (the )?(number|micro)|to save memory|invariant"
)


def _accumulates(exam: Exam) -> Check | None:
    how = _splits(exam)
    if not how or exam.kind == "pairs":
        return None
    probe, asks = "train_step.micro_batches", "is the update of k micro-batches that of the whole batch?"
    whole = exam.vector(exam.first)
    for k in (2, 4):
        trace = exam.run(k=k)
        if len(trace.losses) <= len(exam.first.losses):
            return None  # one call is one micro-batch: the caller runs over them
        part = exam.vector(trace)
        if len(trace.steps) > len(exam.first.steps):
            return _stepped_often(exam, probe, asks, trace, k)
        if _relative(part, whole) < exam.fits:
            continue
        return _split_gap(exam, probe, asks, part, whole, k)
    report = _report(exam)
    return report or probing.holds(probe, asks, "the update does not depend on the number of micro-batches")


def _stepped_often(exam: Exam, probe: str, asks: str, trace: Trace, k: int) -> Check | None:
    if "accumulation_steps" not in exam.names or "batches" in exam.names:
        return None  # several updates from one rollout: mini-batches, as in PPO
    says = f"with {k} accumulation steps one call steps the optimizer {len(trace.steps)} times"
    return probing.violation(probe, asks, says, EVERY, numbers={"steps": float(len(trace.steps))})


def _split_gap(exam: Exam, probe: str, asks: str, part: Tensor, whole: Tensor, k: int) -> Check:
    ratio, cosine = probing.scale_and_cosine(part, whole)
    numbers = {"ratio": ratio, "cosine": cosine, "micro-batches": float(k)}
    says = f"{k} micro-batches give {ratio:.3g} times the gradient of the whole batch (cosine {cosine:.4f})"
    if cosine > 1 - exam.fits:
        if abs(ratio / k - 1) < 5 * exam.fits:
            return probing.violation(probe, asks, says, NOT_DIVIDED, numbers=numbers)
        if abs(ratio * k - 1) < 5 * exam.fits:
            return probing.violation(probe, asks, says, DIVIDED_TWICE, numbers=numbers)
    p = pull(exam)
    size = ROWS // k
    micro = torch.cat([m / m.sum() for m in p.mask.split(size)]) / k * _signs(exam)[:, None]
    c, off = fit(part, p.rows, micro)
    if off < exam.fits:
        return _micro_mean(exam, probe, asks, says, numbers, c, k)
    trained = [float(fit(part, p.rows, p.base * _only(rows))[1]) for rows in _blocks(size)]
    last, first = trained[-1], trained[0]
    if min(first, last) < 20 * exam.fits or _only_some(exam, part, p, size):
        return probing.violation(
            probe, asks, f"{says}: most micro-batches leave no trace in it", LAST_ONLY, numbers=numbers
        )
    return Check(probe=probe, asks=asks, outcome=probing.diverges(says, None, numbers))


def _blocks(size: int) -> list[list[int]]:
    return [list(range(at, at + size)) for at in range(0, ROWS, size)]


def _only(rows: Sequence[int]) -> Tensor:
    return torch.tensor([[1.0] if i in rows else [0.0] for i in range(ROWS)], dtype=torch.float64)


def _only_some(exam: Exam, part: Tensor, p: Pull, size: int) -> bool:
    """Whether whole micro-batches have no weight in the gradient."""
    u = torch.linalg.lstsq(p.rows.T, part[:, None], driver="gelsd").solution[:, 0].view(p.mask.shape)
    off = float((part - u.flatten() @ p.rows).norm() / part.norm().clamp(min=1e-30))
    heavy = torch.stack([x.abs().sum() for x in u.split(size)])
    return off < 10 * exam.fits and bool((heavy < 1e-2 * heavy.max()).any())


def _micro_mean(exam: Exam, probe: str, asks: str, says: str, numbers: dict[str, float], c: float, k: int) -> Check:
    if c > 1.5 and abs(c / k - 1) < 5 * exam.fits:
        return probing.violation(probe, asks, says, NOT_DIVIDED, MICRO_MEAN, numbers=numbers)
    promised = probing.claims(exam.subject, _SAME)
    declared = exam.subject.intent.get("aggregation") == "token-mean"
    reason = "the docstring promises the update of the whole batch" if promised else "declared is a mean over tokens"
    if promised or declared:
        return probing.violation(
            probe, asks, f"{says}: each averages over its own tokens, and {reason}", MICRO_MEAN, numbers=numbers
        )
    ask = f"{says}: each averages over its own tokens. Divide by the tokens of all micro-batches unless that is meant"
    return probing.violation(probe, asks, ask, MICRO_MEAN, numbers=numbers, severity="soft")


def _report(exam: Exam) -> Check | None:
    """Whether the reported loss is that of the whole batch whatever the number of micro-batches."""
    probe, asks = "train_step.report", "is the reported loss the same for any number of micro-batches?"
    one, four = exam.run(k=1), exam.run(k=4)
    a, b = stepping.reported(one.result), stepping.reported(four.result)
    if a is None or b is None or a != a or b != b:
        return None
    scale = max(abs(x) for x in (*one.losses, *four.losses, 1e-6))
    if abs(a - b) <= 20 * exam.fits * scale:
        return None
    says = f"the same batch has the loss {a:.5g} whole and {b:.5g} in four micro-batches, though the update is the same"
    return probing.violation(probe, asks, says, REPORT, numbers={"whole": a, "micro-batches": b}, severity="soft")


def _clips(exam: Exam) -> Check | None:
    if "max_grad_norm" not in exam.names or not exam.first.steps:
        return None
    probe, asks = "train_step.clip", "is the gradient clipped before the step?"
    whole = float(exam.vector(exam.first).norm())
    limit = whole / 50
    trace = exam.run(max_grad_norm=limit)
    given = float(torch.cat([g.flatten() for g in trace.steps[0].given.values()]).norm())
    numbers = {"norm": whole, "limit": limit, "norm at the step": given}
    if "scaler" in exam.names and given < 0.1 * limit:
        says = f"a limit of {limit:.3g} gives a gradient of norm {given:.3g}: it was clipped before it was unscaled"
        return probing.violation(probe, asks, says, CLIP_SCALED, numbers=numbers)
    if given > 0.98 * whole and len(trace.steps) == len(exam.first.steps) == 1:
        says = f"with a limit of {limit:.3g} the optimizer steps on a gradient of norm {given:.3g}"
        return probing.violation(probe, asks, says, CLIP, numbers=numbers)
    return probing.holds(probe, asks, "the gradient is clipped before the step")


def _precision(exam: Exam) -> Check | None:
    """Whether an update at the step's own learning rate arrives in the weights."""
    low = {n for n, p in exam.first.after.items() if p.dtype in (torch.bfloat16, torch.float16)}
    held = {n for s in exam.first.steps for n in s.covered}
    if not low & held:
        return None
    probe, asks = "train_step.precision", "do small updates arrive in the weights?"
    trace = exam.run(frozen=False, lr=1e-6, adamw=True)
    names = [n for n in trace.steps[0].given if n in low]
    changed = sum(int((trace.after[n] != trace.before[n]).sum()) for n in names)
    asked = sum(int((trace.steps[0].given[n] != 0).sum()) for n in names)
    rate = trace.steps[0].lr
    share = changed / max(asked, 1)
    if share > 0.5:
        return probing.holds(probe, asks, f"{share:.0%} of the weights move at a learning rate of {rate:g}")
    kind = str(trace.after[names[0]].dtype).removeprefix("torch.")
    says = (
        f"after one step at a learning rate of {rate:g} only {share:.1%} of the {kind} weights have changed; "
        "the optimizer needs weights in float32"
    )
    kept = type(trace.steps[0].optimizer).__module__.startswith("torch.optim")
    return probing.violation(
        probe, asks, says, ABSORBED, numbers={"share": share, "lr": rate}, severity="hard" if kept else "soft"
    )


def _covers(exam: Exam) -> Check | None:
    if not exam.first.steps or not exam.first.own_optimizer:
        return None
    probe, asks = "train_step.optimizer", "does the optimizer hold every weight that has a gradient?"
    held = {n for s in exam.first.steps for n in s.covered}
    missing = sorted(n for n, g in exam.first.left.items() if n not in held and float(g.abs().sum()) > 0)
    if not missing:
        return probing.holds(probe, asks, f"it holds all {len(held)} of them")
    names = ", ".join(missing[:4])
    says = f"{len(missing)} of {len(missing) + len(held)} differentiated weights are not in the optimizer: {names}"
    return probing.violation(probe, asks, says, PARTIAL, severity="soft")


def _pads(exam: Exam) -> Check | None:
    """Padding behind the batch changes nothing."""
    probe, asks = "train_step.padding", "does padding leave the update as it is?"
    whole = exam.vector(exam.first)
    part = exam.vector(exam.run(batch=exam.batch.wider(3)))
    if _relative(part, whole) < exam.fits:
        return probing.holds(probe, asks, "three more columns of padding change nothing")
    ratio, cosine = probing.scale_and_cosine(part, whole)
    constant = exam.subject.intent.get("aggregation") == "constant" or probing.claims(
        exam.subject, r"constant (denominator|length|divisor)|dr\.? ?grpo|padded (size|length|width)"
    )
    if constant and cosine > 1 - exam.fits:
        return probing.holds(probe, asks, "padding changes the denominator alone, which is a constant")
    says = f"three more columns of padding give {ratio:.3g} times the gradient (cosine {cosine:.4f})"
    declared = exam.subject.intent.get("aggregation") in ("token-mean", "sequence-mean", "sequence-sum")
    severity: Severity = "hard" if declared and _masked(exam) == "hard" else "soft"
    return probing.violation(probe, asks, says, PADDING, numbers={"ratio": ratio, "cosine": cosine}, severity=severity)


def _equal_advantages(exam: Exam) -> Check | None:
    if exam.kind in ("supervised", "pairs"):
        return None
    probe, asks = "train_step.equal", "does a batch of equal advantages leave the weights finite?"
    trace = exam.run(zero=True)
    whole = exam.vector(exam.first)
    part = exam.vector(trace)
    if not bool(part.isfinite().all()) and trace.steps:
        says = "all advantages 0 gives a gradient that is not finite, and the optimizer steps on it"
        return probing.violation(probe, asks, says, NOT_FINITE)
    share = float(part.norm() / whole.norm().clamp(min=1e-30))
    if share > exam.fits:
        says = (
            f"with all advantages 0 the gradient is still {share:.0%} of the usual: a term beside the policy gradient"
        )
        return Check(probe=probe, asks=asks, outcome=probing.diverges(says, None, {"share": share}))
    return probing.holds(probe, asks, "no update where all advantages are 0")


def _reference(exam: Exam) -> Check | None:
    if "ref_model" not in exam.names:
        return None
    probe, asks = "train_step.reference", "does the reference stay as it is?"
    if exam.run(frozen=False).ref_moved:
        return probing.violation(probe, asks, "the reference model's weights are others after the step", REF_MOVES)
    return probing.holds(probe, asks, "the reference model's weights are as before")


def example(intent: Mapping[str, Any]) -> Case:
    """A fresh world with the plain batch."""
    frame = Frame()
    w = stepping.world(frame)
    return Case(
        name="train-step", inputs={**stepping.surroundings(w), **stepping.words(stepping.data(), frame, w.model)}
    )


ROLE = Role(
    name="train_step",
    stage="loss",
    asks=ASKS,
    takes=(
        "model", "optimizer", "ref_model", "scheduler", "scaler", "accelerator", "batches", "token_ids", "labels",
        "attention_mask", "completion_mask", "advantages", "rewards", "old_logprobs", "ref_logprobs",
        "rollout_logprobs", "prompt_ids", "prompt_mask", "completion_ids", "prompt_length", "completion_length",
        "lengths", "group_ids", "chosen_ids", "rejected_ids", "chosen_mask", "rejected_mask", "chosen_attention",
        "rejected_attention", "chosen_labels", "rejected_labels", "ref_chosen_logprobs", "ref_rejected_logprobs",
        "accumulation_steps", "micro_batch_size", "max_grad_norm", "lr", "beta", "clip",
        "clip_low", "clip_high", "temperature", "entropy_coef", "group_size", "eps", "pad_token_id", "eos_token_id",
    ),
    needs=(),
    returns="raw",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
