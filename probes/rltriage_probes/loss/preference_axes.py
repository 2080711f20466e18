"""In which ways losses of pairs of answers differ: what is offered to the solver for one function.

The formulas: `preference_pairs.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rltriage_probes import aliases, probing
from rltriage_probes.loss import preference_pitfalls as pitfalls
from rltriage_probes.loss.preference_pairs import TO_SUBTRACT
from rltriage_probes.loss.preference_scores import Given
from rltriage_probes.model import Axis, Option, Pitfall, Subject
from rltriage_probes.solver import Knob, Knobs, Seen

# What the user means


EXPECTED: dict[str, frozenset[str]] = {
    "dpo": frozenset(
        ("sigmoid", "exo", "nca", "bco", "sppo", "aot", "aot unpaired", "apo zero", "apo down", "discopop")
    ),
    "dpo_norm": frozenset(("sigmoid",)), "ipo": frozenset(("ipo",)), "hinge": frozenset(("hinge",)),
    "simpo": frozenset(("sigmoid",)), "cpo": frozenset(("sigmoid", "hinge")), "orpo": frozenset(("odds ratio",)),
    "kto": frozenset(("kto pair",)), "robust": frozenset(("sigmoid",)), "cdpo": frozenset(("sigmoid",)),
    "bco": frozenset(("bco",)), "sppo": frozenset(("sppo",)), "nca": frozenset(("nca",)), "exo": frozenset(("exo",)),
    "aot": frozenset(("aot",)), "aot_unpaired": frozenset(("aot unpaired",)), "apo_zero": frozenset(("apo zero",)),
    "apo_down": frozenset(("apo down",)), "discopop": frozenset(("discopop",)),
}  # fmt: skip
"""Algorithm -> what its loss may be."""
REFERENCE_FREE = frozenset(("simpo", "cpo", "orpo"))
AVERAGED = frozenset(("simpo", "orpo", "dpo_norm"))
"""Algorithms that are defined on averages per token."""
_NAMES = (
    ("simpo", r"simpo"), ("orpo", r"orpo|odds.?ratio"), ("ipo", r"(?<![a-z])ipo(?![a-z])"), ("kto", r"(?<![a-z])kto"),
    ("hinge", r"hinge|slic"), ("cpo", r"(?<![a-z])cpo(?![a-z])"), ("dpo", r"(?<![a-z])dpo(?![a-z])"),
)  # fmt: skip


def wanted(subject: Subject) -> str:
    """The algorithm: chosen by an argument, else declared, else the one that the function is named after; or empty."""
    declared = str(subject.intent.get("algorithm", "")).lower()
    chosen = subject.bound.settings.get("preference_type")
    known = declared in EXPECTED
    if isinstance(chosen, str) and chosen in EXPECTED and not (known and declared not in ("dpo", chosen)):
        return declared if declared in REFERENCE_FREE else chosen
    return declared if known else named_after(subject)


def named_after(subject: Subject) -> str:
    """The one algorithm that the function's name, else its documentation, speaks of; empty for none or several."""
    name = re.search(r"def\s+(\w+)", subject.source)
    for text in (name[1].lower() if name else "", subject.doc.lower()):
        found = [a for a, pattern in _NAMES if re.search(pattern, text)]
        if len(found) == 1:
            return found[0]
    return ""


# Axes


def axes(subject: Subject, given: Given, seen: Sequence[Seen]) -> tuple[Axis, ...]:
    """The axes that concern this function; the likeliest option of each in front."""
    algorithm = wanted(subject)
    made = (
        _loss(subject, given, algorithm, seen, _smooths(subject, given)), _reference(given, algorithm),
        _direction(given), _sign(seen), beta_axis(subject, given), _smoothing(subject, given),
        _margin(subject, given, algorithm), _tokens(subject, given, algorithm), _shift(given),
        _average(subject, given, algorithm), _layout(given), _divergence(given), _likelihood(given, algorithm),
        _penalty(given), _reduction(subject, given, seen), _gradient(given),
    )  # fmt: skip
    return made


