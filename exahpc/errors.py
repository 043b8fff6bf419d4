"""The one error tree. Every error a user can see names the thing, the value and the remedy."""

from __future__ import annotations


class ExahpcError(Exception):
    """Base of all errors that are meant for a user; `exit_code` is what the command line returns."""

    exit_code = 1


class DeploymentError(ExahpcError):
    """The deployment file, or what it names, cannot work: key, value and remedy stand in the message."""

    exit_code = 2


class RequestError(ExahpcError):
    """A request that can never succeed: bad fields, too long, unknown model.

    status: HTTP status code; type, param and code: the fields of OpenAI's error object; retry_after: seconds after
    which the client may ask again; final: asking again does not help, clients that would do so by themselves
    should not.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        final: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.final = final


class Interrupted(ExahpcError):
    """Ctrl-C ended a command that only waited: the message tells what goes on without it."""

    exit_code = 130


class SlurmError(ExahpcError):
    """Slurm refused, or could not be asked. A failed *query* never means a failed job."""


class LinkError(ExahpcError):
    """A process of the deployment could not be reached or did not prove who it is."""


class BatchError(ExahpcError):
    """A batch file or its results cannot be used as asked."""


class BatchBusy(BatchError):
    """Another process works on this output."""

    exit_code = 5


class BatchCancelled(BatchError):
    """Somebody cancelled the batch."""

    exit_code = 6


class StateError(ExahpcError):
    """An illegal transition: a defect of ours. The message tells the object's story."""
