#!/usr/bin/env python3
"""Checks the stage functions of an RL post-training pipeline, in your own environment, with nothing but torch there.

    python verify_pipeline.py path/to/pipeline.py [more.py ...]
    python verify_pipeline.py --manifest rltriage.toml

Finds the reward, advantage, log-prob, loss, mask and decoding functions of the files, runs the rltriage probes on them
and shows what log-probs, advantages and decoding give on small fixed inputs, beside what they must meet:

    ok   meets it
    !!   a hard violation
    ?    look at this: it may be meant

Exit code: 0 nothing hard, 1 a hard violation, 2 could not run.

Your code is executed, in processes of its own. The probes are those of rltriage: beside this file in a checkout, inside
it where it was exported, else those that are installed.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import importlib.util
import io
import json
import math
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUNDLE = ""  # the package rltriage_probes as base64 of a zip file; filled in by export_verify_pipeline.py

CLEAN, HARD, COULD_NOT_RUN = 0, 1, 2
SHOWN = ("logprobs", "advantages", "decode")
"""Roles whose values are shown."""
WIDTH = 8
"""Numbers shown of one row."""


class CouldNotRun(Exception):
    """Why nothing could be checked, and what to do."""


@dataclass
class Target:
    """One function to check, and all that came back about it."""

    role: str
    ref: str
    root: str
    name: str = ""
    bind: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    block: dict[str, Any] | None = None
    result: dict[str, Any] = field(default_factory=dict)
    """The worker's `checked` or `failed` message."""
    values: list[dict[str, str]] = field(default_factory=list)
    """Rows of the table of values: mark, label, got, must."""

    def request(self, intent: dict[str, Any], limits: dict[str, float]) -> dict[str, Any]:
        spec = {"name": self.name or self.role, "role": self.role, "ref": self.ref, "bind": self.bind}
        spec.update(settings=self.settings, **({"block": self.block} if self.block else {}))
        return {"op": "check", "id": 0, "root": self.root, "target": spec, "intent": intent, "limits": limits}


# The probes


@contextlib.contextmanager
def probes_folder() -> Generator[Path]:
    """Folder of the package `rltriage_probes`: bundled, beside this file, or installed."""
    if BUNDLE:
        with tempfile.TemporaryDirectory(prefix="verify_pipeline_") as folder:
            zipfile.ZipFile(io.BytesIO(base64.b64decode(BUNDLE))).extractall(folder)
            yield Path(folder) / "rltriage_probes"
        return
    beside = Path(__file__).resolve().parent.parent / "probes" / "rltriage_probes"
    if (beside / "boot.py").is_file():
        yield beside
        return
    spec = importlib.util.find_spec("rltriage_probes")
    if spec is None or not spec.submodule_search_locations:
        raise CouldNotRun(
            "The probes are missing. Keep this file in its checkout, export it with scripts/export_verify_pipeline.py, "
            "or install rltriage."
        )
    yield Path(next(iter(spec.submodule_search_locations)))


def make_importable(probes: Path) -> None:
    """Let `rltriage_probes`, and nothing that may lie beside it, be imported."""
    spec = importlib.util.spec_from_file_location("rltriage_boot", probes / "boot.py")
    assert spec is not None
    assert spec.loader is not None
    boot = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(boot)
    boot.make_importable()


