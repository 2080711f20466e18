"""Loading the function that a target names: the import ladder.

Each rung is tried in turn, and the report says which one worked:

    import          the module in its package, with the project root on the path
    file            the file alone, without its package
    bare packages   its parent packages as empty modules, so that heavy `__init__`s never run
    stand-ins       as before, with stand-ins for missing third-party modules
    extracted       only the function and what it names, cut out of the source

Nothing is loaded from outside the project root but installed packages. No torch at module level.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import functools
import hashlib
import importlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import inspect
import os
import re
import sys
import types
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from rltriage_probes import source
from rltriage_probes.contract import LoadReport, Located, LocateRequest, TargetSpec, clip_text
from rltriage_probes.invoke import NotReached
from rltriage_probes.selfs import LEARNING_ROLES
from rltriage_probes.source import FunctionNode

_T = TypeVar("_T")
_SKIPPED = frozenset(
    ".git .hg .venv venv env node_modules __pycache__ .tox .mypy_cache build dist .ipynb_checkpoints".split()
)


class LoadFailed(Exception):
    """No rung gave the function."""

    def __init__(self, reason: str, do: str = "", tried: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.reason = reason
        self.do = do
        self.tried = tried


@dataclass(kw_only=True)
class Loaded:
    """A user function and everything that the binder asks about it."""

    qualname: str
    function: Callable[..., Any]
    """Unbound: a method still takes `self`."""
    owner: type | None
    kind: str
    """`function`, `method`, `static` or `block`."""
    namespace: dict[str, Any]
    report: LoadReport
    path: Path
    root: Path
    tree: ast.Module
    node: FunctionNode
    source: str
    doc: str
    literals: tuple[float, ...]
    helpers: dict[str, FunctionNode] = field(default_factory=dict)
    stand_ins: StandIns | None = None
    made_with: Mapping[str, Any] | None = None
    """Settings with which a factory was called that made the function."""

    def signature(self) -> inspect.Signature:
        try:
            return inspect.signature(self.function)
        except (TypeError, ValueError):
            return _signature_of(self.node)


def load(root: str | Path, target: TargetSpec) -> Loaded:
    """The function that `target.ref` names. Raises `LoadFailed`."""
    base = Path(root).resolve()
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    _WITH_MODELS[0] = target.role in LEARNING_ROLES
    if target.block is not None or "#L" in target.ref:
        from rltriage_probes import blocks

        return blocks.load_block(base, target)
    place = find(base, target.ref)
    return climb(base, place)


def warm(root: str, ref: str) -> None:
    """Import the module of a ref, as the first rung does, for the runs that are forked from this process.

    Where that fails nothing of the package stays: the run itself climbs the ladder from its foot.
    """
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    place = find(Path(root).resolve(), ref)
    if place.module in sys.modules:
        return
    with _importable(place), _eager_torch():
        try:
            importlib.import_module(place.module)
        except BaseException as e:  # the user's code
            if isinstance(e, KeyboardInterrupt):
                raise
            top = place.module.split(".")[0]
            for name in [n for n in sys.modules if n == top or n.startswith(f"{top}.")]:
                del sys.modules[name]


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a target is: a file, its module name and the name inside it."""

    path: Path
    qualname: str
    module: str
    search: tuple[str, ...]
    """Folders that have to be importable."""
    packages: tuple[tuple[str, Path], ...]
    """Parent packages, outermost first, with their folders."""
    distribution: str = ""


# Finding


def find(root: Path, ref: str) -> Place:
    """The place that a ref names, found without importing anything."""
    head, colon, qualname = ref.rpartition(":")
    if not colon or not head or not qualname:
        raise LoadFailed(
            f"{ref!r} names no function",
            "Write file.py:function, file.py:Class.method or package.module:function.",
        )
    if head.endswith(".py") or "/" in head or os.sep in head:
        return place_of_file(root, confined(root, head), qualname)
    path = module_file(root, head)
    if path is None:
        raise LoadFailed(
            f"there is no module {head} in the project or among this interpreter's packages",
            "Check the spelling, or name the interpreter that has it under [pipeline] python.",
        )
    return place_of_file(root, path, qualname, head)


def confined(root: Path, name: str) -> Path:
    """A file below the root or among the installed packages; `LoadFailed` for any other."""
    path = (root / name).resolve()
    if not path.is_file():
        raise LoadFailed(
            f"there is no file {name} in {root.name or root}", "Give the path relative to the project root."
        )
    if not (path.is_relative_to(root) or any(path.is_relative_to(p) for p in installed_roots())):
        raise LoadFailed(
            f"{name} lies outside the project root", "Only files of the project and installed packages are loaded."
        )
    return path


