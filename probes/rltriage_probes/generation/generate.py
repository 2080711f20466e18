"""Role `generate`: model, tokenizer and prompts, or the logits of one position, to sampled tokens.

What is sampled is random, what it is sampled from is not. The stand-in model knows its distribution at every position
(`tiny_lm`), so three kinds of question have exact answers: which tokens come back when the model leaves no choice
(padding, ends, budget, order: `greedy`), whether tokens follow the distribution that was asked for (temperature,
top-k, top-p: `chance`), and whether two samples were given random numbers of their own (seeds, workers, calls).

A token is sampled with probability softmax(logits / temperature), restricted to the k most likely tokens (Fan et al.,
1805.04833) or to the smallest set of most likely tokens that reaches probability p (Holtzman et al., 1904.09751,
eq. 2), and renormalised.
"""

from __future__ import annotations

import random
import re
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from rltriage_probes.contract import Check, Raised, Severity
from rltriage_probes.generation import chance, greedy, sampling_target
from rltriage_probes.generation import sampling_pitfalls as pitfalls
from rltriage_probes.generation.rollouts import Rollout, Unreadable
from rltriage_probes.generation.sampling_target import GeneratingTarget, Scene, Stage
from rltriage_probes.model import CallFailed, Case, Pitfall, Role, Subject
from rltriage_probes.reading import prose
from rltriage_probes.texts import agrees, quote, violates

_ENDS = prose(
    r"(ends?|ended|stops?|until|terminat\w*|finish\w*|up to)[^.;]{0,60}\b(eos|end[- ]of[- ]\w+|end token"
    r"|stop (token|id)s?)"
    r"|\beos\b[^.;]{0,40}(ends|stops|terminates|included|kept|dropped|removed)|padded (after|behind)"
    r"|after (the )?(first )?eos"
)
_END_CODE = re.compile(r"\.generate\(|eos_token|eos_id|stop_token|stop_id|terminators|end_token|eot_id")
_KEPT = prose(
    r"(eos|end token|stop token)[^.;]{0,30}(included|inclusive|kept|stays|is part)|(including|with|keeps?) (its"
    r"|the|their|final)?[^.;]{0,12}(eos|end token)(?![^.;]{0,20}(removed|dropped|stripped|cut|excluded))"
)
_DROPPED = prose(
    r"(without|excluding|not including|stripp?(ed|s)?|remov(ed|es|ing)|drop(ped|s)?|cut before)[^.;]{0,25}(eos"
    r"|end token|stop token)|(eos|end token)[^.;]{0,25}(removed|dropped|stripped|excluded|not included)"
)
_ONLY = prose(
    r"without (its|the|their)? ?prompts?|completions? (tokens? )?(only|alone)|only (the )?(completion|response"
    r"|generated|new|sampled)|"
    r"new tokens|what was sampled|prompt (is )?(removed|cut|stripped|excluded)|no prompt|generated (ids|tokens"
    r"|part)|not the prompt"
    r"|(completion|response) ids|completions? \["
)
_ADJACENT = prose(
    r"prompt-major|adjacent|next to each other|consecutive|contiguous|grouped by prompt|repeat_interleave|in a row|"
    r"(samples|completions|rows) of (a|one|each|the same) (prompt|group)[^.;]{0,30}(together|neighbou?rs|follow"
    r"|adjacent|behind one another|in a row)"
)
_TILED_DOC = prose(
    r"sample-major|tiled|interleaved|round[- ]robin|one (sample|completion) (of|for"
    r"|per) each prompt[^.;]{0,20}(then|before)"
)
_NO_WORKERS = prose(
    r"(not|n't|independent|regardless|irrespective|never)[^.;]{0,40}(workers?|shards?|world size|engines?"
    r"|replicas?)|same[^.;]{0,40}(any|every|whatever)[^.;]{0,20}(workers|shards)"
)
_REPRODUCIBLE = prose(r"reproduc\w*|deterministic|\bseed(ed)?\b|same (seed|samples)")
_SAMPLING_LOGP = prose(
    r"log-?\s?prob\w*[^.;]{0,80}(sampling distribution|sampled from|temperature|behaviou?r|sampler|were drawn|actually)"
    r"|(sampling distribution|behaviou?r policy|temperature-scaled|processed)[^.;]{0,60}log-?\s?prob"
)
_RAW_LOGP = prose(r"\braw\b|unscaled|temperature 1\b|before (the )?temperature|model's own|unmodified")
_RESTORES = prose(r"(restor|put\w* back|leaves?|keeps?)[^.;]{0,40}(mode|training|state)|back (in|to) (train|its mode)")
_DETACHED = prose(r"no grad\w*|detached|without grad\w*|constant|no graph|old log-?\s?prob")
_UNUSUAL = prose(
    r"penalt|logits_?processor|bad_words|min_new|min_length|min_tokens|bias|banned|grammar|num_beams|beam|stop_str"
    r"|stopping_criteria|min_p|suppress|no_repeat|typical|gumbel"
)
_EVAL = prose(r"eval(uation)? mode|without dropout|dropout (is )?off|no dropout")
MANY = 256
"""Samples from which a distribution is judged."""
FEW = 64
"""The same for functions that take one prompt a call."""


