"""What the inputs of a preference or reward-model loss are called: which answer, whose, and what of it.

Such names are put together from few parts (`policy_chosen_logps`, `ref_l`, `rejected_loss_mask`), so they are read by
their parts instead of being listed. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases
from rltriage_probes.filling import FixedSource

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder

PAIR_ROLES = frozenset(("preference_loss", "reward_model_loss"))

_CHOSEN = frozenset(
    "chosen win wins winner winning preferred pos positive accepted accept better good yw w c chose preferable".split()
)
_REJECTED = frozenset(
    "rejected reject rejects rej lose loses loser losing dispreferred unpreferred nonpreferred neg negative worse bad "
    "yl l r".split()
)
_LETTERS = frozenset("w l c r".split())
"""Sides that a single letter stands for, where other parts or the other letter are there as well."""
_REFERENCE = frozenset("ref frozen sft init initial".split())
_POLICY = frozenset("policy pi actor model theta trained current".split())
_RATIO = re.compile(r"log_?ratios?|log_?odds_?ratio|logr\b|ratios?$|rewards_hat|implicit")
_SPELLED = {
    "pc": "chosen_logprobs", "pr": "rejected_logprobs", "rc": "ref_chosen_logprobs", "rr": "ref_rejected_logprobs",
}  # fmt: skip

_SCALARS: dict[str, str] = {
    "beta": (
        "beta dpo_beta kl_beta pref_beta tau temperature loss_beta simpo_beta ipo_tau ipo_beta "
        "reference_policy_kl_penalty "
        "kto_beta orpo_beta lambda_or orpo_lambda orpo_alpha or_weight odds_weight orpo_weight lambda_orpo"
    ),
    "label_smoothing": (
        "label_smoothing smoothing eps epsilon label_smooth flip_prob noise_rate dpo_label_smoothing label_noise "
        "cdpo_eps flip_rate"
    ),
    "target_margin": "gamma simpo_gamma target_margin target_reward_margin reward_margin margin_gamma",
    "margin_ratio": "gamma_beta_ratio gamma_over_beta margin_ratio gamma_ratio",
    "desirable_weight": (
        "desirable_weight lambda_d kto_chosen_weight chosen_weight pos_weight weight_desirable lambda_desirable "
        "good_weight positive_weight w_d"
    ),
    "undesirable_weight": (
        "undesirable_weight lambda_u kto_rejected_weight rejected_weight neg_weight weight_undesirable "
        "lambda_undesirable bad_weight negative_weight w_u"
    ),
    "nll_weight": (
        "rpo_alpha alpha nll_weight sft_weight nll_coef sft_coef pref_ftx nll_alpha nll_loss_coef cpo_alpha "
        "sft_loss_weight ftx_gamma nll_loss_weight sft_alpha lambda_nll ce_weight aux_loss_coef"
    ),
    "penalty_weight": "dpop_lambda penalty_weight lambda_dpop lambda_ lam lambda_penalty dpop_weight",
    "center_coef": (
        "center_rewards_coefficient center_coef center_coefficient reg_coef center_weight centering_coef l2_coef "
        "reward_reg center_rewards_coef centre_coef reg_weight center_lambda reward_center_coef regularization "
        "lambda_center"
    ),
    "pad_token_id": "pad_token_id pad_id pad pad_idx pad_token",
    "placeholder_token_id": (
        "placeholder_token_id step_token_id step_tag_id sep_token_id marker_id placeholder_id step_id separator_id "
        "step_separator_id"
    ),
}
"""Words with their spellings."""
_SCALAR_OF = {name: word for word, names in _SCALARS.items() for name in names.split()}
_TYPE_NAMES = frozenset(
    "loss_type type loss_fn pref_loss mode variant method objective kind loss_name algorithm".split()
)


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What a name says."""

    side: str
    """`chosen`, `rejected` or empty."""
    ref: bool
    policy: bool
    kind: str
    """`logprob`, `logit`, `label`, `mask`, `length`, `reward`, `ratio`, `nll`, `margin`, `ids`, `kl` or empty."""
    tokens: bool
    """Whether it says that it holds one number a token."""