def _option(name: str, says: str = "", source: str = "", standing: str = "convention") -> Option:
    return Option(name=name, standing="standard" if standing == "standard" else "convention", says=says, source=source)


_LOSSES = (
    _option("sigmoid", "-log sigmoid of the margin", "DPO, arXiv:2305.18290 eq. 7"),
    _option("ipo", "squared distance to 1/(2 beta)", "IPO, arXiv:2310.12036 eq. 17"),
    _option("hinge", "hinge", "SLiC, arXiv:2305.10425"),
    _option("odds ratio", "odds ratio", "ORPO, arXiv:2403.07691 eq. 7"),
    _option("bco", "BCO of both answers", "TRL bco_pair, arXiv:2404.04656"),
    _option("sppo", "SPPO with hard labels", "arXiv:2405.00675 eq. 4.7"),
    _option("nca", "NCA", "TRL nca_pair, arXiv:2402.05369"),
    _option("exo", "EXO", "arXiv:2402.00856 eq. 16"),
    _option("aot", "AOT, sorted log-ratios of each model", "arXiv:2406.05882"),
    _option("aot unpaired", "AOT, sorted log-ratios of each side", "arXiv:2406.05882"),
    _option("apo zero", "APO-zero", "arXiv:2408.06266 eq. 7"),
    _option("apo down", "APO-down", "arXiv:2408.06266 eq. 8"),
    _option("discopop", "DiscoPOP", "arXiv:2406.08414 eq. 5"),
    _option("kto pair", "KTO on pairs", "KTO, arXiv:2402.01306 eq. 8"),
    _option("exponential", "exponential of minus the margin", "GPO, arXiv:2402.05749"),
    _option("squared", "squared distance of the margin to 1", "GPO, arXiv:2402.05749"),
    _option("hinge at 0", "ranking hinge at 0", "RRHF, arXiv:2304.05302"),
)
_WRONG_LOSSES: tuple[tuple[str, Pitfall], ...] = (
    ("sigmoid, no log", pitfalls.NO_LOG),
    ("1 - sigmoid", pitfalls.NO_LOG),
    ("ipo, 1/beta", pitfalls.IPO_TARGET),
    ("ipo, beta/2", pitfalls.IPO_TARGET),
    ("ipo, 2 beta", pitfalls.IPO_TARGET),
    ("ipo, 2/beta", pitfalls.IPO_TARGET),
    ("ipo, beta", pitfalls.IPO_TARGET),
    ("ipo, 1/2", pitfalls.IPO_TARGET),
    ("ipo, no target", pitfalls.IPO_TARGET),
    ("ipo, no square", pitfalls.IPO_TARGET),
    ("ipo, scaled", pitfalls.IPO_TARGET),
    ("hinge, open", pitfalls.HINGE),
    ("hinge, other side", pitfalls.HINGE),
    ("odds, 1 + p", pitfalls.ODDS),
    ("odds, product", pitfalls.ODDS),
    ("odds, none", pitfalls.ODDS),
    ("odds, weight inside", pitfalls.ODDS),
    ("odds, probabilities", pitfalls.ODDS),
    ("odds, 1 - log p", pitfalls.ODDS),
    ("odds, chosen only", pitfalls.ODDS),
)


_TO_SUBTRACT = _option(TO_SUBTRACT, "log sigmoid of the odds ratio, which the caller subtracts", "TRL orpo")


def _smooths(subject: Subject, given: Given) -> bool:
    return "label_smoothing" in given.have or bool(subject.bound.settings.get("label_smoothing"))


def _offered(loss: str, algorithm: str, given: Given, smoothed: bool) -> bool:
    """Whether a loss can be told from the others by what the function is given."""
    if loss == "exo":
        return smoothed or algorithm == "exo"
    if loss == "aot":
        return given.has("") and given.has("ref_")
    alone = ("bco", "nca", "sppo", "apo zero", "apo down", "kto pair", "aot unpaired")
    return loss not in alone or _two_sided(given)


