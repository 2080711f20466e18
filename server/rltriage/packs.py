"""Packs: data that binds a framework's stage functions, so that nobody has to write a manifest for them.

A pack is `references/packs/<framework>.toml`. It says what each function is, how its inputs reach it and
what the releases it was written for compute there:

    package, distribution, versions          what is looked for, and for which releases the expectations hold
    [targets.<name>]                         role, refs, and where needed bind, settings, blocks
    [[targets.<name>.variants]]              name, and what a variant adds: settings, bind, expect or unknown

Of `refs` the first is taken whose function the copy has, of `blocks` the first whose bounds stand in that
function; so one pack serves several releases. What a copy lacks is reported as not run, never as an error.
Whether a function exists is read from its source: the server imports nothing of the framework.
"""

from __future__ import annotations

import ast
import functools
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from rltriage_probes.contract import ROLE_STAGES, Block, TargetSpec

from rltriage import content
from rltriage.errors import TriageError
from rltriage.manifest import FILE_NAME, Expectation, Manifest, from_mapping, load, nearest

if TYPE_CHECKING:
    from rltriage.report import Finding, Recognised
    from rltriage.worker import WorkerPool

TIMEOUT_S: Final = 120.0
"""Longest time for one target: importing a framework from a cold disk counts into it."""


class PackError(TriageError):
    """A pack is missing or wrong, or its framework isn't there."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Variant(_Strict):
    """A setting under which the same function is verified once more."""

    name: str
    settings: dict[str, Any] = {}
    bind: dict[str, str] = {}
    needs: tuple[str, ...] = ()
    """Texts that the function must contain, or this release has no such setting."""
    expect: tuple[str, ...] = ()
    """Words that stand in what the released function was found to compute."""
    unknown: str = ""
    """Why no convention fits: a formula that has no reference yet."""

    @model_validator(mode="after")
    def _one_expectation(self) -> Variant:
        if self.expect and self.unknown:
            raise ValueError(f"{self.name or 'a target'} can't be both recognised (expect) and unknown")
        return self


class PackTarget(_Strict):
    """One stage function of a framework."""

    role: str
    refs: tuple[str, ...]
    """`module:name`, the newest release's first."""
    bind: dict[str, str] = {}
    settings: dict[str, Any] = {}
    blocks: tuple[Block, ...] = ()
    requires: str = ""
    """An optional package without which the function doesn't run."""
    expect: tuple[str, ...] = ()
    unknown: str = ""
    variants: tuple[Variant, ...] = ()

    @model_validator(mode="after")
    def _known_role(self) -> PackTarget:
        if self.role not in ROLE_STAGES:
            raise ValueError(f"there is no role {self.role!r}{nearest(self.role, ROLE_STAGES)}")
        return self

    def each(self, name: str) -> Iterator[tuple[str, Variant]]:
        """Name of the target and settings for every variant; the bare target where there are none."""
        for v in self.variants or (Variant(name="", expect=self.expect, unknown=self.unknown),):
            whole = v.model_copy(update={"settings": {**self.settings, **v.settings}, "bind": {**self.bind, **v.bind}})
            yield f"{name}-{v.name}" if v.name else name, whole


class Pack(_Strict):
    """A framework's stage functions."""

    package: str
    """Its top-level package, as it is imported."""
    distribution: str = ""
    versions: tuple[str, ...]
    """Releases for which `expect` was measured."""
    targets: dict[str, PackTarget]

    def expectations(self) -> dict[str, Variant]:
        """What each target (by its full name) is expected to be recognised as."""
        return {full: v for name, target in self.targets.items() for full, v in target.each(name)}


@dataclass(frozen=True, kw_only=True)
class Copy:
    """A framework as it was found."""

    package: str
    version: str
    folder: Path
    """Of the package, absolute."""
    root: Path
    """The user's project, absolute."""
    beside: frozenset[str] = frozenset()
    """Optional packages that the interpreter has as well."""

    @property
    def vendored(self) -> bool:
        """Whether it lies in the project itself, and not among installed packages below it."""
        return (
            self.folder.is_relative_to(self.root) and "site-packages" not in self.folder.parts[len(self.root.parts) :]
        )

    @property
    def named(self) -> str:
        return f"{self.package} {self.version}".strip()

    def says(self) -> str:
        """Which copy was verified, for the report."""
        if not self.vendored:
            return f"{self.named}, installed in {self.folder}"
        where = self.folder.relative_to(self.root).as_posix()
        return f"{self.named}, the copy in {where if where != '.' else 'this folder'}; it wins over an installed one"

    def file_of(self, module: str) -> Path | None:
        """The file of one of its modules."""
        base = self.folder.joinpath(*module.split(".")[1:])
        return next((f for f in (base.with_suffix(".py"), base / "__init__.py") if f.is_file()), None)

    def ref(self, ref: str) -> str:
        """A ref of the pack as a ref into this copy: a path where it is vendored, so that no other copy is meant."""
        module, _, name = ref.partition(":")
        file = self.file_of(module)
        if not self.vendored or file is None:
            return ref
        return f"{file.relative_to(self.root).as_posix()}:{name}"