def meaning(b: Binder, root: str, name: str, path: Any, annotation: str, default: Any) -> tuple[str, str, bool]:
    """Word, rule and whether a mask marks what is left out; empty where the name has no meaning here."""
    plain = aliases.snake(name)
    if plain.strip("_") in aliases.CONFIG_NAMES:
        return "", "", False
    compared = {x.lower() for x in b.facts.compared(root, path)}
    if compared & _types() and (plain in _TYPE_NAMES or len(compared & _types()) > 1 or isinstance(default, str)):
        return "preference_type", "source", False
    if isinstance(default, bool) or (isinstance(default, str) and default):
        return "", "", False
    number = isinstance(default, (int, float)) or annotation in ("float", "int", "Optional[float]", "float | None")
    word = _scalar(b, plain, number)
    if word == "beta" and not path and root not in b.facts.reads and _other_weight(b, plain):
        return "", "", False
    how = "name"
    if not word and not number:
        names = _others(b)
        parts = read(plain, names)
        word = _tensor(b, parts, plain, names)
        if not word:
            doc = b.docs.get(name, "")
            how = "docstring"
            word = _tensor(b, _from_doc(doc), "", names) if doc else ""
    if word not in b.takes:
        return "", "", False
    return word, how, word.endswith("_mask") and _left_out(plain, b.docs.get(name, ""))


def flag(b: Binder, shown: str, name: str, default: Any) -> FixedSource | None:
    """A switch that the declared algorithm turns on: `ipo=True`; None where it stays as it is."""
    wanted = str(b.intent.get("algorithm", "")).lower()
    plain = aliases.snake(name)
    if (
        isinstance(default, bool)
        and wanted in _types()
        and re.fullmatch(rf"(use_|is_)?{re.escape(wanted)}(_loss)?", plain)
    ):
        return FixedSource(path=shown, value=True, meaning="constant", how="intent")
    return None


_GENERAL = {
    "preference_loss": {
        "logprobs": "pair_logprobs", "ref_logprobs": "ref_pair_logprobs", "lengths": "pair_lengths",
        "completion_mask": "pair_mask", "attention_mask": "pair_mask", "labels": "pair_labels",
        "token_ids": "pair_labels",
        "gamma": "target_margin", "temperature": "beta",
    },
    "reward_model_loss": {
        "rewards": "pair_rewards", "lengths": "pair_lengths", "labels": "step_labels", "logits": "step_logits",
        "completion_mask": "step_mask", "attention_mask": "pair_mask", "token_ids": "step_ids", "input_ids": "step_ids",
        "token_rewards": "pair_token_rewards", "values": "pair_token_rewards",
    },
}  # fmt: skip


def of_pairs(b: Binder, word: str) -> str:
    """The word that a general one stands for in these roles: `rewards` are the scores of both answers."""
    names = _others(b)
    if b.role.name == "preference_loss" and _flags_examples(names):
        alone = {"logprobs": "example_logprobs", "ref_logprobs": "ref_example_logprobs", "labels": "desirable"}
        word = alone.get(word, word)
    if b.role.name == "preference_loss" and word == "logits":
        return "pair_logits" if _has_labels(names) else "preference_logits"
    return _GENERAL[b.role.name].get(word, word)


def _types() -> frozenset[str]:
    return frozenset(n.lower() for names in aliases.CHOICES["preference_type"].values() for n in names)


def _others(b: Binder) -> frozenset[str]:
    """Every name through which an input may come, in snake case."""
    out = {aliases.snake(n) for n in b.signature.parameters}
    for reads in b.facts.reads.values():
        out |= {aliases.snake(path[-1][1]) for path in reads if path and path[-1][1]}
    return frozenset(out)


def _scalar(b: Binder, plain: str, number: bool) -> str:
    word = _SCALAR_OF.get(plain.strip("_"), "")
    if plain in ("margin", "offset"):
        word = "target_margin" if number and b.role.name == "preference_loss" else ""
    if word == "target_margin" and b.role.name == "reward_model_loss":
        return ""
    if word == "target_margin" and plain == "gamma" and not _takes_beta(b):
        text = f"{b.loaded.qualname} {b.loaded.doc}"
        word = word if re.search(r"simpo|margin", text, re.I) else "beta"  # RSO calls it so
    if word == "penalty_weight" and re.search(r"orpo|odds", f"{b.loaded.qualname} {b.loaded.doc}", re.I):
        word = "beta"
    if (
        word == "nll_weight"
        and plain == "alpha"
        and re.search(r"odds.ratio", b.loaded.doc, re.I)
        and not _takes_beta(b)
    ):
        word = "beta"
    if word == "beta" and b.role.name == "reward_model_loss":
        return ""
    return word


def _other_weight(b: Binder, plain: str) -> bool:
    """Whether the weight that is read has another name than this one, which is not."""
    return any(n != plain and (_SCALAR_OF.get(n) == "beta" or n in ("lam", "lambda_")) for n in _others(b))