def _loss(subject: Subject, given: Given, algorithm: str, seen: Sequence[Seen], smoothed: bool) -> Axis:
    expected = EXPECTED.get(algorithm, frozenset())
    options: list[Option] = []
    for o in (*_LOSSES, *([_TO_SUBTRACT] if seen[0].value.dim() > 0 else [])):
        if not _offered(o.name, algorithm, given, smoothed):
            continue
        wrong = bool(expected) and o.name.split(",")[0] not in expected
        options.append(probing.wrong_here(o, pitfalls.ALGORITHM, wrong))
    right = [o for o in options if o.standing != "pitfall"]
    first = [o for o in right if o.name in _leading(algorithm)] or right[:1]
    ordered = [*first, *(o for o in options if o not in first)]
    ordered[0] = Option(name=ordered[0].name, standing="standard", says=ordered[0].says, source=ordered[0].source)
    wrong_ones = [probing.as_pitfall(n, p) for n, p in _WRONG_LOSSES if _concerns(n, algorithm, subject)]
    return Axis(name="loss", options=(*ordered, *wrong_ones))


def _leading(algorithm: str) -> frozenset[str]:
    return frozenset(("sigmoid",)) if algorithm in ("dpo", "cpo", "") else EXPECTED[algorithm]


def _concerns(option: str, algorithm: str, subject: Subject) -> bool:
    """Wrong forms of a loss are looked for where that loss is meant, or nothing is known of what is meant."""
    family = (
        "ipo"
        if option.startswith("ipo")
        else "hinge"
        if option.startswith("hinge")
        else "orpo"
        if option.startswith("odds")
        else ""
    )
    meant = algorithm or "dpo"
    return meant == family or (not family and meant not in ("ipo", "hinge", "orpo")) or (
        family != "" and re.search(rf"(?<![a-z]){family}", f"{subject.source} {subject.doc}".lower()) is not None
    )  # fmt: skip


def _reference(given: Given, algorithm: str) -> Axis:
    bound = given.has("ref_") or "ref_logratios" in given.have
    if not bound:
        name = "subtracted" if _log_ratios(given) else "absent"
        says = "" if _log_ratios(given) else "no reference model"
        return Axis(name="reference", options=(Option(name=name, standing="standard", says=says),))
    absent = Option(name="absent", standing="convention", says="no reference model", source="SimPO, CPO, ORPO")
    options = [
        Option(name="subtracted", standing="standard", says="log-ratios to the reference"),
        probing.wrong_here(absent, pitfalls.REF_MISSING, algorithm not in REFERENCE_FREE),
        probing.as_pitfall("added", pitfalls.REF_SIGN),
        probing.as_pitfall("exchanged", pitfalls.REF_SIGN),
        probing.as_pitfall("chosen only", pitfalls.REF_HALF),
        probing.as_pitfall("rejected only", pitfalls.REF_HALF),
        probing.as_pitfall("the other's", pitfalls.REF_SIGN),
    ]
    if "ref_logratios" in given.have:
        options = [o for o in options if o.name in ("subtracted", "absent", "added")]
    if algorithm in REFERENCE_FREE:
        options[0] = probing.as_pitfall("subtracted", pitfalls.ALGORITHM)
        options[0], options[1] = absent, options[0]
    return Axis(name="reference", options=tuple(options))


def _log_ratios(given: Given) -> bool:
    return bool(given.have & {"chosen_logratios", "policy_logratios", "preference_logits"})


def _two_sided(given: Given) -> bool:
    return given.has("") or "chosen_logratios" in given.have


def _direction(given: Given) -> Axis:
    return Axis(
        name="direction",
        options=(
            Option(name="chosen", standing="standard"),
            probing.as_pitfall("rejected", pitfalls.SWAPPED),
            *(probing.as_pitfall(n, pitfalls.ADDED) for n in (("both", "neither") if _two_sided(given) else ())),
        ),
    )


def _sign(seen: Sequence[Seen]) -> Axis:
    return Axis(
        name="sign",
        options=(Option(name="plus", standing="standard"), probing.as_pitfall("minus", pitfalls.LOSS_SIGN)),
        # a term of several, one a pair, may be subtracted by whoever puts the loss together
        when=lambda o: not (o["loss"] == "odds ratio" and seen[0].value.dim() > 0),
    )


