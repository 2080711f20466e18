"""Calls inside a loss whose result the case gives: the model's forward pass behind `self._get_logps(...)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, source
from rltriage_probes.filling import FixedSource, MadeSource, Source, WordSource, fill
from rltriage_probes.forms import Call
from rltriage_probes.selfs import Seam, Unknown

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder


def plan_seams(b: Binder, sources: dict[str, Source]) -> None:
    if b.role.name not in ("policy_loss", "kl"):
        return
    have = {s.word for s in sources.values() if isinstance(s, WordSource)}
    for s in sources.values():
        if isinstance(s, MadeSource):
            have |= {w.word for w in s.inner if isinstance(w, WordSource)}
    sites: dict[str, dict[int, tuple[str, ...]]] = {}
    for line, names in b.facts.sites.items():
        callee = b.facts.site_calls[line]
        if _replaceable(b, callee) and _target_word(b, names[0]) and _target_word(b, names[0]) not in have:
            sites.setdefault(callee, {})[line] = names
    for callee, lines in sites.items():
        _seam(b, callee, lines)
        if callee in b.signature.parameters:
            sources[callee] = FixedSource(path=callee, value=b.seams[callee], meaning="constant", how="source")
            b.plan.open = [o for o in b.plan.open if o != callee]
    if sites:
        _fill_ids(b, sources)


def _replaceable(b: Binder, callee: str) -> bool:
    if callee in b.signature.parameters or callee.startswith("self."):
        last = callee.removeprefix("self.")
        match = aliases.resolve(last, b.role.name, ("model",))
        if match is not None and match.how in ("name", "normalised name"):
            return True
    helper = b.loaded.helpers.get(callee)
    known = helper is not None or callee in b.loaded.namespace or callee.startswith("self.")
    return known and source.re.search(r"log_?p|logprob|log_?softmax", callee, source.re.I) is not None


def _target_word(b: Binder, name: str) -> str:
    match = aliases.resolve(name, b.role.name, b.takes) if name else None
    words = ("logprobs", "old_logprobs", "ref_logprobs", "rollout_logprobs", "entropies")
    return match.word if match is not None and match.word in words else ""


def _seam(b: Binder, callee: str, lines: Mapping[int, tuple[str, ...]]) -> None:
    def result(names: tuple[str, ...]) -> Callable[[], Any]:
        def give() -> Any:
            assert b.current is not None
            values = [_seam_value(b, n) for n in names]
            return values[0] if len(values) == 1 else tuple(values)

        return give

    original = b.loaded.namespace.get(callee.rsplit(".", maxsplit=1)[-1])
    words = frozenset(w for names in lines.values() for n in names if (w := _target_word(b, n)))
    seam = Seam({line: result(names) for line, names in lines.items()}, original, words)
    b.seams[callee] = seam


def _seam_value(b: Binder, name: str) -> Any:
    assert b.current is not None
    word = _target_word(b, name)
    if name and not word:
        return Unknown(name)
    value = b.current.inputs.get(word) if word else None
    if value is None and word == "entropies":
        value = b.current.inputs["logprobs"].detach() * 0 + 1.0
    return value


def _fill_ids(b: Binder, sources: dict[str, Source]) -> None:
    """Ids and prompt parts are only passed to what a seam replaces: zeros and ones of the right shape do."""
    b.plan.open = [o for o in b.plan.open if not _filler(b, o, sources)]
    b.plan.doubtful = [o for o in b.plan.doubtful if not _filler(b, o, sources)]


def _filler(b: Binder, shown: str, sources: dict[str, Source]) -> bool:
    root, path = source.parse_path(shown)
    name = path[-1][1] if path else root
    ids = aliases.resolve(name, "logprobs", ("token_ids", "attention_mask", "completion_mask"))
    prompt = "prompt" in name.lower()
    if ids is None and not prompt:
        return False
    is_mask = "mask" in name.lower()

    def give(call: Call) -> Any:
        import torch

        rows, width = call.inputs["logprobs"].shape
        shape = (rows, 1 if prompt else width)
        return torch.ones(shape, dtype=torch.long) if is_mask else torch.zeros(shape, dtype=torch.long)

    filler = MadeSource(path=shown, build=give, how="filler")
    if not path:
        sources[root] = filler
        return True
    holder = sources.get(root)
    if isinstance(holder, MadeSource):
        inner = holder.build

        def build(call: Call) -> Any:
            box = inner(call)
            fill(box, path, give(call), root)
            return box

        holder.build = build
        return True
    return False


def plug(b: Binder, made: Any) -> None:
    """Puts the seams in place of the methods that they replace, and fills words that the object keeps."""
    for callee, seam in b.seams.items():
        if callee.startswith("self."):
            object.__setattr__(made, callee.removeprefix("self."), seam)
