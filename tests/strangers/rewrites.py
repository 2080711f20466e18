"""Right functions made from right ones: other names, other idioms, other containers, the same numbers.

Two kinds: changes of the syntax tree that keep the meaning (`IDIOMS`), and wrappers that hand the inputs over in
another way (`WRAPPERS`). No rewrite asks rltriage what it would accept; names are those that frameworks use.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import dataclass

NAMES: dict[str, tuple[str, ...]] = {
    "logits": ("next_token_logits", "policy_logits"),
    "input_ids": ("tokens", "token_ids"),
    "temperature": ("sampling_temperature", "temp"),
    "labels": ("target_ids",),
    "rewards": ("scores", "reward_tensor"),
    "num_generations": ("group_size", "n_samples_per_prompt", "num_return_sequences"),
    "uids": ("group_ids", "prompt_ids"),
    "logprobs": ("log_probs", "per_token_logps", "new_logprobs"),
    "old_logprobs": ("old_log_probs", "old_per_token_logps"),
    "ref_logprobs": ("ref_log_probs", "reference_logprobs", "ref_per_token_logps"),
    "advantages": ("advs", "adv"),
    "mask": ("response_mask", "completion_mask", "action_mask"),
    "response_mask": ("loss_mask", "action_mask", "completion_mask"),
    "loss_mask": ("response_mask", "mask"),
    "loss_mat": ("token_losses", "per_token_loss"),
    "values": ("vpreds", "value_preds"),
    "returns": ("value_targets",),
    "clip_eps": ("eps_clip", "cliprange", "clip_ratio"),
    "chosen_rewards": ("rewards_chosen", "chosen_scores"),
    "rejected_rewards": ("rewards_rejected", "rejected_scores"),
    "completions": ("responses", "completion_texts"),
    "answers": ("ground_truths", "solutions"),
    "completion_ids": ("response_ids", "output_ids"),
    "eos_token_id": ("eos_id", "eos"),
}
"""Parameter -> other names that released code has for it."""


@dataclass(frozen=True, kw_only=True)
class Rewrite:
    """One right function, written in another way."""

    base: str
    recipe: tuple[str, ...]
    code: str
    target: str
    """Name under which the function is found in `code`."""

    @property
    def name(self) -> str:
        return f"{self.base}: {', '.join(self.recipe)}"


# Changes of the syntax tree


class _Methods(ast.NodeTransformer):
    """`x.exp()` for `torch.exp(x)`."""

    names = ("exp", "clamp", "sum", "mean", "gather", "log_softmax", "logsumexp", "softmax", "log", "log1p")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        f = node.func
        if (
            isinstance(f, ast.Attribute)
            and isinstance(f.value, ast.Name)
            and f.value.id == "torch"
            and f.attr in self.names
        ):
            if node.args:
                return ast.Call(ast.Attribute(node.args[0], f.attr, ast.Load()), node.args[1:], node.keywords)
        return node


class _Functions(ast.NodeTransformer):
    """`torch.exp(x)` for `x.exp()`."""

    names = ("exp", "clamp", "sum", "mean", "logsumexp", "squeeze", "unsqueeze", "std")

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        f = node.func
        library = (
            isinstance(f, ast.Attribute)
            and isinstance(f.value, ast.Name)
            and f.value.id in ("torch", "F", "math", "re")
        )
        if isinstance(f, ast.Attribute) and f.attr in self.names and not library:
            return ast.Call(
                ast.Attribute(ast.Name("torch", ast.Load()), f.attr, ast.Load()), [f.value, *node.args], node.keywords
            )
        return node


class _Products(ast.NodeTransformer):
    """`torch.mul(a, b)` for `a * b` where one factor is a mask."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name) and "mask" in node.right.id:
            return ast.Call(
                ast.Attribute(ast.Name("torch", ast.Load()), "mul", ast.Load()), [node.left, node.right], []
            )
        return node


