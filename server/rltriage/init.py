"""Writes a manifest from what discovery finds in a project, and says what it could not find.

The text depends only on what was found, so that two runs over one tree write the same file.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rltriage_probes.contract import ROLE_STAGES, STAGES, Discovered, Found

from rltriage.errors import TriageError
from rltriage.manifest import FILE_NAME, INTENT_KEYS, Manifest, from_mapping, known_roles
from rltriage.render import clean

if TYPE_CHECKING:
    from rltriage.worker import WorkerPool

MAX_UNSURE: Final = 20
"""Candidates listed as comments; a large project has hundreds that nobody would read."""


class InitError(TriageError):
    """No manifest was written."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """What `init` did."""

    file: Path
    text: str
    found: Discovered


async def init(folder: Path, *, pool: WorkerPool, python: str | None = None, force: bool = False) -> Written:
    """Discover the stage functions under `folder` and write its `rltriage.toml`.

    Raises `InitError` where a manifest is there already (unless `force`) or nothing was found, and
    what the worker raises.
    """
    root = folder.resolve()
    file = root / FILE_NAME
    if not root.is_dir():
        raise InitError(f"{folder} is not a folder.", do="Name the project's folder, e.g. `rltriage init .`.")
    if file.exists() and not force:
        raise InitError(f"{file} exists already.", do="Edit it, or replace it with `rltriage init --force`.")
    worker = await pool.get(python, {}, root=str(root))
    found = await worker.discover(root=str(root))
    if not found.found and not found.unsure:
        raise InitError(
            f"No stage function was found in {found.files_read} Python files under {folder}.",
            do=f'Name them yourself in {FILE_NAME}, e.g. [targets.advantages] with ref = "file.py:function".',
        )
    text = compose(found)
    try:
        file.write_text(text, "utf-8")
    except OSError as e:
        raise InitError(f"{file} can't be written: {e.strerror}.", do="Make the folder writable.") from None
    return Written(file=file, text=text, found=found)


async def manifest_of_files(files: Sequence[Path], *, pool: WorkerPool, python: str | None = None) -> Manifest:
    """A manifest of the stage functions found in these files, without a file of its own.

    The root is the current folder where all files lie under it, else the folder that holds them all.
    Nothing is taken as declared: what the functions compute is recognised, not judged against a guess.
    Raises `InitError` where a file is missing or nothing was found, and what the worker raises.
    """
    missing = [str(f) for f in files if not f.is_file()]
    if missing:
        raise InitError(f"There is no file {', '.join(missing)}.", do="Name Python files that exist.")
    absolute = [f.resolve() for f in files]
    here = Path.cwd().resolve()
    root = (
        here
        if all(f.is_relative_to(here) for f in absolute)
        else Path(os.path.commonpath([f.parent for f in absolute]))
    )
    worker = await pool.get(python, {}, root=str(root))
    found = await worker.discover(root=str(root), files=tuple(f.relative_to(root).as_posix() for f in absolute))
    if not found.found:
        unsure = [f"{f.ref} (perhaps {f.role})" for f in found.unsure[:MAX_UNSURE]]
        raise InitError(
            f"No stage function was recognised in {', '.join(map(str, files))}."
            + "".join(f" Not read: {s}." for s in found.skipped),
            do=f"Name it in an {FILE_NAME}: "
            + ("; ".join(unsure) or '[targets.advantages] with ref = "file.py:function"')
            + ".",
        )
    data = {"targets": {name: {"role": f.role, "ref": f.ref, "bind": f.bind} for name, f in _named(found.found)}}
    made = from_mapping(data, root=root, path=", ".join(map(str, files)), python=python)
    doubts = tuple(f"not taken: {f.ref} may be of role {f.role}: {f.why}" for f in found.unsure[:MAX_UNSURE])
    return made.model_copy(update={"warnings": (*made.warnings, *doubts, *(f"not read: {s}" for s in found.skipped))})


def _named(found: Sequence[Found]) -> Iterator[tuple[str, Found]]:
    """Each with its table's name: the role, with -2, -3, ... from the second on; roles in stage order."""
    order = {role: i for i, role in enumerate(known_roles())}
    counts: dict[str, int] = {}
    for f in sorted(found, key=lambda f: (order.get(f.role, len(order)), -f.score, f.ref)):
        counts[f.role] = counts.get(f.role, 0) + 1
        yield f.role + (f"-{counts[f.role]}" if counts[f.role] > 1 else ""), f


