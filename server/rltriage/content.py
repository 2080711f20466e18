"""The knowledge that ships with rltriage: one page for each pitfall.

In a checkout the pages lie in `references/` beside `server/`; in a wheel they lie inside the package, as
`_content/references`. The checkout comes first, because an editable install may hold stale copies.

A page is `pitfalls/<ID>-<slug>.md`: TOML front matter between two `+++` lines, then Markdown.
"""

from __future__ import annotations

import functools
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from rltriage.errors import TriageError

FENCE: Final = "+++"


class ContentError(TriageError):
    """A page that doesn't exist, or one that can't be read."""


class Page(BaseModel):
    """One page of knowledge."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    title: str
    stage: str
    family: str
    """Root cause; a word of the families that findings carry."""
    roles: tuple[str, ...] = ()
    symptoms: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()
    target: str = ""
    """Name of the function in the page's two blocks of code, which the tests execute."""
    bind: dict[str, str] = {}
    settings: dict[str, Any] = {}
    intent: dict[str, Any] = {}
    """Declared pipeline under which the block is wrong."""
    body: str


def references() -> Path:
    """Folder that holds `pitfalls/`. Raises `ContentError` where the installation lacks it."""
    here = Path(__file__).resolve().parent
    for folder in (here.parent.parent / "references", here / "_content" / "references"):
        if (folder / "pitfalls").is_dir():
            return folder
    raise ContentError(
        "The pages are missing from this installation.", do="Install rltriage again, or run it from a whole checkout."
    )


def page_ids() -> tuple[str, ...]:
    """Ids of all pages, sorted. Empty where the installation has none."""
    try:
        return tuple(sorted(_pages(references())))
    except ContentError:
        return ()


def list_pages() -> tuple[Page, ...]:
    """Every page, by id. Raises `ContentError`."""
    return tuple(page for _, page in sorted(_pages(references()).items()))


def page(id: str) -> Page:
    """The page with this id, in any case. Raises `ContentError` that names the nearest ids."""
    import difflib

    pages = _pages(references())
    wanted = id.strip().upper()
    if wanted in pages:
        return pages[wanted]
    close = difflib.get_close_matches(wanted, list(pages), n=3, cutoff=0.5)
    do = f"Read {' or '.join(close)}." if close else "`rltriage page --list` prints every id."
    raise ContentError(f"There is no page {id[:80]!r}.", do=do)


@functools.cache
def _pages(folder: Path) -> Mapping[str, Page]:
    pages = [parse(file.read_text("utf-8"), file.name) for file in sorted((folder / "pitfalls").glob("*.md"))]
    return {p.id.upper(): p for p in pages}


def parse(text: str, name: str) -> Page:
    """A page from its file's text. Raises `ContentError` that says what is wrong with file `name`."""
    head, body = _split(text, name)
    try:
        data: dict[str, Any] = tomllib.loads(head)
        return Page.model_validate({**data, "body": body.strip() + "\n"})
    except tomllib.TOMLDecodeError as e:
        raise ContentError(f"The front matter of {name} is not valid TOML: {e}.", do="Correct it.") from None
    except ValidationError as e:
        what = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise ContentError(f"The front matter of {name} is wrong: {what}.", do="Correct it.") from None


def _split(text: str, name: str) -> tuple[str, str]:
    lines = text.splitlines()
    fences = [i for i, line in enumerate(lines) if line.strip() == FENCE][:2]
    if len(fences) < 2 or fences[0] != 0:
        raise ContentError(f"{name} has no front matter.", do=f"Begin it with TOML between two {FENCE} lines.")
    return "\n".join(lines[1 : fences[1]]), "\n".join(lines[fences[1] + 1 :])
