"""From a user's parameters to the words of the vocabulary, and back in every call.

`bind` reads names, annotations, docstring and source, settles what can't be read by calling the function
on the role's small example, and gives a `Bound`. Where something stays open it raises `BindingFailed`
with the manifest lines that would bind it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltriage_probes import aliases, containers, factories, reports, seams, selfplan, source, trials
from rltriage_probes.binder import DOCUMENTED, Binder
from rltriage_probes.bound import Bound
from rltriage_probes.filling import SCALARS, Source, WordSource
from rltriage_probes.invoke import NotReached
from rltriage_probes.loading import Loaded
from rltriage_probes.model import CallFailed, Role
from rltriage_probes.reports import BindingFailed
from rltriage_probes.selfs import LEARNING_ROLES, NOTHING

__all__ = ["BindingFailed", "Bound", "bind"]


def bind(
    loaded: Loaded,
    role: Role,
    explicit: Mapping[str, str],
    settings: Mapping[str, Any],
    intent: Mapping[str, Any],
    name: str = "",
) -> Bound:
    """The user's function as a `BoundFunction`.

    Raises `BindingFailed`, `CallFailed` (the function raises on the role's plainest example in every form
    of it) or `NotReached`.
    """
    target = Target(role, explicit, settings, intent, name or role.name)
    try:
        return _in_some_mode(loaded, target)
    except BindingFailed:
        if not factories.returns_a_function(loaded):
            raise
        outer = target.binder(loaded, None, False)
        made = factories.unfold(outer)
        if made is None:
            raise
        return _in_some_mode(made, target, outer)


@dataclass(frozen=True)
class Target:
    """What the user says about a function."""

    role: Role
    explicit: Mapping[str, str]
    settings: Mapping[str, Any]
    intent: Mapping[str, Any]
    name: str

    def binder(self, loaded: Loaded, lists: bool | None, generous: bool) -> Binder:
        return Binder(loaded, self.role, self.explicit, self.settings, self.intent, self.name, lists, generous)


def _in_some_mode(loaded: Loaded, target: Target, outer: Binder | None = None) -> Bound:
    """The first way that works: with lists of texts or single ones, with bare defaults or filled ones."""
    failure: Exception | None = None
    bare = any(p.default is None for p in loaded.signature().parameters.values())
    for generous in (False, True) if bare else (False,):
        for lists in _list_modes(loaded, target.role, target.explicit):
            binder = target.binder(loaded, lists, generous)
            if outer is not None:
                binder.inherit(outer)
            try:
                return _bound(binder)
            except (BindingFailed, CallFailed, NotReached) as e:
                failure = failure or e
    assert failure is not None
    raise failure


def _list_modes(loaded: Loaded, role: Role, explicit: Mapping[str, str]) -> tuple[bool | None, ...]:
    """Whether texts are handed over as lists (True) or one by one; both where the source leaves it open."""
    if role.name in ("sft_labels", "chat_tokens"):
        return (True, False) if _of_many(loaded, explicit) else (False, True)
    if role.name != "reward":
        return (None,)
    said = set(explicit.values())
    if said & {"completion", "prompt", "answer"}:
        return (False,)
    if said & {"completions", "prompts", "answers"}:
        return (True,)
    score = _plurality(loaded)
    return (True, False) if score >= 0 else (False, True)


_MANY = frozenset(
    "examples batch samples features rows records instances conversations chats prompts dialogues".split()
)


def _of_many(loaded: Loaded, explicit: Mapping[str, str]) -> bool:
    """Whether a function of conversations looks as if it took several: records in a list, columns of a batch."""
    said = set(explicit.values())
    if said:
        return bool(said & {"conversations", "prompts", "completions", "texts"})
    facts = source.analyse(loaded.node, loaded.helpers)
    a = loaded.node.args
    for x in (*a.posonlyargs, *a.args, *a.kwonlyargs):
        annotation = source.ast.unparse(x.annotation) if x.annotation else ""
        if x.arg in _MANY or re.search(r"(list|sequence|iterable)\[(list|sequence)\[dict", annotation, re.I):
            return True
        for path in facts.reads.get(x.arg, {}):
            kinds = [step[0] for step in path]
            keys = [i for i, kind in enumerate(kinds) if kind == "key"]
            name = path[keys[0]][1] if keys else ""
            if keys and "each" in kinds[: keys[0]] and (name not in ("role", "content") or kinds.count("each") > 1):
                return x.arg not in ("messages", "conversation", "chat", "history", "turns", "dialogue", "msgs")
    return False


def _plurality(loaded: Loaded) -> int:
    """How much the main text input, a parameter or an entry of one, looks like a list."""
    facts = source.analyse(loaded.node, loaded.helpers)
    a = loaded.node.args
    annotations = {
        x.arg: source.ast.unparse(x.annotation) for x in (*a.posonlyargs, *a.args, *a.kwonlyargs) if x.annotation
    }
    score = 0
    for root in source.parameter_names(loaded.node):
        entries = [p for p in facts.reads.get(root, {}) if p and p[-1][1]]
        places = [(root, root), *((p[-1][1], source.render(root, p)) for p in entries)]
        for name, shown in places:
            match = aliases.resolve(name, "reward", ("completions", "completion"))
            if match is not None:
                signs, annotation = facts.signs.get(shown, set()), annotations.get(shown, "")
                score += _counted(name, match.word, signs, annotation)
    return score


def _counted(name: str, word: str, signs: set[str], annotation: str) -> int:
    """Points for a list of texts, from a place's name, from what is done with it and from its annotation."""
    score = 2 if aliases.snake(name).endswith("s") or word == "completions" else -2
    score += 3 if annotation.lower().startswith(("list", "sequence", "typing.list", "tuple", "iterable")) else 0
    score -= 5 if annotation in ("str", "Optional[str]", "str | None") else 0
    score += 1 if "iterated" in signs or "len" in signs else 0
    return score - (3 if signs & _OF_ONE_TEXT else 0)


