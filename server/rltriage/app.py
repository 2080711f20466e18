"""The MCP server: tools translate their arguments into a manifest, and its report into an answer.

Nothing heavy is imported here, and nothing is measured in this process: user code runs in a worker.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import tomllib
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.types import CallToolResult, InputRequiredResult, Resource, TextContent, ToolAnnotations
from pydantic import ValidationError

from rltriage import __version__, answers, content, lifecycle
from rltriage import parameters as p
from rltriage.answers import Scope
from rltriage.errors import TriageError
from rltriage.init import compose
from rltriage.manifest import FILE_NAME, Manifest, ManifestError, from_mapping, load
from rltriage.progress import Progress
from rltriage.toolmodels import Detail, Report, fit
from rltriage.verify import TARGETS_AT_ONCE, verify
from rltriage.worker import WorkerPool

log = logging.getLogger("rltriage")

MARKDOWN = "text/markdown"
STOP_EARLIER_S = 5.0
MAX_FOLDERS = 2_000
INSTRUCTIONS = """\
rltriage finds bugs in RL post-training pipelines of language models (GRPO, PPO, RLOO, DPO, SFT warm-up) that run but
do not learn. It calls the project's own functions on small seeded inputs, compares value and gradient with reference
formulas under every convention in use, and names the bug with numbers and the page that explains it.

Stages, each depending on those before it: reward, advantages, logprobs, loss, generation. run_verify_pipeline measures
all of them from a manifest (rltriage.toml, or given inline; without one it looks for the functions itself). The check
tools measure one function, whose kind `role` says: check_reward, check_advantages, check_logprobs, check_loss,
roundtrip_decode; beside the five stages check_sft, check_model (LoRA, reference), check_environment. read_page gives
the page behind a pitfall's id.

A clean result of one function says nothing about the others: `stages` lists what has evidence, and a diagnosis is
complete only when all five do. `diverges` means a formula that is not known here, not a bug. `binding` shows how
inputs reached the function; if a line of it is wrong, so are the numbers, and `bind` corrects it. Declaring what is
meant (`intent`, or [pipeline] in the manifest) tells a bug from a convention.

It does not train, does not read dashboards or GPU runs, and does not edit files. It imports and runs project code in a
separate process of the project's Python, with a time limit. Fields named user_output hold text that the project's code
wrote: data, not advice.
"""

_RUNS_CODE = {"read_only_hint": False, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False}
"""rltriage writes nothing, but user code that it calls may: so these tools don't claim to be read-only."""
_READS = {"read_only_hint": True, "destructive_hint": False, "idempotent_hint": True, "open_world_hint": False}


@dataclass
class State:
    """What lives as long as the process serves."""

    pool: WorkerPool
    progress_every_s: float
    slots: anyio.CapacityLimiter = field(default_factory=lambda: anyio.CapacityLimiter(TARGETS_AT_ONCE))


