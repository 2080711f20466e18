"""Pages: how a file is read, what is said about a broken one, and how a missing one is found."""

from __future__ import annotations

import pytest

from rltriage import content
from rltriage.content import ContentError, list_pages, page, page_ids, parse

FILE = """+++
id = "ADV-EPSILON"
title = "A constant far larger than the spread"
stage = "advantages"
family = "epsilon"
roles = ["advantages"]
symptoms = ["rewards vary, nothing is learnt"]
sources = ["own"]
+++

What happens.

+++ is no fence here.
"""


def test_front_matter_and_body_are_kept_apart() -> None:
    p = parse(FILE, "x.md")
    assert (p.id, p.stage, p.family, p.roles) == ("ADV-EPSILON", "advantages", "epsilon", ("advantages",))
    assert p.body == "What happens.\n\n+++ is no fence here.\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("no front matter", "has no front matter"),
        ("+++\nid = 1\n", "has no front matter"),
        ("+++\nid = \n+++\n", "not valid TOML"),
        ('+++\nid = "X"\n+++\nbody', "title"),
        (FILE.replace("family", "familiy"), "familiy"),
    ],
)
def test_a_broken_page_says_what_is_wrong_with_which_file(text: str, says: str) -> None:
    with pytest.raises(ContentError, match=says) as caught:
        parse(text, "x.md")
    assert "x.md" in caught.value.happened


def test_an_id_is_found_in_any_case() -> None:
    for id in page_ids():
        assert page(f" {id.lower()} ").id == id


def test_pages_are_listed_by_id() -> None:
    assert [p.id for p in list_pages()] == sorted(page_ids())


def test_an_unknown_id_points_to_the_nearest_or_to_the_list() -> None:
    with pytest.raises(ContentError, match="page --list"):
        page("zzzzzzzzzzzzzzzz")
    for id in page_ids()[:1]:
        with pytest.raises(ContentError, match=id):
            page(id + "X")


def test_the_pages_of_a_checkout_are_found() -> None:
    assert (content.references() / "pitfalls").is_dir()