def beta_axis(subject: Subject, given: Given) -> Axis:
    known = (
        "beta" in given.have
        or "beta" in subject.bound.settings
        or isinstance(probing.declared(subject, "beta"), (int, float))
    )
    wrong = tuple(probing.as_pitfall(n, pitfalls.BETA) for n in ("none", "twice", "divided")) if known else ()
    if known and _two_sided(given):
        wrong += tuple(probing.as_pitfall(n, pitfalls.BETA) for n in ("chosen only", "rejected only"))
    return Axis(
        name="beta",
        options=(Option(name="once", standing="standard"), *wrong),
        when=lambda o: not o.get("loss", "").startswith(("ipo", "sppo")),
    )


def _smoothing(subject: Subject, given: Given) -> Axis:
    if not _smooths(subject, given):
        return Axis(name="smoothing", options=(Option(name="none", standing="standard"),))
    # a function of many loss types rightly has a setting that only some of them look at
    several = isinstance(subject.bound.settings.get("preference_type"), str) or len(_types_in(subject)) > 1
    none = Option(name="none", standing="convention", says="no label smoothing")
    return Axis(
        name="smoothing",
        options=(
            Option(name="conservative", standing="standard", says="conservative label smoothing", source="cDPO eq. 3"),
            _option("robust", "robust label smoothing", "rDPO, arXiv:2403.00409"),
            probing.wrong_here(none, pitfalls.SMOOTHING_INERT, not several),
            probing.as_pitfall("one side", pitfalls.SMOOTHING),
            probing.as_pitfall("not renormalised", pitfalls.SMOOTHING),
            probing.as_pitfall("full weight", pitfalls.SMOOTHING),
            probing.as_pitfall("flipped side only", pitfalls.SMOOTHING),
        ),
        when=lambda o: o["loss"] in ("sigmoid", "aot", "aot unpaired"),
    )


def _types_in(subject: Subject) -> set[str]:
    """Loss types that the source spells."""
    names = {n for row in aliases.CHOICES["preference_type"].values() for n in row}
    return {n for n in names if f'"{n}"' in subject.source or f"'{n}'" in subject.source} | (
        {"ipo"} if re.search(r"\bipo\b\s*[:=]|\.ipo\b", subject.source) else set()
    )


def _margin(subject: Subject, given: Given, algorithm: str) -> Axis:
    have = given.have
    none = Option(name="none", standing="convention")
    several = len(_types_in(subject)) > 1 and algorithm != "simpo"
    needs_none = probing.wrong_here(none, pitfalls.MARGIN, not several)
    options: list[Option]
    if "target_margin" in have:
        # a name that is used for the margin as it stands, or for a ratio that beta multiplies
        options = [
            Option(name="minus", standing="standard", says="target margin"),
            needs_none,
            probing.as_pitfall("plus", pitfalls.MARGIN),
            probing.as_pitfall("times beta", pitfalls.MARGIN),
            probing.as_pitfall("over beta", pitfalls.MARGIN),
            probing.as_pitfall("plus, times beta", pitfalls.MARGIN),
        ]
    elif "margin_ratio" in have:
        options = [
            Option(name="times beta", standing="standard", says="target margin of beta times the ratio"),
            needs_none,
            probing.as_pitfall("minus", pitfalls.MARGIN),
            probing.as_pitfall("plus, times beta", pitfalls.MARGIN),
            probing.as_pitfall("plus", pitfalls.MARGIN),
            probing.as_pitfall("times beta twice", pitfalls.MARGIN),
        ]
    elif "margin" in have:
        options = [
            Option(name="minus", standing="standard", says="offset of each pair", source="ODPO, arXiv:2402.10571"),
            _option("times beta", "offset of each pair, times beta"),
            needs_none,
            probing.as_pitfall("plus", pitfalls.MARGIN),
            probing.as_pitfall("plus, times beta", pitfalls.MARGIN),
        ]
    elif algorithm == "simpo":
        options = [
            Option(name="minus", standing="standard", says="constant target margin"),
            _option("none", "no target margin"),
            probing.as_pitfall("plus", pitfalls.MARGIN),
        ]
    else:
        options = [Option(name="none", standing="standard")]
    return Axis(
        name="margin", options=tuple(options), when=lambda o: o["loss"].startswith(("sigmoid", "1 - sig", "hinge"))
    )


