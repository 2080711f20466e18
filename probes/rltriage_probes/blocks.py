"""Pieces of a function that were never factored out: lines made into a function of their own.

The lines keep their numbers, so that a traceback points into the user's file.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rltriage_probes import loading, source
from rltriage_probes.contract import Block, LoadReport, TargetSpec
from rltriage_probes.loading import Loaded, LoadFailed

_RANGE = re.compile(r"^(?P<file>.+?)#L(?P<start>\d+)(?:-L?(?P<stop>\d+))?$")


def load_block(root: Path, target: TargetSpec) -> Loaded:
    """The block of a target as a function of the names that it reads. Raises `LoadFailed`."""
    path, module, inside, block = _bounds(root, target)
    text = path.read_text(encoding="utf-8")
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as e:
        raise LoadFailed(f"{path.name} can't be read as Python: {e}", "Fix the file, then run again.") from None
    lines = text.splitlines()
    first, last = _lines_of(tree, inside, len(lines), path)
    start = _edge(tree, block.start, _line(lines, block.start, first, last), 0)
    stop = _edge(tree, block.stop, _line(lines, block.stop, start, last), 1)
    body = _parse(tree, lines, start, stop, path)
    module_names = {n for s in tree.body for n in loading.bound_names(s)}
    free = _free_names(body, module_names)
    unknown = sorted({source.parse_path(name)[0] for name in block.inputs} - free - module_names)
    if unknown:
        raise LoadFailed(
            f"lines {start} to {stop} do not read {', '.join(unknown)}",
            f"They read {', '.join(sorted(free)) or 'nothing from outside'}; those are the names that inputs may have.",
        )
    _check_output(block.output, body, free, module_names)
    node = _function(body, sorted(free), block.output, start)
    needed = sorted(_read_names(body) & module_names)
    place = loading.place_of_file(root, path, "|".join(needed) or "_", module)
    namespace, _, rung, stand_ins = loading.enter(root, place, tree, lambda names: None)
    try:
        code = compile(ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[])), str(path), "exec")
    except SyntaxError as e:
        raise LoadFailed(
            f"lines {start} to {stop} of {path.name} can't stand alone: {e.msg} (line {e.lineno})",
            "Leave break, continue, yield and await of an enclosing statement out, or take the whole statement.",
        ) from None
    scope: dict[str, Any] = dict(namespace)
    exec(code, scope)  # noqa: S102  the user's own lines
    if stand_ins is not None:
        stand_ins.loaded = True
    report = LoadReport(
        file=loading.shown(root, path), line=start, rung=rung, sha256=loading.sha(text.encode()),
        package=place.distribution,
        stand_ins=tuple(stand_ins.names) if stand_ins else (),
    )  # fmt: skip
    constants = {k: v for k, v in namespace.items() if isinstance(v, (int, float))}
    return Loaded(
        qualname=f"{path.name}#L{start}-L{stop}", function=scope["_block"], owner=None, kind="block", namespace=scope,
        report=report, path=path, root=root, tree=tree, node=node,
        source=textwrap.dedent("\n".join(lines[start - 1 : stop])),
        doc="", literals=tuple(source.numbers(node, constants)), helpers=loading.helpers_of(tree), stand_ins=stand_ins,
    )  # fmt: skip


def _bounds(root: Path, target: TargetSpec) -> tuple[Path, str, str, Block]:
    """File of the block, its module as the ref spells it, the function that holds the block, and the bounds."""
    found = _RANGE.match(target.ref)
    given = target.block
    if found:
        start, stop = found["start"], found["stop"] or found["start"]
        block = given or Block(start=start, stop=stop)
        path = loading.confined(root, found["file"])
        return path, "", "", Block(start=start, stop=stop, inputs=block.inputs, output=block.output)
    if given is None:
        raise LoadFailed(f"{target.ref!r} names no lines", "Write file.py#L10-L20.")
    if ":" not in target.ref:
        return loading.confined(root, target.ref), "", "", given
    place = loading.find(root, target.ref)
    spelt_as_module = target.ref.rpartition(":")[0] == place.module
    return place.path, place.module if spelt_as_module else "", place.qualname, given


def _lines_of(tree: ast.Module, qualname: str, lines: int, path: Path) -> tuple[int, int]:
    """First and last line of a function; of the whole file where none is named."""
    if not qualname:
        return 1, lines
    node = source.find_definition(tree, qualname)
    if node is None:
        raise LoadFailed(f"{path.name} defines no {qualname}", "Name the function that holds the lines.")
    return node.lineno, node.end_lineno or lines


def _line(lines: list[str], bound: str, first: int, last: int) -> int:
    """Number of the line that a bound names: a number, or text of which the line is the first to contain it."""
    if bound.strip().isdigit():
        number = int(bound)
        if not 1 <= number <= len(lines):
            raise LoadFailed(f"there is no line {number}; the file has {len(lines)}", "Give a line of the file.")
        return number
    for number in range(first, last + 1):
        if bound in lines[number - 1]:
            return number
    raise LoadFailed(f"no line from {first} to {last} contains {bound!r}", "Give text that stands there.")


def _edge(tree: ast.Module, bound: str, line: int, side: int) -> int:
    """First (side 0) or last line of the statement at a line. A number has to name that line itself."""
    around = _statement(tree, line)
    if bound.strip().isdigit() and around[side] != line:
        raise LoadFailed(
            f"line {line} lies inside the statement of lines {around[0]} to {around[1]}",
            f"{'Start with' if side == 0 else 'End with'} L{around[side]}.",
        )
    return around[side]


def _statement(tree: ast.Module, line: int) -> tuple[int, int]:
    """First and last line of the statement at a line; of one that holds others only its own line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body") and node.lineno <= line <= (node.end_lineno or 0):
            return node.lineno, node.end_lineno or line
    return line, line


