"""Finding the stage functions of a project by reading its source. Standard library only; nothing is run.

Every function is scored for every role by its name, its parameters, its docstring and what its body does.
A function wins a role when it scores enough, and no better one does the same job.
"""

from __future__ import annotations

import ast
import fnmatch
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltriage_probes import aliases, source
from rltriage_probes.contract import Discovered, DiscoverRequest, Found
from rltriage_probes.loading import locate

MAX_FILES = 2_000
MAX_BYTES = 600_000
SURE = 0.55
"""Least score of a winner."""
POSSIBLE = 0.3
_SKIP_DIRS = frozenset(
    ".git .hg .venv venv env node_modules __pycache__ .tox build dist site-packages .mypy_cache .ruff_cache wandb runs "
    "outputs checkpoints .ipynb_checkpoints".split()
)
_TEST = re.compile(r"(^|/)(tests?|testing|benchmarks?|docs)/|(^|/)(test_[^/]*|[^/]*_test|conftest)\.py$")


@dataclass(kw_only=True)
class Candidate:
    """A function with all that scoring asks about it."""

    file: str
    qualname: str
    node: source.FunctionNode
    names: tuple[str, ...]
    keys: tuple[str, ...]
    doc: str
    calls: frozenset[str]
    """Dotted names of what it calls, and `.method` for methods."""
    body: str
    in_class: str = ""
    used: int = 0
    """Calls of it elsewhere in the project, those from training scripts counted double."""

    @property
    def ref(self) -> str:
        return f"{self.file}:{self.qualname}"

    @property
    def short(self) -> str:
        return self.qualname.rpartition(".")[2]

    def inputs(self) -> tuple[str, ...]:
        return (*self.names, *self.keys)

    def means(self, role: str, *words: str) -> bool:
        """Whether some parameter or key means one of the words in that role."""
        return any(
            m is not None and m.how != "docstring" for n in self.inputs() for m in [aliases.resolve(n, role, words)]
        )

    def does(self, *calls: str) -> bool:
        return any(c in self.calls or f".{c}" in self.calls for c in calls)


@dataclass(kw_only=True)
class Scored:
    score: float
    signs: list[str] = field(default_factory=list)

    def add(self, points: float, sign: str, holds: object) -> None:
        if holds:
            self.score += points
            if points > 0 and sign:
                self.signs.append(sign)


def discover(request: DiscoverRequest) -> Discovered:
    """The stage functions of a project, and `[pipeline]` values read from its configuration."""
    root = Path(request.root)
    names = [f for f in request.files] or list(_python_files(root))
    trees: dict[str, ast.Module] = {}
    skipped: list[str] = []
    for name in names:
        try:
            text = (root / name).read_text(encoding="utf-8")
            trees[name] = ast.parse(text)
        except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError) as e:
            skipped.append(f"{name}: {type(e).__name__}: {e}"[:200])
    candidates = [c for name, tree in trees.items() for c in _candidates(name, tree)]
    _count_uses(candidates, trees)
    found, unsure = _choose(candidates)
    settings = read_settings(root, trees)
    return Discovered(
        id=request.id,
        found=tuple(found),
        unsure=tuple(unsure),
        settings=settings,
        files_read=len(trees),
        skipped=tuple(skipped),
    )


def _python_files(root: Path) -> Iterator[str]:
    count = 0
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(d for d in folders if d not in _SKIP_DIRS and not d.endswith(".egg-info"))
        for file in sorted(files):
            path = Path(folder) / file
            name = path.relative_to(root).as_posix()
            if file.endswith(".py") and not _TEST.search(name) and _size(path) < MAX_BYTES:
                count += 1
                if count > MAX_FILES:
                    return
                yield name


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return MAX_BYTES


# Candidates


