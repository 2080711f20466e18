"""Log-probs that a run has saved beside its logits: the same question as `logprobs.py`, at full size.

A vocabulary of 150,000 entries times a context of thousands is gigabytes, so the logits are read through a memory map,
a few rows at a time; log-sum-exp is all that has to be computed of them, and every alignment and normalisation follows
from it and from one gathered logit a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rltriage_probes import probing, tolerance
from rltriage_probes.aliases import resolve
from rltriage_probes.contract import Agrees, Check, Choice, Convention, Named, NotRun
from rltriage_probes.logprobs import logprobs
from rltriage_probes.model import Pitfall

ASKS = "are the saved log-probs those of the saved tokens under the saved logits?"
CHUNK_BYTES = 6_000_000
"""Logits handled at once."""


class Recording(NamedTuple):
    """What was found in the file: logits [N, V], ids [N], logprobs [N], one row after the other, and the row length."""

    logits: Tensor
    ids: Tensor
    logprobs: Tensor
    width: int


class BadRecording(Exception):
    """The file can't be used; the message says what it lacks."""


def check(path: Path, intent: Mapping[str, Any]) -> Iterator[Check]:
    """The checks of a `.pt` file that holds logits, token ids and log-probs."""
    probe = "logprobs.recorded"
    try:
        recording = read(path)
    except BadRecording as e:
        do = 'Save {"logits": [B, T, V], "token_ids": [B, T], "logprobs": [B, T]} with torch.save.'
        yield Check(probe=probe, asks=ASKS, outcome=NotRun(reason=str(e), do=do))
        return
    declared = intent.get("temperature")
    scales = [1.0] if not isinstance(declared, (int, float)) else list(dict.fromkeys([float(declared), 1.0]))
    worst: Check | None = None
    for t in scales:
        lse, shifted = _normaliser(recording, t)
        found = _match(recording, lse, shifted, t)
        if found is not None:
            yield _told(found, t, scales[0])
            return
        worst = worst or _no_match(recording, lse, shifted)
    assert worst is not None
    yield worst


def read(path: Path) -> Recording:
    """Memory-map the file and find the three tensors by their names. Raises `BadRecording`."""
    try:
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, RuntimeError, ValueError, EOFError) as e:
        raise BadRecording(f"{path.name} can't be read: {type(e).__name__}: {e}") from None
    if not isinstance(data, dict):
        raise BadRecording(f"{path.name} holds a {type(data).__name__}, not a dictionary of tensors")
    words = {str(k): _word(str(k)) for k in data}
    got = {w: data[k] for k, w in reversed(words.items()) if isinstance(data[k], Tensor)}
    missing = [w for w in ("logits", "token_ids", "logprobs") if w not in got]
    if missing:
        raise BadRecording(f"{path.name} has no {' and no '.join(missing)}; its keys are {', '.join(words) or 'none'}")
    logits, ids, logp = got["logits"], got["token_ids"], got["logprobs"]
    if logits.dim() == 2:
        logits, ids, logp = logits[None], ids[None], logp[None]
    if logits.dim() != 3 or ids.shape != logits.shape[:2] or logp.shape[0] != ids.shape[0]:
        shapes = f"logits {list(logits.shape)}, token_ids {list(ids.shape)}, logprobs {list(logp.shape)}"
        raise BadRecording(f"the shapes in {path.name} don't belong together: {shapes}")
    b, t, v = logits.shape
    full = torch.full((b, t), torch.nan)
    full[:, t - logp.shape[1] :] = logp.float()
    return Recording(logits=logits.reshape(b * t, v), ids=ids.reshape(-1), logprobs=full.reshape(-1), width=t)


def _word(key: str) -> str:
    """The word of the vocabulary that a key of the file means, or an empty string."""
    found = resolve(
        key, "policy_loss", ("logits", "token_ids", "logprobs", "old_logprobs", "rollout_logprobs", "labels")
    )
    word = found.word if found is not None else ""
    return {"old_logprobs": "logprobs", "rollout_logprobs": "logprobs", "labels": "token_ids"}.get(word, word)