@functools.cache
def installed_roots() -> tuple[Path, ...]:
    import site
    import sysconfig

    paths = {sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"], *site.getsitepackages()}
    return tuple(Path(p).resolve() for p in paths)


def module_file(root: Path, module: str) -> Path | None:
    """The file of a module, parents not imported: the project first, then what is installed."""
    parts = module.split(".")
    for folder in (*_search_roots(root), *sys.path):
        base = Path(folder or ".") / Path(*parts)
        for candidate in (base.with_suffix(".py"), base / "__init__.py"):
            if candidate.is_file():
                return candidate.resolve()
    with contextlib.suppress(ImportError, AttributeError, ValueError):  # editable installs with finders of their own
        spec = importlib.util.find_spec(parts[0])
        locations = list(spec.submodule_search_locations or ()) if spec else []
        for folder in locations:
            base = Path(folder).joinpath(*parts[1:])
            for candidate in (base.with_suffix(".py"), base / "__init__.py"):
                if candidate.is_file():
                    return candidate.resolve()
    return None


def _search_roots(root: Path) -> tuple[str, ...]:
    return tuple(str(p) for p in (root, root / "src") if p.is_dir())


def place_of_file(root: Path, path: Path, qualname: str, module: str = "") -> Place:
    folders: list[Path] = []
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folders.insert(0, folder)
        folder = folder.parent
    if module and not folders:
        # namespace packages have no __init__.py; the dotted name says how deep they are
        for _ in module.split(".")[:-1]:
            folders.insert(0, path.parent if not folders else folders[0].parent)
        folder = folders[0].parent if folders else path.parent
    stem = [] if path.name == "__init__.py" else [path.stem]
    names = [f.name for f in folders]
    dotted = ".".join([*names, *stem])
    packages = tuple((".".join(names[: i + 1]), f) for i, f in enumerate(folders))
    search = dict.fromkeys([str(folder), str(path.parent) if not folders else str(folder), *_search_roots(root)])
    return Place(
        path=path, qualname=qualname, module=module or dotted, search=tuple(search), packages=packages,
        distribution=_distribution(path, names[0] if names else path.stem),
    )  # fmt: skip


def _distribution(path: Path, top: str) -> str:
    if not any(path.is_relative_to(p) for p in installed_roots()):
        return ""
    for name in (top, top.replace("_", "-")):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{name} {importlib.metadata.version(name)}"
    return top


def locate(request: LocateRequest) -> Located:
    """Where the project would import these packages from: vendored below the root, or installed. Imports nothing."""
    root = Path(request.root).resolve()
    found: dict[str, LoadReport] = {}
    for name in request.packages:
        path = _vendored(root, name) or module_file(root, name)
        if path is not None:
            version = _version(path.parent, name)
            found[name] = LoadReport(
                file=str(path), line=0, rung="", sha256=sha(path.read_bytes()), package=f"{name} {version}".strip()
            )
    return Located(id=request.id, packages=found)


def _vendored(root: Path, name: str) -> Path | None:
    """A package's `__init__.py` (or module file) anywhere below the root, the shallowest first."""
    if root.name == name and (root / "__init__.py").is_file():
        return root / "__init__.py"
    level = [root]
    for _ in range(5):
        below: list[Path] = []
        for folder in level:
            init = folder / name / "__init__.py"
            if init.is_file():
                return init
            with contextlib.suppress(OSError):
                below += [
                    f
                    for f in sorted(folder.iterdir())
                    if f.is_dir() and f.name not in _SKIPPED and "site-packages" not in f.name
                ]
        level = below[:400]
    return None


def _version(folder: Path, name: str) -> str:
    if any(folder.is_relative_to(p) for p in installed_roots()):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(name)
    for file, pattern in (("__init__.py", r"""__version__\s*=\s*["']([^"']+)"""), ("version.py",
    r"""__version__\s*=\s*["']([^"']+)"""),
                          ("_version.py", r"""version\s*=\s*["']([^"']+)""")):  # fmt: skip
        with contextlib.suppress(OSError, UnicodeDecodeError):
            if m := re.search(pattern, (folder / file).read_text()):
                return m[1]
    for file in (folder / "VERSION", folder.parent / "VERSION", folder / "version" / "version"):
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return file.read_text().strip().splitlines()[0]
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if m := re.search(r"""^version\s*=\s*["']([^"']+)""", (folder.parent / "pyproject.toml").read_text(), re.M):
            return m[1]
    return ""


# The ladder

_OURS: list[str] = []
"""Modules that the last load brought in, dropped before the next one so that an edit is seen."""


def climb(root: Path, place: Place) -> Loaded:
    """The function at a place, by the first rung that works."""
    try:
        text = place.path.read_text(encoding="utf-8")
        tree = ast.parse(text, filename=str(place.path))
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError) as e:
        raise LoadFailed(f"{place.path.name} can't be read as Python: {e}", "Fix the file, then run again.") from None
    definition = source.find_definition(tree, place.qualname)
    if definition is None:
        definition, place = _imported_or_inherited(root, place, tree)
        if definition is None:
            raise LoadFailed(_no_such(place, tree), "Check the name; a method is written Class.method.")
        if place.path.read_text(encoding="utf-8") != text:
            return climb(root, place)
    namespace, found, rung, stand_ins = enter(root, place, tree, lambda names: _fetch(names, place.qualname))
    return _finish(root, place, tree, text, namespace, found, rung, stand_ins)


