"""What a function's source says about its inputs, read from the AST: no torch, nothing is run.

A *path* is a tuple of steps behind a parameter: `("key", "rewards")` for `batch["rewards"]`,
`("attr", "beta")` for `cfg.beta`, `("each", "")` for an element of a list.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Step = tuple[str, str]
Path = tuple[Step, ...]
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef

_NO_KEYS = frozenset("shape dtype device T mT ndim requires_grad is_cuda real grad_fn layout itemsize nbytes".split())
_DICT_METHODS = frozenset("get pop setdefault keys items values update copy to cuda cpu".split())
_TENSOR_METHODS = frozenset(
    "sum mean std var view reshape float long int bool double half bfloat16 to type size dim numel "
    "unsqueeze squeeze expand "
    "expand_as exp log clamp clip abs max min gather detach clone item tolist numpy eq ne gt lt ge "
    "le any all cumsum cumprod "
    "flatten unflatten repeat repeat_interleave masked_fill scatter scatter_ masked_select "
    "index_select select split chunk "
    "unbind argmax argmin softmax log_softmax logsumexp square sqrt pow sign new_zeros new_tensor new_ones new_full "
    "zero_ requires_grad_ backward cpu cuda device type_as contiguous permute transpose t roll flip sort argsort topk "
    "nonzero where nanmean nansum isnan isfinite isinf sigmoid tanh div div_ mul mul_ add add_ sub sub_ neg "
    "append extend insert remove index count strip lower upper startswith endswith split rsplit "
    "partition rpartition replace "
    "find rfind rindex join encode decode format lstrip rstrip isdigit splitlines is_floating_point "
    "fill_ copy_ view_as "
    "nan_to_num bitwise_and bitwise_not logical_not logical_and std_mean var_mean narrow movedim "
    "unique diff prod round "
    "floor ceil reshape_as astype ravel copy".split()
)


@dataclass(kw_only=True)
class Read:
    """One place that the function reads from a parameter."""

    path: Path
    optional: bool = False
    """Read with a fallback: `.get`, `getattr` with a default, or behind `in`/`hasattr`."""
    compared: set[str] = field(default_factory=set)
    """Strings that the value is compared with."""
    tested: bool = False
    """Seen behind `in` only: `"x" in text` looks like `"x" in batch`."""
    fallback: Any = None
    """The literal that stands in where the entry is missing; None where there is none."""


@dataclass(kw_only=True)
class Facts:
    """What the source says about the parameters of one function."""

    reads: dict[str, dict[Path, Read]] = field(default_factory=dict)
    """Parameter -> path behind it -> read; the empty path stands for the parameter itself."""
    methods: dict[str, set[str]] = field(default_factory=dict)
    """Parameter -> names of unknown methods that are called on it."""
    signs: dict[str, set[str]] = field(default_factory=dict)
    """Parameter -> signs of its form: `iterated`, `grouped`, `message`, `numpy`, `summed`, `len`, ..."""
    sites: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Line of a call -> names that its result is assigned to."""
    site_calls: dict[int, str] = field(default_factory=dict)
    """The same lines -> what is called: `self.method` or `function`."""
    returned: tuple[str, ...] = ()
    """Names of the parts of the tuple that the last `return` gives; empty strings for other expressions."""
    doc: str = ""
    text: str = ""

    def compared(self, name: str, path: Path = ()) -> set[str]:
        read = self.reads.get(name, {}).get(path)
        return read.compared if read else set()

    def has(self, name: str, *signs: str) -> bool:
        return bool(self.signs.get(name, set()) & set(signs))

    def read(self, name: str, path: Path) -> Read:
        return self.reads.setdefault(name, {}).setdefault(path, Read(path=path))


def render(root: str, path: Path) -> str:
    """`batch`, (("attr", "batch"), ("key", "x")) -> `batch.batch["x"]`."""
    text = root
    for kind, name in path:
        text += f".{name}" if kind == "attr" else f'["{name}"]' if kind == "key" else "[*]"
    return text


_PATH = re.compile(r"""\.(?P<attr>\w+)|\[(?P<q>['"])(?P<key>.*?)(?P=q)\]|(?P<each>\[\*\])""")


