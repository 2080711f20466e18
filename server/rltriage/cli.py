"""The command line. Thin: it parses, calls, prints and chooses the exit code.

Exit codes: 0 nothing hard was found, 1 findings, 2 something could not run, 3 incomplete (only with
`--require-complete`), 130 and 143 interrupted. A run in which nothing at
all could be measured counts as one that could not run. Results go to stdout; progress and errors go to stderr.

Nothing heavy is imported before a command needs it, so that `rltriage serve` answers its client at once.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from rltriage import __version__
from rltriage.errors import TriageError

if TYPE_CHECKING:
    from rltriage.manifest import Manifest, ManifestError
    from rltriage.render import Line
    from rltriage.report import Report
    from rltriage.worker import WorkerPool

OK: Final = 0
FINDINGS: Final = 1
COULD_NOT_RUN: Final = 2
INCOMPLETE: Final = 3
BY_SIGNAL: Final = 128

STAGE_NAMES: Final = ("reward", "advantages", "logprobs", "loss", "generation", "sft", "lora", "environment")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the process's exit code."""
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = build_parser()
    if not argv:
        if sys.stdin is not None and sys.stdin.isatty():
            parser.print_help()
            return OK
        argv = ["serve"]
    args = parser.parse_args(argv)
    try:
        return args.command(args)
    except KeyboardInterrupt:
        return BY_SIGNAL + signal.SIGINT
    except asyncio.CancelledError:
        return BY_SIGNAL + signal.SIGTERM
    except BrokenPipeError:
        # The reader left. Python would complain once more when it flushes stdout at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BY_SIGNAL + 13
    except TriageError as e:
        _print_error(e)
        return COULD_NOT_RUN


def _print_error(error: TriageError) -> None:
    from rltriage import render
    from rltriage.report import Problem

    render.write(render.problem_lines(Problem(happened=error.happened, do=error.do)), sys.stderr)


def build_parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    parser = argparse.ArgumentParser(
        prog="rltriage",
        description="Diagnoses RL post-training of language models: numeric probes on your own functions.",
        epilog="Without a command it serves MCP on stdio when a client starts it, and prints this help on a terminal.",
    )
    parser.add_argument("--version", action="version", version=f"rltriage {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND")
    _add_verify(commands)
    _add_init(commands)
    _add_adapter(commands)
    _add_doctor(commands)
    page = _command(commands, "page", _page, "print a page of the knowledge")
    page.add_argument("id", nargs="?", metavar="ID", help="id of a pitfall, e.g. ADV-EPSILON")
    page.add_argument("--list", action="store_true", help="list all pages")
    _add_selftest(commands)
    _command(commands, "serve", _serve, "serve MCP on stdio")
    return parser


