"""`rltriage selftest`: what rltriage finds, and whom it wrongly accuses, on the specimens that ship with it.

Two kinds of specimen. Each pitfall's page has a wrong function and its repaired twin: the wrong one must be named, the
twin must be clean. Strangers are functions that no page shows, made by a generator: wrong ones
(one small change to a right function) must be noticed, right ones (the same function written otherwise) must not be
accused. They run as a user's functions do, in a worker, under a manifest.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rltriage import content
from rltriage.content import ContentError, Page
from rltriage.manifest import Manifest, from_mapping
from rltriage.report import Report
from rltriage.verify import verify_many

if TYPE_CHECKING:
    from rltriage.worker import WorkerPool

Kind = Literal["planted", "repaired", "wrong stranger", "right stranger"]
STRANGERS = "strangers.jsonl"


@dataclass(frozen=True, kw_only=True)
class Specimen:
    """One function of which it is known whether it is right."""

    name: str
    kind: Kind
    role: str
    target: str
    code: str
    pitfall: str = ""
    """Id that must be named; only of planted ones."""
    intent: Mapping[str, Any]
    bind: Mapping[str, str]
    settings: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What was said of one specimen."""

    specimen: Specimen
    named: tuple[str, ...]
    """Pitfalls of all findings."""
    hard: bool
    soft: bool
    ran: bool

    @property
    def found(self) -> bool:
        """Whether a wrong function was noticed at all."""
        return self.hard or self.soft

    @property
    def passed(self) -> bool:
        """Whether it is what the specimen calls for."""
        match self.specimen.kind:
            case "planted":
                return self.specimen.pitfall in self.named
            case "wrong stranger":
                return self.found
            case "repaired" | "right stranger":
                return self.ran and not self.hard


@dataclass(frozen=True, kw_only=True)
class Row:
    """The figures of one role."""

    role: str
    planted: int = 0
    detected: int = 0
    named: int = 0
    wrong_strangers: int = 0
    noticed: int = 0
    right: int = 0
    accused: int = 0
    not_run: int = 0


def specimens(roles: Sequence[str] = ()) -> list[Specimen]:
    """Everything that ships, or what belongs to these roles. Raises `ContentError`."""
    found = [s for page in content.list_pages() for s in _of_page(page)] + _strangers()
    return [s for s in found if not roles or s.role in roles]


def _of_page(page: Page) -> list[Specimen]:
    if not page.target:
        return []
    kinds: tuple[tuple[Kind, str], ...] = (("planted", "Bug"), ("repaired", "Fix"))
    return [
        Specimen(
            name=f"{page.id} {section}", kind=kind, role=page.roles[0], target=page.target, code=_block(page, section),
            pitfall=page.id if kind == "planted" else "", intent=page.intent, bind=page.bind, settings=page.settings,
        )
        for kind, section in kinds
    ]  # fmt: skip


def _block(page: Page, section: str) -> str:
    found = re.search(rf"^## {section}\n.*?```python\n(.*?)```", page.body, re.DOTALL | re.MULTILINE)
    if found is None:
        raise ContentError(f"Page {page.id} has no code under {section}.", do="Install rltriage again.")
    return found[1]


def _strangers() -> list[Specimen]:
    file = content.references() / "specimens" / STRANGERS
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines() if line]
    return [
        Specimen(
            name=r["name"], kind="wrong stranger" if r["wrong"] else "right stranger", role=r["role"],
            target=r["target"], code=r["code"], intent=r["intent"], bind={}, settings={},
        )
        for r in rows
    ]  # fmt: skip


async def judge(
    chosen: Sequence[Specimen], *, pool: WorkerPool, python: str | None = None
) -> AsyncGenerator[Verdict, None]:
    """One verdict a specimen, in order."""
    with tempfile.TemporaryDirectory(prefix="rltriage-selftest-") as folder:
        manifests = [_manifest(s, Path(folder) / str(i), python) for i, s in enumerate(chosen)]
        at = 0
        async for report in verify_many(manifests, pool=pool):
            yield _verdict(chosen[at], report)
            at += 1


def _manifest(s: Specimen, folder: Path, python: str | None) -> Manifest:
    folder.mkdir()
    (folder / "specimen.py").write_text(s.code, encoding="utf-8")
    target = {"ref": f"specimen.py:{s.target}", "bind": dict(s.bind), "settings": dict(s.settings)}
    data = {"pipeline": dict(s.intent), "targets": {s.role: target}}
    return from_mapping(data, root=folder, path=s.name, python=python)


def _verdict(s: Specimen, report: Report) -> Verdict:
    kinds = {f.severity if f.certainty != "raised" else "soft" for f in report.findings}
    named = tuple(sorted({p for f in report.findings for p in f.pitfalls}))
    return Verdict(specimen=s, named=named, hard="hard" in kinds, soft="soft" in kinds, ran=report.measured)


def table(verdicts: Sequence[Verdict]) -> list[Row]:
    """Figures by role, and of all roles in the last row."""
    roles = sorted({v.specimen.role for v in verdicts})
    return [_row(r, [v for v in verdicts if v.specimen.role == r]) for r in roles] + [_row("all", verdicts)]


def _row(role: str, verdicts: Sequence[Verdict]) -> Row:
    def of(*kinds: Kind) -> list[Verdict]:
        return [v for v in verdicts if v.specimen.kind in kinds]

    planted, strangers, right = of("planted"), of("wrong stranger"), of("repaired", "right stranger")
    return Row(
        role=role,
        planted=len(planted),
        detected=sum(v.found for v in planted),
        named=sum(v.passed for v in planted),
        wrong_strangers=len(strangers),
        noticed=sum(v.found for v in strangers),
        right=len(right),
        accused=sum(v.hard for v in right),
        not_run=sum(not v.ran for v in verdicts),
    )


def lines(rows: Sequence[Row]) -> list[str]:
    """The table as text."""
    heads = ("planted", "detected", "named", "strangers", "noticed", "right", "accused")
    out = [f"{'role':20} " + " ".join(f"{h:>9}" for h in heads)]
    for r in rows:
        out.append(
            f"{r.role:20} {r.planted:9} {_share(r.detected, r.planted):>9} {_share(r.named, r.planted):>9} "
            f"{r.wrong_strangers:9} {_share(r.noticed, r.wrong_strangers):>9} {r.right:9} {r.accused:9}"
        )
    return out


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "-"
