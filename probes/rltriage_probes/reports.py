"""What the binding did, or what it lacks, in the user's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rltriage_probes import aliases, source
from rltriage_probes.contract import BindingReport, Slot
from rltriage_probes.filling import SCALARS
from rltriage_probes.forms import SINGLES
from rltriage_probes.selfs import NOTHING
from rltriage_probes.vocabulary import WORDS

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


def report_open(b: Binder, opened: Sequence[str], placeholder: str = "") -> BindingReport:
    """What is bound and what is open; `placeholder` stands in the example where no word can be meant."""
    return BindingReport(
        slots=slots(b),
        open=tuple(opened),
        tried=("names, annotations and docstring against the alias table", *b.tried[:8]),
        example=_example(b, opened, placeholder) if opened else "",
    )


def _example(b: Binder, opened: Sequence[str], placeholder: str) -> str:
    """The manifest lines that would bind what is open; where no word suggests itself, the words to choose from."""
    if placeholder:
        lines = ", ".join(f'{_toml_key(path)} = "{placeholder}"' for path in opened)
        return f"[targets.{b.target}]\n{_table(b)} = {{ {lines} }}"
    have = {w.word for w in b.plan.words()}
    known = have | _other_number(b)
    free = [w for w in b.role.takes if w not in known and w not in SCALARS]
    wanted = [w for group in b.role.needs if not have & set(group) for w in group if w in free][: len(opened)]
    pairs: list[str] = []
    for path in opened:
        word = next((w for w in wanted if _fits(b, path, w)), "")
        wanted = [w for w in wanted if w != word]
        pairs.append(f'{_toml_key(path)} = "{word or _literal(path) or PLACEHOLDER}"')
    lines = [f"[targets.{b.target}]", f"{_table(b)} = {{ {', '.join(pairs)} }}"]
    if any(PLACEHOLDER in p for p in pairs):
        lines.append(f'# <word>: one of {", ".join(free[:12]) or "none is left"}; or "=<Python literal>"')
    return "\n".join(lines)


def _table(b: Binder) -> str:
    """Where the manifest says what a name means: lines have inputs, functions have parameters to bind."""
    return "inputs" if b.loaded.kind == "block" else "bind"


PLACEHOLDER = "<word>"
PLAIN_VALUE = "=<Python literal>"
_NUMBERS = frozenset("id size length coef weight num threshold rate max min step steps".split())


def _literal(path: str) -> str:
    """A Python literal for what looks like a number."""
    last = aliases.tokens(path)[-1:]
    return "=0" if last and last[0] in _NUMBERS else ""


def _fits(b: Binder, path: str, word: str) -> bool:
    """Whether a place may be of the word's kind, by its annotation and by what the source does with it."""
    if _literal(path):
        return False
    root, steps = source.parse_path(path)
    signs = b.facts.signs.get(path, set())
    p = b.signature.parameters.get(root)
    annotation = "" if steps or p is None or p.annotation is p.empty else str(p.annotation)
    text = "str" in annotation or bool(signs & _TEXT_SIGNS)
    number = bool(source.re.search(r"\b(int|float|bool)\b", annotation)) and "list" not in annotation.lower()
    tensor = "Tensor" in annotation or bool(signs & _TENSOR_SIGNS)
    kind = WORDS[word].kind
    return not number and not (kind == "tensor" and text) and not (kind == "text" and tensor)


_TEXT_SIGNS = frozenset((".strip", ".split", ".lower", ".find", ".startswith", ".endswith", ".replace", ".partition"))
_TENSOR_SIGNS = frozenset((".shape", ".sum", ".mean", ".view", ".reshape", ".unsqueeze", ".exp", ".float", ".size"))


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
    for m in b.plan.asides():
        out.append(Slot(path=m.path, meaning=m.meaning, how=m.how))
    shown = {s.path for s in out}
    for path, (word, value) in b.attributes.items():
        if path not in shown:
            out.append(Slot(path=path, meaning=word, how="attribute", form=_brief(value)))
    for name, value, _ in b.plan.left:
        out.append(Slot(path=name, meaning="default", how="default", form=_brief(value)))
    for callee, seam in b.seams.items():
        out.append(Slot(path=f"{callee}(...)", meaning=", ".join(sorted(seam.words)), how="source", form="[B, T]"))
    return tuple(out)


def _brief(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _toml_key(path: str) -> str:
    return path if source.re.fullmatch(r"[\w-]+", path) else f"'{path}'"
