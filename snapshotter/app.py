"""The service put together: what is behind the routes, and the Flask application in front."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flask import Flask, Response, jsonify, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from snapshotter.bundle.index import Index
from snapshotter.bundle.store import BundleStore, open_store
from snapshotter.config import Config, StorageConfig
from snapshotter.errors import CannotStore, SnapshotterError
from snapshotter.instance import Instance
from snapshotter.metrics import Metrics
from snapshotter.services import EXTENSION, Services
from snapshotter.tasks import Analyse, Capture, Tasks
from snapshotter.web.auth import Auth
from snapshotter.web.captures import captures
from snapshotter.web.health import health
from snapshotter.web.pages import pages
from snapshotter.web.places import Places
from snapshotter.web.refusal import headers_of
from snapshotter.web.runbooks import runbooks
from snapshotter.web.webhook import MAX_BODY_BYTES, Shortcut, webhook
from snapshotter.workqueue import open_queue

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Running:
    """A started service and what has to be closed at its end."""

    services: Services
    instance: Instance

    def stop(self) -> None:
        """End the workers (some seconds), then let go of the data folder."""
        self.services.tasks.stop()
        self.services.index.close()
        self.instance.release()


def open_index(config: Config, folder: Path) -> Index:
    """The index of a configuration. Raises CannotStore."""
    return Index(config.storage.index or f"sqlite:///{(folder / 'index.db').resolve()}")


def open_bundles(config: Config, folder: Path) -> BundleStore:
    """The bundles' store of a configuration. Raises CannotStore."""
    where = config.storage.bundles or str(folder / "bundles")
    try:
        return open_store(where)
    except (ValueError, ImportError) as error:
        raise CannotStore(
            f"storage.bundles: {where} cannot be used: {error}", "install hangscope[s3] for s3:// addresses"
        ) from error


def start(
    config: Callable[[], Config],
    folder: Path,
    *,
    capture: Capture,
    analyse: Analyse,
    auth: Auth,
    external_url: str,
    reload: Callable[[], None],
    now: Callable[[], float] = time.time,
) -> Running:
    """Open index, store and queue of the configuration in force, take up what was left behind, and work.

    `folder` is `--storage.path`. Raises CannotStore.
    """
    instance = Instance(folder)
    try:
        services = _start(config, folder, instance.id, capture, analyse, auth, external_url, reload, now)
    except BaseException:
        instance.release()
        raise
    return Running(services, instance)


def _start(
    config: Callable[[], Config],
    folder: Path,
    owner: str,
    capture: Capture,
    analyse: Analyse,
    auth: Auth,
    external_url: str,
    reload: Callable[[], None],
    now: Callable[[], float],
) -> Services:
    given, address = config(), external_url.rstrip("/")
    index = open_index(given, folder)
    metrics = Metrics(lambda: address, now=now)
    store = open_bundles(given, folder)
    tasks = Tasks(
        config,
        index,
        store,
        open_queue(_queue_url(given.storage), folder),
        metrics,
        owner=owner,
        capture=capture,
        analyse=analyse,
        now=now,
    )
    tasks.start()
    return Services(
        config=config,
        index=index,
        store=store,
        tasks=tasks,
        metrics=metrics,
        auth=auth,
        external_url=lambda: address,
        ready=lambda: metrics.published.index_up,
        reload=_counted(reload, metrics),
        now=now,
    )


def _queue_url(storage: StorageConfig) -> str | None:
    shared = storage.index is not None and storage.index.startswith("postgres")
    return storage.queue or (storage.index if shared else None)


def _counted(reload: Callable[[], None], metrics: Metrics) -> Callable[[], None]:
    def do() -> None:
        metrics.reload_successful = False
        reload()
        metrics.reload_successful = True

    return do


def create_app(services: Services) -> Flask:
    """The WSGI application over these services."""
    app = Flask("snapshotter", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = MAX_BODY_BYTES
    app.extensions[EXTENSION] = services
    for blueprint in (webhook, captures, health, pages, runbooks):
        app.register_blueprint(blueprint)

    @app.errorhandler(SnapshotterError)
    def explain(error: SnapshotterError) -> ResponseReturnValue:
        return jsonify(error=error.message, remedy=error.remedy), error.status, headers_of(error)

    @app.errorhandler(OSError)
    def explain_store(error: OSError) -> ResponseReturnValue:
        log.exception("the store of bundles fails")
        return explain(CannotStore(f"the bundles cannot be reached: {error}", "check the store of bundles"))

    @app.errorhandler(HTTPException)
    def explain_http(error: HTTPException) -> ResponseReturnValue:
        if request.path.startswith("/api/"):
            return jsonify(error=error.name, remedy=error.description or ""), error.code or 500
        return error

    @app.after_request
    def guard(response: Response) -> Response:
        response.headers.setdefault("X-Content-Type-Options", "nosniff")
        return response

    app.wsgi_app = Shortcut(Places(app.wsgi_app), services)  # type: ignore[method-assign]
    return app
