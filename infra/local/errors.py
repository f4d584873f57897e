"""What goes wrong with the stack on one machine."""

__all__ = ["ServiceError", "StackError"]


class StackError(ValueError):
    """The user's to change: a port in use, a stack that is not up. One line; nothing was started."""

    exit_code = 2


class ServiceError(StackError):
    """The surroundings: a service that does not come up or does not go away. One line that names its log."""

    exit_code = 75