# Reading packs


def names() -> tuple[str, ...]:
    """The frameworks that have a pack."""
    return tuple(sorted(f.stem for f in (content.references() / "packs").glob("*.toml")))


def pack(name: str) -> Pack:
    """The pack of a framework. Raises `PackError`."""
    known = names()
    if name.lower() not in known:
        raise PackError(
            f"There is no pack for {name!r}{nearest(name.lower(), known)}.",
            do=f"There are packs for {', '.join(known)}; otherwise name the functions in an {FILE_NAME}.",
        )
    file = content.references() / "packs" / f"{name.lower()}.toml"
    return parse(file.read_text("utf-8"), file.name)


def parse(text: str, name: str) -> Pack:
    """A pack from its file's text. Raises `PackError` that says what is wrong with file `name`."""
    try:
        return Pack.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as e:
        raise PackError(f"{name} is not valid TOML: {e}.", do="Correct it.") from None
    except ValidationError as e:
        what = "; ".join(f"{'.'.join(map(str, x['loc']))}: {x['msg']}" for x in e.errors())
        raise PackError(f"{name} is wrong: {what}.", do="Correct it.") from None


# From a pack to a manifest


async def manifest_of(name: str, root: Path, *, pool: WorkerPool, python: str | None = None) -> Manifest:
    """A manifest of the framework's functions as found from the project `root`.

    A manifest that lies in `root` gives interpreter and environment, nothing else. Raises `PackError`,
    `ManifestError` and what the worker raises.
    """
    chosen = pack(name)
    root = root.resolve()
    if not root.is_dir():
        raise PackError(f"There is no folder {root}.", do="Name the project's folder, or leave it out for this one.")
    own = load(root, python=python) if (root / FILE_NAME).is_file() else None
    python, env = (own.python, own.env) if own else (python, {})
    copy = await find(chosen, root, pool=pool, python=python, env=env)
    made = manifest_for(chosen, copy, python=python)
    return made.model_copy(update={"env": env, "device": own.device if own else made.device})


async def find(
    pack: Pack, root: Path, *, pool: WorkerPool, python: str | None = None, env: Mapping[str, str] | None = None
) -> Copy:
    """The framework's copy that counts for `root`: vendored below it, else installed. Raises `PackError`."""
    worker = await pool.get(python, env, root=str(root))
    optional = {t.requires for t in pack.targets.values() if t.requires}
    located = await worker.locate(str(root), (pack.package, *sorted(optional)))
    found = located.packages.get(pack.package)
    if found is None:
        raise PackError(
            f"{pack.package} is neither below {root} nor installed in {worker.python}.",
            do="Name the interpreter that has it with --python, or the folder that holds a copy.",
        )
    version = found.package.removeprefix(pack.package).strip()
    beside = frozenset(optional & set(located.packages))
    return Copy(package=pack.package, version=version, folder=Path(found.file).parent, root=root, beside=beside)


def manifest_for(pack: Pack, copy: Copy, *, python: str | None = None) -> Manifest:
    """The pack's targets as they are in this copy; what it lacks is in the manifest's `absent`."""
    targets: list[TargetSpec] = []
    absent: dict[str, str] = {}
    for name, target in pack.targets.items():
        place = _place(target, copy)
        for full, v in target.each(name):
            block = place.block
            bind = {**(block.inputs if block else {}), **v.bind}
            spec = TargetSpec(name=full, role=target.role, ref=place.ref, bind=bind, settings=v.settings, block=block)
            targets.append(spec)
            if lacks := _lacks(v, place, copy):
                absent[full] = lacks
    made = from_mapping({"pipeline": {"timeout_s": TIMEOUT_S}}, root=copy.root, path=copy.named, python=python)
    release = f"{pack.package} {', '.join(pack.versions)}"
    expected = {
        full: Expectation(release=release, words=v.expect, unknown=v.unknown)
        for full, v in pack.expectations().items()
        if full not in absent and _is_measured(pack, copy)
    }
    notes = (copy.says(), *_unmeasured(pack, copy))
    return made.model_copy(update={"targets": tuple(targets), "absent": absent, "expected": expected, "notes": notes})