def _parse(tree: ast.Module, lines: list[str], start: int, stop: int, path: Path) -> list[ast.stmt]:
    if stop < start:
        raise LoadFailed(f"the block ends (line {stop}) before it starts (line {start})", "Swap the bounds.")
    piece = textwrap.dedent("\n".join(lines[start - 1 : stop]))
    try:
        module = ast.parse(piece)
    except SyntaxError as e:
        raise LoadFailed(
            f"lines {start} to {stop} of {path.name} are no whole statements: {_said(e)}", _whole(tree, start, stop)
        ) from None
    if not module.body:
        raise LoadFailed(f"lines {start} to {stop} of {path.name} hold no statement", "Take lines that compute.")
    ast.increment_lineno(module, start - 1)
    return module.body


def _said(e: SyntaxError) -> str:
    """The message, without the numbers of lines, which count from the first of the piece."""
    return re.sub(r" (?:on|at|from) line \d+", "", e.msg)


def _whole(tree: ast.Module, start: int, stop: int) -> str:
    """What to do about lines that cut a statement in two: the nearest lines that are whole."""
    cut = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.stmt)
        and hasattr(n, "body")
        and not isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and ((n.lineno < start <= (n.end_lineno or 0) < stop) or (start <= n.lineno <= stop < (n.end_lineno or 0)))
    ]
    if not cut:
        return "Start and end the block at the same indentation."
    low, high = min(start, *(n.lineno for n in cut)), max(stop, *(n.end_lineno or 0 for n in cut))
    return f"They cut a statement in two; whole are lines L{low}-L{high}, or lines inside of it alone."


def _check_output(output: str, body: list[ast.stmt], free: set[str], module_names: set[str]) -> None:
    """Raises `LoadFailed` where the result is not said, or reads a name that is nowhere."""
    assigned = _assigned(body)
    if not output:
        last = body[-1]
        if not isinstance(last, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return)):
            said = f"They compute {', '.join(assigned[-8:])}" if assigned else "They assign nothing"
            example = assigned[-1] if assigned else "<expression>"
            raise LoadFailed(
                "it is not said which value of these lines is the result", f'{said}; add output = "{example}".'
            )
        return
    try:
        wanted = _read_names([ast.parse(output).body[0]])
    except (SyntaxError, IndexError):
        return  # said where the function is made
    own = {n.id for n in ast.walk(ast.parse(output)) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    nowhere = sorted(wanted - own - set(assigned) - free - module_names - set(dir(builtins)))
    if nowhere:
        raise LoadFailed(
            f"the output {output!r} reads {', '.join(nowhere)}, which these lines do not compute",
            f"They compute {', '.join(assigned[-8:]) or 'nothing'}.",
        )


def _assigned(body: list[ast.stmt]) -> list[str]:
    """Names that the lines assign, in the order in which they first do."""
    found = [
        n.id
        for s in body
        for n in sorted(
            (x for x in ast.walk(s) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)), key=lambda x: x.lineno
        )
    ]
    return list(dict.fromkeys(found))