def _normaliser(r: Recording, t: float) -> tuple[Tensor, dict[str, Tensor]]:
    """log Σ exp(z / t) of every row, and z / t of the token that each alignment pairs with the row."""
    n, v = r.logits.shape
    rows = max(1, CHUNK_BYTES // (v * 4))
    ids = r.ids.clamp(min=0)
    following = ids.view(-1, r.width).roll(-1, 1).reshape(-1)
    lse = torch.empty(n)
    own, following_z = torch.empty(n), torch.empty(n)
    for start in range(0, n, rows):
        z = r.logits[start : start + rows].float()
        if t != 1.0:
            z = z / t
        stop = start + z.shape[0]
        # The fused log_softmax is faster than logsumexp, which makes three passes; z - log_softmax(z) is the same.
        logp = z.log_softmax(-1)
        own[start:stop] = z.gather(1, ids[start:stop, None]).squeeze(1)
        following_z[start:stop] = z.gather(1, following[start:stop, None]).squeeze(1)
        lse[start:stop] = own[start:stop] - logp.gather(1, ids[start:stop, None]).squeeze(1)
    return lse, {"aligned": own, "following": following_z}


class _Match(NamedTuple):
    align: str
    pitfall: Pitfall | None


NORMALS: tuple[tuple[Pitfall | None, Callable[[Tensor, Tensor], Tensor]], ...] = (
    (None, lambda z, lse: z - lse),
    (logprobs.SIGN, lambda z, lse: lse - z),
    (logprobs.RAW, lambda z, lse: z),
    (logprobs.PROBABILITY, lambda z, lse: (z - lse).exp()),
)


def _match(r: Recording, lse: Tensor, shifted: dict[str, Tensor], t: float) -> _Match | None:
    """Which alignment and normalisation equals what was saved, if one does."""
    for pitfall, normal in NORMALS:
        for align, z in shifted.items():
            want = normal(z, lse)
            for name, moved in _places(align, want, r.width):
                if _same(r, moved):
                    return _Match(name, pitfall)
    return None


def _places(align: str, want: Tensor, width: int) -> tuple[tuple[str, Tensor], ...]:
    """The columns at which a result of this alignment may have been saved."""
    if align == "aligned":
        return (("logits already aligned with the tokens", want),)
    grid = want.view(-1, width)
    current = torch.full_like(grid, torch.nan)
    current[:, 1:] = grid[:, :-1]
    early = grid.clone()
    early[:, -1] = torch.nan
    return (("shifts inside", current.reshape(-1)), ("shifts inside, last column is filler", early.reshape(-1)))


def _same(r: Recording, want: Tensor) -> bool:
    both = ~(r.logprobs.isnan() | want.isnan()) & (r.ids >= 0)
    if int(both.sum()) < max(1, r.ids.numel() // 4):
        return False
    actual, expected = r.logprobs[both].double(), want[both].double()
    close = (actual - expected).abs() <= tolerance.allowed(expected, "float32")
    zero = actual == 0.0
    return bool((close | zero).all()) and float(close.double().mean()) > 0.5


def _told(found: _Match, t: float, wanted: float) -> Check:
    says = found.align + (f", logits divided by {t:g}" if t != 1.0 else "")
    convention = Convention(summary=says, choices=(Choice(axis="align", option=found.align, says=found.align),))
    named = [Named(pitfall=p.id, family=p.family, says=p.says) for p in (found.pitfall,) if p is not None]
    if t != wanted:
        p = logprobs.TEMPERATURE_IGNORED
        words = f"the saved log-probs are those of temperature {t:g}, while the pipeline samples at {wanted:g}"
        named.append(Named(pitfall=p.id, family=p.family, says=words, numbers={"used": t, "declared": wanted}))
    outcome = probing.known_bug(named, convention, None) if named else Agrees(convention=convention)
    return Check(probe="logprobs.recorded", asks=ASKS, outcome=outcome)


def _no_match(r: Recording, lse: Tensor, shifted: dict[str, Tensor]) -> Check:
    want = (shifted["aligned"] - lse).double()
    have = r.logprobs.double()
    both = ~have.isnan()
    found = tolerance.gap("value", "the recording", have[both], want[both], "float32")
    says = "no alignment and normalisation of the saved logits gives the saved log-probs"
    return Check(probe="logprobs.recorded", asks=ASKS, outcome=probing.diverges(says, found))
