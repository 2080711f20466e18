"""Wrong functions made from right ones: one small change to one place of the source.

Each operator is a mistake that people make (a sign, a neighbour, an axis, an epsilon, a mask, an order of arguments,
a detach, a precision, a min for a max...). No operator knows any role of rltriage. Whether a mutant is wrong at all is
found out by running it (`truth.py`), not by asking rltriage.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass

Path = tuple[tuple[str, int | None], ...]
"""How to get from the function's node to one inside it: field names, with the place in a list."""
Operator = Callable[[ast.AST], Iterator[ast.AST | None]]
"""Replacements for a node; None stands for leaving the statement out."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One changed function in an otherwise unchanged module."""

    base: str
    operator: str
    line: int
    says: str
    """`before -> after`."""
    code: str
    """The whole module."""

    @property
    def name(self) -> str:
        return f"{self.base} line {self.line}, {self.operator}: {self.says}"


def mutants(source: str, function: str) -> list[Mutant]:
    """Every mutant of one function, in the order of the source."""
    tree = ast.parse(source)
    at = next(i for i, n in enumerate(tree.body) if isinstance(n, ast.FunctionDef) and n.name == function)
    node = tree.body[at]
    out: dict[str, Mutant] = {}
    for path, inner in _walk(node, ()):
        for operator in OPERATORS:
            for new in operator(inner):
                changed = copy.deepcopy(tree)
                _put(changed.body[at], path, new)
                try:
                    code = ast.unparse(ast.fix_missing_locations(changed))
                except (ValueError, AttributeError):
                    continue
                after = "(nothing)" if new is None else ast.unparse(ast.fix_missing_locations(new))
                says = f"{ast.unparse(inner)} -> {after}"
                line = getattr(inner, "lineno", node.lineno) - node.lineno
                made = Mutant(base=function, operator=operator.__name__, line=line, says=says, code=code)
                out.setdefault(code, made)
    return list(out.values())


def _walk(node: ast.AST, path: Path) -> Iterator[tuple[Path, ast.AST]]:
    for field, value in ast.iter_fields(node):
        if field in ("decorator_list", "returns", "annotation", "ctx", "op", "ops"):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for i, child in children:
            if not isinstance(child, ast.AST):
                continue
            if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                continue  # the docstring
            here = (*path, (field, i))
            yield here, child
            yield from _walk(child, here)


def _put(root: ast.AST, path: Path, new: ast.AST | None) -> None:
    node = root
    for field, i in path[:-1]:
        value = getattr(node, field)
        node = value if i is None else value[i]
    field, i = path[-1]
    if i is None:
        setattr(node, field, new)
    elif new is None:
        del getattr(node, field)[i]
        if not getattr(node, field):
            getattr(node, field).append(ast.Pass())
    else:
        getattr(node, field)[i] = new


# Operators


def sign(node: ast.AST) -> Iterator[ast.AST]:
    """Plus for minus, and a minus too many or too few."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
        yield ast.BinOp(node.left, ast.Sub() if isinstance(node.op, ast.Add) else ast.Add(), node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and not isinstance(node.operand, ast.Constant):
        yield node.operand
    if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Tuple):
        yield ast.Return(ast.UnaryOp(ast.USub(), node.value))


def factor(node: ast.AST) -> Iterator[ast.AST]:
    """Times for divided by."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        yield ast.BinOp(node.left, ast.Div() if isinstance(node.op, ast.Mult) else ast.Mult(), node.right)


def swapped(node: ast.AST) -> Iterator[ast.AST]:
    """Operands and arguments in the other order."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div):
        yield ast.BinOp(node.right, node.op, node.left)
    if isinstance(node, ast.Call) and len(node.args) >= 2:
        yield ast.Call(node.func, [node.args[1], node.args[0], *node.args[2:]], node.keywords)
    if isinstance(node, ast.IfExp):
        yield ast.IfExp(node.test, node.orelse, node.body)


def shifted(node: ast.AST) -> Iterator[ast.AST]:
    """The neighbour: the other end of a slice, an index one further."""
    if isinstance(node, ast.Slice):
        if _int(node.lower) == 1 and node.upper is None:
            yield ast.Slice(None, ast.UnaryOp(ast.USub(), ast.Constant(1)), None)
        if node.lower is None and _int(node.upper) == -1:
            yield ast.Slice(ast.Constant(1), None, None)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub) and _int(node.right) == 1:
        yield node.left
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Name):
        yield ast.Subscript(node.value, ast.BinOp(node.slice, ast.Sub(), ast.Constant(1)), ast.Load())
    if isinstance(node, ast.Subscript) and _int(node.slice) in (0, -1):
        yield ast.Subscript(node.value, ast.Constant(0 if _int(node.slice) == -1 else -1), ast.Load())


def rolled(node: ast.AST) -> Iterator[ast.AST]:
    """A tensor argument of a call moved by one position."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Mult) and isinstance(node.right, ast.Name):
        call = ast.Call(
            ast.Attribute(node.right, "roll", ast.Load()),
            [ast.Constant(1), ast.UnaryOp(ast.USub(), ast.Constant(1))],
            [],
        )
        yield ast.BinOp(node.left, node.op, call)