def parse_path(text: str) -> tuple[str, Path]:
    """The inverse of `render`; `ValueError` where the text is no path."""
    head = re.match(r"\w+", text)
    if head is None:
        raise ValueError(f"{text!r} is not a parameter or a path behind one")
    steps: list[Step] = []
    at = head.end()
    while at < len(text):
        found = _PATH.match(text, at)
        if found is None:
            raise ValueError(f'{text!r} is not a path such as batch.rewards, self.beta or batch["x"]')
        attr, key = found["attr"], found["key"]
        steps.append(("attr", attr) if attr else ("key", key) if key is not None else ("each", ""))
        at = found.end()
    return head[0], tuple(steps)


def find_definition(tree: ast.Module, qualname: str) -> FunctionNode | ast.ClassDef | None:
    """The (last) definition of `name` or `Class.name`, wherever it is nested under `if` or `try`."""
    scope: ast.AST = tree
    for part in qualname.split("."):
        found = [n for n in definitions(scope) if n.name == part]
        if not found:
            return None
        scope = found[-1]
    return scope if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) else None


def definitions(scope: ast.AST) -> Iterable[FunctionNode | ast.ClassDef]:
    """Functions and classes that a scope defines, also under `if`, `try` and loops."""
    for child in ast.iter_child_nodes(scope):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield child
        elif isinstance(child, (ast.If, ast.Try, ast.With, ast.For, ast.While, ast.ExceptHandler)):
            yield from definitions(child)


def segment(text: str, node: FunctionNode | ast.ClassDef) -> str:
    """The lines of a definition with its decorators, as they stand in the file."""
    first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
    return "\n".join(text.splitlines()[first - 1 : node.end_lineno])


def analyse(node: FunctionNode, helpers: Mapping[str, FunctionNode], text: str = "") -> Facts:
    """Facts about `node`.

    `helpers` are the other functions within reach: `name` for functions of the module, `self.name` for
    methods of the class. Containers are followed into them.
    """
    facts = Facts(doc=ast.get_docstring(node) or "", text=text)
    names = parameter_names(node)
    env: dict[str, list[tuple[str, Path]]] = {n: [(n, ())] for n in names}
    _Reader(facts, env, helpers, depth=0).run(node)
    facts.returned = _returned(node)
    return facts


def _returned(node: FunctionNode) -> tuple[str, ...]:
    tuples = [n.value for n in ast.walk(node) if isinstance(n, ast.Return) and isinstance(n.value, ast.Tuple)]
    return tuple(e.id if isinstance(e, ast.Name) else "" for e in tuples[-1].elts) if tuples else ()


def parameter_names(node: FunctionNode) -> list[str]:
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *([a.vararg] if a.vararg else []), *([a.kwarg] if a.kwarg else [])]
    return [x.arg for x in every]


