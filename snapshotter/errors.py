"""What can go wrong in the service, and what each error answers over HTTP.

    SnapshotterError
      BadRequest        400  the request cannot be understood
      Unauthorized      401  no token, or a wrong one
      Forbidden         403  asked from another web site
      NotFound          404  no such capture, job or part of a bundle
      Conflict          409  not in the state that this needs
      TooLarge          413
      CannotStore       503  the request was not stored: ask again later
      BundleError       500  a bundle that cannot be read

Every error names what is wrong; `remedy` says what to do about it.
"""

from __future__ import annotations


class SnapshotterError(Exception):
    """Base of all errors with a text for people."""

    status = 500

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


class BadRequest(SnapshotterError):
    status = 400


class Unauthorized(SnapshotterError):
    status = 401


class Forbidden(SnapshotterError):
    status = 403


class NotFound(SnapshotterError):
    status = 404


class Conflict(SnapshotterError):
    status = 409


class TooLarge(SnapshotterError):
    status = 413


class CannotStore(SnapshotterError):
    status = 503


class BundleError(SnapshotterError):
    status = 500