@dataclass
class Exam:
    """A generating function under examination."""

    target: GeneratingTarget
    doc: str
    intent: Mapping[str, Any]
    literals: Sequence[float]
    code: str = ""
    form: dict[str, str] = field(default_factory=dict[str, str])
    """Which convention its rows follow."""

    @property
    def words(self) -> frozenset[str]:
        return self.target.words

    def rollout(self, scene: Scene, seed: int = 11) -> Rollout:
        """The completions of a scene, the process's generators seeded. Raises `CallFailed` or `Unreadable`."""
        state = random.getstate()
        with torch.random.fork_rng([]):
            torch.manual_seed(seed)
            random.seed(seed)
            try:
                return self.target.rollout(scene)
            finally:
                random.setstate(state)

    @property
    def stage(self) -> Stage:
        assert self.target.last is not None
        return self.target.last

    @property
    def knows_end(self) -> bool:
        """Whether the function has anything to do with an end token."""
        code = _END_CODE.search(self.code)
        return bool(self.words & {"eos_token_id", "stop_ids"} or code or _ENDS.search(self.doc))

    @property
    def unusual(self) -> bool:
        """Whether it may well return other tokens than the plain distribution gives."""
        return bool(_UNUSUAL.search(self.code))


def run(subject: Subject) -> Iterator[Check]:
    """All checks of a generating function; one-token samplers get those on their distribution."""
    target = subject.bound
    assert isinstance(target, GeneratingTarget)
    exam = Exam(target, subject.doc, subject.intent, subject.literals, target.text)
    if "logits" in target.words and "model" not in target.words:
        yield from _sampler(exam)
        return
    try:
        check = _tokens(exam)
        yield from check
        apart = yield from _copies(exam)
        if apart:
            yield from _distribution(exam)
        yield from _independence(exam)
        yield from _logprobs(exam)
        yield from _mode(exam)
    except Unreadable as e:
        says = f"with other settings {e}"
        yield violates("generate.result", "does it return tokens or texts?", says, pitfalls.OTHER, severity="soft")


# Which tokens


def _tokens(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.tokens", "does it return what the model says, and nothing else?"
    scene = greedy.scene(exam.target.style, exam.words, ragged=exam.target.ragged)
    try:
        got = exam.rollout(scene)
    except CallFailed as e:
        yield Check(probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case="three prompts"))
        return
    rows = len(scene.prompts) * scene.n
    if len(got.rows) != rows:
        says = f"{len(scene.prompts)} prompts with {scene.n} samples each give {len(got.rows)} rows"
        yield violates(
            probe, asks, says, pitfalls.OTHER, numbers={"rows": float(len(got.rows)), "expected": float(rows)}
        )
        return
    expected = greedy.Expected(exam.stage, _budget_of(exam, got))
    axes = _axes(exam, got)
    found = greedy.solve(got, expected, axes)
    if found is None:
        yield from _unexplained(exam, got, expected, axes)
        return
    exam.form = found
    bad = _bad(exam, found)
    if not bad:
        yield from _conventions(exam, got, found)
        return
    at = _first_wrong(got, expected, found)
    yield violates(probe, asks, f"{_told(found)}: {at}", *bad, severity=_severity(exam, bad, got))


def _bad(exam: Exam, found: Mapping[str, str]) -> list[Pitfall]:
    """The pitfalls of a hypothesis; running on is none where the function knows of no end."""
    return [p for p in greedy.bad(found) if p != pitfalls.NO_STOP or exam.knows_end]


def _budget_of(exam: Exam, got: Rollout) -> int:
    """New tokens that were asked for; where the function takes no such number, those of the longest row."""
    if exam.words & {"max_new_tokens", "max_length"}:
        return greedy.SHORT
    stage = exam.stage
    rows = [greedy.canonical(r, stage.tokenizer, got.texts) for r in got.rows]
    lengths = [
        len(r) - (len(p) if r[: len(p)] == p else 0) for r, p in zip(rows, _spread(stage.ids, len(rows)), strict=True)
    ]
    return max(lengths)


