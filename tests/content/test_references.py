"""The knowledge is tied to the probes in both directions, and every page's example is executed."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rltriage_probes import contract

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "references" / "pitfalls"
SECTIONS = ["What it is", "How it shows", "Why it is wrong", "Bug", "Fix"]
KEYS = {"id", "title", "stage", "family", "roles", "symptoms", "sources", "target"}
OPTIONAL = {"intent", "bind", "settings"}
FAMILIES = set(
    """sign shift axis normalisation temperature precision nonfinite mask-leak mask-inverted mask-missing denominator
    epsilon grouping baseline degenerate-group clip-bounds clip-direction kl-estimator kl-direction ratio gradient-cut
    gradient-leak reference-drift pad-eos template truncation special-tokens decode-blank decode-strip reward-format
    reward-hole reward-exception reward-order reward-state env-reset env-isolation env-nondeterminism loss-masking
    lora-targets lora-scale lora-frozen optimizer config aliasing inert-option stale-weights retokenisation
    inert-metric""".split()
)


class Page:
    """A pitfall page as its file has it."""

    def __init__(self, file: Path) -> None:
        head, body = file.read_text(encoding="utf-8").split("+++\n", 2)[1:]
        self.file = file
        self.front: dict[str, Any] = tomllib.loads(head)
        self.sections = dict(re.findall(r"^## (.+)\n((?:(?!^## ).*\n?)*)", body, re.MULTILINE))

    def block(self, section: str) -> str:
        """The one Python block of a section."""
        (code,) = re.findall(r"```python\n(.*?)```", self.sections[section], re.DOTALL)
        return code


ALL = [Page(f) for f in sorted(PAGES.glob("*.md"))]
SYMPTOMS: list[dict[str, Any]] = tomllib.loads((ROOT / "references" / "symptoms.toml").read_text("utf-8"))["symptom"]
each_page = pytest.mark.parametrize("page", ALL, ids=lambda p: p.file.stem)


def pitfalls_of_roles() -> dict[str, set[str]]:
    """Pitfall id -> roles that can name it."""
    from rltriage_probes import registry

    found: dict[str, set[str]] = {}
    for role in map(registry.role, registry.names()):
        for pitfall in role.pitfalls:
            found.setdefault(pitfall.id, set()).add(role.name)
    return found


def test_there_are_pages() -> None:
    assert ALL


@each_page
def test_the_front_matter_is_whole_and_the_file_is_named_after_it(page: Page) -> None:
    front = page.front

    assert set(front) >= KEYS, f"missing {KEYS - set(front)}"
    assert set(front) <= KEYS | OPTIONAL
    assert re.fullmatch(re.escape(front["id"]) + r"-[a-z0-9]+(-[a-z0-9]+)*", page.file.stem)
    assert re.fullmatch(r"[A-Z0-9]+(-[A-Z0-9]+)+", front["id"])
    assert front["stage"] in (*contract.STAGES, *contract.SIDE_STAGES)
    assert front["family"] in FAMILIES
    assert {contract.ROLE_STAGES[r] for r in front["roles"]} >= {front["stage"]}


@each_page
def test_a_page_has_the_five_sections_in_order_and_one_block_of_code_in_each_of_the_last_two(page: Page) -> None:
    assert list(page.sections) == SECTIONS
    assert all(text.strip() for text in page.sections.values())
    assert page.block("Bug") != page.block("Fix")


def test_pages_and_the_pitfalls_that_probes_can_name_are_the_same_set() -> None:
    known = pitfalls_of_roles()

    assert sorted(p.front["id"] for p in ALL) == sorted(known)


@each_page
def test_a_page_names_the_roles_that_can_find_it(page: Page) -> None:
    assert set(page.front["roles"]) == pitfalls_of_roles()[page.front["id"]]


@each_page
def test_a_page_and_its_pitfall_have_one_family(page: Page) -> None:
    from rltriage_probes import registry

    families = {p.family for r in map(registry.role, registry.names()) for p in r.pitfalls if p.id == page.front["id"]}

    assert families == {page.front["family"]}


def test_pages_and_symptoms_lead_to_each_other() -> None:
    from_pages = {(s, p.front["id"]) for p in ALL for s in p.front["symptoms"]}
    from_symptoms = {(s["id"], p) for s in SYMPTOMS for p in s["pitfalls"]}

    assert from_pages - from_symptoms == set()
    assert from_symptoms - from_pages == set()
    assert [p.front["id"] for p in ALL if not p.front["symptoms"]] == []


def test_every_symptom_is_whole_and_leads_somewhere() -> None:
    assert len({s["id"] for s in SYMPTOMS}) == len(SYMPTOMS)
    for row in SYMPTOMS:
        assert set(row) == {"id", "stage", "text", "first_move", "pitfalls"}
        assert row["stage"] in (*contract.STAGES, *contract.SIDE_STAGES)
        assert row["pitfalls"]
        assert re.fullmatch(r"S\d{2,3}", row["id"])


def test_no_page_names_a_machine_or_tells_the_reader_to_ignore_other_instructions() -> None:
    for page in ALL:
        text = page.file.read_text(encoding="utf-8")
        assert not re.search(r"/home/|/Users/|/root/", text), page.file.name


def result_of(page: Page, section: str, folder: Path) -> contract.TargetResult:
    """What the probes say of a page's block, called as the worker calls them."""
    from rltriage_probes import checking

    (folder / "module.py").write_text(page.block(section), encoding="utf-8")
    front = page.front
    target = contract.TargetSpec(
        name=front["roles"][0],
        role=front["roles"][0],
        ref=f"module.py:{front['target']}",
        bind=front.get("bind", {}),
        settings=front.get("settings", {}),
    )
    request = contract.CheckRequest(id=1, root=str(folder), target=target, intent=front.get("intent", {}), device="cpu")
    return checking.check(request)