class _Reader(ast.NodeVisitor):
    """Follows parameters through local names, loops and helper functions."""

    def __init__(
        self, facts: Facts, env: dict[str, list[tuple[str, Path]]], helpers: Mapping[str, FunctionNode], depth: int
    ) -> None:
        self.facts = facts
        self.env = env
        self.helpers = helpers
        self.depth = depth
        self.words: dict[str, list[str]] = {}
        """Loop variables over constant strings."""
        self.picks: dict[str, list[str]] = {}
        """Local names that hold one of several constant strings."""

    def run(self, node: FunctionNode) -> None:
        for statement in node.body:
            self.visit(statement)

    # Chains

    def chains(self, node: ast.expr) -> list[tuple[str, Path]]:
        """Every (parameter, path) that the expression may be; empty where it is none."""
        if isinstance(node, ast.Name):
            return self.env.get(node.id, [])
        if isinstance(node, ast.Attribute):
            return [(root, (*path, ("attr", node.attr))) for root, path in self.chains(node.value)]
        if isinstance(node, ast.Subscript):
            if isinstance(node.slice, ast.BinOp) and isinstance(node.slice.op, ast.FloorDiv):
                for root, path in self.chains(node.value):
                    self.sign(render(root, path), "a row's group")
            keys = self._keys(node.slice) or self._chosen(node.slice)
            below = self.chains(node.value)
            if keys:
                return [(root, (*path, ("key", key))) for root, path in below for key in keys]
            return [(root, (*path, ("each", ""))) for root, path in below] if not _is_slice(node.slice) else []
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("get", "pop")
            and node.args
        ):
            keys = self._keys(node.args[0])
            return [(root, (*path, ("key", key))) for root, path in self.chains(node.func.value) for key in keys]
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id == "getattr"
            and len(node.args) > 1
        ):
            keys = self._keys(node.args[1])
            return [(root, (*path, ("attr", key))) for root, path in self.chains(node.args[0]) for key in keys]
        return []

    def _keys(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return [node.value]
        if isinstance(node, ast.Name):
            return self.words.get(node.id, [])
        return []

    def _chosen(self, node: ast.expr) -> list[str]:
        """Strings that an index may be: `"a" if flag else "b"`, or a name that was set to one of them."""
        if isinstance(node, ast.Name):
            return self.picks.get(node.id, [])
        if isinstance(node, ast.IfExp):
            return [*self._keys(node.body), *self._keys(node.orelse)]
        return []

    def note(self, node: ast.expr, optional: bool = False) -> list[Read]:
        """Record the reads that an expression makes; the ones recorded."""
        out: list[Read] = []
        for root, path in self.chains(node):
            kept: list[Step] = []
            for step in path:
                if step[0] == "attr" and step[1] in _NO_KEYS:
                    break
                kept.append(step)
            while kept and kept[-1][0] == "each":
                kept.pop()
            if ("key", "content") in kept:
                self.sign(root, "message")
            read = self.facts.read(root, tuple(kept))
            read.optional = read.optional or optional
            read.tested = False
            out.append(read)
        return out

    def sign(self, root: str, sign: str) -> None:
        self.facts.signs.setdefault(root, set()).add(sign)

    def sign_of(self, node: ast.expr, sign: str) -> None:
        for root, path in self.chains(node):
            if path and path[-1][0] == "each":
                while path and path[-1][0] == "each":
                    path = path[:-1]
                self.sign(render(root, path), f"each {sign}")
            else:
                self.sign(render(root, path), sign)

    # Statements

    def visit_Assign(self, node: ast.Assign) -> None:
        self.visit(node.value)
        self._sites(node)
        for target in node.targets:
            self._bind(target, node.value)
            if isinstance(target, ast.Subscript):
                self._store(target)
            elif not isinstance(target, (ast.Name, ast.Tuple)):
                self.visit(target)

    def _store(self, target: ast.Subscript) -> None:
        """An entry that is only written is no input, where the container has others that are read."""
        before = {root: set(paths) for root, paths in self.facts.reads.items()}
        self.visit(target)
        if not isinstance(target.slice, ast.Constant) or not isinstance(target.slice.value, str):
            return
        for root, path in self.chains(target):
            others = before.get(root, set()) - {()}
            if path and others and path not in others:
                self.facts.reads.get(root, {}).pop(path, None)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)
            self._bind(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.visit(node.value)
        self._bind(node.target, node.value)

    def _sites(self, node: ast.Assign) -> None:
        call = node.value
        if not isinstance(call, ast.Call) or self.depth or len(node.targets) != 1:
            return
        target = node.targets[0]
        names = [target] if not isinstance(target, ast.Tuple) else target.elts
        labels = tuple(n.id if isinstance(n, ast.Name) else "" for n in names)
        self.facts.sites[call.lineno] = labels
        self.facts.site_calls[call.lineno] = ast.unparse(call.func)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.picks[target.id] = self._keys(value) or self._chosen(value)
            found = self._passed_on(value)
            if found:
                self.env[target.id] = found
            elif target.id in self.env and not any(
                target.id == root and not path for root, path in self.env[target.id]
            ):
                del self.env[target.id]
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
            for t, v in zip(target.elts, value.elts, strict=False):
                self._bind(t, v)
        elif isinstance(target, ast.Tuple) and isinstance(value, (ast.GeneratorExp, ast.ListComp)):
            self._bind_generator(target, value)

    def _passed_on(self, value: ast.expr) -> list[tuple[str, Path]]:
        """Chains of a value, seen through `x if x is not None else y`, `x or y` and `.to(...)`."""
        if isinstance(value, ast.IfExp):
            return self.chains(value.body) or self.chains(value.orelse)
        if isinstance(value, ast.BoolOp):
            return self.chains(value.values[0])
        if (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in ("to", "float", "long", "bool", "int", "detach", "clone", "contiguous", "double")
        ):
            return self.chains(value.func.value)
        if isinstance(value, ast.Call) and ast.unparse(value.func) in (
            "list",
            "np.asarray",
            "np.array",
            "torch.as_tensor",
            "tuple",
        ):
            return self.chains(value.args[0]) if value.args else []
        return self.chains(value)

    def _bind_generator(self, target: ast.Tuple, value: ast.GeneratorExp | ast.ListComp) -> None:
        loop = value.generators[0]
        if isinstance(loop.target, ast.Name) and isinstance(loop.iter, (ast.Tuple, ast.List)):
            words = [e.value for e in loop.iter.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
            if len(words) == len(target.elts):
                for t, word in zip(target.elts, words, strict=False):
                    self.words[loop.target.id] = [word]
                    self._bind(t, value.elt)
                del self.words[loop.target.id]

    def visit_For(self, node: ast.For) -> None:
        self.loop(node.target, node.iter)
        for part in (*node.body, *node.orelse):
            self.visit(part)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        for g in node.generators:
            self.loop(g.target, g.iter)
            for condition in g.ifs:
                self.visit(condition)
        for part in (node.key, node.value) if isinstance(node, ast.DictComp) else (node.elt,):
            self.visit(part)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension  # noqa: N815

    def loop(self, target: ast.expr, over: ast.expr) -> None:
        self.visit(over)
        if isinstance(over, (ast.Tuple, ast.List)) and isinstance(target, ast.Name):
            words = [e.value for e in over.elts if isinstance(e, ast.Constant) and isinstance(e.value, str)]
            if words:
                self.words[target.id] = words
                return
        name = ast.unparse(over.func) if isinstance(over, ast.Call) else ""
        if isinstance(over, ast.Call) and name == "zip" and isinstance(target, ast.Tuple):
            for t, source in zip(target.elts, over.args, strict=False):
                self._element(t, source)
        elif isinstance(over, ast.Call) and name == "enumerate" and isinstance(target, ast.Tuple) and over.args:
            inner = over.args[0]
            self.loop(target.elts[1], inner) if len(target.elts) == 2 else None
        else:
            self._element(target, over)

    def _element(self, target: ast.expr, source: ast.expr) -> None:
        below = self._passed_on(source)
        for root, path in below:
            self.sign(root, "iterated") if not path else self.sign(render(root, path), "iterated")
        if isinstance(target, ast.Name):
            if below:
                self.env[target.id] = [(root, (*path, ("each", ""))) for root, path in below]
            else:
                self.env.pop(target.id, None)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for part in node.body:
            self.visit(part)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.body)

    # Expressions

    def visit_Name(self, node: ast.Name) -> None:
        self.note(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not self.note(node):
            self.visit(node.value)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not self.note(node):
            self.visit(node.value)
        if not isinstance(node.slice, ast.Constant):
            self.visit(node.slice)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = [node.left, *node.comparators]
        literals = {s for side in sides for s in _strings(side)}
        for op, left, right in zip(node.ops, sides, sides[1:], strict=False):
            if isinstance(op, (ast.In, ast.NotIn)):
                for root, path in self.chains(right):
                    for key in filter(str.isidentifier, self._keys(left)):  # `"</think>" in text` reads no key
                        self.facts.reads.setdefault(root, {}).setdefault(
                            (*path, ("key", key)), Read(path=(*path, ("key", key)), optional=True, tested=True)
                        )
            if isinstance(op, (ast.Eq, ast.NotEq)):
                for side in (left, right):
                    for root, path in self.chains(side):
                        self.sign(render(root, path), "equated")
        for side in sides:
            for read in self.note(_lowered(side)):
                read.compared |= literals
            if not self.chains(_lowered(side)):
                self.visit(side)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Invert):
            self.sign_of(node.operand, "inverted")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        func = node.func
        if isinstance(func, ast.Attribute):
            self._method(node, func)
        elif isinstance(func, ast.Name):
            self._function(node, func)
        else:
            self.visit(func)
        for arg in node.args:
            self.visit(arg.value if isinstance(arg, ast.Starred) else arg)
        for keyword in node.keywords:
            self.visit(keyword.value)

    def _method(self, node: ast.Call, func: ast.Attribute) -> None:  # noqa: C901  a flat list of signs
        name = func.attr
        below = self.chains(func.value)
        if name in ("get", "pop") and node.args and self._keys(node.args[0]) and below:
            for read in self.note(node, optional=name == "get" or len(node.args) > 1):
                read.fallback = _constant(node.args[1:2])
            return
        if name in ("sum", "mean", "std", "var", "any"):
            self._reduction(node, func)
        if name in ("view", "reshape", "unflatten", "view_as", "chunk"):
            self.sign_of(func.value, "grouped")
        self.sign_of(func.value, f".{name}")
        if below and name not in _TENSOR_METHODS and name not in _DICT_METHODS:
            for root, path in below:
                if not path or root == "self":
                    self.facts.methods.setdefault(root, set()).add(name)
                self.note(func.value)
        elif below:
            self.note(func.value)
        else:
            self.visit(func.value)
        if isinstance(func.value, ast.Name) and func.value.id == "self":
            self._follow(node, self.helpers.get(f"self.{name}"), skip_self=True)
        if ast.unparse(func) in ("np.asarray", "np.array", "np.unique", "np.mean", "np.std") and node.args:
            self.sign_of(node.args[0], "numpy")
        if ast.unparse(func) in ("torch.tensor", "torch.as_tensor", "torch.FloatTensor") and node.args:
            self.sign_of(node.args[0], "to_tensor")
        if isinstance(func.value, ast.Name) and func.value.id in ("torch", "F"):
            for arg in node.args:
                self.sign_of(arg, f"torch.{name}")

    def _reduction(self, node: ast.Call, func: ast.Attribute) -> None:
        dims = [a for a in node.args[:1]] + [k.value for k in node.keywords if k.arg in ("dim", "axis")]
        last = any(ast.unparse(d) in ("-1", "1", "(-1,)") for d in dims)
        inner = func.value
        if isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Mult):
            if last:
                self.sign_of(inner.left, "rows")
                self.sign_of(inner.right, "rows")
        elif last:
            self.sign_of(inner, "rows")
        elif not dims and func.attr in ("mean", "std"):
            self.sign_of(inner, "whole")

    def _function(self, node: ast.Call, func: ast.Name) -> None:
        if func.id in ("getattr", "hasattr") and len(node.args) > 1:
            for root, path in self.chains(node.args[0]):
                for key in self._keys(node.args[1]):
                    full = (*path, ("attr", key))
                    read = self.facts.reads.setdefault(root, {}).setdefault(full, Read(path=full, optional=True))
                    read.fallback = _constant(node.args[2:3])
        if func.id == "len" and node.args:
            self.sign_of(node.args[0], "len")
        if func.id == "isinstance" and len(node.args) > 1:
            self.sign_of(node.args[0], "isinstance " + ast.unparse(node.args[1]))
        for root, path in self.env.get(func.id, []):
            if not path:
                self.sign(root, "called")
            self.facts.read(root, path)
        self._follow(node, self.helpers.get(func.id), skip_self=False)

    def _follow(self, call: ast.Call, helper: FunctionNode | None, skip_self: bool) -> None:
        if helper is None or self.depth >= 3:
            return
        names = [a.arg for a in (*helper.args.posonlyargs, *helper.args.args)]
        static = any(ast.unparse(d) == "staticmethod" for d in helper.decorator_list)
        env: dict[str, list[tuple[str, Path]]] = {}
        if skip_self and not static and names:
            env[names[0]] = [("self", ())]
            names = names[1:]
        for name, arg in zip(names, call.args, strict=False):
            env[name] = self._passed_on(arg)
        for keyword in call.keywords:
            if keyword.arg:
                env[keyword.arg] = self._passed_on(keyword.value)
        env = {k: v for k, v in env.items() if v}
        if env:
            _Reader(self.facts, env, self.helpers, self.depth + 1).run(helper)


