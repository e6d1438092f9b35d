"""What the web layer is given: the one object that `create_app` takes and every route asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from flask import current_app

from snapshotter.bundle.index import Index
from snapshotter.bundle.store import BundleStore
from snapshotter.config import Config
from snapshotter.metrics import Metrics
from snapshotter.tasks import Tasks
from snapshotter.web.auth import Auth

EXTENSION = "hangscope"


@dataclass(frozen=True, slots=True)
class Services:
    """Everything behind the routes."""

    config: Callable[[], Config]  # in force now
    index: Index
    store: BundleStore
    tasks: Tasks
    metrics: Metrics
    auth: Auth
    external_url: Callable[[], str]  # without a final slash
    ready: Callable[[], bool]
    reload: Callable[[], None]  # raises exporter.yamlconfig.ConfigError
    now: Callable[[], float]


def current() -> Services:
    """The services of the running application."""
    return cast(Services, current_app.extensions[EXTENSION])
