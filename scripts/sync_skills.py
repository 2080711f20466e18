#!/usr/bin/env python3
"""Writes the skills' references from the pages, or compares them (`--check`).

A skill is copied as a folder, alone, so it can't link to `references/`: it holds copies of the pitfall
pages, an index of them and the table of symptoms. The copies are committed; whoever edits a page runs this script.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "references" / "pitfalls"
SYMPTOMS = ROOT / "references" / "symptoms.toml"
TARGET = ROOT / "skills" / "rl-triage" / "references"
STAGES = ("reward", "advantages", "logprobs", "loss", "generation", "sft", "lora", "environment")
FENCE = "+++"


@dataclass(frozen=True, kw_only=True)
class Page:
    """One pitfall page, split into its front matter and its text."""

    name: str
    front: dict[str, Any]
    text: str


def split_page(text: str, name: str) -> Page:
    """The page in `text`; `ValueError` where it doesn't open with TOML between two `+++` lines."""
    parts = text.split(f"{FENCE}\n", 2)
    if len(parts) != 3 or parts[0]:
        raise ValueError(f"{name}: the first line must be {FENCE}, and a second {FENCE} must close the front matter")
    return Page(name=name, front=tomllib.loads(parts[1]), text=parts[2].strip() + "\n")


def banner(source: Path) -> str:
    where = source.relative_to(ROOT).as_posix()
    return f"<!-- Generated from {where} by scripts/sync_skills.py: edit that, then run the script. -->\n\n"


def copy_of(page: Page) -> str:
    """The page as a skill holds it: the front matter as a line of prose."""
    front = page.front
    about = f"Stage: {front['stage']}. Roles: {', '.join(front['roles'])}. Family: {front['family']}."
    sources = "".join(f"- {s}\n" for s in front.get("sources", ()))
    tail = f"\n## Sources\n\n{sources}" if sources else ""
    return f"{banner(PAGES / page.name)}# {front['id']}: {front['title']}\n\n{about}\n\n{page.text}{tail}"


def index_of(pages: list[Page]) -> str:
    """All pitfalls, stage by stage."""
    lines = [banner(PAGES), "# Pitfalls by stage\n"]
    for stage in STAGES:
        rows = [p for p in pages if p.front["stage"] == stage]
        if rows:
            lines.append(f"\n## {stage}\n\n| id | what is wrong |\n| --- | --- |\n")
            lines += [f"| [{p.front['id']}]({p.name}) | {p.front['title']} |\n" for p in rows]
    return "".join(lines)


def symptoms_of(text: str, pages: list[Page]) -> str:
    """The table symptom -> first move -> pitfalls."""
    names = {p.front["id"]: p.name for p in pages}
    lines = [banner(SYMPTOMS), "# From what you see to where to look\n\n"]
    lines.append("| id | what you see | stage | first move | pitfalls |\n| --- | --- | --- | --- | --- |\n")
    for row in tomllib.loads(text).get("symptom", []):
        links = ", ".join(f"[{i}]({names[i]})" if i in names else str(i) for i in row["pitfalls"])
        lines.append(f"| {row['id']} | {row['text']} | {row['stage']} | {row['first_move']} | {links} |\n")
    return "".join(lines)


def wanted() -> dict[str, str]:
    """File name -> content of everything that `TARGET` must hold."""
    pages = [split_page(p.read_text(encoding="utf-8"), p.name) for p in sorted(PAGES.glob("*.md"))]
    files = {page.name: copy_of(page) for page in pages}
    files["pitfalls.md"] = index_of(pages)
    files["symptoms.md"] = symptoms_of(SYMPTOMS.read_text(encoding="utf-8"), pages)
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 where a copy is stale")
    check = parser.parse_args().check
    files = wanted()
    have = {p.name: p.read_text(encoding="utf-8") for p in TARGET.glob("*.md")}
    stale = sorted(n for n in files.keys() | have.keys() if files.get(n) != have.get(n))
    if check:
        for name in stale:
            print(f"stale: {(TARGET / name).relative_to(ROOT)}")
        if stale:
            print("run: python scripts/sync_skills.py")
        return bool(stale)
    TARGET.mkdir(parents=True, exist_ok=True)
    for name in stale:
        if name in files:
            (TARGET / name).write_text(files[name], encoding="utf-8")
        else:
            (TARGET / name).unlink()
    print(f"{len(files)} files, {len(stale)} written or removed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
