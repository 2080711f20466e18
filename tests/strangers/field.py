"""A field of strangers: wrong and right functions that no role of rltriage was written for, and what it says of them.

    python tests/strangers/field.py [--wrong 200] [--right 200] [--seed 0] [--role ROLE] [--all] [-v]

Prints recall on the wrong ones and false alarms on the right ones. `test_strangers.py` holds the numbers for CI.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import mutations  # noqa: E402  beside this file
import rewrites  # noqa: E402
import truth  # noqa: E402
from reviewed import LEGITIMATE  # noqa: E402

from rltriage_probes import checking  # noqa: E402
from rltriage_probes.contract import (  # noqa: E402
    Agrees,
    CheckRequest,
    Diverges,
    KnownBug,
    NotRun,
    Raised,
    TargetResult,
    TargetSpec,
    Violates,
)

Said = Literal["named", "violated", "diverges", "raised", "asked", "agrees", "not run"]


@dataclass(frozen=True, kw_only=True)
class Base:
    """A right function, and what its author would declare."""

    role: str
    name: str
    intent: Mapping[str, Any]
    source: str


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What rltriage says of one stranger."""

    base: Base
    stranger: str
    said: Said
    detail: str

    @property
    def detected(self) -> bool:
        return self.said in ("named", "violated", "diverges", "raised", "asked")

    @property
    def accused(self) -> bool:
        """Whether a right function was called wrong, or a formula that is not known."""
        return self.said in ("named", "violated", "diverges", "raised")


def bases(role: str | None = None) -> list[Base]:
    """Every right function of `bases/`, in the order of the files."""
    out: list[Base] = []
    for file in sorted((HERE / "bases").glob("*.py")):
        source = file.read_text("utf-8")
        values: dict[str, Any] = {}
        for node in ast.parse(source).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                values[node.targets[0].id] = eval(compile(ast.Expression(node.value), "bases", "eval"), {}, values)
        if role in (None, values["ROLE"]):
            out += [Base(role=values["ROLE"], name=n, intent=i, source=source) for n, i in values["BASES"].items()]
    return out


def say(base: Base, code: str, target: str, folder: Path) -> tuple[Said, str]:
    """What rltriage says of a module's function."""
    (folder / "stranger.py").write_text(code, encoding="utf-8")
    spec = TargetSpec(name=base.role, role=base.role, ref=f"stranger.py:{target}")
    request = CheckRequest(id=1, root=str(folder), target=spec, intent=dict(base.intent), device="cpu")
    return summary(checking.check(request))


def summary(result: TargetResult) -> tuple[Said, str]:
    """The strongest thing that was said, and in which words."""
    found: dict[Said, str] = {}
    for c in result.checks:
        match c.outcome:
            case KnownBug() as o:
                key: Said = "named" if o.severity == "hard" else "asked"
                found.setdefault(key, " + ".join(n.pitfall for n in o.pitfalls))
            case Violates() as o:
                found.setdefault("violated" if o.severity == "hard" else "asked", f"{c.probe}: {o.says}")
            case Diverges() as o:
                found.setdefault("diverges", o.gap.sentence() if o.gap else o.says)
            case Raised() as o:
                found.setdefault("raised", f"{o.error} ({o.case})")
            case Agrees() as o:
                found.setdefault("agrees", o.convention.summary)
            case NotRun() as o:
                found.setdefault("not run", o.reason)
    order: tuple[Said, ...] = ("named", "violated", "diverges", "raised", "asked", "agrees", "not run")
    return next((k, found[k]) for k in order if k in found)


def wrong_ones(chosen: list[Base], rng: random.Random, count: int) -> Iterator[tuple[Base, mutations.Mutant]]:
    """Mutants that were seen to give something else than their base, role by role in turn."""
    waiting: dict[str, list[tuple[Base, mutations.Mutant]]] = defaultdict(list)
    for base in chosen:
        waiting[base.role] += [(base, m) for m in mutations.mutants(base.source, base.name)]
    for row in waiting.values():
        rng.shuffle(row)
    originals: dict[tuple[str, str], tuple[truth.Original, Path]] = {}
    made = 0
    with tempfile.TemporaryDirectory() as tmp:
        while made < count and any(waiting.values()):
            for role in sorted(waiting):
                while waiting[role] and made < count:
                    base, mutant = waiting[role].pop()
                    if (base.name, mutant.operator, mutant.says) in LEGITIMATE:
                        continue
                    if _is_wrong(base, mutant, originals, Path(tmp)):
                        made += 1
                        yield base, mutant
                        break