def enter(
    root: Path, place: Place, tree: ast.Module, fetch: Callable[[dict[str, Any]], _T]
) -> tuple[dict[str, Any], _T, str, StandIns | None]:
    """The module's names and what `fetch` takes out of them, by the first rung on which both work.

    Gives namespace, fetched, rung and the stand-ins in use. Raises `LoadFailed`.
    """
    _forget(root)
    tried: list[str] = []
    rungs = list(_order(tree))
    while rungs:
        rung = rungs.pop(0)
        stand_ins = StandIns(root, place) if rung in ("stand-ins", "extracted") else None
        with _importable(place), _eager_torch():
            try:
                namespace = _RUNGS[rung](root, place, tree, stand_ins)
                return namespace, fetch(namespace), rung, stand_ins
            except BaseException as e:  # module-level code of the user's may leave by SystemExit too
                if isinstance(e, KeyboardInterrupt):
                    raise
                tried.append(f"{rung}: {_why(e)}")
                _undo(place, root)
                if not _another_way_could_help(e, place, rung):
                    rungs = [r for r in rungs if r == "extracted"]
    raise LoadFailed(
        f"{place.path.name} could not be loaded: {tried[0]}",
        "Make the file importable in this interpreter, or move the function into a file of its own.",
        tuple(tried),
    )


def _another_way_could_help(e: BaseException, place: Place, rung: str) -> bool:
    """False where the file's own module-level code fails for a reason that has nothing to do with imports."""
    if isinstance(e, (ImportError, AttributeError, LookupError)) or rung in ("extracted", "stand-ins"):
        return True
    frames = inspect.getinnerframes(e.__traceback__) if e.__traceback__ else []
    return all(f.filename != str(place.path) for f in frames)


def _order(tree: ast.Module) -> tuple[str, ...]:
    """The rungs; a script that trains when it is imported is cut up first."""
    usual = ("import", "file", "bare packages", "stand-ins", "extracted")
    return ("extracted", *usual[:-1]) if _trains_on_import(tree) else usual


def _trains_on_import(tree: ast.Module) -> bool:
    for statement in tree.body:
        if isinstance(statement, (ast.For, ast.While, ast.With)):
            calls = [
                n.func.attr
                for n in ast.walk(statement)
                if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)
            ]
            if {"backward", "step", "generate"} & set(calls):
                return True
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if ast.unparse(statement.value.func) in (
                "main",
                "train",
                "run",
                "trainer.train",
                "fire.Fire",
                "app",
                "app.run",
                "tyro.cli",
            ):
                return True
    return False


def _finish(
    root: Path, place: Place, tree: ast.Module, text: str, namespace: dict[str, Any], found: _Fetched, rung: str,
    stand_ins: StandIns | None,
) -> Loaded:  # fmt: skip
    if stand_ins is not None:
        stand_ins.loaded = True
    node = source.find_definition(tree, found.qualname)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        node = _inherited_node(tree, found.qualname)
    if node is None:
        node = _node_of(found.function)
    owner_name = found.qualname.rpartition(".")[0]
    helpers = helpers_of(tree, owner_name)
    package = place.distribution
    report = LoadReport(
        file=shown(root, place.path), line=node.lineno, rung=rung,
        stand_ins=tuple(stand_ins.names) if stand_ins else (), sha256=sha(text.encode()), package=package,
    )  # fmt: skip
    return Loaded(
        qualname=found.qualname, function=found.function, owner=found.owner, kind=found.kind, namespace=namespace,
        report=report, path=place.path, root=root, tree=tree, node=node, source=_dedent(source.segment(text, node)),
        doc=ast.get_docstring(node) or _class_doc(found.owner),
        literals=tuple(_literals(node, helpers, namespace, tree, owner_name)), helpers=helpers, stand_ins=stand_ins,
    )  # fmt: skip


def _class_doc(owner: type | None) -> str:
    return inspect.cleandoc(owner.__doc__) if owner is not None and isinstance(owner.__doc__, str) else ""


def _dedent(text: str) -> str:
    import textwrap

    return textwrap.dedent(text)


