"""What the binding did, or what it lacks, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, source
from rltriage_probes.contract import BindingReport, Slot
from rltriage_probes.filling import SCALARS
from rltriage_probes.forms import SINGLES
from rltriage_probes.selfs import NOTHING

if TYPE_CHECKING:
    from rltriage_probes.binder import Binder


class BindingFailed(Exception):
    """The function can't be called as it stands; `report` says what is open and shows the lines that bind it."""

    def __init__(self, reason: str, report: BindingReport) -> None:
        super().__init__(reason)
        self.reason = reason
        self.report = report


def _other_number(b: Binder) -> set[str]:
    """Text words in the number (one, list) that this function does not take, and what stands for bound ones."""
    have = {w.word for w in b.plan.words()}
    twins = {aliases.as_list(w) for w in have} | {aliases.as_single(w) for w in have}
    return twins | (set(SINGLES) if b.lists else set(SINGLES.values()) if b.lists is False else set())


def unbound_names(b: Binder) -> list[str]:
    taken = {w.path for w in b.plan.words()}
    return [n for n in b.signature.parameters if n not in taken and n not in ("self", "cls")][:4] or list(
        b.signature.parameters
    )[:2]


def open_reason(b: Binder) -> str:
    names = ", ".join(b.plan.open)
    return f"no word of the vocabulary was found for {names} of {b.loaded.qualname}"


def report_open(b: Binder, opened: Sequence[str]) -> BindingReport:
    have = {w.word for w in b.plan.words()}
    known = have | _other_number(b)
    free = [w for w in b.role.takes if w not in known and w not in SCALARS]
    wanted = [group[0] for group in b.role.needs if not have & set(group)]
    guesses = list(dict.fromkeys([*wanted, *free])) or ["=None"]
    pairs = ", ".join(f'{_toml_key(o)} = "{_guess(o, guesses)}"' for o in opened)
    return BindingReport(
        slots=slots(b),
        open=tuple(opened),
        tried=("names, annotations and docstring against the alias table", *b.tried[:8]),
        example=f"[targets.{b.target}]\nbind = {{ {pairs} }}" if opened else "",
    )


def slots(b: Binder) -> tuple[Slot, ...]:
    out: list[Slot] = []
    for w in b.plan.words():
        value = w.fallback
        fixed = w.word in SCALARS and w.word not in b.example.inputs
        form = f"{value!r}" if fixed and value is not NOTHING else w.form.name if w.form else ""
        how = b.hows.get(w.word, w.how) if fixed and w.how != "bind" else w.how
        out.append(Slot(path=w.path, meaning=w.word, how=how, form=form))
    for f in b.plan.fixed():
        out.append(Slot(path=f.path, meaning=f.meaning or "constant", how=f.how, form=_brief(f.value)))
    shown = {s.path for s in out}
    for path, (word, value) in b.attributes.items():
        if path not in shown:
            out.append(Slot(path=path, meaning=word, how="attribute", form=_brief(value)))
    for name, value, _ in b.plan.left:
        out.append(Slot(path=name, meaning="default", how="default", form=_brief(value)))
    for callee, seam in b.seams.items():
        out.append(Slot(path=f"{callee}(...)", meaning=", ".join(sorted(seam.words)), how="source", form="[B, T]"))
    return tuple(out)


def _guess(path: str, words: list[str]) -> str:
    """What to show for an open place: a word that is still free, or a Python literal for what looks like a number."""
    last = aliases.tokens(path)[-1:]
    if last and last[0] in (
        "id",
        "size",
        "length",
        "coef",
        "weight",
        "num",
        "threshold",
        "rate",
        "max",
        "min",
        "step",
        "steps",
    ):
        return "=0"
    return words.pop(0) if words and words[0] != "=None" else "=None"


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml_key(path: str) -> str:
    return path if source.re.fullmatch(r"[\w-]+", path) else f"'{path}'"