class _Where(ast.NodeTransformer):
    """`torch.where(mask.bool(), a, 0)` for `a * mask`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Mult) and isinstance(node.right, ast.Name) and "mask" in node.right.id:
            test = ast.Call(ast.Attribute(node.right, "bool", ast.Load()), [], [])
            zero = ast.Call(
                ast.Attribute(ast.Name("torch", ast.Load()), "zeros_like", ast.Load()), [node.left], []
            )  # fmt: skip
            return ast.Call(
                ast.Attribute(ast.Name("torch", ast.Load()), "where", ast.Load()), [test, node.left, zero], []
            )
        return node


class _Negated(ast.NodeTransformer):
    """`-(b - a)` for `a - b`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.op, ast.Sub) and isinstance(node.left, ast.Name) and isinstance(node.right, ast.Name):
            return ast.UnaryOp(ast.USub(), ast.BinOp(node.right, ast.Sub(), node.left))
        return node


class _Commuted(ast.NodeTransformer):
    """`b + a` and `b * a`."""

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        numbers = not any(isinstance(s, ast.Constant | ast.List | ast.JoinedStr) for s in (node.left, node.right))
        if isinstance(node.op, ast.Mult) and numbers:
            return ast.BinOp(node.right, node.op, node.left)
        return node


class _Einsum(ast.NodeTransformer):
    """`torch.einsum("bt,bt->", a, mask)` for `(a * mask).sum()`."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        f = node.func
        product = isinstance(f, ast.Attribute) and f.attr == "sum" and isinstance(f.value, ast.BinOp)
        if product and not node.args and not node.keywords:
            inner = f.value  # type: ignore[union-attr]
            if isinstance(inner.op, ast.Mult) and isinstance(inner.right, ast.Name) and "mask" in inner.right.id:  # type: ignore[union-attr]
                call = ast.parse('torch.einsum("bt,bt->", x, y)', mode="eval").body
                assert isinstance(call, ast.Call)
                mask = ast.Call(
                    ast.Attribute(inner.right, "to", ast.Load()), [ast.Attribute(inner.left, "dtype", ast.Load())], []
                )  # type: ignore[union-attr]
                call.args[1:] = [inner.left, mask]  # type: ignore[union-attr]
                return call
        return node


IDIOMS: dict[str, type[ast.NodeTransformer]] = {
    "methods": _Methods, "functions": _Functions, "torch.mul": _Products, "torch.where": _Where, "negated": _Negated,
    "commuted": _Commuted, "einsum": _Einsum,
}  # fmt: skip


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.Name(self.names.get(node.id, node.id), node.ctx)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        return ast.arg(self.names.get(node.arg, node.arg), node.annotation)


# Wrappers: (function, parameters with defaults, parameters without, per-row words) -> code behind the module


def as_method(name: str, required: list[str], optional: dict[str, str]) -> tuple[str, str]:
    """A method; settings are attributes that the constructor keeps."""
    init = ", ".join(f"{k}={v}" for k, v in optional.items())
    keep = "".join(f"        self.{k} = {k}\n" for k in optional) or "        pass\n"
    given = ", ".join([*required, *(f"{k}=self.{k}" for k in optional)])
    code = (
        f"\n\nclass Step:\n    def __init__(self{', ' if init else ''}{init}):\n{keep}\n"
        f"    def run(self, {', '.join(required)}):\n        return {name}({given})\n"
    )
    return code, "Step.run"


def of_batch(name: str, required: list[str], optional: dict[str, str]) -> tuple[str, str]:
    """Inputs in a dict."""
    keys = ", ".join(f'batch["{k}"]' for k in required)
    init = "".join(f", {k}={v}" for k, v in optional.items())
    given = "".join(f", {k}={k}" for k in optional)
    return f"\n\ndef of_batch(batch{init}):\n    return {name}({keys}{given})\n", "of_batch"


def of_record(name: str, required: list[str], optional: dict[str, str]) -> tuple[str, str]:
    """Inputs in a dataclass."""
    fields = "".join(f"    {k}: object\n" for k in required)
    init = "".join(f", {k}={v}" for k, v in optional.items())
    keys = ", ".join(f"record.{k}" for k in required)
    given = "".join(f", {k}={k}" for k in optional)
    code = (
        f"\n\nfrom dataclasses import dataclass\n\n\n@dataclass\nclass Record:\n{fields}\n\n"
        f"def of_record(record: Record{init}):\n    return {name}({keys}{given})\n"
    )
    return code, "of_record"


def keyword_only(name: str, required: list[str], optional: dict[str, str]) -> tuple[str, str]:
    """Every argument by keyword."""
    params = ", ".join([*required, *(f"{k}={v}" for k, v in optional.items())])
    given = ", ".join(f"{k}={k}" for k in [*required, *optional])
    return f"\n\ndef by_keyword(*, {params}):\n    return {name}({given})\n", "by_keyword"


Wrapper = Callable[[str, list[str], dict[str, str]], tuple[str, str]]
WRAPPERS: dict[str, Wrapper] = {"method": as_method, "dict": of_batch, "dataclass": of_record, "keywords": keyword_only}


def in_float64(name: str, required: list[str], optional: dict[str, str]) -> tuple[str, str]:
    """Computed in float64, handed back as it came."""
    params = ", ".join([*required, *(f"{k}={v}" for k, v in optional.items())])
    given = ", ".join([f"_wide({k})" for k in required] + [f"{k}={k}" for k in optional])
    code = (
        "\n\ndef _wide(x):\n    return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x\n"
        f"\n\ndef in_double({params}):\n    return {name}({given})\n"
    )
    return code, "in_double"


def rewrite(source: str, function: str, rng: random.Random, *, tensors: bool) -> Rewrite | None:
    """One rewrite of a function: other names, one or two idioms, maybe a wrapper. None where nothing changed."""
    tree = ast.parse(source)
    node = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == function)
    before = ast.unparse(node)
    recipe: list[str] = []
    if tensors:
        for name in rng.sample(sorted(IDIOMS), 2):
            was = ast.unparse(node)
            IDIOMS[name]().visit(node)
            ast.fix_missing_locations(node)
            recipe += [name] if ast.unparse(node) != was else []
    if rng.random() < 0.6:
        params = [a.arg for a in node.args.args]
        names = {p: rng.choice(NAMES[p]) for p in params if p in NAMES}
        if names and len({*names.values(), *(p for p in params if p not in names)}) == len(params):
            was = ast.unparse(node)
            _Renamed(names).visit(node)
            ast.fix_missing_locations(node)
            recipe += ["renamed " + ", ".join(f"{a} {b}" for a, b in names.items())] if ast.unparse(node) != was else []
    code, target = ast.unparse(ast.fix_missing_locations(tree)), function
    wrappers = {**WRAPPERS, **({"float64": in_float64} if tensors else {})}
    if rng.random() < 0.6 and node.args.kwarg is None:
        chosen = rng.choice(sorted(wrappers))
        required, optional = _parameters(node)
        more, target = wrappers[chosen](function, required, optional)
        doc = ast.get_docstring(node, clean=False) or ""
        more = (
            more.replace(":\n    return ", f':\n    r"""{doc}"""\n    return ', 1)
            if chosen not in ("method", "float64")
            else more
        )
        if chosen == "method":
            more = more.replace("):\n        return ", f'):\n        r"""{doc}"""\n        return ', 1)
        if chosen == "float64":
            head, tail = more.split(f"def {target}", 1)
            more = f"{head}def {target}" + tail.replace(":\n    return ", f':\n    r"""{doc}"""\n    return ', 1)
        code, recipe = code + more, [*recipe, chosen]
    if not recipe or (ast.unparse(node) == before and target == function):
        return None
    return Rewrite(base=function, recipe=tuple(recipe), code=code, target=target)


def _parameters(node: ast.FunctionDef) -> tuple[list[str], dict[str, str]]:
    args = [a.arg for a in node.args.args]
    defaults = [ast.unparse(d) for d in node.args.defaults]
    cut = len(args) - len(defaults)
    return args[:cut], dict(zip(args[cut:], defaults, strict=True))