def _function(body: list[ast.stmt], names: list[str], output: str, line: int) -> ast.FunctionDef:
    result = output or _last_assigned(body)
    try:
        value = ast.parse(result, mode="eval").body
    except SyntaxError as e:
        raise LoadFailed(
            f"the block's output {result!r} is no expression: {e.msg}", "Name a value that the block computes."
        ) from None
    node = ast.parse(f"def _block({', '.join(names)}):\n    pass").body[0]
    assert isinstance(node, ast.FunctionDef)
    returning = ast.Return(value=value)
    node.body = [*body, returning]
    node.lineno = node.end_lineno = line
    for part in ast.walk(returning):
        if hasattr(part, "lineno") or isinstance(part, (ast.expr, ast.stmt)):
            part.lineno = part.end_lineno = body[-1].end_lineno or line  # type: ignore[attr-defined]
            part.col_offset = part.end_col_offset = 0  # type: ignore[attr-defined]
    return node


def _last_assigned(body: list[ast.stmt]) -> str:
    for statement in reversed(body):
        if isinstance(statement, ast.Assign):
            return ast.unparse(statement.targets[0])
        if isinstance(statement, (ast.AugAssign, ast.AnnAssign)):
            return ast.unparse(statement.target)
        if isinstance(statement, ast.Return) and statement.value is not None:
            return ast.unparse(statement.value)
    raise LoadFailed("the block assigns nothing", 'Say what it gives: output = "<expression>".')


def _read_names(body: list[ast.stmt]) -> set[str]:
    return {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def _free_names(body: list[ast.stmt], module_names: set[str]) -> set[str]:
    """Names that the block reads before it assigns them, and that are neither the module's nor built in."""
    free: set[str] = set()
    _follow(body, set(), free)
    return free - module_names - set(dir(builtins))


def _follow(body: Sequence[ast.AST], assigned: set[str], free: set[str]) -> None:
    """Goes through statements in the order in which they run; what one branch assigns counts as assigned behind it."""
    for node in body:
        if isinstance(node, (ast.If, ast.While)):
            _read(node.test, assigned, free)
            _branches((node.body, node.orelse), assigned, free)
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            _read(node.iter, assigned, free)
            _write(node.target, assigned, free)
            _branches((node.body, node.orelse), assigned, free)
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                _read(item.context_expr, assigned, free)
                if item.optional_vars is not None:
                    _write(item.optional_vars, assigned, free)
            _follow(node.body, assigned, free)
        elif isinstance(node, ast.Try):
            _branches((node.body, *(h.body for h in node.handlers)), assigned, free)
            _follow((*node.orelse, *node.finalbody), assigned, free)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            _read(node, assigned, free)
            assigned.add(node.name)
        else:
            _simple(node, assigned, free)


def _branches(branches: Iterable[Sequence[ast.stmt]], assigned: set[str], free: set[str]) -> None:
    before = set(assigned)
    for branch in branches:
        inside = set(before)
        _follow(branch, inside, free)
        assigned |= inside


def _simple(node: ast.AST, assigned: set[str], free: set[str]) -> None:
    _read(node, assigned, free)
    if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and node.target.id not in assigned:
        free.add(node.target.id)
    for part in ast.walk(node):
        if isinstance(part, (ast.Import, ast.ImportFrom)):
            assigned |= {(a.asname or a.name).split(".")[0] for a in part.names}
        elif isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
            assigned.add(part.id)


def _write(target: ast.expr, assigned: set[str], free: set[str]) -> None:
    _read(target, assigned, free)
    assigned |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _read(node: ast.AST, assigned: set[str], free: set[str]) -> None:
    """Notes what an expression (or a nested function) reads, its own parameters and loop variables left out."""
    own: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.arg):
            own.add(part.arg)
        elif isinstance(part, ast.comprehension):
            own |= {n.id for n in ast.walk(part.target) if isinstance(n, ast.Name)}
        elif isinstance(part, ast.NamedExpr):
            own.add(part.target.id)
    nested = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    if nested:
        own |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    free |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)} - assigned - own