def _constant(nodes: list[ast.expr]) -> Any:
    return nodes[0].value if nodes and isinstance(nodes[0], ast.Constant) else None


def _is_slice(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return True
    return isinstance(node, ast.Slice)


def _lowered(node: ast.expr) -> ast.expr:
    """`mode.lower()` -> `mode`."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("lower", "upper", "strip")
    ):
        return node.func.value
    return node


def _strings(node: ast.expr) -> Iterable[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield part.value


def numbers(node: ast.AST, constants: Mapping[str, Any]) -> list[float]:
    """Numbers written in a piece of source, and those of the constants that it reads."""
    out: list[float] = []
    for part in ast.walk(node):
        value = part.value if isinstance(part, ast.Constant) else None
        if isinstance(part, ast.Name):
            value = constants.get(part.id)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e12:
            out.append(float(value))
    return list(dict.fromkeys(out))


_NAME = r"(?:\w+\.)*\w+(?:\[[^\]\n]*\])?"
_ENTRY = re.compile(
    rf"^\s*(?:[-*]\s*|:param\s+(?:\w+\s+)?)?`{{0,2}}(?P<names>{_NAME}(?:\s*(?:,|/|and)\s*{_NAME})*)`{{0,2}}"
    r"\s*(?P<rest>(?:\(|:|\[|-|–|=|  |is |are ).*)$"
)
"""A line of a docstring that describes one parameter or several: `a, cfg.b: what they are`."""


def describe(doc: str, names: Iterable[str]) -> dict[str, str]:
    """What a docstring says of each parameter or key: its own entry, or the sentences that mention it."""
    wanted = set(names)
    out: dict[str, str] = {}
    current: list[str] = []
    margin = 0
    for line in doc.splitlines():
        named = _described(line, wanted)
        indent = len(line) - len(line.lstrip())
        if named:
            current, margin = [n for n, _ in named], indent
            for n, rest in named:
                out[n] = (out.get(n, "") + " " + rest).strip()
        elif current and line.strip() and indent and (indent > margin or not _ENTRY.match(line)):
            for n in current:
                out[n] += " " + line.strip()
        elif not line.strip():
            current = []
    for clause in re.split(r"[.;\n](?:\s|$)", doc):
        for n in wanted - set(out):
            if re.search(rf"\b{re.escape(n)}\b", clause):
                out[n] = clause.strip()
    return out


def _described(line: str, wanted: set[str]) -> list[tuple[str, str]]:
    """The names that a line is about, with what it says of each: `a: this; b, c: that`."""
    keyed = re.match(r"""\s*\w+(?:\.\w+)*\[["'](\w+)["']\]\s*(.*)""", line)
    if keyed and keyed[1] in wanted:
        return [(keyed[1], keyed[2])]
    out: list[tuple[str, str]] = []
    for part in _parts_of_line(line, wanted):
        entry = _ENTRY.match(part)
        if entry is None:
            continue
        plain = re.sub(r"\[[^\]]*\]", "", entry["names"])
        out += [(n, entry["rest"]) for n in re.findall(r"(?:\w+\.)*(\w+)", plain) if n in wanted]
    return out


def _parts_of_line(line: str, wanted: set[str]) -> list[str]:
    """A line cut in front of each further `name:` of a wanted name, behind a comma, semicolon or full stop."""
    cuts = [0]
    for found in re.finditer(r"(?<=[,;.])\s+(?:and\s+)?(?=`{0,2}((?:\w+\.)*\w+)`{0,2}(?:\s*,\s*\w+)*\s*:\s)", line):
        if found[1].split(".")[-1] in wanted:
            cuts.append(found.end())
    return [
        line[a:b].rstrip(" ,;.") if len(cuts) > 1 else line for a, b in zip(cuts, [*cuts[1:], len(line)], strict=True)
    ]