def helpers_of(tree: ast.Module, owner: str = "") -> dict[str, FunctionNode]:
    """Functions of the module by name, and methods of the class (and its bases in the file) as `self.name`."""
    out: dict[str, FunctionNode] = {}
    for node in source.definitions(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            out[node.name] = node
    seen: set[str] = set()
    queue = [owner] if owner else []
    while queue:
        name = queue.pop(0)
        cls = source.find_definition(tree, name) if name and name not in seen else None
        seen.add(name)
        if isinstance(cls, ast.ClassDef):
            for node in source.definitions(cls):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    out.setdefault(f"self.{node.name}", node)
            queue += [ast.unparse(b) for b in cls.bases]
    return out


def _literals(
    node: FunctionNode, helpers: Mapping[str, FunctionNode], namespace: Mapping[str, Any], tree: ast.Module, owner: str
) -> list[float]:
    """Numbers of the function, of the functions it calls and of the class's `__init__`."""
    constants = {k: v for k, v in namespace.items() if isinstance(v, (int, float))}
    out = source.numbers(node, constants)
    for call in (n for n in ast.walk(node) if isinstance(n, ast.Call)):
        helper = helpers.get(ast.unparse(call.func))
        if helper is not None and helper is not node:
            out += source.numbers(helper, constants)
    cls = source.find_definition(tree, owner) if owner else None
    if isinstance(cls, ast.ClassDef):
        for part in cls.body:
            if isinstance(part, (ast.AnnAssign, ast.Assign)) or (
                isinstance(part, ast.FunctionDef) and part.name == "__init__"
            ):
                out += source.numbers(part, constants)
    return list(dict.fromkeys(out))


@dataclass(frozen=True, kw_only=True)
class _Fetched:
    function: Callable[..., Any]
    owner: type | None
    kind: str
    qualname: str


def _fetch(namespace: Mapping[str, Any], qualname: str) -> _Fetched:
    """The object behind a dotted name, wrappers of torch.compile taken off; classes give their call."""
    first, _, rest = qualname.partition(".")
    if first not in namespace:
        raise LookupError(f"{first} is not defined when the module is imported")
    value: Any = namespace[first]
    owner: type | None = None
    kind = "function"
    name = first
    for part in rest.split(".") if rest else []:
        if not isinstance(value, type):
            raise LookupError(f"{name} is no class")
        owner = value
        static = inspect.getattr_static(value, part)
        kind = "static" if isinstance(static, (staticmethod, classmethod)) else "method"
        value = getattr(value, part) if kind == "static" else static
        if isinstance(value, property):
            value = value.fget
        name = f"{name}.{part}"
    if isinstance(value, type):
        owner, kind = value, "method"
        method = _call_of(value)
        value, name = inspect.getattr_static(value, method), f"{name}.{method}"
    value = _uncompiled(value)
    if isinstance(value, StandIn):
        raise LookupError(f"{qualname} is wrapped by something that is not installed here")
    if not callable(value):
        raise LookupError(f"{qualname} is a {type(value).__name__}, not a function")
    if (
        not isinstance(value, types.FunctionType)
        and owner is None
        and not hasattr(value, "__wrapped__")
        and not inspect.isroutine(value)
    ):
        bound = getattr(value, "forward", None) or value.__call__
        value = bound if inspect.ismethod(bound) else value
    return _Fetched(function=value, owner=owner, kind=kind, qualname=name)


_BUILDS = ("make_envs", "build_envs", "get_batch", "get_group_builder")
_BEGINS = ("reset", "create", "init", "initial_observation", "start_interaction", "setup_state")
_ACTS = ("step", "act", "execute", "take_action", "respond", "env_response", "generate_response", "reset")


def _of_environment(cls: type) -> str:
    """A method by which a class of environments, or a builder of them, is known: it is examined as a whole."""

    def has(names: tuple[str, ...]) -> str:
        return next((n for n in names if callable(getattr(cls, n, None))), "")

    return has(_BUILDS) or (has(_ACTS) if has(_BEGINS) else "")


def _call_of(cls: type) -> str:
    if any(c.__name__ == "Module" and c.__module__.startswith("torch.nn") for c in cls.__mro__) and hasattr(
        cls, "forward"
    ):
        return "forward"
    if "__call__" in {n for c in cls.__mro__[:-1] for n in vars(c)}:
        return "__call__"
    public = [n for n, v in vars(cls).items() if inspect.isfunction(v) and not n.startswith("_")]
    if len(public) == 1:
        return public[0]
    known = _of_environment(cls)
    if known:
        return known
    raise LookupError(f"{cls.__name__} is a class with several methods: {', '.join(public[:6])}; name one of them")


def _uncompiled(value: Any) -> Any:
    for _ in range(8):
        inner = getattr(value, "_torchdynamo_orig_callable", None)
        if inner is None or isinstance(value, StandIn):
            return value
        value = inner
    return value


def _imported_or_inherited(root: Path, place: Place, tree: ast.Module) -> tuple[Any, Place]:
    """Follows `from .x import f` and base classes to where a name is really defined."""
    first, _, rest = place.qualname.partition(".")
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                if (alias.asname or alias.name) == first:
                    path = _imported_file(root, place, node, alias.name)
                    if path is not None and path != place.path:
                        moved = place_of_file(root, path, ".".join(filter(None, [alias.name, rest])))
                        inner = ast.parse(path.read_text(encoding="utf-8"))
                        found = source.find_definition(inner, moved.qualname)
                        return (found, moved) if found is not None else _imported_or_inherited(root, moved, inner)
    cls = source.find_definition(tree, first)
    if rest and isinstance(cls, ast.ClassDef):
        node = _inherited_node(tree, place.qualname)
        if node is not None:
            return node, place
        return (cls, place) if cls.bases else (None, place)
    assigned = [
        n
        for n in tree.body
        if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id == first for t in n.targets)
    ]
    return (assigned[-1], place) if assigned and not rest else (None, place)