class Worker:
    """The probes' worker, in this interpreter: one request at a time."""

    def __init__(self, probes: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(probes / "boot.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._id = 0
        self.hello = self._read()
        if self.hello.get("op") != "hello":
            raise CouldNotRun(_told(self.hello))

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """The last reply to a request; progress is passed over."""
        self._id += 1
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**request, "id": self._id}) + "\n")
        self._process.stdin.flush()
        while True:
            reply = self._read()
            if reply.get("id") == self._id and reply.get("op") != "progress":
                return reply

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise CouldNotRun(f"The worker ended with exit code {self._process.wait()}.")
        return json.loads(line)

    def close(self) -> None:
        """End the worker by closing its input, which is what it lives on."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()


def _told(failed: dict[str, Any]) -> str:
    return f"{failed.get('happened', 'The worker gave no answer.')} {failed.get('do', '')}".strip()


# What is to be checked


def from_files(worker: Worker, files: Sequence[str]) -> tuple[list[Target], dict[str, Any], list[str]]:
    """The stage functions that discovery finds in files, the settings that it read, and what it was not sure of."""
    paths = [Path(f).resolve() for f in files]
    for path in paths:
        if not path.is_file():
            raise CouldNotRun(f"There is no file {path}.")
    root = Path(os.path.commonpath([str(p.parent) for p in paths]))
    names = [p.relative_to(root).as_posix() for p in paths]
    reply = worker.ask({"op": "discover", "root": str(root), "files": names})
    if reply["op"] != "discovered":
        raise CouldNotRun(_told(reply))
    targets = [Target(role=f["role"], ref=f["ref"], root=str(root), bind=f.get("bind", {})) for f in reply["found"]]
    notes = [f"not parsed: {s}" for s in reply["skipped"]]
    notes += [f"passed over {f['ref']} as {f['role']}: {f['why']}" for f in reply["unsure"]]
    return targets, reply["settings"], notes


def from_manifest(file: str, roles: Sequence[str]) -> tuple[list[Target], dict[str, Any], list[str]]:
    """The targets and the intent of a manifest. Its `python` and `env` are not used: this is your environment."""
    if sys.version_info < (3, 11):
        raise CouldNotRun("--manifest needs Python 3.11 (tomllib); name the files instead.")
    import tomllib

    try:
        data = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as e:
        raise CouldNotRun(f"The manifest {file} can't be read: {e}") from None
    root = str(Path(file).resolve().parent)
    targets: list[Target] = []
    notes: list[str] = []
    for name, row in data.get("targets", {}).items():
        role = row.get("role", name.partition("-")[0])
        if role not in roles:
            notes.append(f"no probe for the role {role} ({row.get('ref')})")
            continue
        row = {k: v for k, v in row.items() if k in ("ref", "bind", "settings", "block")}
        targets.append(Target(role=role, root=root, name=name, **row))
    run_keys = ("python", "device", "timeout_s", "memory_gb")
    return targets, {k: v for k, v in data.get("pipeline", {}).items() if k not in run_keys}, notes


# Values on small inputs. This part runs in a child, which loads the user's code.


Row = dict[str, str]


def show_values(probes: Path, requests: list[dict[str, Any]]) -> int:
    """Child: one JSON line of rows for each request, in order."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the user's code prints goes elsewhere
    make_importable(probes)
    for request in requests:
        json.dump(_rows(request), out)
        out.write("\n")
        out.flush()
    return CLEAN


def _rows(request: dict[str, Any]) -> list[Row]:
    from rltriage_probes import binding, contract, invoke, loading, model, registry

    wanted = contract.decode_request(request)
    assert isinstance(wanted, contract.CheckRequest)
    spec = wanted.target
    role = registry.role(spec.role)
    try:
        loaded = loading.load(wanted.root, spec)
        bound = binding.bind(loaded, role, spec.bind, spec.settings, wanted.intent, spec.name)
        return list(TABLES[role.name](bound, dict(role.example(wanted.intent).inputs)))
    except (loading.LoadFailed, binding.BindingFailed, invoke.NotReached) as e:
        return [_row("?", "no values", contract.clip_text(e.reason, 300), "")]
    except model.CallFailed as e:
        return [_row("?", "no values", contract.clip_text(e.error, 300), "")]


def _row(mark: str, label: str, got: str, must: str) -> Row:
    return {"mark": mark, "label": label, "got": got, "must": must}


def _judged(fine: bool, label: str, got: str, must: str) -> Row:
    return _row("ok" if fine else "?", label, got, must)


def _numbers(values: Any) -> str:
    """A row of numbers as text, the first few."""
    flat = values.reshape(-1).tolist()
    text = " ".join(f"{x:8.4f}" if math.isfinite(x) else f"{x!s:>8}" for x in flat[:WIDTH])
    return text + (f"  ... {len(flat)} in all" if len(flat) > WIDTH else "")


def _called(bound: Any, inputs: dict[str, Any]) -> Any:
    """The function's value on these inputs, float64 and on the CPU."""
    return bound.call({k: v for k, v in inputs.items() if k in bound.names}).value


