"""The supervised loss on logits and labels.

    L = Σ_bt m · w · nll / Σ_bt m        nll[b, t] = log Σ_v exp z[b, t, v] - z[b, t, y[b, t+1]]

m is 1 where the label is not the ignore index. Label smoothing ε: (1 - ε)·nll + ε · mean_v nll_v (Szegedy et al. 2016,
arXiv:1512.00567, section 7). Token weights that depend on the policy are constants of the step: w = sg(p) is DFT, Wu
et al. 2025 (arXiv:2508.05629, eq. 9). The z-loss adds c · (log Σ exp z)² (PaLM, arXiv:2204.02311, section 5). Under
gradient accumulation the count in the denominator is that of all micro-batches, which the caller hands over.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rltriage_probes import formula, probing
from rltriage_probes.contract import Check, KnownBug
from rltriage_probes.loss import surrogate
from rltriage_probes.model import Axis, Case, Option, Pitfall, Role, Subject
from rltriage_probes.solver import Knob, Knobs, Options, Result, Seen

ASKS = "is this the cross-entropy of the next tokens, over exactly the labelled ones?"
IGNORE = -100
BUDGET = 6_000
"""Evaluations of a search in vain: right functions are found within the first hundred, two faults within a thousand."""

NO_SHIFT = Pitfall(
    id="SFTL-NO-SHIFT", family="shift", says="scores each label with the logits of its own place, which have seen it"
)
REVERSED = Pitfall(
    id="SFTL-SHIFT-REVERSED", family="shift", says="shifts the wrong side, so that logits predict the token before"
)
TWICE = Pitfall(id="SFTL-SHIFT-TWICE", family="shift", says="shifts labels that are shifted already")
FLATTENED = Pitfall(id="SFTL-FLATTEN-ORDER", family="axis", says="flattens the logits in another order than the labels")
AXIS = Pitfall(id="SFTL-AXIS", family="axis", says="normalises over the positions instead of over the vocabulary")
DOUBLE = Pitfall(
    id="SFTL-DOUBLE-SOFTMAX", family="normalisation", says="hands probabilities to a loss that expects logits"
)
SIGN = Pitfall(id="SFTL-SIGN", family="sign", says="returns the log-likelihood, not its negative")
IGNORE_TRAINED = Pitfall(
    id="SFTL-IGNORED-TRAINED", family="loss-masking", says="trains positions whose label is the ignore index"
)
MASK_SHIFT = Pitfall(id="SFTL-MASK-SHIFT", family="shift", says="applies the mask one position off its labels")
MASK_INVERTED = Pitfall(
    id="SFTL-MASK-INVERTED", family="mask-inverted", says="trains the masked positions instead of the others"
)
PADDED = Pitfall(
    id="SFTL-PADDED-DENOMINATOR", family="denominator", says="divides by all positions, not by the labelled ones"
)
COUNT = Pitfall(
    id="SFTL-COUNT-IGNORED",
    family="denominator",
    says="averages over its own micro-batch although it is given the token count of the whole batch",
)
AGGREGATION = Pitfall(
    id="SFTL-AGGREGATION", family="denominator", says="averages the token losses in another way than declared"
)
WEIGHT = Pitfall(
    id="SFTL-WEIGHT-DIFFERENTIATED",
    family="gradient-leak",
    says="differentiates a token weight that depends on the policy, so the gradient is that of another loss",
)
SMOOTHS = Pitfall(
    id="SFTL-SMOOTHS-IGNORED",
    family="loss-masking",
    says="adds the smoothing term of positions whose label is the ignore index",
)
PITFALLS = (
    NO_SHIFT, REVERSED, TWICE, FLATTENED, AXIS, DOUBLE, SIGN, IGNORE_TRAINED, MASK_SHIFT, MASK_INVERTED, PADDED, COUNT,
    AGGREGATION, WEIGHT, SMOOTHS,
)  # fmt: skip

# Cases


def example(intent: Mapping[str, Any]) -> Case:
    return _case("answers of unequal length")


def _case(name: str, scale: float = 1.5, *, row_from_start: bool = False) -> Case:
    """Prompts and answers of unequal length, a hole inside an answer, padding; a row labelled from its first token."""
    b, t, v = 3, 8, 11
    g = probing.generator(name)
    logits = torch.randn(b, t, v, generator=g) * scale
    ids = torch.randint(1, v, (b, t), generator=g)
    lengths = torch.tensor([8, 6, 7])
    starts = torch.tensor([2, 3, 0 if row_from_start else 1])
    columns = torch.arange(t)[None]
    attention = columns < lengths[:, None]
    trained = attention & (columns >= starts[:, None])
    trained[0, 5] = False
    ids = ids.where(attention, torch.tensor(0))
    logp = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    inputs = {
        "logits": logits, "token_ids": ids, "labels": ids.where(trained, torch.tensor(IGNORE)),
        "completion_mask": trained.float(), "attention_mask": attention.long(), "lengths": lengths,
        "token_count": 1.5 * float(trained.sum()), "row_count": 5.0, "logprobs": logp, "chunk_size": 2,
        "token_weights": torch.rand(b, t, generator=g) + 0.25, "pad_token_id": 0, "eos_token_id": 2,
        "label_smoothing": 0.1,
    }  # fmt: skip
    return Case(name=name, inputs=inputs)


def cases() -> tuple[Case, ...]:
    """Made when they are asked for: an operation of torch in the process that forks would lock its children up."""
    return (
        _case("answers of unequal length"),
        _case("unlikely tokens", 4.0),
        _case("a row labelled from its first token", row_from_start=True),
    )


# Axes

_SHIFTED = (
    r"already (been )?(shift|align|roll)",
    r"\b(pre-?|externally )(shift|align)",
    r"(shift|align|roll)\w* (by|in|outside|before) (the )?(caller|recipe|trainer|collat|dataset)",
    r"next[- ]token (targets|labels)",
    r"aligned with (the )?(logits|labels|targets|tokens)",
    r"(targets?|labels?)\[[^\]]*\] is (the )?(token )?(predicted|what)",
    r"no shift",
)
_UNSHIFTED = (
    r"\b(not|un|never)[- ]?shifted",
    r"not (yet )?(been )?shifted",
    r"shift(s|ing|ed)? (happens )?(inside|here|internally|within)",
    r"\b(hf|hugging ?face|transformers)[- ]?(style|layout|convention|format|labels)",
    r"(same|equal)\w* (as |to )?(the )?input[_ ]ids",
    r"input[_ ]ids[^.;]{0,40}-100",
    r"next[- ]token",
    r"causal",
    r"predicts? (the )?(next|token (at )?t ?\+ ?1)",
    r"t ?\+ ?1",
)


_SWITCH = re.compile(r"def \w+\([^)]*\bshift\w*\s*(:\s*bool\s*)?=\s*(True|False)")
"""A parameter by which the caller says whether labels are still to be shifted."""


def _aligned_outside(subject: Subject) -> bool:
    """Whether the labels that this function gets are those of the logits' own place, by its documentation or names."""
    if probing.claims(subject, *_UNSHIFTED) and not probing.claims(subject, *_SHIFTED):
        return False
    names = {s.path.rsplit(".", 1)[-1] for s in subject.bound.report.slots if s.meaning in ("labels", "token_ids")}
    return probing.claims(subject, *_SHIFTED) or any(
        n.lower().startswith(("target", "shift", "next", "aligned", "y", "gold")) for n in names
    )


