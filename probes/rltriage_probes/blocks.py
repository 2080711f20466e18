"""Pieces of a function that were never factored out: lines made into a function of their own.

The lines keep their numbers, so that a traceback points into the user's file.
"""

from __future__ import annotations

import ast
import builtins
import re
import textwrap
from pathlib import Path
from typing import Any

from rltriage_probes import loading, source
from rltriage_probes.contract import Block, LoadReport, TargetSpec
from rltriage_probes.loading import Loaded, LoadFailed

_RANGE = re.compile(r"^(?P<file>.+?)#L(?P<start>\d+)(?:-L?(?P<stop>\d+))?$")


def load_block(root: Path, target: TargetSpec) -> Loaded:
    """The block of a target as a function of the names that it reads. Raises `LoadFailed`."""
    file, block = _bounds(target)
    path = loading.confined(root, file)
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    start, stop = _line(lines, block.start, 1), 0
    stop = _line(lines, block.stop, start)
    body = _parse(lines, start, stop, path)
    try:
        tree = ast.parse(text, filename=str(path))
    except SyntaxError as e:
        raise LoadFailed(f"{path.name} can't be read as Python: {e}", "Fix the file, then run again.") from None
    module_names = {n for s in tree.body for n in loading.bound_names(s)}
    free = _free_names(body, module_names)
    unknown = sorted(set(block.inputs) - free - module_names)
    if unknown:
        raise LoadFailed(f"the block does not read {', '.join(unknown)}", f"It reads {', '.join(sorted(free))}.")
    node = _function(body, sorted(free | set(block.inputs)), block.output, start)
    needed = sorted(_read_names(body) & module_names)
    place = loading.place_of_file(root, path, "|".join(needed) or "_")
    namespace, _, rung, stand_ins = loading.enter(root, place, tree, lambda names: None)
    code = compile(ast.fix_missing_locations(ast.Module(body=[node], type_ignores=[])), str(path), "exec")
    scope: dict[str, Any] = dict(namespace)
    exec(code, scope)  # noqa: S102  the user's own lines
    if stand_ins is not None:
        stand_ins.loaded = True
    report = LoadReport(
        file=loading.shown(root, path), line=start, rung=rung, sha256=loading.sha(text.encode()), package=place.distribution,
        stand_ins=tuple(stand_ins.names) if stand_ins else (),
    )  # fmt: skip
    constants = {k: v for k, v in namespace.items() if isinstance(v, (int, float))}
    return Loaded(
        qualname=f"{path.name}#L{start}-L{stop}", function=scope["_block"], owner=None, kind="block", namespace=scope,
        report=report, path=path, root=root, tree=tree, node=node, source=textwrap.dedent("\n".join(lines[start - 1 : stop])),
        doc="", literals=tuple(source.numbers(node, constants)), helpers=loading.helpers_of(tree), stand_ins=stand_ins,
    )  # fmt: skip


def _bounds(target: TargetSpec) -> tuple[str, Block]:
    found = _RANGE.match(target.ref)
    given = target.block
    if found:
        start, stop = found["start"], found["stop"] or found["start"]
        block = given or Block(start=start, stop=stop)
        return found["file"], Block(start=start, stop=stop, inputs=block.inputs, output=block.output)
    if given is None:
        raise LoadFailed(f"{target.ref!r} names no lines", "Write file.py#L10-L20.")
    return target.ref.partition(":")[0], given


def _line(lines: list[str], bound: str, after: int) -> int:
    """Number of the line that a bound names: a number, or text of which the line is the first to contain it."""
    if bound.strip().isdigit():
        number = int(bound)
        if not 1 <= number <= len(lines):
            raise LoadFailed(f"there is no line {number}; the file has {len(lines)}", "Give a line of the file.")
        return number
    for number in range(after, len(lines) + 1):
        if bound in lines[number - 1]:
            return number
    raise LoadFailed(f"no line from {after} on contains {bound!r}", "Give text that stands in the file.")


def _parse(lines: list[str], start: int, stop: int, path: Path) -> list[ast.stmt]:
    if stop < start:
        raise LoadFailed(f"the block ends (line {stop}) before it starts (line {start})", "Swap the bounds.")
    piece = textwrap.dedent("\n".join(lines[start - 1 : stop]))
    try:
        module = ast.parse(piece)
    except SyntaxError as e:
        raise LoadFailed(
            f"lines {start} to {stop} of {path.name} are no whole statements: {e.msg}",
            "Start and end the block at the same indentation.",
        ) from None
    ast.increment_lineno(module, start - 1)
    return module.body


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
    assigned: set[str] = set()
    free: set[str] = set()
    for statement in body:
        inner = {
            n.id
            for n in ast.walk(statement)
            if isinstance(n, ast.comprehension)
            for n in ast.walk(n.target)
            if isinstance(n, ast.Name)
        }
        inner |= {
            a.arg for n in ast.walk(statement) if isinstance(n, (ast.Lambda, ast.FunctionDef)) for a in n.args.args
        }
        loops = {
            n.id
            for s in ast.walk(statement)
            if isinstance(s, ast.For)
            for n in ast.walk(s.target)
            if isinstance(n, ast.Name)
        }
        reads = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
            reads.add(statement.target.id)
        simple = isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr, ast.Return))
        stores = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        free |= reads - assigned - inner - loops - (set() if simple else stores)
        assigned |= stores | {s.name for s in ast.walk(statement) if isinstance(s, ast.FunctionDef)}
    return free - module_names - set(dir(builtins))