def axis(node: ast.AST) -> Iterator[ast.AST]:
    """Another dimension of a reduction."""
    if isinstance(node, ast.Call):
        for i, k in enumerate(node.keywords):
            if k.arg in ("dim", "axis") and _int(k.value) is not None:
                new = ast.Constant(1 if _int(k.value) == 0 else 0)
                yield ast.Call(
                    node.func, node.args, [*node.keywords[:i], ast.keyword(k.arg, new), *node.keywords[i + 1 :]]
                )
        if isinstance(node.func, ast.Attribute) and node.func.attr in ("sum", "mean", "logsumexp", "softmax", "std"):
            for i, a in enumerate(node.args):
                if _int(a) is not None:
                    args = [*node.args[:i], ast.Constant(1 if _int(a) == 0 else 0), *node.args[i + 1 :]]
                    yield ast.Call(node.func, args, node.keywords)


def epsilon(node: ast.AST) -> Iterator[ast.AST]:
    """A small constant that isn't small."""
    if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value <= 1e-3:
        yield ast.Constant(1.0)
        yield ast.Constant(0.1)


def constant(node: ast.AST) -> Iterator[ast.AST]:
    """A constant of an expression doubled, halved, or the other one of 0 and 1."""
    if isinstance(node, ast.BinOp):
        for side in ("left", "right"):
            value = getattr(node, side)
            if isinstance(value, ast.Constant) and isinstance(value.value, int | float) and value.value:
                other = copy.copy(node)
                setattr(other, side, ast.Constant(value.value * 2))
                yield other
    if isinstance(node, ast.Constant) and type(node.value) is float and node.value in (0.0, 1.0):
        yield ast.Constant(1.0 - node.value)


def unmasked(node: ast.AST) -> Iterator[ast.AST]:
    """A mask left out, or counted in padding too."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        if _is_mask(node.right):
            yield node.left
        if _is_mask(node.left):
            yield node.right
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sum":
        if _is_mask(node.func.value) and not node.args and not node.keywords:
            yield ast.Call(ast.Attribute(node.func.value, "numel", ast.Load()), [], [])


def inverted_mask(node: ast.AST) -> Iterator[ast.AST]:
    """A mask taken for its opposite."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult) and _is_mask(node.right):
        yield ast.BinOp(node.left, node.op, ast.BinOp(ast.Constant(1), ast.Sub(), node.right))


def detached(node: ast.AST) -> Iterator[ast.AST]:
    """A gradient cut, or let through."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "detach":
        yield node.func.value
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp | ast.Call):
        yield ast.Assign(
            node.targets, ast.Call(ast.Attribute(node.value, "detach", ast.Load()), [], []), lineno=node.lineno
        )


def precision(node: ast.AST) -> Iterator[ast.AST]:
    """An intermediate result kept in half precision."""
    if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.value, ast.BinOp | ast.Call):
        half = ast.Call(ast.Attribute(node.value, "bfloat16", ast.Load()), [], [])
        yield ast.Assign(node.targets, ast.Call(ast.Attribute(half, "float", ast.Load()), [], []), lineno=node.lineno)


_OPPOSITE = {
    "min": "max",
    "max": "min",
    "minimum": "maximum",
    "maximum": "minimum",
    "argmax": "argmin",
    "rfind": "find",
}
_OTHER = {
    "mean": "sum", "std": "var", "log_softmax": "softmax", "softmax": "log_softmax", "logsigmoid": "sigmoid",
    "log1p": "log", "any": "all", "rsplit": "split", "logsumexp": "amax",
}  # fmt: skip


def min_for_max(node: ast.AST) -> Iterator[ast.AST]:
    """The other one of min and max, as function, method or argument."""
    if isinstance(node, ast.Attribute) and node.attr in _OPPOSITE:
        yield ast.Attribute(node.value, _OPPOSITE[node.attr], ast.Load())
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "clamp":
        for i, k in enumerate(node.keywords):
            if k.arg in ("min", "max"):
                new = ast.keyword(_OPPOSITE[k.arg], k.value)
                yield ast.Call(node.func, node.args, [*node.keywords[:i], new, *node.keywords[i + 1 :]])


def other_function(node: ast.AST) -> Iterator[ast.AST]:
    """A function that is near the right one."""
    if isinstance(node, ast.Attribute) and node.attr in _OTHER:
        yield ast.Attribute(node.value, _OTHER[node.attr], ast.Load())


def left_out(node: ast.AST) -> Iterator[ast.AST]:
    """A function that is not applied."""
    names = ("exp", "log", "abs", "sqrt", "clamp", "float", "cumsum", "strip", "rstrip", "log1p", "logsigmoid", "pow")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names:
        library = isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "F")
        if library and node.args:
            yield node.args[0]
        elif not library:
            yield node.func.value


def comparison(node: ast.AST) -> Iterator[ast.AST]:
    """A comparison at its edge, or the wrong way round."""
    other = {
        ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
        ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.In: (ast.NotIn,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,),
    }  # fmt: skip
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for op in other.get(type(node.ops[0]), ()):
            yield ast.Compare(node.left, [op()], node.comparators)


def logic(node: ast.AST) -> Iterator[ast.AST]:
    """`or` for `and`, and a `not` too few."""
    if isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def forgotten(node: ast.AST) -> Iterator[None]:
    """A statement left out."""
    if isinstance(node, ast.AugAssign | ast.Break | ast.Continue):
        yield None


OPERATORS: tuple[Operator, ...] = (
    sign, factor, swapped, shifted, rolled, axis, epsilon, constant, unmasked, inverted_mask, detached, precision,
    min_for_max, other_function, left_out, comparison, logic, forgotten,
)  # fmt: skip


def _int(node: ast.AST | None) -> int | None:
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _int(node.operand)
        return None if inner is None else -inner
    return None


def _is_mask(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and ("mask" in node.id or node.id in ("keep", "m"))