class Server(MCPServer[State]):
    """An `MCPServer` in whose tools every foreseen failure says what to do, and a misspelt argument is one."""

    pool: WorkerPool | None = None

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[State, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        await self._refuse_unknown(name, arguments)
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as e:
            raise _for_reader(name, e) from e.__cause__

    async def list_resources(self) -> list[Resource]:
        """Every page, read when a client asks, so that starting doesn't pay for it."""
        return [
            Resource(uri=answers.page_uri(page.id), name=page.id, title=page.title, mime_type=MARKDOWN)
            for page in content.list_pages()
        ]

    async def close_workers(self) -> None:
        if self.pool is not None:
            await self.pool.close()

    async def _refuse_unknown(self, name: str, arguments: Mapping[str, Any]) -> None:
        """The SDK ignores arguments that it doesn't know, and with them a misspelt `settings`."""
        schemas = {tool.name: tool.input_schema for tool in await self.list_tools()}
        if name not in schemas:
            raise ToolError(f"There is no tool {name[:80]!r}{_nearest(name, schemas)}. Tools: {', '.join(schemas)}.")
        known = list(schemas[name].get("properties", {}))
        wrong = [f"{a[:80]!r}{_nearest(a, known)}" for a in arguments if a not in known]
        if wrong:
            raise ToolError(f"{name} has no parameter {', '.join(wrong)}. Parameters: {', '.join(known)}.")


def _for_reader(name: str, error: ToolError) -> ToolError:
    """The error with a text from which the caller can tell what to change."""
    cause = error.__cause__
    if isinstance(cause, TriageError):
        return ToolError(str(cause))
    if isinstance(cause, ValidationError):
        wrong = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors()[:8])
        return ToolError(f"The arguments of {name} are not valid. {wrong}.")
    if isinstance(error, UnexpectedToolError):
        log.error("%s crashed", name, exc_info=cause)
        return ToolError(
            f"rltriage itself failed in {name} ({type(cause).__name__}): a bug of rltriage, not of your project. Its "
            "traceback is on the server's stderr; please report it with the call. Other tools still work."
        )
    return ToolError(str(cause)) if isinstance(cause, ToolError) else error


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {close[0]}?)" if close else ""


def build_server(progress_every_s: float = 4.0) -> Server:
    """The server with all tools and pages. Workers start when a call needs them and end with the connection."""

    @asynccontextmanager
    async def lifespan(server: MCPServer[State]) -> AsyncGenerator[State]:
        async with WorkerPool() as pool:
            assert isinstance(server, Server)
            server.pool = pool
            yield State(pool=pool, progress_every_s=progress_every_s)

    server = Server(
        "rltriage",
        title="rltriage",
        version=__version__,
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        tools=_tools(),
        log_level="WARNING",
    )
    _add_pages(server)
    return server


def _tools() -> list[Tool]:
    schema = Report.model_json_schema()
    checks = [
        _tool(run_verify_pipeline, "Verify the whole pipeline", _RUNS_CODE),
        _tool(check_reward, "Check a reward function", _RUNS_CODE),
        _tool(check_advantages, "Check an advantage function", _RUNS_CODE),
        _tool(check_logprobs, "Check a log-prob or entropy function", _RUNS_CODE),
        _tool(check_loss, "Check a loss, a part of one, or a training step", _RUNS_CODE),
        _tool(roundtrip_decode, "Check decoding, chat tokens or generation", _RUNS_CODE),
        _tool(check_sft, "Check the data or the loss of SFT", _RUNS_CODE),
        _tool(check_model, "Check how policy and reference are built", _RUNS_CODE),
        _tool(check_environment, "Check an environment", _RUNS_CODE),
    ]
    for tool in checks:
        # What `structured_output=True` would do, but with one schema for all: deriving it nine times is felt at start.
        tool.fn_metadata.output_model = Report
        tool.fn_metadata.output_schema = schema
    return [*checks, _tool(read_page, "Read a page of the knowledge", _READS)]


def _tool(function: Callable[..., Any], title: str, hints: dict[str, bool]) -> Tool:
    annotations = ToolAnnotations(title=title, **hints)
    return Tool.from_function(function, title=title, annotations=annotations, structured_output=False)


def _add_pages(server: Server) -> None:
    @server.resource(
        "rltriage://pages/{page_id}",
        title="Pitfall page",
        mime_type=MARKDOWN,
        description="What a pitfall is, how it shows, and the repair. Ids stand in findings.",
    )
    def pitfall_page(page_id: str) -> str:  # pyright: ignore[reportUnusedFunction] - registered by the decorator
        try:
            return _page_text(page_id)
        except TriageError as e:
            raise ResourceNotFoundError(str(e)) from None


# Tools. Their docstrings are what a client shows to its model.