def _unmeasured(pack: Pack, copy: Copy) -> Iterator[str]:
    if not _is_measured(pack, copy):
        yield f"the pack was written for {pack.package} {', '.join(pack.versions)}; this copy may differ"


def _is_measured(pack: Pack, copy: Copy) -> bool:
    return any(copy.version == v or copy.version.startswith(f"{v}.") for v in pack.versions)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where a target is in a copy."""

    ref: str
    block: Block | None
    text: str = ""
    """Source of the function."""
    lacks: str = ""
    """Why it can't be verified there."""


def _place(target: PackTarget, copy: Copy) -> _Place:
    """The first of a target's alternatives that the copy has."""
    for ref in target.refs:
        lines = _function(copy, ref)
        if lines is None:
            continue
        block = next((b for b in target.blocks if _stands_in(lines, b)), None)
        if block is not None or not target.blocks:
            needed = target.requires if target.requires not in copy.beside else ""
            lacks = f"it needs {needed}, which this interpreter doesn't have" if needed else ""
            return _Place(ref=copy.ref(ref), block=block, text="\n".join(lines), lacks=lacks)
    block = target.blocks[0] if target.blocks else None
    bounds = f", lines from {block.start.strip()!r} to {block.stop.strip()!r}" if block else ""
    lacks = _not_in(copy, " or ".join(target.refs) + bounds)
    return _Place(ref=copy.ref(target.refs[0]), block=block, lacks=lacks)


def _lacks(variant: Variant, place: _Place, copy: Copy) -> str:
    """Why a variant can't be verified: its function is not there, or has no such setting."""
    missing = [t for t in variant.needs if t not in place.text]
    return place.lacks or (_not_in(copy, ", ".join(missing)) if missing else "")


def _not_in(copy: Copy, what: str) -> str:
    return f"not in this copy ({copy.named}): {what}"


def _stands_in(lines: tuple[str, ...], block: Block) -> bool:
    first = next((i for i, line in enumerate(lines) if block.start in line), None)
    return first is not None and any(block.stop in line for line in lines[first:])


def _function(copy: Copy, ref: str) -> tuple[str, ...] | None:
    """The lines of the function that a ref names; None where the copy has none."""
    module, _, name = ref.partition(":")
    file = copy.file_of(module)
    if file is None:
        return None
    text, spans = _spans(file)
    span = spans.get(name)
    return tuple(text[span[0] - 1 : span[1]]) if span else None


@functools.cache
def _spans(file: Path) -> tuple[list[str], dict[str, tuple[int, int]]]:
    """Lines of a file, and first and last line of each function and method in it."""
    try:
        text = file.read_text("utf-8")
        tree = ast.parse(text)
    except (OSError, UnicodeDecodeError, SyntaxError):
        return [], {}
    return text.splitlines(), dict(_definitions(tree.body, ""))


def _definitions(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, tuple[int, int]]]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield prefix + node.name, (node.lineno, node.end_lineno or node.lineno)
        elif isinstance(node, ast.ClassDef):
            yield prefix + node.name, (node.lineno, node.end_lineno or node.lineno)
            yield from _definitions(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, (ast.If, ast.Try)):
            inner = [s for s in ast.iter_child_nodes(node) if isinstance(s, ast.stmt)]
            yield from _definitions(inner, prefix)
            if isinstance(node, ast.Try):
                yield from _definitions([s for h in node.handlers for s in h.body], prefix)


# What a copy computes otherwise than the release


def differences(manifest: Manifest, recognised: Iterable[Recognised]) -> Iterator[str]:
    """Targets that are right, but under another convention than in the release that the pack was written for."""
    said: dict[str, list[str]] = {}
    for r in recognised:
        said.setdefault(r.name, []).append(r.convention)
    for name, expected in manifest.expected.items():
        other = [w for w in expected.words if not any(w in s for s in said.get(name, [w]))]
        if other:
            yield f"{name} differs from {expected.release}, where it is: {', '.join(other)}"


def explained(finding: Finding, manifest: Manifest) -> Finding:
    """A finding about a formula that has no reference yet says so, instead of asking for a comparison."""
    expected = manifest.expected.get(finding.name)
    if finding.certainty != "diverges" or expected is None or not expected.unknown:
        return finding
    return finding.model_copy(update={"next": f"Nothing, if this copy is unchanged: {expected.unknown}."})