def _command(commands: Any, name: str, run: Callable[[argparse.Namespace], int], says: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(name, help=says, description=f"{says[0].upper()}{says[1:]}.")
    parser.set_defaults(command=run)
    return parser


def _add_verify(commands: Any) -> None:
    p = _command(commands, "verify", _verify, "run every probe that the manifest allows")
    p.epilog = (
        "A target of the manifest is file.py:function, file.py:Class.method, package.module:name, or lines of a file: "
        'ref = "train.py#L120-L141" with inputs = { scores = "rewards", n = "=8" } (name -> word, or a literal behind '
        '"=") and output = "adv". `rltriage adapter ROLE --ref train.py#L120-L141` prints that table. Each finding '
        "comes with a short program that reproduces it."
    )
    p.add_argument(
        "files",
        nargs="*",
        metavar="FILE.py",
        help="find the stage functions of these files, no manifest needed; with --framework: the project's folder",
    )
    p.add_argument("--manifest", action="append", default=[], metavar="FILE", help="default: rltriage.toml; repeatable")
    p.add_argument("--example", action="store_true", help="verify the small broken pipeline that ships with rltriage")
    p.add_argument("--framework", metavar="NAME", help="verify an installed framework's stage functions, e.g. trl")
    p.add_argument(
        "--stage", action="append", default=[], choices=STAGE_NAMES, metavar="STAGE", help="only this stage; repeatable"
    )
    p.add_argument("--json", action="store_true", help="print one JSON report a line")
    p.add_argument("--python", metavar="P", help="interpreter that runs the probes; overrides the manifest")
    p.add_argument("--require-complete", action="store_true", help="exit with 3 unless all five stages are covered")


def _add_init(commands: Any) -> None:
    p = _command(commands, "init", _init, "write an rltriage.toml from what is found in a project")
    p.add_argument("folder", nargs="?", default=".", metavar="DIR", help="the project; default: this folder")
    p.add_argument("--force", action="store_true", help="replace an rltriage.toml that exists")
    p.add_argument("--python", metavar="P", help="interpreter that reads the project")


def _add_adapter(commands: Any) -> None:
    p = _command(commands, "adapter", _adapter, "write an adapter: a function of a role's own signature around yours")
    p.epilog = (
        "An adapter takes rltriage's words under their own names, so that nothing has to be bound, and calls your "
        'function in its own form; ref = "adapter.py:ROLE" verifies it. For lines of a file (--ref train.py#L10-L20) '
        "the manifest's lines are printed instead."
    )
    p.add_argument("role", nargs="?", metavar="ROLE", help="e.g. advantages")
    p.add_argument("--list", action="store_true", help="show every role's canonical signature")
    p.add_argument(
        "--ref", default="", metavar="REF", help="your function, file.py:function, or lines, file.py#L10-L20"
    )
    p.add_argument("--out", default="adapter.py", metavar="FILE", help="default: adapter.py")
    p.add_argument("--force", action="store_true", help="replace a file that exists")
    p.add_argument("--python", metavar="P", help="interpreter that loads the function")


def _add_doctor(commands: Any) -> None:
    p = _command(commands, "doctor", _doctor, "say what would run, where, and what is wrong")
    p.add_argument("--manifest", metavar="FILE", help="default: rltriage.toml where there is one")
    p.add_argument("--python", metavar="P", help="interpreter that would run the probes; overrides the manifest")


def _add_selftest(commands: Any) -> None:
    p = _command(commands, "selftest", _selftest, "measure rltriage itself on the specimens that ship with it")
    p.add_argument("--role", action="append", default=[], metavar="ROLE", help="only this role; repeatable")
    p.add_argument("--json", action="store_true", help="print the figures, and every failure, as JSON")
    p.add_argument("--python", metavar="P", help="interpreter that runs the probes")


def _serve(_args: argparse.Namespace) -> int:
    from rltriage import app

    app.main()
    return OK


def _page(args: argparse.Namespace) -> int:
    from rltriage import content
    from rltriage.render import ascii_only, is_plain

    plain = is_plain(sys.stdout)
    if args.list or not args.id:
        text = "".join(f"{p.id:24} {p.stage:12} {p.title}\n" for p in content.list_pages())
    else:
        p = content.page(args.id)
        sources = "".join(f"- {s}\n" for s in p.sources)
        text = f"# {p.id}: {p.title}\n\nstage {p.stage}, family {p.family}\n\n{p.body}" + (
            f"\nSources\n{sources}" if sources else ""
        )
    sys.stdout.write(ascii_only(text) if plain and not _is_utf8() else text)
    sys.stdout.flush()
    return OK


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"


def _verify(args: argparse.Namespace) -> int:
    return _run(_verify_all(args))


def _init(args: argparse.Namespace) -> int:
    return _run(_init_one(args))


def _adapter(args: argparse.Namespace) -> int:
    return _run(_adapt(args))


def _doctor(args: argparse.Namespace) -> int:
    return _run(_examine(args))


def _selftest(args: argparse.Namespace) -> int:
    return _run(_measure_itself(args))


def _run(work: Coroutine[Any, Any, int]) -> int:
    """Run a command to its end; SIGTERM cancels it, so that no worker is left behind."""

    async def guarded() -> int:
        task = asyncio.current_task()
        if task is not None:
            with contextlib.suppress(NotImplementedError, ValueError):
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    try:
        return asyncio.run(guarded())
    except BaseExceptionGroup as group:
        raise _only(group) from None


def _only(error: BaseException) -> BaseException:
    """What a task group wrapped, where that is one exception: it is the failure, the group is plumbing."""
    while isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if len(inner) != 1:
            break
        error = inner[0]
    return cast("BaseException", error)


async def _init_one(args: argparse.Namespace) -> int:
    from rltriage import render
    from rltriage.init import found_lines, init
    from rltriage.worker import WorkerPool

    async with WorkerPool() as pool:
        done = await init(Path(args.folder), pool=pool, python=_python(args.python), force=args.force)
    render.write(
        [
            render.Line(f"wrote {render.clean(str(done.file))}", "head"),
            *(render.Line(row, "?" if row.startswith("  ?") else "") for row in found_lines(done.found)),
            render.Line("Next: read it, correct what is wrong, then run `rltriage verify`."),
        ],
        sys.stdout,
    )
    return OK


async def _adapt(args: argparse.Namespace) -> int:
    from rltriage import adapter, render
    from rltriage.worker import WorkerPool

    if not args.list and not args.role:
        raise TriageError("adapter wants the name of a role.", do="`rltriage adapter --list` shows the roles.")
    root = Path.cwd()
    async with WorkerPool() as pool:
        if args.list:
            worker = await pool.get(_python(args.python), {}, root=str(root))
            described = await worker.describe((args.role,) if args.role else ())
            render.write([render.Line(row) for row in adapter.listing(described.roles)], sys.stdout)
            return OK
        made = await adapter.make(
            args.role, args.ref, Path(args.out), root=root, pool=pool, python=_python(args.python), force=args.force
        )
    lines = [render.Line(f"wrote {render.clean(str(made.file))}", "head")] if made.file else []
    lines += [render.Line(f"  ? open: {', '.join(made.open)}", "?")] if made.open else []
    lines.append(render.Line("In the manifest:"))
    lines += [render.Line(f"    {row}") for row in made.manifest.splitlines()]
    step = "complete what says TODO, then run" if made.open and made.file else "run"
    render.write([*lines, render.Line(f"Next: {step} `rltriage verify`.")], sys.stdout)
    return OK


async def _examine(args: argparse.Namespace) -> int:
    from rltriage import doctor, render
    from rltriage.worker import WorkerPool

    async with WorkerPool() as pool:
        diagnosis = await doctor.examine(args.manifest, pool=pool, python=_python(args.python))
    render.write(diagnosis.lines, sys.stdout)
    return OK if diagnosis.healthy else COULD_NOT_RUN


def _failure_line(kind: str, name: str) -> Line:
    from rltriage.render import Line

    mark = "?" if kind == "wrong stranger" else "!!"
    return Line(f"{mark} {kind}: {name}", mark)


async def _measure_itself(args: argparse.Namespace) -> int:
    import json
    from dataclasses import asdict

    from rltriage import render, selftest
    from rltriage.manifest import known_roles, nearest
    from rltriage.worker import WorkerPool

    for role in args.role:
        if role not in known_roles():
            raise TriageError(
                f"There is no role {role[:40]!r}{nearest(role, known_roles())}.",
                do=f"Roles: {', '.join(known_roles())}.",
            )
    chosen = selftest.specimens(args.role)
    verdicts: list[selftest.Verdict] = []
    async with WorkerPool() as pool:
        with render.progress(sys.stderr) as bar:
            async with contextlib.aclosing(selftest.judge(chosen, pool=pool, python=_python(args.python))) as results:
                async for verdict in results:
                    verdicts.append(verdict)
                    if bar is not None:
                        bar(float(len(verdicts)), float(len(chosen)), verdict.specimen.role)
    rows, failed = selftest.table(verdicts), [v for v in verdicts if not v.passed]
    if args.json:
        failures = [
            {
                "specimen": v.specimen.name,
                "kind": v.specimen.kind,
                "role": v.specimen.role,
                "named": v.named,
                "ran": v.ran,
            }
            for v in failed
        ]
        sys.stdout.write(json.dumps({"roles": [asdict(r) for r in rows], "failed": failures}) + "\n")
    else:
        text = [render.Line(row, "head" if i == 0 else "") for i, row in enumerate(selftest.lines(rows))]
        text += [_failure_line(v.specimen.kind, v.specimen.name) for v in failed]
        render.write(text, sys.stdout)
    if not any(v.ran for v in verdicts):
        return COULD_NOT_RUN
    # a stranger that is missed is a figure; a page's own bug, or an accused right function, is a fault
    return FINDINGS if any(v.specimen.kind != "wrong stranger" for v in failed) else OK


async def _verify_all(args: argparse.Namespace) -> int:
    from rltriage import render
    from rltriage.verify import verify_many
    from rltriage.worker import WorkerPool

    code = OK
    held: list[Report] = []
    async with WorkerPool() as pool:
        manifests, names = await _manifests(args, pool)
        with render.progress(sys.stderr) as bar:
            reports = verify_many(manifests, names=names, stages=args.stage, pool=pool, on_progress=bar)
            async with contextlib.aclosing(reports):
                async for report in reports:
                    code = _worse(code, _code_of(report, args.require_complete))
                    # A bar that is being drawn and text on the same terminal would tear each other.
                    if bar is not None and sys.stdout.isatty():
                        held.append(report)
                    else:
                        _print_report(report, as_json=args.json)
    for report in held:
        _print_report(report, as_json=args.json)
    return code


def _print_report(report: Report, *, as_json: bool) -> None:
    from rltriage import render

    if as_json:
        sys.stdout.write(report.json_line() + "\n")
        sys.stdout.flush()
        for problem in report.errors:
            render.write(render.problem_lines(problem), sys.stderr)
    elif report.errors and not report.targets:
        for problem in report.errors:
            render.write(render.problem_lines(problem), sys.stderr)
    else:
        render.write(render.report_lines(report), sys.stdout)


def _code_of(report: Report, require_complete: bool) -> int:
    if report.errors or not report.measured:
        return COULD_NOT_RUN
    if report.verdict == "findings":
        return FINDINGS
    return INCOMPLETE if require_complete and report.verdict == "incomplete" else OK


def _worse(a: int, b: int) -> int:
    """Of several manifests: that one could not run outweighs findings, and they an incomplete one."""
    return min((c for c in (COULD_NOT_RUN, FINDINGS, INCOMPLETE) if c in (a, b)), key=(2, 1, 3).index, default=OK)


async def _manifests(args: argparse.Namespace, pool: WorkerPool) -> tuple[list[Manifest | ManifestError], list[str]]:
    """What is to be verified, and the name of each as given."""
    from rltriage.manifest import FILE_NAME, load

    python = _python(args.python)
    ways = [w for w in ("files", "manifest", "example", "framework") if getattr(args, w)]
    if args.framework and "files" in ways:
        ways.remove("files")  # with a framework it is the project's folder
    if len(ways) > 1:
        raise TriageError(
            "FILE.py, --manifest, --example and --framework exclude each other.", do="Give one of them in a call."
        )
    if args.files and not args.framework:
        from rltriage.init import manifest_of_files

        return [await manifest_of_files([Path(f) for f in args.files], pool=pool, python=python)], []
    if args.framework:
        return [await _framework(args.framework, args.files, pool, python)], []
    if args.example:
        return [load(example(), python=python)], []
    names: list[str] = args.manifest or [FILE_NAME]
    return [_loaded(name, python) for name in names], names


def _loaded(name: str, python: str | None) -> Manifest | ManifestError:
    from rltriage.manifest import ManifestError, load

    try:
        return load(name, python=python)
    except ManifestError as e:
        return e


async def _framework(name: str, folders: Sequence[str], pool: WorkerPool, python: str | None) -> Manifest:
    from rltriage import packs

    if len(folders) > 1:
        raise TriageError(
            "--framework takes one folder at most.", do="Name the project's folder, or none for this one."
        )
    return await packs.manifest_of(name, Path(folders[0] if folders else "."), pool=pool, python=python)


def example() -> Path:
    """Manifest of the embedded example."""
    return Path(__file__).resolve().parent / "example" / "rltriage.toml"


def _python(given: str | None) -> str | None:
    """An interpreter named on the command line is relative to the caller's folder, not to the manifest's."""
    if given is None or os.sep not in given:
        return given
    return str(Path(given).absolute())