def _takes_beta(b: Binder) -> bool:
    return any(_SCALAR_OF.get(n) == "beta" or n in ("lam", "lambda_") for n in _others(b))


def read(plain: str, names: Collection[str] = ()) -> Parts:
    """The parts of a name in snake case; `names` are its neighbours, which say what a single letter means."""
    tokens = aliases.tokens(plain)
    have = set(tokens)
    side = _side(tokens, plain, names)
    kind = ""
    if "mask" in have:
        kind = "mask"
    elif (
        (have & {"length", "lengths", "len", "count", "counts", "ntok", "size", "sizes", "ntokens", "n"} and side)
        or "lengths" in plain
        or plain.endswith("lens")
        or plain in ("length", "seq_lens", "token_counts")
    ):
        kind = "length"
    elif have & {"label", "labels"}:
        kind = "label"
    elif have & {"ids"} or plain.endswith("input_ids"):
        kind = "ids"
    elif have & {"nll", "sft", "ce"} and "logprob" not in have:
        kind = "nll"
    elif _RATIO.search(plain):
        kind = "ratio"
    elif have & {"margin", "margins", "offset", "gap"}:
        kind = "margin"
    elif "kl" in have:
        kind = "kl"
    elif have & {"logit", "logits"}:
        kind = "logit"
    elif have & {"reward", "score", "value", "rm", "s"}:
        kind = "reward"
    elif "logprob" in have or have & {"lp", "loglik", "ll", "logpi", "likelihood"}:
        kind = "logprob"
    kind = "kl" if "kl" in have and kind == "logprob" else kind
    return Parts(
        side=side, ref=bool(have & _REFERENCE), policy=bool(have & _POLICY), kind=kind,
        tokens="token" in have or "per" in have,
    )  # fmt: skip


def _side(tokens: tuple[str, ...], plain: str, names: Collection[str]) -> str:
    for token in tokens:
        if token in _CHOSEN - _LETTERS:
            return "chosen"
        if token in _REJECTED - _LETTERS:
            return "rejected"
    last = plain.rsplit("_", maxsplit=1)[-1]
    if last in _LETTERS and ("_" in plain or {"w", "l"} <= set(names) or {"c", "r"} <= set(names)):
        other = {"w": "l", "l": "w", "c": "r", "r": "c"}[last]
        if plain[: -len(last)] + other in names:
            return "chosen" if last in ("w", "c") else "rejected"
    first = plain.split("_", maxsplit=1)[0]
    if first in ("w", "l") and "_" in plain:
        return "chosen" if first == "w" else "rejected"
    return ""


def _from_doc(doc: str) -> Parts:
    """The same from a sentence about an input."""
    lowered = doc.lower()
    chosen = re.search(r"\b(chosen|preferred|winn\w+|better|accepted)\b", lowered)
    rejected = re.search(r"\b(rejected|dispreferred|los\w+|worse|unpreferred)\b", lowered)
    side = "" if bool(chosen) == bool(rejected) else "chosen" if chosen else "rejected"
    ref = re.search(r"\b(reference|frozen|ref)\b", lowered) is not None
    policy = re.search(r"\b(policy|trained|being trained)\b", lowered) is not None
    table = (
        ("mask", r"\bmask\b|\b1 (on|for)\b"), ("length", r"\blengths?\b|number of tokens|token counts?"),
        ("logprob", r"log-?\s?prob|logps?\b"), ("reward", r"\b(reward|score)s?\b"), ("margin", r"\bmargins?\b"),
        ("logit", r"\blogits\b"), ("label", r"\blabels?\b"),
    )  # fmt: skip
    kind = next((k for k, pattern in table if re.search(pattern, lowered)), "")
    return Parts(side=side, ref=ref, policy=policy, kind=kind, tokens="per-token" in lowered)


def _tensor(b: Binder, p: Parts, plain: str, names: frozenset[str]) -> str:
    if b.role.name == "reward_model_loss":
        return _of_reward_model(b, p, plain, names)
    if plain in _SPELLED and set(_SPELLED) <= names:
        return _SPELLED[plain]
    by_kind = {
        "mask": f"{p.side or 'pair'}_mask", "length": f"{p.side or 'pair'}_lengths",
        "nll": "chosen_nll" if p.side != "rejected" else "", "margin": "margin",
    }  # fmt: skip
    if p.kind in by_kind:
        return by_kind[p.kind] if plain or p.side else ""
    if p.kind == "kl":
        return _kl(p, plain)
    front = "ref_" if p.ref else ""
    if p.kind in ("ratio", "logit", "label", "ids"):
        return _of_side(p, front) if p.side else _of_both(p, front, names)
    if p.side and p.kind in ("logprob", ""):
        return f"{front}{p.side}_logprobs" if plain or p.kind else ""
    if plain in ("full_target", "target", "targets"):
        return "pair_labels"
    if plain in ("delta", "h", "z", "diff"):
        return "preference_logits"
    if plain in ("is_desirable", "desirable", "is_good", "is_chosen", "good_mask"):
        return "desirable"
    if p.kind == "logprob" or (p.ref and plain in ("ref", "reference")) or plain in ("policy", "pi"):
        many = "example_logprobs" if _flags_examples(names) else "pair_logprobs"
        return f"{front}{many}" if plain else ""
    return ""