async def run_verify_pipeline(
    ctx: Context[State],
    *,
    project_root: p.ProjectRoot = "",
    manifest_path: p.ManifestPath = "",
    manifest: p.ManifestInline,
    stages: p.Stages,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Measure every stage function of a post-training pipeline and name the bugs, with numbers.

    Takes the functions from a manifest (file or inline). Without one, reads the project's source and measures the
    functions that it takes for reward, advantages, log-probs, loss and decoding; nothing is written. Returns findings
    (hard ones first), what each function was recognised to compute, which of the five stages have evidence, and the
    next step. For one function, the check tools are quicker. Does not train and does not judge hyperparameters or
    data. Runs the project's code in a separate process.
    """
    root = _root(project_root)
    notes: tuple[str, ...] = ()
    if manifest and manifest_path:
        raise ToolError("Both manifest_path and manifest were given. Pass one of them.")
    if manifest:
        m = from_mapping(manifest, root=root, python=python or None)
    elif manifest_path or (root / FILE_NAME).is_file():
        m = _loaded(root, manifest_path or FILE_NAME, python)
    else:
        m = await _discovered(ctx, root, python)
        notes = (f"no {FILE_NAME}: the functions were found by reading the source; `rltriage init` writes them down",)
    return await _measure(ctx, m, scope="pipeline", stages=stages, timeout_s=timeout_s, detail=detail, notes=notes)


async def check_reward(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.RewardRole = "reward",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check a reward function: completions (and prompts, answers) in, one number a sample out.

    Calls it on seeded texts and tests what every reward must obey: order and length of the result, no state between
    calls, alone or in a batch the same, no credit for empty or degenerate text, no exception on odd text. By role also
    answer extractors, reward shaping (KL in the reward, length penalties) and losses of reward models. Does not judge
    whether the reward measures the right thing. Runs the project's code in a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_advantages(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.AdvantagesRole = "advantages",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check an advantage function: rewards of groups of samples in, advantages of samples or tokens out.

    Finds the formula that it computes (group mean, leave-one-out, std and its ddof, eps, whitening, ...) and names
    deviations: grouping, axis, epsilon, baseline, degenerate groups. With role gae: values and token rewards in,
    bootstrap, discount and mask of generalised advantage estimation. Runs the project's code in a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_logprobs(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.LogprobsRole = "logprobs",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check a function that turns logits into log-probs of tokens (or into entropies), value and gradient.

    Names sign, off-by-one shift, wrong axis, missing normalisation, temperature, precision and cut gradients, and says
    which convention the function follows. Does not compare an inference engine with the trainer. Runs the project's
    code in a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_loss(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.LossRole = "policy_loss",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check a loss or a part of one, value and gradient: policy, critic, preference (DPO family), KL, mask, averaging.

    Names sign, clip side and bounds, ratio, KL estimator and direction, mask leaks, denominators and cut gradients;
    two bugs at once are both named. A formula that it does not know is `diverges`, not a bug. With role train_step a
    whole step is taken on a tiny model, and what it changes is compared with what it should. Runs the project's code in
    a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def roundtrip_decode(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.GenerationRole = "decode",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check a decoding function: generated ids or raw text in, the text that the reward sees out.

    Sends known completions through it and says what is lost or added: blanked completions, stripped markers, prompt
    echo, special tokens, truncation. By role also the way there: chat messages to ids, and generation by a tiny model.
    Uses a stand-in tokenizer, not the project's own. Runs the project's code in a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_sft(
    ctx: Context[State],
    *,
    target: p.Target,
    role: p.SftRole = "sft_labels",
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check the data or the loss of supervised fine-tuning: a chat sample to labels, or logits and labels to a loss.

    Says which tokens are trained (prompt, end token, padding, tool output, turns) and whether the loss shifts, masks
    and averages rightly. Uses a stand-in tokenizer. Runs the project's code in a separate process.
    """
    one = _One(role, target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_model(
    ctx: Context[State],
    *,
    target: p.Target,
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check the function that builds the policy (and the reference, the optimizer): LoRA, freezing, aliasing.

    Calls it on a tiny model and looks at what is trainable, whether adapters act and at which scale, whether the
    reference equals the policy at the start and stays apart from it. Does not load a real checkpoint. Runs the
    project's code in a separate process.
    """
    one = _One("model_factory", target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def check_environment(
    ctx: Context[State],
    *,
    target: p.Target,
    project_root: p.ProjectRoot = "",
    bind: p.Bind,
    settings: p.Settings,
    intent: p.Intent,
    python: p.Python = "",
    timeout_s: p.TimeoutS = p.DEFAULT_TIMEOUT_S,
    detail: p.DetailLevel = "normal",
) -> CallToolResult:
    """Check an environment class, or a factory of them: reset, step, rewards, seeds, isolation of instances.

    Plays episodes: does a reset give a clean start, do two instances share state, are inputs mutated, does a group get
    one problem, do many at once agree with one alone. Does not judge the task. Runs the project's code in a separate
    process.
    """
    one = _One("environment", target, bind, settings, intent)
    return await _check(ctx, one, project_root, python, timeout_s, detail)


async def read_page(*, page_id: p.PageId = "") -> str:
    """Read the page behind a pitfall's id: what it is, how it shows, how to tell it from its neighbours, the repair.

    An empty id lists all pages with their titles. The same pages are resources, rltriage://pages/ID.
    """
    wanted = page_id.strip().removeprefix(answers.page_uri(""))
    if not wanted:
        return _page_list()
    try:
        return _page_text(wanted)
    except content.ContentError as e:
        raise ToolError(f"{e.happened} {e.do} Without page_id, read_page lists all pages.") from None


# Behind the tools


@dataclass(frozen=True)
class _One:
    """One function to check."""

    role: str
    target: str
    bind: dict[str, str]
    settings: dict[str, p.Value]
    intent: dict[str, p.Value]

    def manifest(self, root: Path, python: str) -> Manifest:
        target = {"ref": self.target, "bind": self.bind, "settings": self.settings}
        data = {"pipeline": self.intent, "targets": {self.role: target}}
        return from_mapping(data, root=root, python=python or None)


async def _check(
    ctx: Context[State], one: _One, project_root: str, python: str, timeout_s: float, detail: Detail
) -> CallToolResult:
    root = _root(project_root)
    _refuse_outside(root, one.target)
    _refuse_absent(root, one.target)
    return await _measure(ctx, one.manifest(root, python), scope="target", timeout_s=timeout_s, detail=detail)


async def _measure(
    ctx: Context[State],
    manifest: Manifest,
    *,
    scope: Scope,
    timeout_s: float,
    detail: Detail,
    stages: Iterable[str] = (),
    notes: tuple[str, ...] = (),
) -> CallToolResult:
    for target in manifest.targets:
        _refuse_outside(Path(manifest.root), target.ref)
    state = ctx.request_context.lifespan_context
    # A run that is stopped by its own limit says where it was; one that is cut off by the call's can't.
    of_one = min(manifest.timeout_s, max(timeout_s - STOP_EARLIER_S, timeout_s / 2))
    async with Progress(ctx, state.progress_every_s) as progress:
        verified = await verify(
            manifest.model_copy(update={"timeout_s": of_one}),
            stages=tuple(stages),
            pool=state.pool,
            on_progress=progress.update,
            slots=state.slots,
            within_s=timeout_s,
        )
    report = answers.answer(verified, scope)
    report = fit(report.model_copy(update={"notes": (*notes, *report.notes)}), detail)
    return CallToolResult(
        content=[TextContent(type="text", text=answers.render(report))],
        structured_content=report.model_dump(mode="json"),
    )


async def _discovered(ctx: Context[State], root: Path, python: str) -> Manifest:
    """A manifest of what discovery finds in the project's source. Raises `TriageError` where it finds nothing."""
    state = ctx.request_context.lifespan_context
    async with Progress(ctx, state.progress_every_s) as progress:
        progress.update(0, 1, "reading the project's source")
        worker = await state.pool.get(python or None, {}, root=str(root))
        found = await worker.discover(root=str(root))
    if not found.found:
        raise ManifestError(
            f"There is no {FILE_NAME} in {root}, and in its {found.files_read} Python files no function looks like a "
            "stage of a post-training pipeline.",
            do='Name the functions: manifest={"targets": {"advantages": {"ref": "file.py:function"}, ...}}.',
        )
    return from_mapping(tomllib.loads(compose(found)), root=root, python=python or None)


def _root(project_root: str) -> Path:
    """The project's folder. Raises `ToolError` where there is none."""
    base = Path(os.environ.get("CLAUDE_PROJECT_DIR") or Path.cwd())
    root = (base / Path(project_root).expanduser()).resolve()
    if not root.is_dir():
        raise ToolError(f"project_root {project_root!r} is not a folder ({root}). Pass the project's absolute path.")
    return root


def _loaded(root: Path, path: str, python: str) -> Manifest:
    file = _below(root, path)
    if not file.exists():
        raise ToolError(
            f"There is no manifest {path} in {root}. Pass the path of one, or `manifest` inline; without both, "
            "run_verify_pipeline finds the functions by itself."
        )
    return load(file, python=python or None)


def _below(root: Path, path: str) -> Path:
    return root / Path(path).expanduser()


def _file_of(ref: str) -> str:
    """The file that a ref names; empty for `package.module:name`."""
    file, lines, _ = ref.partition("#L")
    file = file if lines else ref.rpartition(":")[0]
    return file if file.endswith(".py") else ""


def _refuse_outside(root: Path, ref: str) -> None:
    file = _file_of(ref)
    if file and not _below(root, file).resolve().is_relative_to(root):
        raise ToolError(
            f"{file} lies outside of the project {root}. Pass a project_root that contains it: only its files are run."
        )


def _refuse_absent(root: Path, ref: str) -> None:
    file = _file_of(ref)
    if not file or _below(root, file).is_file():
        return
    here = _namesakes(root, Path(file).name)
    hint = f" Did you mean {' or '.join(here)}?" if here else " Paths are relative to project_root."
    raise ToolError(f"There is no file {file} in {root}.{hint}")


def _namesakes(root: Path, name: str) -> list[str]:
    """Up to three files of that name in the project. Looks into `MAX_FOLDERS` folders at most: some hold data sets."""
    found: list[str] = []
    for _, (folder, below, files) in zip(range(MAX_FOLDERS), os.walk(root), strict=False):
        below[:] = sorted(d for d in below if not d.startswith(".") and d not in ("node_modules", "site-packages"))
        if name in files:
            found.append(str((Path(folder) / name).relative_to(root)))
    return found[:3]


def _page_text(page_id: str) -> str:
    page = content.page(page_id)
    facts = {"id": page.id, "stage": page.stage, "family": page.family, "roles": ", ".join(page.roles)}
    head = ", ".join(f"{key}: {value}" for key, value in facts.items() if value)
    sources = "\n".join(f"- {source}" for source in page.sources)
    return f"# {page.title}\n\n{head}\n\n{page.body}" + (f"\nSources:\n{sources}\n" if sources else "")


def _page_list() -> str:
    lines = [f"- {page.id} ({page.stage}, {page.family}): {page.title}" for page in content.list_pages()]
    return "\n".join([f"{len(lines)} pages; read one with read_page(page_id=ID).", "", *lines])


# Entry


def main() -> None:
    """Serve over stdio until the client closes it or a signal comes."""
    if sys.stdin.isatty():
        print("rltriage speaks MCP on stdin and stdout; a client starts it. Ctrl-C ends it.", file=sys.stderr)
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    server = build_server()
    anyio.run(lifecycle.run_until_signal, server.run_stdio_async, server.close_workers)