def compose(found: Discovered) -> str:
    """The manifest's text: valid TOML, with the reasons as comments."""
    lines = [
        "# Written by `rltriage init`. Correct what is wrong here, then run `rltriage verify`.",
        f"# {found.files_read} Python files were read.",
        *(f"# unsure: not read: {_comment(s)}" for s in found.skipped),
        "",
        *_pipeline(found.settings),
        *_targets(found.found),
        *_gaps(found),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _pipeline(settings: Mapping[str, Any]) -> Iterator[str]:
    yield "[pipeline]"
    known = {k: settings[k] for k in INTENT_KEYS if k in settings}
    for key, value in known.items():
        written = toml_value(value)
        if written is None:
            yield f"# unsure: {key} = {_comment(repr(value))} has no place in TOML"
        else:
            yield f"{key} = {written}"
    for key in sorted(set(settings) - set(known)):
        yield f"# unsure: {_comment(f'{key} = {settings[key]!r}')} was found too; nothing reads it"
    if "algorithm" not in known:
        yield '# unsure: which algorithm is meant, e.g. algorithm = "grpo"; without it, functions are recognised only'
    yield ""


def _targets(found: tuple[Found, ...]) -> Iterator[str]:
    for name, f in _named(found):
        yield f"[targets.{_key(name)}]"
        yield f"# why: {_comment(f.why)} ({f.score:.2f})"
        yield f"ref = {_text(f.ref)}"
        if f.bind:
            pairs = ", ".join(f"{_key(k)} = {_text(v)}" for k, v in f.bind.items())
            yield f"bind = {{ {pairs} }}"
        yield ""


def _gaps(found: Discovered) -> Iterator[str]:
    unsure = sorted(found.unsure, key=lambda f: (-f.score, f.role, f.ref))
    for f in unsure[:MAX_UNSURE]:
        yield f"# unsure: {_comment(f.ref)} may be of role {_comment(f.role)} ({f.score:.2f}): {_comment(f.why)}"
    if len(unsure) > MAX_UNSURE:
        yield f"# unsure: {len(unsure) - MAX_UNSURE} weaker candidates are left out"
    roles = {f.role for f in found.found}
    for stage in STAGES:
        missing = [role for role, s in ROLE_STAGES.items() if s == stage]
        if not roles & set(missing):
            yield f"# unsure: nothing was found for the stage {stage} (role {' or '.join(missing)})"
    if any(not roles & {r for r, s in ROLE_STAGES.items() if s == stage} for stage in STAGES):
        yield "# Code that is no function of its own is named by its lines, with what goes in and what comes out:"
        yield '#     ref = "train.py#L120-L141"   inputs = { scores = "rewards", n = "=8" }   output = "adv"'
        yield "# `rltriage adapter ROLE --ref train.py#L120-L141` writes such a table."


def found_lines(found: Discovered) -> list[str]:
    """What was found and what was not, one line each, for the terminal."""
    lines = [f"  {f.role}: {clean(f.ref)} ({clean(f.why)})" for f in found.found]
    lines += [f"  ? {f.role}: {clean(f.ref)}, not taken ({clean(f.why)})" for f in found.unsure[:MAX_UNSURE]]
    roles = {f.role for f in found.found}
    for stage in STAGES:
        if not any(ROLE_STAGES.get(role) == stage for role in roles):
            lines.append(f"  ? nothing found for the stage {stage}")
    lines += [f"  ? not read: {clean(s)}" for s in found.skipped]
    return lines


def toml_value(value: Any) -> str | None:
    """`value` in TOML, or None where TOML has no such value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if -(2**63) <= value < 2**63 else None
    if isinstance(value, float):
        return (
            repr(value) if math.isfinite(value) else ("nan" if math.isnan(value) else ("inf" if value > 0 else "-inf"))
        )
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, (list, tuple)):
        items = [toml_value(v) for v in cast("list[Any]", value)]
        return None if None in items else f"[{', '.join(cast('list[str]', items))}]"
    if isinstance(value, dict):
        pairs = {str(k): toml_value(v) for k, v in cast("dict[Any, Any]", value).items()}
        return None if None in pairs.values() else f"{{ {', '.join(f'{_key(k)} = {v}' for k, v in pairs.items())} }}"
    return None


def _text(text: str) -> str:
    """A TOML basic string. JSON's escapes are TOML's, but for DEL and lone surrogates."""
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False).replace("\x7f", "\\u007f")


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _text(key)


def _comment(text: str) -> str:
    """Text of the user's project as part of a comment: one line, clipped."""
    return clean(text.encode("utf-8", "replace").decode())[:200]