def _imported_file(root: Path, place: Place, node: ast.ImportFrom, name: str) -> Path | None:
    """The file in which `from <module> import <name>` finds the name."""
    if node.level:
        folder = place.path.parent
        for _ in range(node.level - 1):
            folder = folder.parent
        bases = [folder.joinpath(*(node.module or "").split("."))] if node.module else [folder]
    else:
        bases = [Path(s).joinpath(*(node.module or "").split(".")) for s in (*place.search, *sys.path) if s]
    for base in bases:
        for file in (base.with_suffix(".py"), base / f"{name}.py", base / "__init__.py"):
            if file.is_file():
                return file.resolve()
    return None


def _inherited_node(tree: ast.Module, qualname: str) -> FunctionNode | None:
    owner, _, method = qualname.rpartition(".")
    seen: set[str] = set()
    queue = [owner]
    while queue:
        name = queue.pop(0)
        if name in seen or not name:
            continue
        seen.add(name)
        node = source.find_definition(tree, f"{name}.{method}")
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return node
        cls = source.find_definition(tree, name)
        queue += [ast.unparse(b) for b in cls.bases] if isinstance(cls, ast.ClassDef) else []
    return None


def _node_of(function: Callable[..., Any]) -> FunctionNode:
    """The AST of a function that was found by running code, e.g. one made by a factory."""
    function = inspect.unwrap(function)
    while isinstance(function, functools.partial):
        function = inspect.unwrap(function.func)
    try:
        text = _dedent(inspect.getsource(function))
        node = ast.parse(text).body[0]
        if getattr(function, "__name__", "") == "<lambda>":
            node = _lambda_in(node)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            ast.increment_lineno(node, function.__code__.co_firstlineno - 1)
            return node
    except (OSError, TypeError, SyntaxError, IndexError, AttributeError):
        pass
    raise LoadFailed("the function's source can't be found", "Name a function that is written with def in a file.")


def _lambda_in(statement: ast.stmt) -> ast.stmt:
    """The only lambda of a statement as a function; the statement itself where there are several."""
    found = [n for n in ast.walk(statement) if isinstance(n, ast.Lambda)]
    if len(found) != 1:
        return statement
    made = ast.parse("def made(): pass").body[0]
    assert isinstance(made, ast.FunctionDef)
    made.args, made.body = found[0].args, [ast.copy_location(ast.Return(value=found[0].body), found[0])]
    return ast.fix_missing_locations(ast.copy_location(made, found[0]))


def _no_such(place: Place, tree: ast.Module) -> str:
    names = [n.name for n in source.definitions(tree)]
    near = ", ".join(names[:12]) or "nothing"
    return f"{place.path.name} defines no {place.qualname}; it defines {near}"


def _signature_of(node: FunctionNode) -> inspect.Signature:
    a = node.args
    defaults = [None] * (len(a.posonlyargs + a.args) - len(a.defaults)) + list(a.defaults)
    out: list[inspect.Parameter] = []
    for arg, default in zip([*a.posonlyargs, *a.args], defaults, strict=False):
        out.append(inspect.Parameter(arg.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=_literal(default)))
    for arg, default in zip(a.kwonlyargs, a.kw_defaults, strict=False):
        out.append(inspect.Parameter(arg.arg, inspect.Parameter.KEYWORD_ONLY, default=_literal(default)))
    return inspect.Signature(out)


def _literal(node: ast.expr | None) -> Any:
    if node is None:
        return inspect.Parameter.empty
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


# Surroundings of an import


@contextlib.contextmanager
def _importable(place: Place) -> Generator[None, None, None]:
    """The place's folders at the front of the path (and left there: functions import lazily), `argv` of a plain run."""
    for folder in reversed(place.search):
        if folder in sys.path:
            sys.path.remove(folder)
        sys.path.insert(0, folder)
    argv, sys.argv = sys.argv, [str(place.path)]
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.argv = argv