def _is_wrong(
    base: Base, mutant: mutations.Mutant, originals: dict[tuple[str, str], tuple[truth.Original, Path]], tmp: Path
) -> bool:
    key = (base.role, base.name)
    if key not in originals:
        folder = tmp / f"{base.role}-{base.name}"
        folder.mkdir()
        (folder / "right.py").write_text(base.source, encoding="utf-8")
        originals[key] = (truth.Original(base.role, base.intent, str(folder), "right.py", base.name), folder)
    original, folder = originals[key]
    (folder / "mutant.py").write_text(mutant.code, encoding="utf-8")
    return original.wrong("mutant.py") is True


def judge_wrong(chosen: list[Base], seed: int, count: int) -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as tmp:
        for base, mutant in wrong_ones(chosen, random.Random(seed), count):
            said, detail = say(base, mutant.code, base.name, Path(tmp))
            yield Verdict(base=base, stranger=mutant.name, said=said, detail=detail)


def right_ones(chosen: list[Base], rng: random.Random, count: int) -> Iterator[tuple[Base, rewrites.Rewrite]]:
    """Rewrites, base by base in turn, none of them twice."""
    seen: set[str] = set()
    tries = 0
    while len(seen) < count and tries < 20 * count:
        base = chosen[tries % len(chosen)]
        tries += 1
        new = rewrites.rewrite(base.source, base.name, rng, tensors=base.role not in truth.TEXT_ROLES)
        if new is not None and (new.code + new.target) not in seen:
            seen.add(new.code + new.target)
            yield base, new


def judge_right(chosen: list[Base], seed: int, count: int) -> Iterator[Verdict]:
    with tempfile.TemporaryDirectory() as tmp:
        for base, new in right_ones(chosen, random.Random(seed), count):
            said, detail = say(base, new.code, new.target, Path(tmp))
            yield Verdict(base=base, stranger=new.name, said=said, detail=detail)


SHIPPED = HERE.parents[1] / "references" / "specimens" / "strangers.jsonl"


def freeze(chosen: list[Base], seed: int, count: int) -> None:
    """Writes strangers for `rltriage selftest`: what they are, not what rltriage says of them."""
    rows: list[dict[str, Any]] = []
    for base, mutant in wrong_ones(chosen, random.Random(seed), count):
        rows.append(_row(base, f"{mutant.operator} in {base.name}: {mutant.says}", mutant.code, base.name, wrong=True))
    for base, new in right_ones(chosen, random.Random(seed), count):
        rows.append(_row(base, new.name, new.code, new.target, wrong=False))
    SHIPPED.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")


def _row(base: Base, name: str, code: str, target: str, *, wrong: bool) -> dict[str, Any]:
    about = {"name": name, "wrong": wrong, "role": base.role, "target": target, "intent": dict(base.intent)}
    return {**about, "code": _needed(code, target)}


def _needed(code: str, target: str) -> str:
    """The module without what the target doesn't use."""
    tree = ast.parse(code)
    wanted, size = {target.split(".", maxsplit=1)[0]}, 0
    while len(wanted) != size:
        size = len(wanted)
        for node in tree.body:
            if getattr(node, "name", "") in wanted:
                wanted |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    kept = [n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom) or getattr(n, "name", "") in wanted]
    tree.body = list(kept)
    return ast.unparse(tree) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--wrong", type=int, default=200)
    parser.add_argument("--right", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role")
    parser.add_argument("-v", action="store_true", help="print every stranger, not only the failures")
    parser.add_argument("--freeze", action="store_true", help=f"write {SHIPPED.name} for `rltriage selftest` instead")
    a = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = bases(a.role)
    if a.freeze:
        freeze(chosen, a.seed, a.wrong)
        return 0
    wrong = list(_shown(judge_wrong(chosen, a.seed, a.wrong), a.v, lambda v: not v.detected))
    right = list(_shown(judge_right(chosen, a.seed, a.right), a.v, lambda v: v.accused or v.said == "not run"))
    for title, verdicts in (("wrong", wrong), ("right", right)):
        print(f"\n{title:20} " + "  ".join(f"{k} {n}" for k, n in sorted(Counter(v.said for v in verdicts).items())))
        for role in sorted({v.base.role for v in verdicts}):
            row = Counter(v.said for v in verdicts if v.base.role == role)
            print(f"  {role:18} " + "  ".join(f"{k} {n}" for k, n in sorted(row.items())))
    if wrong:
        print(f"\ndetected {sum(v.detected for v in wrong)} of {len(wrong)} wrong ones")
    if right:
        silent = sum(v.said == "not run" for v in right)
        print(f"accused {sum(v.accused for v in right)} of {len(right)} right ones, {silent} not run")
    return 0


def _shown(verdicts: Iterator[Verdict], everything: bool, worth_a_line: Any) -> Iterator[Verdict]:
    for v in verdicts:
        if everything or worth_a_line(v):
            print(f"{v.base.role:18} {v.said:9} {v.stranger} :: {v.detail[:140]}", flush=True)
        yield v


if __name__ == "__main__":
    sys.exit(main())
