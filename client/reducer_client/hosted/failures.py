"""Why there can be no hosted reducers. `errors.of_hosted` makes the client's errors of these."""

from __future__ import annotations


class HostedError(Exception):
    """Base class. If a job meets, all its ranks raise the same error."""


class NotStartedError(HostedError):
    """A reducer process did not start. The text has the end of its log."""


class DisagreementError(HostedError):
    """The ranks know different reducers."""


class NotReachedError(HostedError):
    """A rank does not reach a hosted reducer. The text names both machines."""
