"""What went wrong and what to do about it, for the person or model that asked.

Could a smarter caller have avoided it? Then it is a `TriageError`, and its text is read. Wrong numbers
are an outcome, not an error. Anything else is a crash of ours and stays an ordinary exception.

These are plain exceptions: the MCP layer turns them into its own `ToolError`, so that the command line
needn't import the SDK.
"""

from __future__ import annotations

from rltriage_probes.contract import Failed


class TriageError(Exception):
    """A foreseen failure: `happened` states it, `do` says what makes the next try work."""

    def __init__(self, happened: str, do: str) -> None:
        super().__init__(f"{happened} {do}".strip())
        self.happened = happened
        self.do = do


class RunFailed(TriageError):
    """The worker lives, but this request gave no result; `failed` has the kind and the last words."""

    def __init__(self, failed: Failed) -> None:
        super().__init__(failed.happened, do=failed.do)
        self.failed = failed


class InterpreterError(TriageError):
    """No Python that can run the probes where one was named or looked for."""


class WorkerError(TriageError):
    """The worker could not be started, or died."""
