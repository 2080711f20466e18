"""Files of right and wrong functions under `data`, read without running them, and what was found in one."""

from __future__ import annotations

import ast
from pathlib import Path

from rltriage_probes.contract import KnownBug, Outcome, Raised, TargetResult, Violates

DATA = Path(__file__).parent / "data"


def functions(module: str) -> list[str]:
    """Public functions of a specimen file."""
    tree = ast.parse((DATA / f"{module}.py").read_text("utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [n.name for n in tree.body if isinstance(n, kinds) and not n.name.startswith("_")]


def expected(module: str) -> dict[str, str]:
    """`EXPECTED` of a specimen file."""
    tree = ast.parse((DATA / f"{module}.py").read_text("utf-8"))
    (table,) = [
        n.value for n in tree.body if isinstance(n, ast.Assign) and getattr(n.targets[0], "id", "") == "EXPECTED"
    ]
    found: dict[str, str] = ast.literal_eval(table)
    return found


def violations(result: TargetResult, severity: str) -> dict[str, list[str]]:
    """Pitfall ids by probe."""
    return {
        c.probe: [n.pitfall for n in c.outcome.candidates]
        for c in result.checks
        if isinstance(c.outcome, Violates) and c.outcome.severity == severity
    }


def findings(result: TargetResult) -> list[Outcome]:
    """What was found wrong, hard or soft."""
    return [c.outcome for c in result.checks if isinstance(c.outcome, KnownBug | Violates | Raised)]