def axes(subject: Subject, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    reduced = surrogate.reduction(seen[0].value)
    scored = "logits" not in subject.bound.names
    base = (
        Axis(name="sign", options=(Option(name="minus", standing="standard"), probing.as_pitfall("plus", SIGN))),
        *(() if scored else (_align(subject), _normal(), _smoothing(subject), _z(subject))),
        _weight(subject),
        _counted(subject),
        _aggregation(subject, reduced),
    )
    return base


def _align(subject: Subject) -> Axis:
    outside = _aligned_outside(subject)
    inside = Option(name="inside", standing="standard", says="shifts inside")
    given = Option(name="given", standing="standard", says="logits already aligned with the labels")
    wrapped = (
        Option(name="wrapped", says="shifts inside, the last place predicts the first label of its row"),
        Option(name="crosses", says="shifts inside, the last place of a row predicts the first label of the next"),
    )
    bad = (probing.as_pitfall("reversed", REVERSED), probing.as_pitfall("double", TWICE))
    order = (probing.as_pitfall("transposed", FLATTENED), probing.as_pitfall("transposed, given", FLATTENED))
    if _SWITCH.search(subject.source):
        return Axis(name="align", options=(inside, given, *wrapped, *bad, *order))
    if outside:
        return Axis(name="align", options=(given, probing.as_pitfall("inside", TWICE), *bad, *order))
    return Axis(name="align", options=(inside, *wrapped, probing.as_pitfall("given", NO_SHIFT), *bad, *order))


def _normal() -> Axis:
    return Axis(
        name="normal",
        options=(
            Option(name="log-softmax", standing="standard"),
            probing.as_pitfall("twice", DOUBLE),
            probing.as_pitfall("over positions", AXIS),
        ),
    )


def _mentions(subject: Subject, pattern: str) -> bool:
    """Whether the source has a word without which nobody writes a term; each axis more makes every search longer."""
    return not subject.source or re.search(pattern, subject.source, re.IGNORECASE) is not None


def _smoothing(subject: Subject) -> Axis:
    none = Option(name="none", standing="standard")
    if not _mentions(subject, r"smooth|eps|\bls\b|criterion|loss_f|crit\b|self\.\w*(loss|ce)"):
        return Axis(name="smoothing", options=(none,))
    options = (
        none,
        Option(name="smoothed", says="label smoothing", source="arXiv:1512.00567"),
        Option(name="others", says="label smoothing over the other tokens", source="fairseq"),
        probing.as_pitfall("ignored too", SMOOTHS),
    )
    return Axis(name="smoothing", options=options)


def _z(subject: Subject) -> Axis:
    none = Option(name="none", standing="standard")
    added = (Option(name="added", says="z-loss", source="PaLM, arXiv:2204.02311"),)
    there = _mentions(subject, r"logsumexp|lse\b|z_?loss|log_z")
    return Axis(name="z", options=(none, *(added if there else ())))


def _weight(subject: Subject) -> Axis:
    """Weights of the token losses: given ones, or ones that are computed from the policy."""
    none = Option(name="none", standing="standard")
    of_policy = (
        Option(name="p", says="weighted with the detached probability (DFT)", source="arXiv:2508.05629"),
        Option(name="p(1-p)", says="weighted with the detached p(1 - p)", source="ms-swift CHORD"),
        Option(name="1-p", says="weighted with the detached 1 - p"),
        Option(name="focal", says="focal loss, (1 - p)² differentiated", source="arXiv:1708.02002"),
        Option(name="focal 1", says="focal loss, 1 - p differentiated", source="arXiv:1708.02002"),
        Option(name="(1-p)^2", says="weighted with the detached (1 - p)²"),
        probing.as_pitfall("p, differentiated", WEIGHT),
        probing.as_pitfall("p(1-p), differentiated", WEIGHT),
    )
    if "token_weights" not in subject.bound.names:
        there = _mentions(subject, r"exp\(|softmax\(|prob|detach|no_grad|weight|focal|gamma")
        return Axis(name="weight", options=(none, *(of_policy if there else ())))
    given = (
        Option(name="given", standing="standard", says="weighted with the given weights"),
        Option(name="given, own mean", says="mean weighted with the given weights"),
        probing.as_pitfall("given, one early", MASK_SHIFT),
    )
    return Axis(name="weight", options=(*given, none))


def _counted(subject: Subject) -> Axis:
    """Which positions count."""
    options = [
        Option(name="labelled", standing="standard"),
        probing.as_pitfall("all", IGNORE_TRAINED),
        probing.as_pitfall("all, own count", IGNORE_TRAINED),
        probing.as_pitfall("one early", MASK_SHIFT),
        probing.as_pitfall("one early, own count", MASK_SHIFT),
    ]
    if "completion_mask" in subject.bound.names:
        options += [probing.as_pitfall("inverted", MASK_INVERTED), probing.as_pitfall("one late", MASK_SHIFT)]
    return Axis(name="counted", options=tuple(options))


_ACCEPTS = {
    "token-mean": ("token-mean", "given count", "sum", "none"),
    "sequence-mean": ("sequence-mean", "given rows", "sequence-sum", "row mean", "none"),
    "sequence-sum": ("sequence-sum", "given rows sum", "row sum", "sum", "none"),
}


def _aggregation(subject: Subject, reduced: surrogate.Reduced) -> Axis:
    declared = str(subject.intent.get("aggregation") or "")
    if reduced == "tokens":
        return Axis(name="agg", options=(Option(name="none", standing="standard", says="one loss a token"),))
    if reduced == "rows":
        rows = (
            Option(name="row mean", standing="standard", says="mean over the labels of each sequence"),
            Option(name="row sum", says="sum over the labels of each sequence"),
            probing.as_pitfall("row padded", PADDED),
        )
        return Axis(name="agg", options=rows)
    mean = Option(name="token-mean", standing="standard", says="mean over the labels of the batch")
    options = [
        mean,
        Option(name="sequence-mean", says="mean over labels, then over sequences"),
        Option(name="sequence-sum", says="sum over labels, mean over sequences"),
        Option(name="sum", says="sum over all labels"),
        probing.as_pitfall("padded", PADDED),
        probing.as_pitfall("padded by one", PADDED),
    ]
    if "token_count" in subject.bound.names:
        options[0] = Option(name="given count", standing="standard", says="sum over the given token count")
        options.append(probing.as_pitfall("token-mean", COUNT))
        options.append(probing.as_pitfall("mean over count", COUNT))
    if "row_count" in subject.bound.names:
        options.append(Option(name="given rows", says="means of the sequences over their given number"))
        options.append(Option(name="given rows sum", says="sums of the sequences over their given number"))
    kept = _ACCEPTS.get(declared)
    return Axis(
        name="agg",
        options=tuple(
            probing.wrong_here(o, AGGREGATION, kept is not None and o.standing != "pitfall" and o.name not in kept)
            for o in options
        ),
    )


# Reference


def reference(s: Seen, options: Options, knobs: Knobs) -> Result:
    """The loss of one case, and its gradient with respect to the logits (or log-probs)."""
    parts = ("align", "normal", "smoothing", "z")
    key = (*(options.get(p, "") for p in parts), options["weight"], *sorted(knobs.items()))
    losses = s.remember(("losses", *key), lambda: _token_losses(s, options, knobs))
    align = options.get("align", "given")
    valid = s.remember(("valid", align, options["counted"]), lambda: _valid(s, align, options["counted"]))
    counts = s.remember(("counts", align, options["counted"]), lambda: _valid(s, align, _count_rule(options)))
    if options.get("smoothing") == "ignored too":
        losses = losses[0] * valid + losses[1]
        value = _aggregated(losses, torch.ones_like(valid), counts, s, options)
    elif options["weight"] == "given, own mean":
        weights = _given_weights(s, align, 0)
        value = (losses * valid).sum() / (weights * counts).sum()
    else:
        value = _aggregated(losses, valid, counts, s, options)
    value = -value if options["sign"] == "plus" else value
    return Result(value=value, grads=lambda: surrogate.gradients(value, s))


def _count_rule(options: Options) -> str:
    return "labelled" if options["counted"].endswith("own count") else options["counted"]


def _token_losses(s: Seen, options: Options, knobs: Knobs) -> Tensor:
    """[B, T'] losses before anything is masked; [2, B, T'] with the smoothing term apart where it is unmasked."""
    align = options.get("align", "given")
    nll, spread, lse = _scores(s, align, options.get("normal", "log-softmax"))
    kind, eps = options.get("smoothing", "none"), knobs.get("smoothing", 0.0)
    vocabulary = _vocabulary(s)
    out = nll
    if kind == "smoothed":
        out = (1 - eps) * nll + eps * spread / vocabulary
    elif kind == "others":
        out = (1 - eps) * nll + eps * (spread - nll) / (vocabulary - 1)
    elif kind == "ignored too":
        out = torch.stack([(1 - eps) * nll, eps * spread / vocabulary])
    if options.get("z") == "added":
        out = out + knobs.get("z", 0.0) * lse**2
    return out * _weights(s, align, options["weight"], nll)


def _vocabulary(s: Seen) -> int:
    logits = s.inputs.get("logits")
    return logits.shape[-1] if isinstance(logits, Tensor) else 1


def _scores(s: Seen, align: str, normal: str) -> tuple[Tensor, Tensor, Tensor]:
    """nll of the label, the sum of nll over the vocabulary, log-sum-exp; each [B, T']."""
    if "scored" in s.cache:
        nll = -surrogate.tensor(s, "logprobs")
        return nll, nll, nll * 0
    table = s.remember(("table", normal), lambda: _table(s, normal))
    lse = s.remember(("lse",), lambda: surrogate.tensor(s, "logits").logsumexp(-1))
    if align.startswith("transposed"):
        table = table if align.endswith("given") else table[:, :-1]
        lse = lse if align.endswith("given") else lse[:, :-1]
        rows, columns = table.shape[:2]
        table = table.transpose(0, 1).reshape(rows, columns, -1)
        lse = lse.transpose(0, 1).reshape(rows, columns)
        target = _target(s, "given" if align.endswith("given") else "inside", _ids(s))
    else:
        target = _target(s, align, _ids(s))
        table, lse = _predicting(align, table), _predicting(align, lse)
    nll = -table.gather(-1, target.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return nll, -table.sum(-1), lse


def _table(s: Seen, normal: str) -> Tensor:
    z = surrogate.tensor(s, "logits")
    if normal == "twice":
        return z.softmax(-1).log_softmax(-1)
    return z.log_softmax(1 if normal == "over positions" else -1)


def _ids(s: Seen) -> Tensor:
    word = "labels" if "uses labels" in s.cache else "token_ids"
    got = s.inputs[word]
    assert isinstance(got, Tensor)
    return got


def _predicting(align: str, x: Tensor) -> Tensor:
    """The places whose logits are used, along dim 1."""
    if align == "inside":
        return x[:, :-1]
    if align == "double":
        return x[:, :-2]
    return x[:, 1:] if align == "reversed" else x


def _target(s: Seen, align: str, x: Tensor) -> Tensor:
    """What those places predict."""
    if align == "inside":
        return x[:, 1:]
    if align == "double":
        return x[:, 2:]
    if align == "reversed":
        return x[:, :-1]
    if align == "wrapped":
        return x.roll(-1, 1)
    if align == "crosses":
        flat = x.reshape(-1)
        return torch.cat([flat[1:], torch.full_like(flat[:1], IGNORE)]).reshape(x.shape)
    return x


def _plain(align: str) -> str:
    """The alignment of a flattening in the wrong order."""
    return {"transposed": "inside", "transposed, given": "given"}.get(align, align)


def _kept(s: Seen) -> Tensor:
    """1 where a token is labelled, by every input that says so."""
    kept = torch.ones_like(_first_matrix(s))
    if "uses labels" in s.cache:
        labels = s.inputs["labels"]
        assert isinstance(labels, Tensor)
        kept = kept * (labels != IGNORE)
    for word in ("completion_mask", "attention_mask"):
        if "uses " + word in s.cache:
            mask = s.inputs[word]
            assert isinstance(mask, Tensor)
            kept = kept * (mask != 0)
    return kept


def _first_matrix(s: Seen) -> Tensor:
    ids = s.inputs["token_ids"]
    assert isinstance(ids, Tensor)
    return torch.ones(ids.shape, dtype=torch.float64)


def _valid(s: Seen, align: str, rule: str) -> Tensor:
    """[B, T'] weights 0 or 1 of the token losses."""
    kept = _kept(s)
    plain = _plain(align)
    at_target = _target(s, plain, kept)
    if plain == "crosses":
        at_target[-1, -1] = 0.0  # nothing is behind the last token of the batch
    if rule == "labelled":
        return at_target
    if rule.startswith("all"):
        return torch.ones_like(at_target)
    if rule == "inverted":
        return 1 - at_target
    if rule.startswith("one early"):
        return _predicting(plain, kept) if plain != "given" else kept.roll(-1, 1)
    late = torch.cat([kept[:, 1:], kept[:, :1] * 0], 1)
    return _target(s, plain, late) if plain != "given" else kept.roll(1, 1)


def _given_weights(s: Seen, align: str, offset: int) -> Tensor:
    w = s.inputs["token_weights"]
    assert isinstance(w, Tensor)
    plain = _plain(align)
    return _predicting(plain, w) if offset else _target(s, plain, w)


def _weights(s: Seen, align: str, kind: str, nll: Tensor) -> Tensor | float:
    if kind == "none":
        return 1.0
    if kind.startswith("given"):
        return _given_weights(s, align, 1 if kind.endswith("early") else 0)
    p = (-nll).exp()
    plain = kind.removesuffix(", differentiated")
    w = {"p": p, "p(1-p)": p * (1 - p), "1-p": 1 - p, "(1-p)^2": (1 - p) ** 2, "focal": (1 - p) ** 2, "focal 1": 1 - p}
    constant = kind == plain and not kind.startswith("focal")
    return w[plain].detach() if constant else w[plain]


def _number(s: Seen, word: str) -> float:
    got = s.inputs[word]
    assert isinstance(got, (int, float))
    return float(got)


def _aggregated(losses: Tensor, valid: Tensor, counts: Tensor, s: Seen, options: Options) -> Tensor:
    kept = losses * valid
    agg = options["agg"]
    if agg == "none":
        narrow = s.value.shape[1] < kept.shape[1] if s.value.dim() == 2 else False
        wide = s.value.shape[1] - kept.shape[1] if s.value.dim() == 2 else 0
        return kept[:, :-1] if narrow else torch.nn.functional.pad(kept, (0, wide)) if wide > 0 else kept
    rows, number = kept.sum(1), counts.sum(1)
    means = rows / number.clamp(min=1e-12)
    b, width = kept.shape
    made: dict[str, Callable[[], Tensor]] = {
        "row mean": lambda: means, "row sum": lambda: rows, "row padded": lambda: rows / width,
        "token-mean": lambda: rows.sum() / number.sum(), "sequence-mean": means.mean, "sequence-sum": rows.mean,
        "sum": rows.sum, "padded": lambda: rows.sum() / (b * width),
        "padded by one": lambda: rows.sum() / (b * (width + 1)),
        "given count": lambda: rows.sum() / _number(s, "token_count"),
        "mean over count": lambda: rows.sum() / number.sum() / _number(s, "token_count"),
        "given rows": lambda: means.sum() / _number(s, "row_count"),
        "given rows sum": lambda: rows.sum() / _number(s, "row_count"),
    }  # fmt: skip
    return made[agg]()


# Probe


def _observe(subject: Subject, case: Case) -> Seen:
    scored = "logits" not in subject.bound.names
    s = surrogate.flat(probing.observe(subject, case, ("logprobs",) if scored else ("logits",)))
    word = "logprobs" if scored else "logits"
    leaf = s.inputs[word]
    assert isinstance(leaf, Tensor)
    if s.grads or not subject.bound.report.returns.startswith("numpy"):
        s.cache["leaf:" + word] = leaf.clone().requires_grad_(True)
    if scored:
        s.cache["scored"] = torch.ones(())
    names = subject.bound.names
    for name in ("labels", "completion_mask"):
        if name in names:
            s.cache["uses " + name] = torch.ones(())
    if "attention_mask" in names and not names & {"labels", "completion_mask"}:
        s.cache["uses attention_mask"] = torch.ones(())
    return s


def run(subject: Subject) -> Iterator[Check]:
    judged = formula.judge(
        subject,
        formula.Formula(
            probe="sft_loss.formula",
            asks=ASKS,
            cases=cases(),
            reference=reference,
            observe=_observe,
            axes=lambda seen: axes(subject, seen),
            knobs=lambda seen: _knobs(subject),
            nothing_fits="no known supervised loss gives this value and gradient",
            hide=lambda knobs: {k: v for k, v in knobs.items() if v},
            budget=BUDGET,
        ),
    )
    yield _weighed(subject, judged.check)


def _weighed(subject: Subject, check: Check) -> Check:
    """Whether labels are shifted by the caller is nobody's mistake where nothing is said of it: a question then."""
    outcome = check.outcome
    asked = isinstance(outcome, KnownBug) and [n.pitfall for n in outcome.pitfalls] == [NO_SHIFT.id]
    if not asked or probing.claims(subject, *_UNSHIFTED) or subject.bound.names & {"model"}:
        return check
    assert isinstance(outcome, KnownBug)
    return dataclasses.replace(check, outcome=dataclasses.replace(outcome, severity="soft"))


def _knobs(subject: Subject) -> tuple[Knob, ...]:
    smoothing = probing.knob(
        subject,
        "smoothing",
        ("label_smoothing",),
        (0.1,),
        active=lambda o: o.get("smoothing", "none") != "none",
        within=(1e-6, 0.9),
    )
    if "label_smoothing" in subject.bound.names:
        smoothing = Knob(name="smoothing", values=(0.1,), known=True, active=smoothing.active)
    z = Knob(
        name="z",
        values=tuple(x for x in subject.literals if 0 < x <= 0.1)[:6] or (1e-4,),
        active=lambda o: o.get("z", "none") != "none",
    )
    return smoothing, z


ROLE = Role(
    name="sft_loss",
    stage="sft",
    asks="logits [B, T, V] and labels [B, T] -> mean cross-entropy of the next tokens",
    takes=(
        "logits", "labels", "token_ids", "completion_mask", "attention_mask", "token_count", "row_count", "logprobs",
        "token_weights", "label_smoothing", "chunk_size", "hidden_states", "lm_head_weight", "lm_head_bias", "lengths",
        "model",
    ),
    needs=(("logits", "logprobs", "model"), ("labels", "token_ids", "completion_mask")),
    returns="scalar",
    example=example,
    run=run,
    pitfalls=PITFALLS,
)  # fmt: skip