_SAYS_AVERAGE = (
    r"averag\w*(?! (over|of|across) (the |all )?(pairs|batch|losses|examples))"
    r"|length[- ]normali|normali[sz]ed by (the )?length"
    r"|mean log|mean (over|of|per) (the |its )?(answer|response|completion)?'?s? ?tokens?|per[- ]token mean"
)


def _should_average(subject: Subject, algorithm: str) -> bool | None:
    """Whether the loss is to work on averages per token; None where both are right."""
    if algorithm in AVERAGED:
        return True
    if algorithm == "ipo":
        return True if probing.claims(subject, _SAYS_AVERAGE) else None
    if algorithm in ("dpo", "hinge", "robust", "cdpo"):
        return None if probing.claims(subject, _SAYS_AVERAGE) or _flagged(subject) else False
    return None


def _flagged(subject: Subject) -> bool:
    return re.search(r"average_log_?prob|length_norm|norm", subject.source) is not None


def _tokens(subject: Subject, given: Given, algorithm: str) -> Axis:
    if not given.by_token:
        return Axis(name="tokens", options=(Option(name="sum", standing="standard"),))
    should = _should_average(subject, algorithm)
    summed = Option(name="sum", standing="convention", says="summed over the answer")
    mean = Option(name="mean", standing="convention", says="averaged over the answer's tokens")
    divides = given.lengths  # then the sum may be divided by what is given
    options = [
        probing.wrong_here(summed, pitfalls.SUMMED, should is True and not divides),
        probing.wrong_here(mean, pitfalls.AVERAGED, should is False),
    ]
    if should is True:
        options.reverse()
    if given.masked:
        options += [
            probing.as_pitfall("unmasked sum", pitfalls.MASK),
            probing.as_pitfall("unmasked mean", pitfalls.MASK),
            probing.as_pitfall("padded mean", pitfalls.LENGTH),
            probing.as_pitfall("inverted", pitfalls.MASK_INVERTED),
        ]
    options[0] = Option(name=options[0].name, standing="standard", says=options[0].says, source=options[0].source)
    return Axis(name="tokens", options=tuple(options))


def _shift(given: Given) -> Axis:
    if not given.by_logits:
        return Axis(name="shift", options=(Option(name="inside", standing="standard"),))
    return Axis(
        name="shift",
        options=(
            Option(name="inside", standing="standard", says="labels shifted inside"),
            _option("aligned", "logits already aligned with the labels"),
            probing.as_pitfall("backwards", pitfalls.SHIFT),
        ),
    )


def _average(subject: Subject, given: Given, algorithm: str) -> Axis:
    if not given.lengths or (given.by_token and not given.lengths):
        return Axis(name="average", options=(Option(name="none", standing="standard"),))
    should = _should_average(subject, algorithm)
    idle = given.lengths and algorithm == "ipo"  # lengths that are given and not used by the loss that needs them
    none = probing.wrong_here(Option(name="none", standing="convention"), pitfalls.SUMMED, should is True or idle)
    both = Option(name="both", standing="convention", says="averaged by the lengths given", source="TRL sigmoid_norm")
    # an average that no document mentions is asked about, not called a bug
    both = probing.wrong_here(both, pitfalls.AVERAGED, should is False and algorithm != "")
    options = [both, none] if should is True or idle else [none, both]
    options[0] = Option(name=options[0].name, standing="standard", says=options[0].says, source=options[0].source)
    wrong = [
        probing.as_pitfall(n, pitfalls.LENGTH)
        for n in ("exchanged", "chosen only", "rejected only", "policy only", "times", "total", "squared")
    ]
    return Axis(name="average", options=(*options, *wrong))