_OF_ONE_TEXT = frozenset((".strip", ".split", ".lower", ".find", ".startswith", ".rfind", ".partition", ".replace"))


def _bound(b: Binder) -> Bound:
    _make_plan(b)
    if b.role.returns in ("text", "number", "raw"):
        # a text function that lacks an entry often just scores 0, so that trying it out shows nothing
        b.plan.open += b.plan.doubtful
    if b.role.name == "kl":
        _refuse_whole_vocabulary(b)
    if b.plan.open:
        raise BindingFailed(reports.open_reason(b), reports.report_open(b, b.plan.open))
    if b.role.name in LEARNING_ROLES:
        from rltriage_probes import learning

        return learning.settle(b)
    missing = [group for group in b.role.needs if not set(group) & b.reachable()]
    if missing:
        words = " or ".join(missing[0])
        raise BindingFailed(
            f"nothing of {b.loaded.qualname} was recognised as {words}",
            reports.report_open(b, reports.unbound_names(b)),
        )
    return trials.settle(b)


def _refuse_whole_vocabulary(b: Binder) -> None:
    """A KL of two distributions is no estimator over sampled tokens; it takes the logits of both models."""
    if {"logits", "ref_logits"} <= {w.word for w in b.plan.words()}:
        return
    logits = [p for p in b.plan.open if "logit" in p.lower()] + [w.path for w in b.plan.words() if w.word == "logits"]
    if logits:
        raise BindingFailed(
            f"{b.loaded.qualname} sums the KL over the vocabulary, from {', '.join(dict.fromkeys(logits))}; "
            "what is checked are estimators from the log-probs of the sampled tokens",
            reports.report_open(b, []),
        )


def _make_plan(b: Binder) -> None:
    parameters = list(b.signature.parameters.values())
    if b.loaded.kind == "method" and parameters:
        parameters = parameters[1:]
    sources: dict[str, Source] = {}
    for p in parameters:
        if p.kind is p.VAR_POSITIONAL:
            continue
        if p.kind is p.VAR_KEYWORD:
            sources.update(containers.from_kwargs(b, p.name))
            continue
        got = _parameter(b, p)
        if got is not None:
            sources[p.name] = got
    seams.plan_seams(b, sources)
    _settle_conflicts(b, sources, {p.name: p for p in parameters})
    for p in parameters:
        if p.name in sources and p.kind is p.POSITIONAL_ONLY:
            b.plan.positional.append(sources.pop(p.name))
    b.plan.keywords = sources
    if b.loaded.kind == "method":
        selfplan.plan_self(b)


def _parameter(b: Binder, p: inspect.Parameter) -> Source | None:
    annotation = selfplan.annotation_of(p)
    default = NOTHING if p.default is p.empty else p.default
    got = b.place(p.name, p.name, (), annotation, default)
    if got is not None:
        return got
    if default is NOTHING:
        b.plan.open.append(p.name)
    else:
        b.plan.left.append((p.name, default, ""))
    return None


def _settle_conflicts(b: Binder, sources: dict[str, Source], parameters: Mapping[str, inspect.Parameter]) -> None:
    words = [s for s in sources.values() if isinstance(s, WordSource)]
    _decoupled(b, words)
    rank = {
        "bind": 0,
        "name": 1,
        "source": 1,
        "normalised name": 2,
        "annotation": 3,
        "docstring": 4,
        "similar name": 5,
    }
    for word in {w.word for w in words} - {"token_ids", "labels", "model", "tokenizer"}:
        same = sorted((w for w in words if w.word == word), key=lambda w: (rank.get(w.how, 9), _spelling_rank(w)))
        if len(same) < 2 or word.endswith("_mask"):
            continue
        for loser in same[1:]:
            if loser.how == "bind":
                continue
            _demote(b, loser, sources, parameters)


def _decoupled(b: Binder, words: Sequence[WordSource]) -> None:
    """With `proximal_logprobs` beside it, `old_logprobs` is the behaviour policy (decoupled PPO)."""
    proximal = [w for w in words if w.word == "old_logprobs" and "prox" in w.path.lower()]
    if proximal and "rollout_logprobs" in b.takes:
        for w in words:
            if w.word == "old_logprobs" and w not in proximal and w.how != "bind":
                w.word = "rollout_logprobs"


def _demote(
    b: Binder, loser: WordSource, sources: dict[str, Source], parameters: Mapping[str, inspect.Parameter]
) -> None:
    other = {"clip": "eps", "token_rewards": "", "values": "old_values"}.get(loser.word, "")
    if b.role.name == "extract_answer" and loser.word == "completion":
        other = "answer"  # of two texts the second one is what it is compared with
    p = parameters.get(loser.path)
    if other and other in b.takes and other not in {s.word for s in sources.values() if isinstance(s, WordSource)}:
        loser.word, loser.form = other, None
        if other in SCALARS and loser.fallback is NOTHING:
            loser.fallback = DOCUMENTED[other]
        return
    if p is not None and p.default is not p.empty:
        del sources[loser.path]
        b.plan.left.append((loser.path, p.default, ""))
    elif p is not None and loser.word not in SCALARS:
        del sources[loser.path]
        b.plan.open.append(loser.path)


def _spelling_rank(w: WordSource) -> int:
    names = aliases.spellings(w.word)
    plain = aliases.snake(w.path)
    return names.index(plain) if plain in names else len(names)