def _candidates(file: str, tree: ast.Module) -> Iterator[Candidate]:
    for node in source.definitions(tree):
        if isinstance(node, ast.ClassDef):
            for inner in source.definitions(node):
                if isinstance(inner, (ast.FunctionDef, ast.AsyncFunctionDef)) and not _dull(inner):
                    yield _candidate(file, inner, node.name)
        elif not _dull(node):
            yield _candidate(file, node, "")


def _dull(node: source.FunctionNode) -> bool:
    if isinstance(node, ast.AsyncFunctionDef) or (node.name.startswith("__") and node.name != "__call__"):
        return True
    decorators = {ast.unparse(d).split("(")[0] for d in node.decorator_list}
    return bool(decorators & {"property", "pytest.fixture", "overload", "abstractmethod"}) or node.name.startswith(
        "test_"
    )


def _candidate(file: str, node: source.FunctionNode, owner: str) -> Candidate:
    names = tuple(n for n in source.parameter_names(node) if n not in ("self", "cls"))
    calls: set[str] = set()
    keys: set[str] = set()
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            text = ast.unparse(part.func) if isinstance(part.func, (ast.Name, ast.Attribute)) else ""
            calls.add(text.rpartition("torch.")[2] if text.startswith("torch.") else text)
            if isinstance(part.func, ast.Attribute):
                calls.add(f".{part.func.attr}")
                if part.func.attr in ("get", "pop") and part.args and isinstance(part.args[0], ast.Constant):
                    keys.add(str(part.args[0].value))
        if (
            isinstance(part, ast.Subscript)
            and isinstance(part.slice, ast.Constant)
            and isinstance(part.slice.value, str)
        ):
            keys.add(part.slice.value)
        if (
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and part.value.id in aliases.CONTAINER_NAMES & set(names)
        ):
            keys.add(part.attr)
    return Candidate(
        file=file,
        qualname=f"{owner}.{node.name}" if owner else node.name,
        node=node,
        names=names,
        keys=tuple(sorted(k for k in keys if k.isidentifier())),
        doc=ast.get_docstring(node) or "",
        calls=frozenset(calls),
        body=ast.unparse(node),
        in_class=owner,
    )


def _count_uses(candidates: Sequence[Candidate], trees: Mapping[str, ast.Module]) -> None:
    by_name: dict[str, list[Candidate]] = {}
    for c in candidates:
        by_name.setdefault(c.short if not c.short.startswith("__") and c.short != "forward" else c.in_class, []).append(
            c
        )
    for file, tree in trees.items():
        weight = 2 if re.search(r"train|main|run|loop|grpo|ppo|trainer", Path(file).stem) else 1
        for part in ast.walk(tree):
            if isinstance(part, ast.Call):
                name = (
                    part.func.attr
                    if isinstance(part.func, ast.Attribute)
                    else part.func.id
                    if isinstance(part.func, ast.Name)
                    else ""
                )
                for c in by_name.get(name, ()):
                    c.used += weight
            elif isinstance(part, (ast.Assign, ast.keyword)) and isinstance(part.value, ast.Name):
                for c in by_name.get(part.value.id, ()):
                    c.used += 1  # passed on, e.g. as a reward function


# Scores


def _name(c: Candidate, good: str, bad: str = "") -> bool:
    name = aliases.snake(c.short if c.short not in ("forward", "__call__", "compute") else c.in_class + "_" + c.short)
    return re.search(good, name) is not None and not (bad and re.search(bad, name))


def _logprobs(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.4,
        "its name",
        _name(
            c, r"log_?_?prob|logp(s|robs)?\b|_logps|log_softmax|logprobs", r"kl|ratio|loss|reward|entropy_only|sum|adv"
        ),
    )
    s.add(0.3, "takes logits or a model", c.means("logprobs", "logits", "model"))
    s.add(0.15, "takes token ids", c.means("logprobs", "token_ids"))
    s.add(
        0.3,
        "log-softmax with gather",
        (c.does("log_softmax", "logsumexp", "cross_entropy") and c.does("gather", "cross_entropy", "take_along_dim")),
    )
    s.add(
        0.15,
        "",
        c.does("selective_log_softmax", "logprobs_from_logits", "gather_logprobs")
        and c.means("logprobs", "model", "logits"),
    )
    s.add(-0.4, "", c.means("logprobs", "advantages", "rewards") or c.does("backward", "multinomial"))
    return s