def logprob_rows(bound: Any, example: dict[str, Any]) -> Iterator[Row]:
    """Four facts of a log-softmax that hold whatever the slicing, the mask or the temperature."""
    import torch

    logits, ids = example["logits"], example["token_ids"]
    vocabulary = logits.shape[-1]
    seen = _scored(example, bound)

    def ask(scores: Any, tokens: Any) -> Any:
        return _called(bound, {**example, "logits": scores, "token_ids": tokens, "labels": tokens})

    plain = ask(logits, ids)
    where = seen(plain)
    fine = bool((plain[where] <= 1e-4).all()) and bool(plain[where].isfinite().all())
    yield _judged(fine, f"random logits {list(logits.shape)} -> {list(plain.shape)}", _numbers(plain[where]), "<= 0")

    flat = ask(torch.zeros_like(logits), ids)[where]
    must = -math.log(vocabulary)
    near = bool((flat - must).abs().max() < 1e-3)
    yield _judged(near, "equal logits", _numbers(flat), f"-ln {vocabulary} = {must:.4f}")

    favourite = torch.full_like(ids, 3)
    peak = torch.zeros_like(logits)
    peak[..., 3] = 60.0
    top = ask(peak, favourite)[where]
    yield _judged(bool(top.abs().max() < 1e-3), "one logit 60 above all, its token", _numbers(top), "0")

    every = torch.stack([ask(logits, torch.full_like(ids, v)) for v in range(vocabulary)])
    total = every.exp().sum(0)[where]
    yield _judged(bool((total - 1).abs().max() < 1e-3), "sum over the vocabulary of exp", _numbers(total), "1")


def _scored(example: dict[str, Any], bound: Any) -> Callable[[Any], Any]:
    """Which elements of a result count: those under the mask, where the function takes one of the same shape."""
    import torch

    names = [w for w in ("completion_mask", "attention_mask") if w in bound.names and w in example]

    def where(value: Any) -> Any:
        for word in names:
            mask = example[word]
            if mask.dim() == 2 and value.dim() == 2:
                return mask[:, -value.shape[1] :] > 0
        return torch.ones_like(value, dtype=torch.bool)

    return where


def advantage_rows(bound: Any, example: dict[str, Any]) -> Iterator[Row]:
    """One right answer in a group, a group without spread, and the example's mixture."""
    import torch

    base, ids = example["rewards"], example["group_ids"]
    first = ids == ids[0]

    def ask(rewards: Any) -> Any:
        value = _called(bound, {**example, "rewards": rewards, **_token_rewards(example, rewards)})
        return value if value.dim() == 1 else _per_sample(value, example)

    one = base.clone()
    one[first] = 0.0
    one[0] = 1.0
    got = ask(one)[first]
    shape = f"rewards {_short(one[first])}"
    up = bool(got[0] > 0) and bool((got[1:] <= 0).all())
    yield _judged(up, shape, _numbers(got), "+ for the right one, - or 0 for the others")
    yield _judged(bool(got.sum().abs() < 1e-3), "  their sum", f"{float(got.sum()):8.4f}", "0 with a group baseline")
    size = float(got[0] - got[1])
    usual = {
        "no std": 1.0,
        "std, ddof 1": 1 / float(one[first].double().std()),
        "std, ddof 0": 1 / float(one[first].double().std(correction=0)),
    }
    must = ", ".join(f"{x:.4f} ({name})" for name, x in usual.items())
    known = any(abs(size - x) < 2e-2 * x for x in usual.values())
    yield _judged(known, "  right minus wrong", f"{size:8.4f}", must)

    same = base.clone()
    same[first] = 0.3
    got = ask(same)[first]
    yield _judged(bool((got.abs() < 1e-2).all()), "rewards all 0.3", _numbers(got), "0, finite")

    got = ask(base)
    sums = torch.stack([got[ids == k].sum() for k in ids.unique()])
    fine = bool(sums.isfinite().all()) and bool((sums.abs() < 1e-2).all())
    yield _judged(fine, f"{len(sums)} groups of various rewards: sums", _numbers(sums), "0 with a group baseline")


def _token_rewards(example: dict[str, Any], rewards: Any) -> dict[str, Any]:
    """The same rewards laid on the last token of each row."""
    if "token_rewards" not in example or "lengths" not in example:
        return {}
    laid = example["token_rewards"].clone()
    mask = example["completion_mask"]
    laid[mask > 0] = 0.0
    for i, length in enumerate(example["lengths"].tolist()):
        laid[i, length - 1] = rewards[i]
    return {"token_rewards": laid}


def _per_sample(value: Any, example: dict[str, Any]) -> Any:
    """Advantages by token as one a sample: the entry at the first trained token."""
    mask = example["completion_mask"][:, -value.shape[1] :]
    return value.gather(1, mask.argmax(dim=1, keepdim=True)).squeeze(1)


