"""A skill's folder obeys the Agent Skills format and holds all that it points to."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SKILLS = sorted(p.parent for p in (ROOT / "skills").glob("*/SKILL.md"))
FIELDS = {"name", "description", "license", "compatibility", "metadata", "allowed-tools"}
each_skill = pytest.mark.parametrize("skill", SKILLS, ids=lambda p: p.name)


def front_matter(skill: Path) -> dict[str, str]:
    text = (skill / "SKILL.md").read_text(encoding="utf-8")
    head = text.split("---\n", 2)[1]
    return dict(line.split(": ", 1) for line in head.strip().splitlines())


@each_skill
def test_the_front_matter_keeps_to_the_format(skill: Path) -> None:
    front = front_matter(skill)

    assert set(front) <= FIELDS
    assert front["name"] == skill.name
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", front["name"])
    assert len(front["name"]) <= 64
    assert 1 <= len(front["description"]) <= 1024
    assert len(front.get("compatibility", "")) <= 500
    assert ": " not in front["description"]


@each_skill
def test_the_body_is_short_enough_to_be_loaded_whole(skill: Path) -> None:
    text = (skill / "SKILL.md").read_text(encoding="utf-8")

    assert len(text.splitlines()) < 500
    assert len(text) < 20_000


@each_skill
def test_every_link_of_a_skill_leads_into_its_own_folder(skill: Path, tmp_path: Path) -> None:
    alone = Path(shutil.copytree(skill, tmp_path / skill.name))

    for page in alone.rglob("*.md"):
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
            if not link.startswith(("http://", "https://")):
                assert (page.parent / link).resolve().is_relative_to(alone)
                assert (page.parent / link).is_file(), f"{page.name} -> {link}"