def _layout(given: Given) -> Axis:
    if not given.concatenated:
        return Axis(name="layout", options=(Option(name="halves", standing="standard"),))
    return Axis(
        name="layout",
        options=(
            Option(name="halves", standing="standard", says="chosen answers before rejected ones"),
            _option("interleaved", "chosen and rejected answers in turn", "NeMo-RL loss_functions.py"),
        ),
    )


def _divergence(given: Given) -> Axis:
    plain = Option(name="reverse", standing="standard")
    options = [plain]
    if given.has("ref_") or "chosen_logratios" in given.have:
        options += [
            _option("forward", "forward-KL scores", "f-DPO, arXiv:2309.16240"),
            _option("js", "Jensen-Shannon scores", "f-DPO, arXiv:2309.16240"),
        ]
    elif given.has("") and "nll_weight" in given.have:
        options.append(_option("alpha", "AlphaPO scores", "AlphaPO, arXiv:2501.03884"))
    return Axis(name="divergence", options=tuple(options), when=lambda o: not o["loss"].startswith("odds"))


def _likelihood(given: Given, algorithm: str) -> Axis:
    options = [Option(name="none", standing="standard")]
    weighted = "nll_weight" in given.have
    if "chosen_nll" in given.have:
        options = [
            Option(name="given", standing="standard", says="plus the NLL given"),
            *([_option("given, weighted", "plus the weighted NLL given", "RPO, arXiv:2404.19733")] if weighted else []),
            _option("none"),
            probing.as_pitfall("given, minus", pitfalls.NLL),
            *([probing.as_pitfall("given, weighted, minus", pitfalls.NLL)] if weighted else []),
        ]
        if weighted:
            options[0], options[1] = options[1], options[0]
    elif given.has(""):
        first = [_option("none"), _option("chosen", "plus the NLL of the chosen answer")]
        if algorithm == "orpo" or weighted:
            first.reverse()
        averaged = _option("chosen, averaged", "plus the average NLL of the chosen answer", "RPO, arXiv:2404.19733")
        options = [
            *first, *([averaged] if given.lengths or given.by_token else []),
            *(probing.as_pitfall(n, pitfalls.NLL) for n in ("minus chosen", "rejected")),
        ]  # fmt: skip
    options[0] = Option(name=options[0].name, standing="standard", says=options[0].says, source=options[0].source)
    return Axis(name="likelihood", options=tuple(options), when=lambda o: o["loss"] != "kto pair")


def _penalty(given: Given) -> Axis:
    none = Option(name="none", standing="standard")
    if not given.has("ref_") or "penalty_weight" not in given.have:
        return Axis(name="penalty", options=(none,))
    return Axis(
        name="penalty",
        options=(
            Option(name="dpop", standing="standard", says="DPOP penalty", source="DPOP, arXiv:2402.13228"),
            _option("none"),
            probing.as_pitfall("turned round", pitfalls.PENALTY),
            probing.as_pitfall("added", pitfalls.PENALTY),
            probing.as_pitfall("unclamped", pitfalls.PENALTY),
            probing.as_pitfall("rejected", pitfalls.PENALTY),
        ),
        when=lambda o: o["reference"] == "subtracted" and o["loss"] == "sigmoid",
    )


def summed(subject: Subject) -> Option:
    """A sum over the pairs, which is wrong where the function promises a mean."""
    return probing.wrong_here(
        Option(name="sum", says="sum over the pairs"), pitfalls.REDUCTION,
        probing.claims(
            subject, r"\b(mean|averaged?) (over|across|of) (the )?(batch|pairs?|examples|losses|answers|samples)",
            r"batch mean", r"mean loss", r"\(mean\)",
        ),
    )  # fmt: skip