def _short(values: Any) -> str:
    return "[" + " ".join(f"{x:g}" for x in values.tolist()[:WIDTH]) + "]"


DECODED = (
    ("plain text", "The answer is 42.", "42"),
    ("closed reasoning", "<think>\n6 times 7\n</think>\nThe answer is 42.", "42"),
    ("closing marker only", "6 times 7</think>The answer is 42.", "42"),
    ("opened, never closed", "<think>\n6 times 7 is", None),
    ("empty", "", None),
)
"""Label, completion, and what has to survive; None: the contract decides."""


def decode_rows(bound: Any, _: dict[str, Any]) -> Iterator[Row]:
    """What remains of texts of each shape."""
    for label, text, survivor in DECODED:
        got = _decoded(bound, text)
        if survivor is None:
            yield _row("ok", label, repr(got)[:100], "text or empty, as the contract says")
        else:
            yield _judged(survivor in got, label, repr(got)[:100], f"holds {survivor}")


def _decoded(bound: Any, text: str) -> str:
    from rltriage_probes import texts
    from rltriage_probes.generation import tokens

    many = [text, "The answer is 7."]
    inputs = {**tokens.example_inputs(many), "text": text, "completion": text, "texts": many, "completions": many}
    value = bound.call_raw(inputs)
    rows = None if isinstance(value, str) else texts.rows(value, len(many))
    return "\n".join(texts.strings(rows[0] if rows else value))


TABLES: dict[str, Callable[[Any, dict[str, Any]], Iterator[Row]]] = {
    "logprobs": logprob_rows,
    "advantages": advantage_rows,
    "decode": decode_rows,
}


def fill_values(probes: Path, targets: list[Target], intent: dict[str, Any], timeout: float) -> None:
    """Fetch the tables from a child; one that dies or hangs costs one target its table."""
    todo = [t for t in targets if t.role in SHOWN and is_measured(t)]
    while todo:
        requests = [t.request(intent, {}) for t in todo]
        lines, why = _child(probes, requests, timeout)
        for target, line in zip(todo, lines, strict=False):
            target.values = json.loads(line)
        todo = todo[len(lines) :]
        if todo:
            todo[0].values = [_row("?", "no values", why, "")]
            todo = todo[1:]


def _child(probes: Path, requests: list[dict[str, Any]], timeout: float) -> tuple[list[str], str]:
    """The lines that a child wrote before it ended, and how it ended."""
    command = [sys.executable, str(Path(__file__).resolve()), "--values", str(probes)]
    child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        out, err = child.communicate(json.dumps(requests), timeout=timeout * len(requests))
        why = (err.strip().splitlines() or [f"the process ended with {child.returncode}"])[-1][:300]
    except subprocess.TimeoutExpired:
        child.kill()
        out, _ = child.communicate()
        why = "it took too long"
    return [line for line in out.splitlines() if line.startswith("[")][: len(requests)], why


# The report


def print_report(targets: list[Target], notes: list[str]) -> int:
    """Print everything; the number of hard lines."""
    from rltriage_probes.contract import ROLE_STAGES, STAGES

    hard = 0
    for stage in STAGES:
        print(f"\n{stage}")
        mine = [t for t in targets if ROLE_STAGES.get(t.role) == stage]
        if not mine:
            print("  ?   not covered: no function of this stage was found or named")
        for target in mine:
            hard += _print_target(target)
    for note in notes:
        print(f"\n  ?   {note}" if note is notes[0] else f"  ?   {note}")
    return hard


def is_measured(target: Target) -> bool:
    """Whether anything conclusive came back; a raise or a binding that failed is no evidence."""
    from rltriage_probes.contract import CONCLUSIVE

    checks = target.result["result"]["checks"] if target.result.get("op") == "checked" else []
    return any(c["outcome"]["kind"] in CONCLUSIVE for c in checks)