@contextlib.contextmanager
def _eager_torch() -> Generator[None, None, None]:
    """`torch.compile` and TorchScript as no-ops while the user's modules are imported: compiling takes seconds."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "compile"):
        yield
        return
    kept = torch.compile, torch.jit.script

    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        return model if model is not None else (lambda f: f)

    torch.compile = compile
    torch.jit.script = lambda obj, *args, **kwargs: obj
    try:
        yield
    finally:
        torch.compile, torch.jit.script = kept


def _forget(root: Path) -> None:
    for name in _OURS:
        sys.modules.pop(name, None)
    _OURS.clear()
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, StandIns)]


def _remember(before: set[str], root: Path) -> None:
    """Notes the user's own modules among those that an import added."""
    installed = installed_roots()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if isinstance(sys.modules[name], (_Bare, StandInModule)):
            _OURS.append(name)
        elif isinstance(file, str):
            path = Path(file)
            if path.is_relative_to(root) and not any(path.is_relative_to(p) for p in installed):
                _OURS.append(name)


def _undo(place: Place, root: Path) -> None:
    _forget(root)
    for name in [place.module, *(n for n, _ in place.packages)]:
        module = sys.modules.get(name)
        if isinstance(module, _Bare) or getattr(module, "__file__", None) == str(place.path):
            sys.modules.pop(name, None)


def _by_import(root: Path, place: Place, tree: ast.Module, stand_ins: StandIns | None) -> dict[str, Any]:
    before = set(sys.modules)
    top = place.module.split(".")[0]
    _drop_foreign(top, place)
    try:
        module = importlib.import_module(place.module)
    finally:
        _remember(before, root)
    file = getattr(module, "__file__", None)
    if file is None or Path(file).resolve() != place.path:
        raise ImportError(f"import {place.module} gives {file}")
    return vars(module)


def _drop_foreign(top: str, place: Place) -> None:
    """Takes a module of the same name out of the way that came from elsewhere in an earlier load."""
    module = sys.modules.get(top)
    file = getattr(module, "__file__", None)
    if module is not None and isinstance(file, str) and not place.packages and Path(file).resolve() != place.path:
        if not any(Path(file).is_relative_to(p) for p in installed_roots()) and "lib/python" not in file:
            sys.modules.pop(top)


def _by_file(root: Path, place: Place, tree: ast.Module, stand_ins: StandIns | None) -> dict[str, Any]:
    name = "_user_" + re.sub(r"\W", "_", str(place.path.stem))
    return _execute(root, place, name)


def _execute(root: Path, place: Place, name: str) -> dict[str, Any]:
    before = set(sys.modules)
    spec = importlib.util.spec_from_file_location(name, place.path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place.path.name} is no module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _OURS.append(name)
    try:
        spec.loader.exec_module(module)
    finally:
        _remember(before, root)
    return vars(module)


class _Bare(types.ModuleType):
    """A package whose `__init__` never ran; finds names by reading that `__init__`."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        for node in ast.walk(self._tree()):
            if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
                original = next(a.name for a in node.names if (a.asname or a.name) == name)
                base = "." * node.level + (node.module or "")
                module = importlib.import_module(base or ".", self.__name__)
                if hasattr(module, original):
                    return getattr(module, original)
        raise AttributeError(f"{self.__name__} was not run, and {name} was not found in it")

    def _tree(self) -> ast.Module:
        try:
            return ast.parse((Path(self.__path__[0]) / "__init__.py").read_text(encoding="utf-8"))
        except (OSError, SyntaxError):
            return ast.Module(body=[], type_ignores=[])


def _bare_packages(root: Path, place: Place, tree: ast.Module, stand_ins: StandIns | None) -> dict[str, Any]:
    if not place.packages:
        raise ImportError("the file is in no package")
    for name, folder in place.packages:
        module = _Bare(name)
        module.__path__ = [str(folder)]
        spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        module.__spec__ = spec
        module.__package__ = name
        sys.modules[name] = module
        _OURS.append(name)
        parent, _, leaf = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], leaf, module)
    if place.path.name == "__init__.py":
        return _execute(root, place, place.module)
    before = set(sys.modules)
    try:
        module = importlib.import_module(place.module)
    finally:
        _remember(before, root)
    return vars(module)


def _with_stand_ins(root: Path, place: Place, tree: ast.Module, stand_ins: StandIns | None) -> dict[str, Any]:
    assert stand_ins is not None
    sys.meta_path.append(stand_ins)
    # the finder stays: functions import lazily, and the rules keep it from answering anybody else
    if place.packages:
        return _bare_packages(root, place, tree, stand_ins)
    return _execute(root, place, place.module)


# Stand-ins for modules that are missing


class StandIns:
    """Finder at the end of `sys.meta_path`: supplies modules that are missing, to imports of the user's own files.

    Never inside `try/except ImportError`: a guarded import that succeeded would switch a missing kernel on.
    """

    def __init__(self, root: Path, place: Place) -> None:
        top = place.packages[0][1] if place.packages else place.path.parent
        self.homes = (str(root) + os.sep, str(top) + os.sep)
        self.installed = tuple(str(p) + os.sep for p in installed_roots())
        self.top = str(top) + os.sep
        self.names: list[str] = []
        self.loaded = False
        self.called: list[str] = []

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if not self._asked_by_user(name):
            return None
        return importlib.machinery.ModuleSpec(name, _StandInLoader(self), is_package=True)

    def _asked_by_user(self, name: str) -> bool:
        frame: Any = sys._getframe(2)  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        while frame is not None and "importlib._bootstrap" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is None or not self._is_user(frame.f_code.co_filename):
            return False
        package = frame.f_globals.get("__package__") or ""
        if name.split(".", maxsplit=1)[0] == package.split(".")[0] and package:
            return False  # the user's own package: a missing part of it is an error
        return _imports_at(frame.f_code.co_filename).get(frame.f_lineno) == "plain"

    def _is_user(self, filename: str) -> bool:
        if filename.startswith(self.top):
            return True
        return filename.startswith(self.homes) and not filename.startswith(self.installed)

    def note_call(self, path: str) -> None:
        if self.loaded:
            self.called.append(path)
            raise NotReached(
                f"the function calls {path}, which is not installed in this interpreter",
                f"Install {path.split('.', maxsplit=1)[0]} there, "
                "or name an interpreter that has it under [pipeline] python.",
            )

    def check(self) -> None:
        """Raises `NotReached` where a stand-in was called since the load, even if the user's code caught it."""
        if self.called:
            self.loaded, path = True, self.called[0]
            self.note_call(path)