def hard_pitfalls(result: contract.TargetResult) -> set[str]:
    """Ids named by hard outcomes."""
    found: set[str] = set()
    for check in result.checks:
        match check.outcome:
            case contract.KnownBug(severity="hard") as bug:
                found |= {n.pitfall for n in bug.pitfalls}
            case contract.Violates(severity="hard") as broken:
                found |= {n.pitfall for n in broken.candidates}
            case _:
                pass
    return found


@each_page
def test_the_probes_name_a_pages_bug(page: Page, tmp_path: Path) -> None:
    result = result_of(page, "Bug", tmp_path)

    assert page.front["id"] in all_pitfalls(result), [c.outcome for c in result.checks]


def all_pitfalls(result: contract.TargetResult) -> set[str]:
    """Ids named by any outcome, soft ones included."""
    found = hard_pitfalls(result)
    for check in result.checks:
        if isinstance(check.outcome, contract.KnownBug):
            found |= {n.pitfall for n in check.outcome.pitfalls}
        elif isinstance(check.outcome, contract.Violates):
            found |= {n.pitfall for n in check.outcome.candidates}
    return found


@each_page
def test_the_probes_find_nothing_hard_in_a_pages_fix(page: Page, tmp_path: Path) -> None:
    result = result_of(page, "Fix", tmp_path)

    bad = [c for c in result.checks if isinstance(c.outcome, contract.KnownBug | contract.Violates | contract.Raised)]
    assert [c for c in bad if getattr(c.outcome, "severity", "hard") == "hard"] == []
    assert [c for c in result.checks if isinstance(c.outcome, contract.Agrees)]


def test_the_copies_in_the_skill_are_fresh() -> None:
    run = subprocess.run(
        [sys.executable, ROOT / "scripts" / "sync_skills.py", "--check"], capture_output=True, text=True, timeout=60
    )

    assert run.returncode == 0, run.stdout + run.stderr