def _reduction(subject: Subject, given: Given, seen: Sequence[Seen]) -> Axis:
    if seen[0].value.dim() > 0:
        return Axis(name="reduction", options=(Option(name="none", standing="standard", says="one loss a pair"),))
    return Axis(
        name="reduction",
        options=(
            Option(name="mean", standing="standard", says="mean over the pairs"),
            summed(subject),
            probing.as_pitfall("half", pitfalls.REDUCTION),
            probing.as_pitfall("double", pitfalls.REDUCTION),
            probing.as_pitfall("first", pitfalls.REDUCTION),
            probing.as_pitfall("last", pitfalls.REDUCTION),
            probing.as_pitfall("largest", pitfalls.REDUCTION),
            probing.as_pitfall("smallest", pitfalls.REDUCTION),
            *([probing.as_pitfall("tokens", pitfalls.REDUCTION)] if given.masked or given.lengths else []),
        ),
    )


def _gradient(given: Given) -> Axis:
    wrong = ("both", "chosen", "rejected") if _two_sided(given) else ("both",)
    return Axis(
        name="gradient",
        options=(Option(name="flows", standing="standard"), *(probing.as_pitfall(n, pitfalls.DETACHED) for n in wrong)),
    )


def narrowed(axes: Sequence[Axis]) -> tuple[Axis, ...]:
    """The axes without the rarer conventions, among which two bugs at once are looked for."""
    rare = ("loss", "divergence", "likelihood", "average", "penalty")
    return tuple(
        Axis(
            name=a.name, needs=a.needs, when=a.when,
            options=tuple(
                o for i, o in enumerate(a.options) if a.name not in rare or i == 0 or o.standing == "pitfall"
            ),
        )
        for a in axes
    )  # fmt: skip


# Knobs


def knobs(subject: Subject, given: Given) -> tuple[Knob, ...]:
    algorithm = wanted(subject)
    beta = probing.knob(
        subject, "beta", ("beta",), (0.1, 1.0, 0.2, 0.5, 2.0, 2.5, 0.01, 0.05, 5.0), within=(1e-4, 100.0)
    )
    stated = probing.declared(subject, "beta")
    if not beta.known and isinstance(stated, (int, float)) and not isinstance(stated, bool):
        written = [x for x in subject.literals if 1e-4 <= x <= 100 and x != 1.0]
        beta = Knob(name="beta", values=tuple(dict.fromkeys([float(stated), *written])))
    if "beta" in given.have:
        beta = Knob(name="beta", values=(1.0,), known=True)
    elif not beta.known:
        beta = Knob(name="beta", values=beta.values, fit=(1e-3, 50.0))
    margin = probing.knob(subject, "target_margin", ("target_margin",), (0.5, 1.0, 1.4, 1.6, 0.3), within=(0.0, 20.0))
    if given.have & {"target_margin", "margin_ratio", "margin"} or algorithm != "simpo":
        margin = Knob(name="target_margin", values=(0.0,), known=True)
    smoothing = probing.knob(subject, "label_smoothing", ("label_smoothing",), (0.0,), within=(0.0, 0.5))
    smoothing = Knob(name="label_smoothing", values=smoothing.values[:1] if smoothing.known else (0.0,), known=True)
    weight = probing.knob(subject, "nll_weight", ("nll_weight",), (1.0,), within=(1e-4, 10.0))
    return (
        Knob(name="beta", values=beta.values, known=beta.known, fit=beta.fit),
        Knob(name="target_margin", values=margin.values, known=margin.known, active=lambda o: o["margin"] != "none"),
        smoothing,
        Knob(
            name="nll_weight", values=weight.values if "nll_weight" not in given.have else (1.0,),
            known=weight.known or "nll_weight" in given.have,
            active=lambda o: "weighted" in o["likelihood"] or o["likelihood"].startswith(("chosen", "minus", "rej")),
        ),
        Knob(name="tau", values=(0.05, *subject.literals), active=lambda o: o["loss"] == "discopop"),
    )  # fmt: skip


def hide(values: Knobs, given: Given) -> Mapping[str, float]:
    """Knobs that say something about the function: not those that the cases set."""
    neutral = {"target_margin": 0.0, "label_smoothing": 0.0, "nll_weight": 1.0}
    return {k: v for k, v in values.items() if k not in given.have and neutral.get(k) != v and k != "tau"}