@functools.cache
def _imports_at(filename: str) -> dict[int, str]:
    """Line -> `plain` or `guarded` for every import statement of a file."""
    try:
        tree = ast.parse(Path(filename).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return {}
    out: dict[int, str] = {}

    def walk(node: ast.AST, guarded: bool) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for line in range(node.lineno, (node.end_lineno or node.lineno) + 1):
                out[line] = "guarded" if guarded else "plain"
        if isinstance(node, ast.Try):
            inside = guarded or any(_catches_import(h) for h in node.handlers)
            for part in node.body:
                walk(part, inside)
            for part in (*node.handlers, *node.orelse, *node.finalbody):
                walk(part, guarded)
            return
        if isinstance(node, ast.With) and any("suppress" in ast.unparse(i.context_expr) for i in node.items):
            guarded = True
        for child in ast.iter_child_nodes(node):
            walk(child, guarded)

    walk(tree, False)
    return out


def _catches_import(handler: ast.ExceptHandler) -> bool:
    if handler.type is None:
        return True
    names = {n.id for n in ast.walk(handler.type) if isinstance(n, ast.Name)} | {
        n.attr for n in ast.walk(handler.type) if isinstance(n, ast.Attribute)
    }
    return bool(
        names & {"ImportError", "ModuleNotFoundError", "Exception", "BaseException", "RuntimeError", "AttributeError"}
    )


class _StandInLoader(importlib.abc.Loader):
    def __init__(self, owner: StandIns) -> None:
        self.owner = owner

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = StandInModule(spec.name)
        module.__dict__["_owner"] = self.owner
        module.__path__ = []
        top = spec.name.split(".")[0]
        if top not in self.owner.names:
            self.owner.names.append(top)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


class StandInModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _small(self.__name__, name)
        if value is None:
            value = StandIn(f"{self.__name__}.{name}", self.__dict__["_owner"])
        self.__dict__[name] = value
        return value


_WITH_MODELS = [False]
"""Whether the target of this load builds or trains a model."""


def _small(module: str, name: str) -> Any:
    """A small model's part in place of a missing library's, for functions that build or train a model; else None."""
    if not _WITH_MODELS[0] or module.split(".", maxsplit=1)[0] not in ("transformers", "peft"):
        return None
    try:
        from rltriage_probes import tiny_hub
    except ImportError:  # no torch here
        return None
    return tiny_hub.provide(module, name)


class StandInBase:
    """What a class gets as base where the real one is missing."""


class StandIn:
    """A name out of a missing module: can be inherited from, used in annotations and as a decorator, but not called."""

    def __init__(self, path: str, owner: StandIns) -> None:
        self.__dict__.update(_path=path, _owner=owner, __name__=path.rsplit(".", 1)[-1], __doc__=None)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self._path}.{name}", self._owner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._owner.note_call(self._path)
        if len(args) == 1 and not kwargs and (inspect.isfunction(args[0]) or isinstance(args[0], type)):
            return args[0]
        return StandIn(f"{self._path}()", self._owner)

    def __getitem__(self, key: Any) -> Any:
        return self

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (StandInBase,) if next(b for b in bases if isinstance(b, StandIn)) is self else ()

    def __instancecheck__(self, value: Any) -> bool:
        return False

    def __subclasscheck__(self, value: Any) -> bool:
        return False

    def __bool__(self) -> bool:
        self._owner.note_call(self._path)
        return False

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def __iter__(self) -> Any:
        self._owner.note_call(self._path)
        return iter(())