def _spread(items: Sequence[Any], rows: int) -> list[Any]:
    each = max(1, rows // max(1, len(items)))
    return [x for x in items for _ in range(each)][:rows]


def _axes(exam: Exam, got: Rollout) -> dict[str, Sequence[str]]:
    """The hypotheses that concern this function."""
    axes: dict[str, Sequence[str]] = dict(greedy.AXES)
    if exam.stage.scene.n == 1:
        axes["order"] = ("adjacent",)
    if not exam.target.ragged:
        axes["context"] = ("masked",)
    if not exam.words & {"max_new_tokens", "max_length"}:
        axes["budget"] = ("new", "one less")
    elif "max_new_tokens" not in exam.words:
        axes["budget"] = ("new", "one less", "one more")
    if got.texts:
        axes["eos"] = ("kept",)
    return axes


def _unexplained(
    exam: Exam, got: Rollout, expected: greedy.Expected, axes: Mapping[str, Sequence[str]]
) -> Iterator[Check]:
    probe, asks = "generate.tokens", "does it return what the model says, and nothing else?"
    if greedy.permuted(got, expected, axes):
        stage = exam.stage
        says = (
            f"{len(got.rows)} completions come back, each of them right, in another order than their "
            f"{len(stage.ids)} prompts"
        )
        yield violates(probe, asks, says, pitfalls.ORDER)
        return
    plain = {k: v[0] for k, v in axes.items()}
    at = _first_wrong(got, expected, plain)
    soft = exam.unusual or ("n" in exam.words and len(got.rows) == 1)
    yield violates(
        probe, asks, f"with a model that leaves no choice, {at}", pitfalls.OTHER, severity="soft" if soft else "hard"
    )


def _first_wrong(got: Rollout, expected: greedy.Expected, found: Mapping[str, str]) -> str:
    stage = expected.stage
    right = {**found, **{k: v[0] for k, v in greedy.AXES.items() if (k, found[k]) in greedy.NAMED}}
    rows = expected.rows(right)
    for i, (row, want) in enumerate(zip(got.rows, rows, strict=True)):
        mine = greedy.canonical(row, stage.tokenizer, got.texts)
        theirs = greedy.canonical(want, stage.tokenizer, got.texts)
        if mine != theirs:
            shown = stage.tokenizer.decode
            return f"row {i} is {quote(shown(mine))} where {quote(shown(theirs))} is expected"
    return "the rows differ"


_TELLS = {
    ("context", "padding"): "padding is read as text",
    ("stop", "runs on"): "nothing stops at the end token",
    ("budget", "one less"): f"{greedy.SHORT} new tokens are asked for and one less is made",
    ("budget", "one more"): f"{greedy.SHORT} new tokens are asked for and one more is made",
    ("budget", "total"): f"{greedy.SHORT} new tokens are asked for and the prompt is counted among them",
    ("budget", "total of real tokens"): f"{greedy.SHORT} new tokens are asked for and the prompt is counted among them",
    ("edge", "first lost"): "the first new token is lost",
    ("edge", "prompt's last kept"): "the last token of the prompt is taken for a new one",
    ("edge", "real length"): "the padded sequence is cut at the length of the unpadded prompt",
}


def _told(found: Mapping[str, str]) -> str:
    return " and ".join(_TELLS[k, v] for k, v in found.items() if (k, v) in _TELLS)


def _severity(exam: Exam, bad: Sequence[Pitfall], got: Rollout) -> Severity:
    if bad != [pitfalls.NO_STOP] or _ENDS.search(exam.doc):
        return "hard"
    ends = {"eos_token_id", "stop_ids"} & exam.words
    masked = got.mask is not None and any(0 in r for r in got.mask)
    return "hard" if ends and not masked else "soft"


def _conventions(exam: Exam, got: Rollout, found: Mapping[str, str]) -> Iterator[Check]:
    """What is right in general and against the function's own documentation."""
    probe, asks = "generate.tokens", "does it return what the model says, and nothing else?"
    if found["echo"] == "prompt" and _ONLY.search(exam.doc) and not got.prompts_too:
        yield violates(probe, asks, "the rows begin with the prompt, which the docstring leaves out", pitfalls.ECHO)
        return
    ended = any(exam.stage.tokenizer.eos_token_id in r for r in got.rows)
    if found["eos"] == "dropped" and _KEPT.search(exam.doc) and not _DROPPED.search(exam.doc):
        yield violates(probe, asks, "the end token is dropped, which the docstring promises to keep", pitfalls.EOS_EDGE)
        return
    if found["eos"] == "kept" and not got.texts and ended and _DROPPED.search(exam.doc) and not _KEPT.search(exam.doc):
        yield violates(probe, asks, "the end token is kept, which the docstring promises to drop", pitfalls.EOS_EDGE)
        return
    if found["order"] == "tiled" and not _TILED_DOC.search(exam.doc):
        promised = bool(_ADJACENT.search(exam.doc))
        says = "samples come back as one of each prompt, then the next of each"
        says += "; the docstring promises the samples of a prompt next to each other" if promised else (
            ". Code that takes neighbours for a group mixes prompts then"
        )  # fmt: skip
        yield violates(probe, asks, says, pitfalls.TILED, severity="hard" if promised else "soft")
        return
    parts = [
        "prompt and completion" if found["echo"] == "prompt" else "completions alone",
        "texts" if got.texts else f"end token {found['eos']}" if found["stop"] == "ends" else "no end token",
    ]
    if exam.stage.scene.n > 1:
        parts.append("samples of a prompt adjacent" if found["order"] == "adjacent" else "samples tiled")
    if exam.target.ragged:
        parts.append("padding changes nothing")
    yield agrees(probe, asks, ", ".join(parts))


# How they are distributed


def _soft(exam: Exam, **changes: Any) -> Scene:
    """A scene in which chance decides, with enough samples of a few prompts."""
    base = greedy.prompts(exam.target.style, ragged=False, count=2)
    many = FEW if exam.target.single and "n" not in exam.words else MANY
    if "n" in exam.words:
        return replace(Scene(base, n=many // len(base), max_new_tokens=6, sharp=False), **changes)
    return replace(Scene(base * (many // len(base)), max_new_tokens=6, sharp=False), **changes)


def _sampled(exam: Exam, got: Rollout) -> chance.Sampled:
    """Every sampled token with the logits that it was sampled from."""
    stage = exam.stage
    counts: dict[tuple[tuple[int, ...], int], int] = {}
    for prompt, row in zip(_prompts_of(exam, got), _completions(exam, got), strict=True):
        for at, token in enumerate(row):
            key = ((*prompt, *row[:at]), token)
            counts[key] = counts.get(key, 0) + 1
    logits = {c: stage.model.distribution(c) for c in dict.fromkeys(c for c, _ in counts)}
    return chance.sampled(logits, counts)


def _prompts_of(exam: Exam, got: Rollout) -> list[list[int]]:
    ids, n = exam.stage.ids, exam.stage.scene.n
    if exam.form.get("order") == "tiled":
        return (ids * n)[: len(got.rows)]
    return [p for p in ids for _ in range(n)][: len(got.rows)]


def _completions(exam: Exam, got: Rollout) -> list[list[int]]:
    """The new tokens of each row, cut behind the first end token."""
    tokenizer = exam.stage.tokenizer
    out: list[list[int]] = []
    for prompt, row in zip(_prompts_of(exam, got), got.rows, strict=True):
        mine = greedy.canonical(row, tokenizer, texts=False)
        if exam.form.get("echo") == "prompt":
            mine = mine[len(prompt) :]
        if tokenizer.eos_token_id in mine and exam.form.get("stop") != "runs on":
            mine = mine[: mine.index(tokenizer.eos_token_id) + 1]
        out.append(mine)
    return out


def _distribution(exam: Exam) -> Iterator[Check]:
    if not exam.form or _bad(exam, exam.form):
        return  # the rows are not understood well enough to judge chance in them
    yield from _temperature(exam)
    if "top_k" in exam.words:
        yield from _cut(exam, "top_k", {"temperature": 1.0, "top_k": 3})
    if "top_p" in exam.words:
        yield from _cut(exam, "top_p", {"temperature": 0.8 if "temperature" in exam.words else 1.0, "top_p": 0.7})


def _temperature(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.temperature", "is it sampled at the temperature that is asked for?"
    takes = "temperature" in exam.words
    asked = 0.6 if takes else 1.0
    try:
        got = exam.rollout(_soft(exam, temperature=asked))
    except (CallFailed, Unreadable):
        return
    hypotheses = chance.temperatures(asked) if takes else chance.any_temperature(exam.literals)
    verdict = chance.judge(_sampled(exam, got), hypotheses)
    numbers = {
        "tokens": float(verdict.tokens),
        "log-likelihood ahead": round(verdict.lead, 1),
        "z": round(verdict.z, 2),
    }
    if takes:
        yield _asked(exam, verdict, probe, asks, numbers)
    else:
        yield _fixed(exam, verdict, probe, asks, numbers)


def _asked(exam: Exam, verdict: chance.Verdict, probe: str, asks: str, numbers: dict[str, float]) -> Check:
    if not verdict.best.right and verdict.fits and verdict.lead > chance.SURE:
        says = f"asked for temperature 0.6, the {verdict.tokens} sampled tokens are distributed as: {verdict.best.name}"
        greedily = verdict.best.name == "greedy" and exam.unusual
        return violates(
            probe, asks, says, pitfalls.TEMPERATURE, severity="soft" if greedily else "hard", numbers=numbers
        )
    if verdict.best.right and verdict.fits:
        return agrees(probe, asks, f"{verdict.tokens} tokens follow softmax(logits / temperature), z = {verdict.z:.1f}")
    says = (
        f"{verdict.tokens} tokens at temperature 0.6 fit no way of sampling that is known: the likeliest is "
        f"'{verdict.best.name}', with a log-loss {verdict.z:.0f} standard errors off"
    )
    return violates(probe, asks, says, pitfalls.OTHER, severity="soft" if exam.unusual else "hard", numbers=numbers)


def _fixed(exam: Exam, verdict: chance.Verdict, probe: str, asks: str, numbers: dict[str, float]) -> Check:
    declared = exam.intent.get("temperature")
    found = verdict.best.name
    if not verdict.fits:
        says = f"takes no temperature, and {verdict.tokens} tokens fit none: the nearest is {found}"
        return violates(probe, asks, says, pitfalls.OTHER, severity="soft", numbers=numbers)
    if isinstance(declared, (int, float)) and declared > 0 and verdict.lead >= 0:
        near = found != "greedy" and abs(float(found) - float(declared)) <= 0.1 * float(declared) + 0.051
        if not near:
            says = f"the pipeline declares temperature {declared:g}, and the tokens are distributed as at {found}"
            return violates(probe, asks, says, pitfalls.TEMPERATURE, numbers=numbers)
    return agrees(probe, asks, "greedy" if found == "greedy" else f"takes no temperature; samples at {found}")


def _cut(exam: Exam, word: str, changes: dict[str, Any]) -> Iterator[Check]:
    probe, asks = f"generate.{word}", f"does {word} decide what can be sampled?"
    try:
        got = exam.rollout(_soft(exam, **changes))
    except (CallFailed, Unreadable):
        return
    verdict = chance.judge(
        _sampled(exam, got), chance.cuts(changes["temperature"], changes.get("top_k"), changes.get("top_p"))
    )
    yield _cut_told(exam, verdict, probe, asks, word, changes[word])


def _cut_told(exam: Exam, verdict: chance.Verdict, probe: str, asks: str, word: str, value: float) -> Check:
    numbers = {"tokens": float(verdict.tokens), "outside": float(verdict.outside), "z": round(verdict.z, 2)}
    if (verdict.best.right or verdict.best.name in chance.CONVENTIONS) and verdict.fits:
        return agrees(probe, asks, f"{verdict.tokens} tokens at {word} = {value:g} come from {verdict.best.name}")
    says = f"at {word} = {value:g} the {verdict.tokens} sampled tokens come from {verdict.best.name}"
    says += f"; {verdict.outside} of them can't be sampled" if verdict.outside else ""
    if verdict.fits and verdict.lead > chance.SURE:
        return violates(probe, asks, says, pitfalls.TRUNCATION, numbers=numbers)
    says = f"{says} at the likeliest, which fits badly (z = {verdict.z:.0f})"
    return violates(probe, asks, says, pitfalls.OTHER, severity="soft", numbers=numbers)


# Random numbers of one's own


def _independence(exam: Exam) -> Iterator[Check]:
    if not exam.form:
        return
    yield from _calls(exam)
    if "seed" in exam.words or "generator" in exam.words:
        yield from _seed(exam)
    if "workers" in exam.words:
        yield from _workers(exam)


def _hot(exam: Exam, **changes: Any) -> Scene:
    """16 samples of one prompt, hot and long, so that two of them are hardly ever equal."""
    base = greedy.prompts(exam.target.style, ragged=False, count=1)
    scene = Scene(base, n=16, max_new_tokens=10, sharp=False, temperature=1.2)
    scene = scene if "n" in exam.words else replace(scene, prompts=base * 16, n=1)
    return replace(scene, **changes)


def _copies(exam: Exam) -> Generator[Check, None, bool]:
    """Whether samples of one prompt are independent: without that nothing can be said of their distribution."""
    if not exam.form:
        return False
    probe, asks = "generate.samples", "is every sample drawn for itself?"
    settings = [{"workers": w} for w in (1, 2, 4)] if "workers" in exam.words else [{}]
    for changes in settings:
        found = _repeated(exam, _hot(exam, **changes))
        if found:
            with_ = f" with {changes['workers']} workers" if changes else ""
            yield violates(probe, asks, f"{found}{with_}", pitfalls.REPEATS)
            return False
    if "n" in exam.words and not exam.target.single:
        base = greedy.prompts(exam.target.style, ragged=False, count=1)
        got = _try(exam, _hot(exam, prompts=base * 2, n=8))
        if got is not None and len(got.rows) == 16 and exam.form.get("order") == "adjacent":
            one, two = got.rows[:8], got.rows[8:]
            if one == two and len({tuple(r) for r in one}) > 1:
                says = "a prompt that stands in the batch twice gets the same 8 samples both times"
                yield violates(probe, asks, says, pitfalls.REPEATS)
                return False
    yield agrees(probe, asks, "16 samples of a prompt, no more copies among them than chance makes")
    return True


def _try(exam: Exam, scene: Scene, seed: int = 11) -> Rollout | None:
    try:
        return exam.rollout(scene, seed)
    except (CallFailed, Unreadable):
        return None


def _repeated(exam: Exam, scene: Scene) -> str:
    """How samples of one prompt repeat each other, beyond chance; empty where they don't."""
    variants = [replace(scene, seed=977 * i) for i in range(2)]
    if len(set(scene.prompts)) == 1:
        others = greedy.prompts(exam.target.style, ragged=False, count=3)[1:]
        variants += [replace(scene, prompts=(p,) * len(scene.prompts), seed=53 * i) for i, p in enumerate(others)]
    tries = (_try(exam, v, 11 + i) for i, v in enumerate(variants))
    got = next((g for g in tries if g and _long_enough(exam, g)), None)
    if got is None:
        return ""
    rows = [tuple(r) for r in got.rows]
    distinct = len(set(rows))
    usual = _distinct_by_chance(exam, scene)
    if distinct >= usual / 2:
        return ""
    if distinct == 1:
        # a greedy function is told by the check on the temperature
        return "" if _always_greedy(exam, scene) else "all 16 samples of a prompt are copies of one"
    return f"of 16 samples of a prompt {distinct} are different, where chance gives about {usual}"


def _long_enough(exam: Exam, got: Rollout) -> bool:
    """Whether all 16 samples came back, and a row of one of them can't be the most likely one by chance."""
    return len(got.rows) == 16 and max(map(len, _completions(exam, got))) >= 4


def _always_greedy(exam: Exam, scene: Scene) -> bool:
    """Whether the most likely tokens come back for other prompts and seeds too: one row may be that by chance."""
    for i, prompt in enumerate(greedy.prompts(exam.target.style, ragged=False, count=3)):
        got = _try(exam, replace(scene, prompts=(prompt,) * len(scene.prompts), seed=977 * (i + 1)), 14 + i)
        if got is not None and not _is_greedy(exam, got):
            return False
    return True


def _is_greedy(exam: Exam, got: Rollout) -> bool:
    prompt = exam.stage.ids[0]
    row = [t for t in _completions(exam, got)[0]]
    return exam.stage.model.greedy(prompt, max(1, len(row)), (exam.stage.tokenizer.eos_token_id,))[: len(row)] == row


def _distinct_by_chance(exam: Exam, scene: Scene) -> int:
    stage = Stage(scene, exam.target.style)
    g = torch.Generator().manual_seed(5)
    t = (scene.temperature or 1.0) if "temperature" in exam.words else 1.0
    seen: set[tuple[int, ...]] = set()
    for _ in range(16):
        row: list[int] = []
        while len(row) < scene.max_new_tokens:
            p = (stage.model.distribution([*stage.ids[0], *row]) / t).softmax(-1)
            row.append(int(torch.multinomial(p, 1, generator=g)))
            if row[-1] == stage.tokenizer.eos_token_id:
                break
        seen.add(tuple(row))
    return len(seen)


def _calls(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.calls", "does a second call sample anew?"
    if exam.words & {"seed", "generator"}:
        return
    one, two = _try(exam, _hot(exam), 21), _try(exam, _hot(exam), 22)
    if one is None or two is None:
        return
    varied = len({tuple(r) for r in one.rows}) > 1
    if varied and one.rows == two.rows:
        says = "two calls give the same 16 samples, whatever the state of the process's generators before"
        yield violates(probe, asks, says, pitfalls.RESTARTS)
    elif varied:
        yield agrees(probe, asks, "two calls give different samples")


def _seed(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.seed", "does the seed decide what is sampled?"
    one, again = _try(exam, _hot(exam, seed=3), 31), _try(exam, _hot(exam, seed=3), 32)
    other = _try(exam, _hot(exam, seed=1000), 31)
    if one is None or again is None or other is None:
        return
    if one.rows != again.rows:
        says = "two calls with one seed give different samples: they are drawn from the process's generators"
        hard = bool(_REPRODUCIBLE.search(exam.doc)) or "seed" in exam.words
        yield violates(probe, asks, says, pitfalls.SEED, severity="hard" if hard else "soft")
    elif one.rows == other.rows and len({tuple(r) for r in one.rows}) > 1:
        yield violates(probe, asks, "two seeds give the same 16 samples", pitfalls.SEED)
    else:
        yield agrees(probe, asks, "the same samples for one seed, others for another")


def _workers(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.workers", "does the number of workers change what is sampled?"
    base = greedy.prompts(exam.target.style, ragged=False, count=2)
    shown = [_try(exam, _hot(exam, prompts=base, n=4, workers=w), 41) for w in (1, 2, 3)]
    if any(s is None for s in shown):
        return
    same = all(s is not None and shown[0] is not None and s.rows == shown[0].rows for s in shown)
    if not same and _NO_WORKERS.search(exam.doc):
        says = "1, 2 and 3 workers give different samples, which the docstring rules out"
        yield violates(probe, asks, says, pitfalls.WORKERS)
    else:
        yield agrees(
            probe,
            asks,
            "the same samples for 1, 2 and 3 workers" if same else "samples depend on the number of workers",
        )


# What comes back beside the tokens


def _logprobs(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.logprobs", "are the log-probs those of the sampled tokens?"
    asked = 0.6 if "temperature" in exam.words else 1.0
    got = _try(exam, _soft(exam, temperature=asked))
    if got is None or got.logprobs is None or not exam.form:
        return
    rows = _completions(exam, got)
    if exam.form.get("eos") == "dropped":
        rows = [r for r in rows if r]
    if len(got.logprobs) != len(got.rows):
        return
    candidates = {
        "of the sampling distribution": _scores(exam, rows, asked, 0),
        "of the model at temperature 1": _scores(exam, rows, 1.0, 0),
        "of the token behind": _scores(exam, rows, asked, 1),
        "of the token in front": _scores(exam, rows, asked, -1),
        "of the token behind, at temperature 1": _scores(exam, rows, 1.0, 1),
        "of the most likely token": _best(exam, rows, asked),
        "multiplied by the temperature": _scores(exam, rows, 1 / asked, 0),
    }
    probabilities = [[2.718281828459045**x for x in r] for r in candidates["of the sampling distribution"]]
    matches = [name for name, want in candidates.items() if _matches(got.logprobs, want)]
    if _matches(got.logprobs, probabilities):
        yield violates(probe, asks, "they are probabilities, without the logarithm", pitfalls.LOGP_OTHER)
        return
    if not matches:
        at = got.logprobs[0][0] if got.logprobs[0] else 0.0
        want = candidates["of the sampling distribution"][0][0]
        says = (
            f"the first token's log-prob is {at:.4f} where {want:.4f} is expected, and no known slip gives these "
            f"numbers"
        )
        yield violates(probe, asks, says, pitfalls.LOGP_OTHER, severity="soft" if exam.unusual else "hard")
        return
    yield _logprobs_told(exam, got, matches[0], asked, candidates)


def _logprobs_told(exam: Exam, got: Rollout, match: str, asked: float, candidates: Mapping[str, Any]) -> Check:
    probe, asks = "generate.logprobs", "are the log-probs those of the sampled tokens?"
    numbers = {"returned": got.logprobs[0][0] if got.logprobs and got.logprobs[0] else 0.0,
               "expected": candidates["of the sampling distribution"][0][0]}  # fmt: skip
    if match == "of the sampling distribution":
        return agrees(probe, asks, "log-probs of the sampled tokens under the distribution that they were sampled from")
    if match == "of the model at temperature 1":
        promised = bool(_SAMPLING_LOGP.search(exam.doc)) and not _RAW_LOGP.search(exam.doc)
        if _RAW_LOGP.search(exam.doc):
            return agrees(probe, asks, "log-probs of the model at temperature 1, as documented")
        says = f"tokens are sampled at temperature {asked:g}, their log-probs are {match}"
        return violates(probe, asks, says, pitfalls.LOGP_RAW, severity="hard" if promised else "soft", numbers=numbers)
    pitfall = pitfalls.LOGP_SHIFT if "token behind" in match or "in front" in match else pitfalls.LOGP_OTHER
    pitfall = pitfalls.LOGP_RAW if match.startswith("multiplied") else pitfall
    return violates(probe, asks, f"they are {match}", pitfall, numbers=numbers)


def _scores(exam: Exam, rows: Sequence[Sequence[int]], temperature: float, shift: int) -> list[list[float]]:
    """Log-prob of the token `shift` places further on, for each place that has one; 0 where there is none."""
    model, prompts = exam.stage.model, exam.stage
    out: list[list[float]] = []
    spread = [p for p in prompts.ids for _ in range(prompts.scene.n)]
    memory: dict[tuple[int, ...], Tensor] = {}
    for prompt, row in zip(spread, rows, strict=False):
        scores: list[float] = []
        for at in range(len(row)):
            place = at + shift
            if not 0 <= place < len(row):
                scores.append(float("nan"))
                continue
            context = (*prompt, *row[:place])
            if context not in memory:
                memory[context] = (model.distribution(context) / temperature).log_softmax(-1)
            scores.append(float(memory[context][row[place]]))
        out.append(scores)
    return out


def _best(exam: Exam, rows: Sequence[Sequence[int]], temperature: float) -> list[list[float]]:
    model, stage = exam.stage.model, exam.stage
    spread = [p for p in stage.ids for _ in range(stage.scene.n)]
    return [
        [float((model.distribution([*p, *r[:at]]) / temperature).log_softmax(-1).max()) for at in range(len(r))]
        for p, r in zip(spread[:12], rows[:12], strict=False)
    ]


def _matches(got: Sequence[Sequence[float]], want: Sequence[Sequence[float]]) -> bool:
    """Whether the numbers agree wherever both have one, a few rows suffice; NaN says nothing."""
    compared = 0
    for mine, theirs in zip(got[:12], want[:12], strict=False):
        if not theirs:
            continue
        offset = len(mine) - len(theirs) if len(mine) > len(theirs) and mine[-1] != 0.0 and mine[0] == 0.0 else 0
        for a, b in zip(mine[offset:], theirs, strict=False):
            if b != b:
                continue
            if abs(a - b) > 1e-3 + 1e-3 * abs(b):
                return False
            compared += 1
    return compared > 12


# The model behind it


def _mode(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.mode", "is the model left as it was found, and sampled without dropout?"
    if "model" not in exam.words:
        return
    scene = replace(greedy.scene(exam.target.style, exam.words, ragged=False), max_new_tokens=3)
    findings: list[Check] = []
    for training in (True, False):
        if _try(exam, replace(scene, training=training)) is None:
            continue
        model = exam.stage.model
        if training and model.trained:
            promised = bool(_EVAL.search(exam.doc))
            if not promised and ".eval()" not in exam.code:
                continue  # the caller's business
            says = (
                "a model that is in training mode is sampled in training mode: with dropout, tokens don't come from "
                "the policy that is scored"
            )
            findings.append(violates(probe, asks, says, pitfalls.DROPOUT, severity="hard" if promised else "soft"))
        elif model.training != training:
            if not (model.training or _RESTORES.search(exam.doc)):
                continue  # whoever trains next switches training mode on
            now = "training" if model.training else "evaluation"
            findings.append(violates(probe, asks, f"the model comes back in {now} mode", pitfalls.MODE_LEFT))
    model = exam.stage.model
    yield from findings[:1] or [agrees(probe, asks, "sampled without dropout, mode as it was")]
    if model.graded:
        promised = bool(_DETACHED.search(exam.doc))
        says = "the forward pass runs with gradients switched on: the graph of every token is kept until the end"
        yield violates(
            "generate.graph", "is no graph built?", says, pitfalls.GRAPH, severity="hard" if promised else "soft"
        )
    changed = _config_changes(exam)
    if changed:
        says = f"after the call the model's generation config has {changed}"
        yield violates(
            "generate.config",
            "is the model's generation config left alone?",
            says,
            pitfalls.CONFIG_LEFT,
            severity="soft",
        )


def _config_changes(exam: Exam) -> str:
    now = exam.stage.model.generation_config
    fresh = Stage(exam.stage.scene, exam.target.style).model.generation_config
    changed = [f"{k} = {v!r}" for k, v in vars(now).items() if v != getattr(fresh, k, None)]
    return ", ".join(changed[:4])


# Functions that choose one token


def _sampler(exam: Exam) -> Iterator[Check]:
    settings: list[tuple[str, dict[str, Any]]] = [("temperature", {"temperature": 0.6})]
    settings += [("top_k", {"temperature": 1.0, "top_k": 3})] if "top_k" in exam.words else []
    settings += (
        [("top_p", {"temperature": 0.8 if "temperature" in exam.words else 1.0, "top_p": 0.7})]
        if "top_p" in exam.words
        else []
    )
    for word, changes in settings:
        yield from _one_token(exam, word, changes)
    yield from _sampler_seed(exam)


def _one_token(exam: Exam, word: str, changes: Mapping[str, Any]) -> Iterator[Check]:
    probe, asks = f"generate.{word}", f"does {word} decide what is sampled?"
    base = torch.full((4, 64), -60.0)
    base[:, ::5] = torch.randn(4, 13, generator=torch.Generator().manual_seed(3)) * 1.5
    copies = 100 if exam.target.single else 1000
    scene = Scene(tuple("abcd" * copies), logits=base.repeat(copies, 1), **changes)
    try:
        got = exam.rollout(scene)
    except (CallFailed, Unreadable) as e:
        if isinstance(e, CallFailed):
            yield Check(probe=probe, asks=asks, outcome=Raised(error=e.error, where=e.where, case=word))
        return
    tokens = [r[-1] for r in got.rows]
    if len(got.rows) == 1 and len(got.rows[0]) == len(scene.prompts):
        tokens = got.rows[0]
    if len(tokens) != len(scene.prompts):
        says = f"{len(scene.prompts)} rows of logits give {len(tokens)} tokens"
        yield violates(probe, asks, says, pitfalls.OTHER)
        return
    counts: dict[tuple[int, int], int] = {}
    for i, token in enumerate(tokens):
        counts[i % 4, token] = counts.get((i % 4, token), 0) + 1
    sampled = chance.sampled({i: base[i] for i in range(4)}, counts)
    if word == "temperature":
        takes = "temperature" in exam.words
        hypotheses = chance.temperatures(0.6) if takes else chance.any_temperature(exam.literals)
        verdict = chance.judge(sampled, hypotheses)
        numbers = {
            "tokens": float(verdict.tokens),
            "log-likelihood ahead": round(verdict.lead, 1),
            "z": round(verdict.z, 2),
        }
        yield _asked(exam, verdict, probe, asks, numbers) if takes else _fixed(exam, verdict, probe, asks, numbers)
        return
    verdict = chance.judge(sampled, chance.cuts(changes["temperature"], changes.get("top_k"), changes.get("top_p")))
    yield _cut_told(exam, verdict, probe, asks, word, changes[word])


def _sampler_seed(exam: Exam) -> Iterator[Check]:
    probe, asks = "generate.calls", "does a second call sample anew?"
    if exam.words & {"seed", "generator"}:
        return
    base = torch.randn(4, 64, generator=torch.Generator().manual_seed(3))
    scene = Scene(tuple("abcd" * 8), logits=base.repeat(8, 1))
    one, two = _try(exam, scene, 51), _try(exam, scene, 52)
    if one is None or two is None:
        return
    if one.rows == two.rows and len({tuple(r) for r in one.rows[::4]}) > 1:
        yield violates(probe, asks, "two calls choose the same 32 tokens", pitfalls.RESTARTS)
    else:
        yield agrees(probe, asks, "two calls choose different tokens")


def example(intent: Mapping[str, Any]) -> Case:
    """This role makes what it needs itself."""
    return Case(name="none", inputs={})


ROLE = Role(
    name="generate",
    stage="generation",
    asks="model, tokenizer and prompts -> sampled completions, or logits of one position -> sampled tokens",
    takes=(),
    needs=(),
    returns="raw",
    example=example,
    run=run,
    pitfalls=pitfalls.PITFALLS,
    bind=sampling_target.bind,
)