def _of_side(p: Parts, front: str) -> str:
    return {"ratio": f"{p.side}_logratios", "logit": f"{front}{p.side}_logits"}.get(p.kind, f"{p.side}_labels")


def _of_both(p: Parts, front: str, names: Collection[str]) -> str:
    """What a name means that speaks of neither answer alone."""
    if p.kind == "ratio":
        return "ref_logratios" if p.ref else "policy_logratios" if p.policy else "preference_logits"
    if p.kind == "logit":
        return f"{front}pair_logits" if _has_labels(names) else "preference_logits"
    return "pair_labels" if any("logit" in n for n in names) else "desirable"


def _kl(p: Parts, plain: str) -> str:
    if "log" in plain:
        return "ref_kl_logprobs" if p.ref else "kl_logprobs"
    return "kl_estimate"


def _has_labels(names: Collection[str]) -> bool:
    return any("label" in n or n.endswith("ids") for n in names)


def _flags_examples(names: Collection[str]) -> bool:
    """Whether labels say of each answer alone whether it is good (KTO)."""
    plain = [n for n in names if not re.search(r"chosen_(?!$)|rejected|winn|los(e|ing)", n)]
    flags = any(re.search(r"(^|_)(labels?(?!_(smooth|noise))|desirable|good|is_chosen)(_|$)", n) for n in plain)
    return flags and not any("logits" in n for n in names)


def _of_reward_model(b: Binder, p: Parts, plain: str, names: frozenset[str]) -> str:
    doc = f"{b.loaded.qualname} {b.loaded.doc}"
    process = re.search(r"\b(prm|process|step)", doc, re.I) is not None or any(
        n.startswith("step") or "placeholder" in n or "reward_token" in n for n in names
    )
    if p.side:
        if p.kind in ("mask", "length"):
            return f"{p.side}_{p.kind}{'s' if p.kind == 'length' else ''}"
        return f"{p.side}_ids" if p.kind in ("ids", "label") else f"{p.side}_rewards"
    if p.kind == "margin":
        return "margin"
    if re.search(r"reward_token|candidate|judg|token_choices", plain):
        return "reward_token_ids"
    if p.kind == "label" or plain in ("targets", "target"):
        return "step_labels"
    if p.kind == "mask":
        return "step_mask" if process else "pair_mask"
    if p.kind == "ids" or plain in ("inputs", "input_ids"):
        return "step_ids" if process else "pair_ids"
    if p.kind == "length":
        return "pair_lengths"
    if process and (p.kind in ("logit", "reward", "logprob") or plain in ("scores", "preds", "pred", "probs")):
        return "step_logits" if p.kind == "logit" and not _one_a_step(b, plain) else "step_scores"
    if p.kind in ("reward", "logit") or plain in ("outputs", "output", "preds", "predictions"):
        ranked = re.search(r"rank|best.first|\bK\b|k-?wise|per prompt|all pairs", doc)
        return "ranked_rewards" if ranked else "pair_rewards"
    return ""


def _one_a_step(b: Binder, plain: str) -> bool:
    """Whether what is called logits is one number a position, by the shape that is written or by a binary loss."""
    doc = b.docs.get(plain, "")
    shape = re.search(r"[\[(]([^\])]*)[\])]", doc)
    if shape is not None:
        return shape[1].count(",") == 1
    return re.search(r"binary_cross_entropy|BCE|mse_loss|sigmoid", b.facts.text) is not None


def _left_out(plain: str, doc: str) -> bool:
    """Whether a mask is 1 where nothing counts."""
    if re.search(r"(1|true)\s*(=|on|for|where|at|means|marks)?\s*(the )?(pad|ignor|left out|prompt)", doc, re.I):
        return True
    return bool(set(aliases.tokens(plain)) & {"pad", "padding", "ignore"}) and not re.search(
        r"(1|true) (on|for) (real|answer)", doc, re.I
    )