# The last rung: cutting the function out


def _extracted(root: Path, place: Place, tree: ast.Module, stand_ins: StandIns | None) -> dict[str, Any]:
    """Runs only the statements that the function needs, in their order; decorators that fail are dropped."""
    assert stand_ins is not None
    if stand_ins not in sys.meta_path:
        sys.meta_path.append(stand_ins)
    for name, folder in place.packages:
        if name not in sys.modules:
            bare = _Bare(name)
            bare.__path__ = [str(folder)]
            bare.__package__ = name
            sys.modules[name] = bare
            _OURS.append(name)
    statements = _needed(tree, [n.split(".")[0] for n in place.qualname.split("|")])
    package = place.packages[-1][0] if place.packages else ""
    namespace: dict[str, Any] = {
        "__name__": f"_extracted_{place.path.stem}", "__file__": str(place.path), "__package__": package,
        "__builtins__": __builtins__,
    }  # fmt: skip
    module = types.ModuleType(namespace["__name__"])
    sys.modules[namespace["__name__"]] = module
    _OURS.append(namespace["__name__"])
    module.__dict__.update(namespace)
    before = set(sys.modules)
    for statement in statements:
        _run_statement(statement, module.__dict__, place, stand_ins)
    _remember(before, root)
    return module.__dict__


def _run_statement(statement: ast.stmt, namespace: dict[str, Any], place: Place, stand_ins: StandIns) -> None:
    try:
        _exec(statement, namespace, place)
        return
    except BaseException as e:  # module-level code of the user's
        if isinstance(e, KeyboardInterrupt):
            raise
        failed = e
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)) and statement.decorator_list:
        bare = _without_decorators(statement)
        _exec(bare, namespace, place)
        return
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef, ast.Try, ast.If)):
        raise failed
    for name in bound_names(statement):
        if name not in namespace:
            namespace[name] = StandIn(name, stand_ins)


def _without_decorators(statement: ast.stmt) -> ast.stmt:
    import copy

    bare = copy.deepcopy(statement)
    keep = (
        "dataclass",
        "dataclasses.dataclass",
        "staticmethod",
        "classmethod",
        "property",
        "torch.no_grad",
        "contextmanager",
    )
    for node in ast.walk(bare):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            node.decorator_list = [d for d in node.decorator_list if ast.unparse(d).split("(")[0] in keep]
    return bare


def _exec(statement: ast.stmt, namespace: dict[str, Any], place: Place) -> None:
    body = ast.Module(body=[statement], type_ignores=[])
    code = compile(body, str(place.path), "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    exec(code, namespace)  # noqa: S102  the user's own source, as an import would run it


def _needed(tree: ast.Module, names: list[str]) -> list[ast.stmt]:
    """Top-level statements that the names need, in file order."""
    providers: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for bound in bound_names(statement):
            providers.setdefault(bound, []).append(statement)
    chosen: list[ast.stmt] = []
    queue = list(names)
    seen: set[str] = set()
    while queue:
        current = queue.pop()
        if current in seen:
            continue
        seen.add(current)
        for statement in providers.get(current, ()):
            if statement not in chosen and not (isinstance(statement, (ast.For, ast.While)) and current not in names):
                chosen.append(statement)
                queue += [n.id for n in ast.walk(statement) if isinstance(n, ast.Name)]
    return sorted(chosen, key=lambda s: s.lineno)


def bound_names(statement: ast.stmt) -> list[str]:
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return [statement.name]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return [(a.asname or a.name.split(".")[0]) for a in statement.names]
    if isinstance(statement, (ast.If, ast.Try, ast.With)):
        out: list[str] = []
        for part in ast.iter_child_nodes(statement):
            if isinstance(part, ast.stmt):
                out += bound_names(part)
            elif isinstance(part, ast.ExceptHandler):
                out += [n for s in part.body for n in bound_names(s)]
        return out
    return [n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]


_RUNGS: dict[str, Callable[[Path, Place, ast.Module, StandIns | None], dict[str, Any]]] = {
    "import": _by_import,
    "file": _by_file,
    "bare packages": _bare_packages,
    "stand-ins": _with_stand_ins,
    "extracted": _extracted,
}


def _why(e: BaseException) -> str:
    return clip_text(f"{type(e).__name__}: {e}".replace("\n", " "), 200)


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def shown(root: Path, path: Path) -> str:
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