def _entropy(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(0.5, "its name", _name(c, r"entropy", r"loss|coef|cross|bonus|mask"))
    s.add(0.3, "takes logits", c.means("entropy", "logits"))
    s.add(0.2, "softmax", c.does("softmax", "log_softmax", "logsumexp"))
    return s


def _advantages(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.45,
        "its name",
        _name(
            c,
            r"advantage|\brloo\b|^rloo|group_norm|normali[sz]e_(group_)?rewards|grpo_returns|group_reward|_adv\b",
            r"loss|gae|value|metric|log_",
        ),
    )
    s.add(0.25, "takes rewards", c.means("advantages", "rewards", "token_rewards"))
    s.add(
        0.15,
        "takes groups",
        c.means("advantages", "group_ids", "group_size") or re.search(r"num_generations|group_size|n_samples", c.body),
    )
    s.add(
        0.2, "mean or std over groups", c.does("mean", "std", "nanmean") or re.search(r"\.sum\(\) - |\(n - 1\)", c.body)
    )
    s.add(-0.35, "", c.means("advantages", "values") and re.search(r"gae|lam", c.body))
    s.add(-0.4, "", c.means("policy_loss", "logprobs") or c.does("backward"))
    s.add(-0.3, "", "tokenizer" in c.names)
    return s


def _policy_loss(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.35,
        "its name",
        _name(
            c,
            r"(policy|pg|grpo|ppo|actor|surrogate|dapo|gspo|cispo|rloo|reinforce).*loss|compute_loss|^loss$|loss_fn|_loss$",
            r"value|critic|dpo|sft|kl_loss|entropy|reward_model|preference|agg|lm_loss|aux",
        ),
    )
    s.add(0.25, "takes advantages", c.means("policy_loss", "advantages"))
    s.add(0.2, "takes log-probs", c.means("policy_loss", "logprobs", "ratio", "log_ratio") or c.does("model"))
    s.add(0.2, "takes old log-probs", c.means("policy_loss", "old_logprobs"))
    s.add(0.15, "exp and clamp", c.does("exp") and c.does("clamp", "clip", "min", "minimum", "max"))
    s.add(
        -0.4, "", c.does("backward") or (c.means("policy_loss", "values") and not c.means("policy_loss", "advantages"))
    )
    s.add(-0.3, "", not c.means("policy_loss", "advantages"))
    return s


def _kl(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.5,
        "its name",
        _name(c, r"(^|_)kl(_|$)|kl_div|approx_kl", r"reward|coef|ctl|controller|loss_type|metric|apply|adaptive"),
    )
    s.add(0.3, "takes log-probs of policy and reference", c.means("kl", "logprobs") and c.means("kl", "ref_logprobs"))
    s.add(0.15, "exp or square", c.does("exp", "square", "pow") or "** 2" in c.body)
    s.add(-0.5, "", c.means("policy_loss", "advantages") or not c.means("kl", "ref_logprobs"))
    return s


def _completion_mask(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.45, "its name", _name(c, r"mask", r"masked_|apply|attention_only|causal|whiten|mean|loss$|logits|_mask_out")
    )
    s.add(0.3, "takes token ids", c.means("completion_mask", "token_ids"))
    s.add(0.15, "takes the end token", c.means("completion_mask", "eos_token_id") or re.search(r"eos", c.body))
    s.add(0.2, "compares with the end token", c.does("cumsum", "eq", "argmax", "cumprod") or "==" in c.body)
    s.add(
        -0.4,
        "",
        c.means("policy_loss", "advantages", "logprobs")
        or c.means("logprobs", "logits", "model")
        or c.does("generate"),
    )
    return s


def _decode(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.4,
        "its name",
        _name(
            c,
            r"decode|strip_(think|reason)|remove_(think|reason)|extract_completion|postprocess|post_process|clean_(completion|text|response)|parse_response|completion_for|to_text|detok",
            r"encode|reward|score|loss",
        ),
    )
    s.add(
        0.3,
        "decodes with the tokenizer",
        c.does("batch_decode") or (c.does("decode") and c.means("decode", "tokenizer", "token_ids")),
    )
    s.add(0.2, "takes text or ids", c.means("decode", "text", "texts", "token_ids"))
    s.add(
        0.25,
        "cuts at think tags",
        re.search(r"think", c.body, re.I)
        and c.does("split", "partition", "rpartition", "sub", "search", "replace", "rsplit", "find"),
    )
    s.add(
        -0.4,
        "",
        c.does("generate", "backward") or re.search(r"reward|score", c.short) or c.means("reward", "answers", "answer"),
    )
    s.add(-0.2, "", not re.search(r"return ", c.body))
    return s


def _reward(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.45,
        "its name",
        _name(
            c,
            r"reward|score_|_score$|compute_score|grade|verify_answer|correctness|accuracy_fn",
            r"advantage|normali|whiten|model|loss|kl|shap|penalt|log|weight|scale|group|discount|apply|config|token_level",
        ),
    )
    s.add(0.35, "takes completions", c.means("reward", "completions", "completion"))
    s.add(0.15, "takes answers", c.means("reward", "answers", "answer"))
    s.add(
        0.15,
        "reads text",
        c.does("search", "findall", "fullmatch", "match", "strip", "split", "count", "lower", "partition")
        or re.search(r"\bre\.", c.body),
    )
    s.add(
        -0.4, "", c.means("logprobs", "logits") or c.does("backward", "generate") or c.means("policy_loss", "logprobs")
    )
    s.add(-0.4, "", not c.means("reward", "completions", "completion"))
    s.add(-0.1, "", c.short.startswith("_"))
    return s


def _gae(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    good = r"gae|advantages?_and_returns|advantage_return|(discounted|lambda|cumulative|compute)_returns|td_lambda"
    s.add(0.45, "its name", _name(c, good, r"loss|grpo|outcome|metric|log_|group"))
    s.add(0.25, "takes values", c.means("gae", "values"))
    s.add(0.15, "takes token rewards", c.means("gae", "token_rewards", "rewards"))
    s.add(0.2, "takes lambda or a discount", c.means("gae", "lam", "gamma"))
    s.add(0.1, "goes backward", c.does("reversed", "flip") or re.search(r"-1, -1\)|\[::-1\]", c.body))
    s.add(
        -0.5,
        "",
        c.does("backward") or c.means("gae", "group_ids") or c.means("policy_loss", "logprobs", "old_logprobs"),
    )
    s.add(-0.4, "", not c.means("gae", "values", "gamma"))
    return s


def _value_loss(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    s.add(
        0.45, "its name", _name(c, r"(value|critic|vf|v)_?loss|(value|critic)_?function_?loss", r"reward_model|policy")
    )
    s.add(0.25, "takes values", c.means("value_loss", "values", "old_values"))
    s.add(0.25, "takes returns", c.means("value_loss", "returns"))
    s.add(0.1, "squares", c.does("square", "pow", "mse_loss", "huber_loss", "smooth_l1_loss") or "** 2" in c.body)
    s.add(-0.5, "", c.does("backward") or c.means("policy_loss", "logprobs", "old_logprobs"))
    s.add(-0.3, "", not c.means("value_loss", "values", "old_values") or "return" not in c.body)
    return s


def _reward_shaping(c: Candidate) -> Scored:
    s = Scored(score=0.0)
    good = r"kl_penalty|reward_kl|token_rewards|shap|overlong|length_penalt|soft_punish|rewards?_ppo|compute_rewards?$"
    s.add(0.4, "its name", _name(c, good, r"advantage|policy|loss|controller|config|metric"))
    penalised = c.means("reward_shaping", "ref_logprobs", "token_kl") and c.means("reward_shaping", "beta")
    s.add(0.3, "takes a KL and its weight", penalised)
    s.add(0.3, "takes a buffer before the limit", c.means("reward_shaping", "buffer_length") or "buffer_len" in c.body)
    s.add(0.2, "takes scores", c.means("reward_shaping", "rewards", "token_rewards"))
    s.add(0.1, "takes lengths or a mask", c.means("reward_shaping", "lengths", "completion_mask", "token_ids"))
    s.add(-0.5, "", c.does("backward", "generate") or c.means("policy_loss", "advantages") or c.means("gae", "values"))
    s.add(-0.4, "", not re.search(r"reward|score|penalt", c.body))
    s.add(-0.4, "", c.means("advantages", "group_ids"))
    return s


_SCORES: dict[str, Callable[[Candidate], Scored]] = {
    "gae": _gae,
    "value_loss": _value_loss,
    "reward_shaping": _reward_shaping,
    "reward": _reward,
    "advantages": _advantages,
    "logprobs": _logprobs,
    "entropy": _entropy,
    "policy_loss": _policy_loss,
    "kl": _kl,
    "completion_mask": _completion_mask,
    "decode": _decode,
}
_SEVERAL = frozenset(
    ("reward", "reward_shaping", "gae", "decode", "policy_loss", "advantages", "logprobs", "completion_mask")
)


def _choose(candidates: Sequence[Candidate]) -> tuple[list[Found], list[Found]]:
    best_role: dict[str, tuple[str, float]] = {}
    scored: dict[str, list[tuple[float, Candidate, list[str]]]] = {role: [] for role in _SCORES}
    for c in candidates:
        for role, score in _SCORES.items():
            s = score(c)
            value = s.score + (0.1 if c.used >= 2 else 0.03 if c.used else 0.0)
            if s.score < POSSIBLE:
                continue
            value = round(min(value, 1.0), 3)
            scored[role].append((value, c, s.signs))
            if value > best_role.get(c.ref, ("", 0.0))[1]:
                best_role[c.ref] = (role, value)
    found: list[Found] = []
    unsure: list[Found] = []
    for role, entries in scored.items():
        entries = [e for e in entries if best_role[e[1].ref][0] == role]
        entries.sort(key=lambda e: (-e[0], -e[1].used, e[1].ref))
        top = entries[0][0] if entries else 0.0
        winners = [
            e for e in entries if e[0] >= SURE and (e[0] >= top - 0.25 if role in _SEVERAL else e is entries[0])
        ][:4]
        for e in entries:
            row = Found(role=role, ref=e[1].ref, score=e[0], why=", ".join(e[2]))
            (found if any(e is w for w in winners) else unsure).append(row)
    return found, unsure[:30]


# Settings

KEYS: dict[str, tuple[str, ...]] = {
    "group_size": aliases.ALIASES["group_size"],
    "beta": aliases.ALIASES["beta"],
    "clip_low": aliases.ALIASES["clip_low"],
    "clip_high": aliases.ALIASES["clip_high"],
    "temperature": ("temperature", "sampling_temperature", "rollout_temperature", "gen_temperature"),
    "gamma": aliases.ALIASES["gamma"],
    "lam": aliases.ALIASES["lam"],
    "algorithm": ("algorithm", "algo", "adv_estimator", "advantage_estimator", "loss_type"),
    "aggregation": ("loss_agg_mode", "agg", "aggregation", "loss_aggregation"),
    "kl_estimator": ("kl_estimator", "kl_loss_type", "kl_penalty", "kl_type"),
    "max_completion_length": (
        "max_completion_length",
        "max_new_tokens",
        "max_response_length",
        "generate_max_len",
        "max_gen_len",
    ),
}
_SYMMETRIC = frozenset(aliases.ALIASES["clip"]) - {"eps", "epsilon"} | {"epsilon", "clip_eps"}
ALGORITHMS = (
    "dr_grpo",
    "reinforce_pp",
    "grpo",
    "dapo",
    "gspo",
    "cispo",
    "rloo",
    "reinforce",
    "ppo",
    "dpo",
    "kto",
    "orpo",
    "simpo",
    "sft",
)
_NUMERIC = frozenset(
    ("group_size", "beta", "clip_low", "clip_high", "temperature", "gamma", "lam", "max_completion_length")
)


def read_settings(root: Path, trees: Mapping[str, ast.Module]) -> dict[str, Any]:
    """`[pipeline]` values that config files, argparse defaults and config dataclasses state; the first source wins."""
    out: dict[str, Any] = {}
    for path in _config_files(root):
        for key, value in _flatten(_parse_config(path)):
            _take(out, key, value)
    for _, tree in sorted(trees.items(), key=lambda x: 0 if re.search(r"train|config|arg|main", x[0]) else 1):
        for key, value in _python_settings(tree):
            _take(out, key, value)
    if "algorithm" not in out:
        guess = _guess_algorithm(root, trees)
        if guess:
            out["algorithm"] = guess
    return out


def _take(out: dict[str, Any], key: str, value: Any) -> None:
    name = aliases.snake(key.rsplit(".", 1)[-1].replace("-", "_"))
    if name in ("n", "k", "g", "t") and not isinstance(value, int):
        return
    if name in _SYMMETRIC and isinstance(value, (int, float)) and not isinstance(value, bool):
        out.setdefault("clip_low", value)
        out.setdefault("clip_high", value)
        return
    if name in ("gamma", "lam", "t", "eps") and not re.search(r"gae|ppo|algo|rl|grpo|^" + name + "$", key):
        return
    for word, names in KEYS.items():
        if name not in names or word in out:
            continue
        if word in _NUMERIC and (not isinstance(value, (int, float)) or isinstance(value, bool)):
            continue
        if word == "group_size" and (not isinstance(value, int) or value < 2):
            continue
        if word == "algorithm":
            value = next(
                (a for a in ALGORITHMS if isinstance(value, str) and value.lower().replace("-", "_") == a), None
            )
        if word in ("aggregation", "kl_estimator"):
            canonical = aliases.canonical_choice(word, value)
            value = canonical if isinstance(value, str) and canonical in aliases.CHOICES[word] else None
        if value is not None:
            out[word] = value
        return


def _guess_algorithm(root: Path, trees: Mapping[str, ast.Module]) -> str:
    words = " ".join(
        [
            root.name,
            *(p.name for p in _config_files(root)),
            *trees,
            *(n.name for t in trees.values() for n in source.definitions(t)),
        ]
    ).lower()
    counts = {a: len(re.findall(rf"(?<![a-z]){a}(?![a-z])", words)) for a in ALGORITHMS}
    best = max(counts, key=lambda a: counts[a])
    return best if counts[best] else ""


def _config_files(root: Path) -> list[Path]:
    out: list[Path] = []
    for folder, folders, files in os.walk(root):
        folders[:] = sorted(d for d in folders if d not in _SKIP_DIRS)
        depth = len(Path(folder).relative_to(root).parts)
        if depth > 3:
            folders[:] = []
        for file in sorted(files):
            if (
                file.endswith((".yaml", ".yml", ".toml", ".json"))
                and not fnmatch.fnmatch(file, "*lock*")
                and file not in ("pyproject.toml", "package.json", "tokenizer.json", "metrics.json", "rltriage.toml")
                and _size(Path(folder) / file) < 100_000
            ):
                out.append(Path(folder) / file)
        if len(out) > 200:
            break
    return sorted(
        out, key=lambda p: (len(p.parts), 0 if re.search(r"config|setting|train|grpo|ppo", p.stem) else 1, str(p))
    )


def _parse_config(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".json":
            return json.loads(text)
        if path.suffix == ".toml":
            return _toml(text)
        return simple_yaml(text)
    except (OSError, ValueError, RecursionError):
        return {}


def _toml(text: str) -> dict[str, Any]:
    """Tables of scalars out of a TOML file (the module that reads TOML came with Python 3.11)."""
    out: dict[str, Any] = {}
    table = out
    for line in text.splitlines():
        if header := re.match(r"\s*\[+([\w.\-\s\"']+)\]+", line):
            table = out.setdefault(header[1].strip(), {})
        elif entry := re.match(r"""\s*["']?([\w.-]+)["']?\s*=\s*("[^"]*"|'[^']*'|[^#\s]+)""", line):
            table[entry[1]] = _scalar(entry[2])
    return out


def simple_yaml(text: str) -> dict[str, Any]:
    """Nested mappings of scalars out of a YAML file; lists, anchors and block texts are passed over."""
    root: dict[str, Any] = {}
    stack: list[tuple[int, dict[str, Any]]] = [(-1, root)]
    for raw in text.splitlines():
        line = re.sub(r"""^((?:[^"'#]|"[^"]*"|'[^']*'|(?<!\s)\#)*?)(?:(?:^|(?<=\s))\#.*)?$""", r"\1", raw).rstrip()
        found = re.match(r"""^(\s*)(["']?)([\w.-]+)\2\s*:(?:\s+(.*))?$""", line)
        if found is None:
            continue
        indent, key, value = len(found[1]), found[3], (found[4] or "").strip()
        while stack[-1][0] >= indent:
            stack.pop()
        holder = stack[-1][1]
        if value in ("", "|", ">", "|-", ">-"):
            inner: dict[str, Any] = {}
            holder[key] = inner
            stack.append((indent, inner))
        else:
            holder[key] = _scalar(value)
    return root


def _scalar(text: str) -> Any:
    if text[:1] in "\"'" and text[-1:] == text[:1] and len(text) > 1:
        return text[1:-1]
    lowered = text.lower()
    if lowered in ("true", "yes", "on", "false", "no", "off"):
        return lowered in ("true", "yes", "on")
    if lowered in ("null", "~", "none"):
        return None
    for kind in (int, float):
        try:
            return kind(text.replace("_", ""))
        except ValueError:
            continue
    return text


def _flatten(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flatten(inner, f"{prefix}.{key}" if prefix else str(key))
    elif isinstance(value, (str, int, float, bool)):
        yield prefix, value


def _python_settings(tree: ast.Module) -> Iterator[tuple[str, Any]]:
    """Defaults of argparse options and of dataclasses that look like a training config, and capital constants."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
            yield from _option(node)
        elif isinstance(node, ast.ClassDef) and re.search(r"config|args|arguments|param|settings|cfg", node.name, re.I):
            for part in node.body:
                if (
                    isinstance(part, ast.AnnAssign)
                    and isinstance(part.target, ast.Name)
                    and isinstance(part.value, ast.Constant)
                ):
                    yield part.target.id, part.value.value
        elif isinstance(node, ast.Call) and re.search(r"Config$|Args$|Arguments$", ast.unparse(node.func)):
            for k in node.keywords:
                if k.arg and isinstance(k.value, ast.Constant):
                    yield k.arg, k.value.value
    for statement in tree.body:
        if (
            isinstance(statement, ast.Assign)
            and isinstance(statement.targets[0], ast.Name)
            and isinstance(statement.value, ast.Constant)
        ):
            name = statement.targets[0].id
            if (name.isupper() and len(name) > 2) or len(name) > 4:
                yield name, statement.value.value


def _option(node: ast.Call) -> Iterator[tuple[str, Any]]:
    names = [
        a.value
        for a in node.args
        if isinstance(a, ast.Constant) and isinstance(a.value, str) and a.value.startswith("--")
    ]
    for k in node.keywords:
        if k.arg == "default" and isinstance(k.value, ast.Constant) and names:
            yield names[0].lstrip("-"), k.value.value


__all__ = ["discover", "locate", "read_settings", "simple_yaml"]