def _print_target(target: Target) -> int:
    print(f"  {target.role}: {target.ref}")
    if target.result.get("op") != "checked":
        print(f"    ?   not run: {_indented(_told(target.result))}")
        return 0
    lines = [line for check in target.result["result"]["checks"] for line in check_lines(check)]
    hard = sum(mark == "!!" for mark, _ in lines)
    for mark, text in sorted(dict.fromkeys(lines), key=lambda line: ("!!", "?", "ok").index(line[0])):
        print(f"    {mark:3} {_indented(text)}")
    label = max((len(row["label"]) for row in target.values), default=0)
    for row in target.values:
        mark = "!!" if row["mark"] == "?" and hard and row["must"] else row["mark"]
        must = f"   must be: {row['must']}" if row["must"] else ""
        print(f"      {mark:3} {row['label']:{label}}  {row['got']}{must}")
    return hard


def _indented(text: str) -> str:
    """Text that may come from the user's program: without control characters, further lines indented."""
    plain = "".join(c if c.isprintable() or c == "\n" else " " for c in text)
    return plain.replace("\n", "\n          ")


def check_lines(check: dict[str, Any]) -> list[tuple[str, str]]:
    """Mark and text of one check's outcome."""
    outcome = check["outcome"]
    kind = outcome["kind"]
    mark = "!!" if outcome.get("severity") == "hard" else "?"
    gap = f" ({_gap(outcome['gap'])})" if outcome.get("gap") else ""
    if kind == "agrees":
        return [("ok", outcome["convention"]["summary"] or check["probe"])]
    if kind == "known_bug":
        return [(mark, f"{n['pitfall']}: {n['says']}{_figures(n['numbers'])}{gap}") for n in outcome["pitfalls"]]
    if kind == "violates":
        names = ", ".join(n["pitfall"] for n in outcome["candidates"])
        return [(mark, f"{check['probe']}: {outcome['says']}{gap}" + (f" [likely {names}]" if names else ""))]
    if kind == "diverges":
        return [(mark, f"{check['probe']}: {outcome['says']}{gap}")]
    if kind == "raised":
        return [("?", f"{check['probe']}: raised {outcome['error']} at {outcome['where']} on case {outcome['case']}")]
    return [("?", f"{check['probe']}: not run: {outcome['reason']} {outcome['do']}".rstrip())]


def _gap(gap: dict[str, Any]) -> str:
    return f"{gap['quantity']} on case {gap['case']}: {_figure(gap['actual'])} for {_figure(gap['expected'])}"


def _figures(numbers: dict[str, Any]) -> str:
    return f" [{', '.join(f'{k} = {_figure(v)}' for k, v in numbers.items())}]" if numbers else ""


def _figure(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.6g}"


def run(args: argparse.Namespace) -> int:
    limits = {"timeout_s": args.timeout, "memory_gb": args.memory}
    with probes_folder() as probes, contextlib.closing(Worker(probes)) as worker:
        make_importable(probes)
        if not worker.hello["torch"]:
            raise CouldNotRun(f"{sys.executable} has no torch. Run this with the Python that trains.")
        if args.manifest:
            targets, intent, notes = from_manifest(args.manifest, worker.hello["roles"])
        else:
            targets, intent, notes = from_files(worker, args.files)
        print(f"verify_pipeline: {sys.executable}, Python {worker.hello['python']}, torch {worker.hello['torch']}")
        if intent:
            print("declared: " + ", ".join(f"{k} = {v}" for k, v in intent.items()))
        for target in targets:
            target.result = worker.ask(target.request(intent, limits))
        if not targets:
            raise CouldNotRun("No stage function was found. Name them in a manifest: --manifest rltriage.toml")
        fill_values(probes, targets, intent, args.timeout)
    hard = print_report(targets, notes)
    ran = [t for t in targets if is_measured(t)]
    print(f"\n{hard} hard, {len(ran)} of {len(targets)} functions checked")
    if not ran:
        return COULD_NOT_RUN
    return HARD if hard else CLEAN


def main() -> int:
    if sys.argv[1:2] == ["--values"]:
        return show_values(Path(sys.argv[2]), json.load(sys.stdin))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", help="files in which to look for stage functions")
    parser.add_argument("--manifest", help="rltriage.toml that names them (Python 3.11)")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds for one function")
    parser.add_argument("--memory", type=float, default=8.0, help="GB for one function")
    args = parser.parse_args()
    if bool(args.files) == bool(args.manifest):
        parser.error("name files or a manifest")
    try:
        return run(args)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the reader left; Python would complain once more at exit
        return COULD_NOT_RUN
    except CouldNotRun as e:
        print(f"could not run: {e}", file=sys.stderr)
        return COULD_NOT_RUN


if __name__ == "__main__":
    sys.exit(main())
