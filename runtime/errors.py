"""The errors that a caller of the runtime acts on, each with the exit code it becomes."""

__all__ = ["Rejected", "RunError", "Superseded", "Unavailable", "said_by"]


class RunError(Exception):
    """Base of every error that the runtime raises on purpose.

    Its text is one line: what is wrong, the value got, what is accepted, what to do next.
    """

    exit_code = 1


class Rejected(RunError, ValueError):
    """The user's mistake, found before anything was touched."""

    exit_code = 2


class Unavailable(RunError):
    """The surroundings are at fault: a location that cannot be reached, a file missing on this host."""

    exit_code = 75


class Superseded(RunError):
    """A newer attempt owns the run; this one may publish nothing more."""

    exit_code = 76


def said_by(error: BaseException) -> str:
    """Return an error's type and text. The text is somebody's code, and may fail itself."""
    name = type(error).__name__
    try:
        return f"{name}: {error}"
    except Exception:  # noqa: BLE001 - whatever that raises
        return f"{name}: it has no text"
