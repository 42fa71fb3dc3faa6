"""The web application: addresses, and the functions that answer them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from stepwell._core.errors import StepwellError
from stepwell.analysis.cache import RecentValues
from stepwell.analysis.timeline import began_ns
from stepwell.dashboard.access import Access
from stepwell.dashboard.answers.metrics import metric_list_answer, model, series_answer
from stepwell.dashboard.answers.overview import partial_overview
from stepwell.dashboard.answers.provenance import artifact_file, logged_files, media
from stepwell.dashboard.answers.ranks import grid_answer
from stepwell.dashboard.answers.timeline import search_answer, span_answer, timeline_answer
from stepwell.dashboard.answers.values import encode
from stepwell.dashboard.catalogue import (
    Catalogue,
    IncompleteAnswer,
    OldAnswer,
    UnknownRunError,
)
from stepwell.dashboard.live import Followers, final_event
from stepwell.dashboard.openmetrics import CONTENT_TYPE, openmetrics
from stepwell.dashboard.page import PAGE_TYPES, page_file
from stepwell.dashboard.parameters import Parameters
from stepwell.dashboard.summaries import Summaries
from stepwell.dashboard.worker import Workers
from stepwell.reading import RecordedRun
from stepwell.reading.run import Stamp, stamp_of

JSON = "application/json"
EVENTS = "text/event-stream"
TRACE_LIMIT = 64 << 20
"""Largest trace of a window, compressed."""
FILES_LIMIT = 64 << 20
FILE_COST = 500
"""Memory for the names of logged files, in bytes, and the cost of one of them."""
LOOK_S = 0.25
LIST_S = 1.0
RESTART_S = 2.0
"""How often a live run, the list of runs, and an ended run that may be restarted are checked."""
KEEP_ALIVE_S = 15.0
SCRAPE_WAIT_S = 2.0
REQUESTS = 64
"""Requests that are answered at the same time."""
log = logging.getLogger("stepwell.dashboard")


class Dashboard:
    """The state of a server: its runs, their followers, and the addresses."""

    def __init__(self, folder: Path) -> None:
        self.catalogue = Catalogue(folder)
        self.followers = Followers(self.catalogue)
        self.workers = Workers()
        self.summaries = Summaries(
            self.catalogue, self.followers.change_list, partial(self.workers.answer, "summary")
        )
        self._files = RecentValues(FILES_LIMIT)
        self._closing = threading.Event()

    def routes(self) -> list[Route]:
        """Return all addresses. Each answers GET and HEAD only."""
        one_run: dict[str, Callable[[RecordedRun, Parameters], Any]] = {
            "/metrics": lambda run, given: metric_list_answer(run),
            "/series": series_answer,
            "/media": lambda run, given: media(run),
            "/timeline": timeline_answer,
            "/spans": search_answer,
            "/grid": grid_answer,
            "/model": lambda run, given: model(run, given.text("measure")),
        }
        of_run = [
            self._route(f"/api/runs/{{run}}{path}", partial(self._of_run, path, make))
            for path, make in one_run.items()
        ]
        return [
            self._route("/", partial(self._page, "index.html")),
            *(self._route(f"/{name}", partial(self._page, name)) for name in PAGE_TYPES),
            self._route("/api/runs", self._runs),
            self._route("/api/compare", self._compare),
            Route("/api/live", self._live, methods=["GET"]),
            self._route("/api/runs/{run}", self._overview),
            *of_run,
            *(
                self._route(f"/api/runs/{{run}}/{name}", partial(self._of_whole_run, name))
                for name in ("ranks", "provenance")
            ),
            self._route("/api/runs/{run}/spans/{span}", self._span),
            self._route("/api/runs/{run}/artifacts/{sha256}", self._artifact),
            self._route("/api/runs/{run}/trace", self._trace),
            self._route("/metrics", self._openmetrics),
        ]

    def _route(self, path: str, answer: Callable[[Request], Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                return await asyncio.to_thread(answer, request)
            except UnknownRunError as error:
                return _problem(404, error)
            except StepwellError as error:
                return _problem(400, error)
            except OSError as error:
                return _problem(500, f"A file of the run cannot be read: {error.strerror or error}")
            except Exception as error:
                log.exception("%s", request.url.path)
                return _problem(500, f"A problem inside stepwell: {type(error).__name__}")

        return Route(path, endpoint, methods=["GET"])

    # Answers

    def _page(self, name: str, request: Request) -> Response:
        body, kind, tag = page_file(name)
        headers = {"etag": tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, media_type=kind, headers=headers)

    def _of_run(
        self, path: str, make: Callable[[RecordedRun, Parameters], Any], request: Request
    ) -> Response:
        run_id = request.path_params["run"]
        run = self.catalogue.find(run_id)
        given = Parameters(request.query_params)
        key = (run_id, path, *sorted(request.query_params.multi_items()))

        def body() -> bytes:
            answer = make(run, given)
            return IncompleteAnswer(encode(answer)) if answer.get("missing") else encode(answer)

        return _json_response(self.catalogue.answer(key, [run], body))

    def _of_whole_run(self, name: str, request: Request) -> Response:
        run_id = request.path_params["run"]
        run = self.catalogue.find(run_id)
        body = self.catalogue.answer(
            (run_id, name), [run], lambda: self.workers.answer(name, run), is_slow=True
        )
        return _json_response(body)

    def _runs(self, request: Request) -> Response:
        return _json_response(encode(self.summaries.answer()))

    def _overview(self, request: Request) -> Response:
        run_id = request.path_params["run"]
        run = self.catalogue.find(run_id)
        body = self.catalogue.answer(
            (run_id, "overview"),
            [run],
            lambda: self.workers.answer("overview", run),
            is_slow=True,
            instead=lambda: encode(partial_overview(run)),
        )
        return _json_response(body)

    def _compare(self, request: Request) -> Response:
        given = Parameters(request.query_params)
        ids = list(dict.fromkeys(given.texts("run", most=20)))
        runs = [self.catalogue.find(run_id) for run_id in ids]
        body = self.catalogue.answer(
            ("compare", *ids), runs, lambda: self.workers.answer("compare", *runs), is_slow=True
        )
        return _json_response(body)

    def _span(self, request: Request) -> Response:
        run = self.catalogue.find(request.path_params["run"])
        given = Parameters(request.query_params)
        try:
            span = int(request.path_params["span"])
        except ValueError:
            raise StepwellError("the id of a span must be a whole number") from None
        detail = span_answer(run, span, given.whole("start"))
        if detail is None:
            return _problem(404, f"There is no span {span} in this run")
        return _json_response(encode(detail))

    def _artifact(self, request: Request) -> Response:
        run = self.catalogue.find(request.path_params["run"])
        sha256 = request.path_params["sha256"]
        key = str(run.folder)
        files = self._files.get(key)
        if files is None or sha256 not in files:
            files = logged_files(run)
            self._files.put(key, files, FILE_COST * len(files))
        file = artifact_file(run, files, sha256)
        if file is None:
            return _problem(404, "There is no such artifact in this run")
        path, name, kind = file
        how = "inline" if kind.startswith("image/") else "attachment"
        headers = {"cache-control": "private, max-age=86400", "content-security-policy": "sandbox"}
        return FileResponse(
            path, media_type=kind, filename=name, content_disposition_type=how, headers=headers
        )

    def _trace(self, request: Request) -> Response:
        from stepwell.exporters.chrome import export_chrome

        run = self.catalogue.find(request.path_params["run"])
        given = Parameters(request.query_params)
        began = began_ns(run)
        start, end = given.whole("start") or 0, given.whole("end")
        until = began + end if end is not None else 1 << 62
        with tempfile.TemporaryDirectory(prefix="stepwell-") as folder:
            path = Path(folder) / "trace.json.gz"
            export_chrome(run, path, ranks=given.wholes("rank"), between=(began + start, until))
            if path.stat().st_size > TRACE_LIMIT:
                raise StepwellError(
                    "the trace of this window is larger than 64 MB: choose a shorter window or "
                    f"fewer ranks, or use `stepwell export {run.id} --to chrome`"
                )
            body = path.read_bytes()
        headers = {
            "cache-control": "no-store",
            "content-disposition": f'attachment; filename="{run.id}.json.gz"',
            # Without it, the file would be compressed again.
            "content-encoding": "identity",
        }
        return Response(body, media_type="application/gzip", headers=headers)

    def _openmetrics(self, request: Request) -> Response:
        live = [(k, run) for k, run in self.catalogue.runs().items() if run.status == "running"]
        followers = [(key, self.followers.of(key, run)) for key, run in live[:32]]
        until = time.monotonic() + SCRAPE_WAIT_S
        for _, follower in followers:
            while follower.snapshot is None and follower.is_alive and time.monotonic() < until:
                time.sleep(0.05)
            follower.ask()
        goodputs = self.summaries.goodputs() if live else {}
        text = openmetrics(
            (follower.snapshot, goodputs.get(key))
            for key, follower in followers
            if follower.snapshot is not None
        )
        return Response(text, headers={"content-type": CONTENT_TYPE, "cache-control": "no-store"})

    # Live events

    async def _live(self, request: Request) -> Response:
        run_id = request.query_params.get("run")
        try:
            if run_id is not None:
                await asyncio.to_thread(self.catalogue.find, run_id)
        except UnknownRunError as error:
            return _problem(404, error)
        except StepwellError as error:
            return _problem(400, error)
        if run_id is None:
            events = self._events(self._list_event, LIST_S)
        else:
            events = self._run_events(run_id)
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        return StreamingResponse(events, media_type=EVENTS, headers=headers)

    async def _run_events(self, run_id: str) -> AsyncIterator[bytes]:
        """Yield the events of a run: while it is live, when it has ended, and again if it is restarted."""
        run = await asyncio.to_thread(self.catalogue.find, run_id)
        is_followed = False
        while not self._closing.is_set():
            stamp = await asyncio.to_thread(stamp_of, run)
            if await asyncio.to_thread(lambda: run.status) == "running":
                async for event in self._events(partial(self._live_event, run_id, run), LOOK_S):
                    yield event
                is_followed = True
                continue
            if not is_followed:
                yield _event(await asyncio.to_thread(final_event, run))
            is_followed = False
            silence = partial(_unless_changed, run, stamp)
            async for ping in self._events(silence, RESTART_S):
                yield ping

    def _live_event(self, run_id: str, run: RecordedRun, sent: bytes) -> bytes | None:
        """Return the latest event of a live run; None if it has ended and its last event was sent."""
        follower = self.followers.of(run_id, run)
        # Checked first: what it sets last is then sent, too.
        is_alive = follower.is_alive
        _, body = follower.ask()
        is_over = body == sent and not is_alive and run.status != "running"
        return None if is_over else body

    def _list_event(self, sent: bytes) -> bytes:
        return encode({"version": self.followers.list_version()})

    async def _events(
        self, look: Callable[[bytes], bytes | None], every_s: float
    ) -> AsyncIterator[bytes]:
        """Yield what ``look`` returns when it changes, until that is None, and keep the connection open.

        ``look`` is called in a thread with what was sent last.
        """
        sent, last = b"", time.monotonic()
        while not self._closing.is_set():
            body = await asyncio.to_thread(look, sent)
            if body is None:
                return
            if body != sent:
                sent, last = body, time.monotonic()
                yield _event(body)
            elif time.monotonic() - last > KEEP_ALIVE_S:
                last = time.monotonic()
                yield b": \n\n"
            for _ in range(round(every_s / LOOK_S)):
                if not self._closing.is_set():
                    await asyncio.sleep(LOOK_S)

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        """Stop followers and workers when the server ends."""
        # Requests wait in these threads for answers. Streams of live events must not wait for them.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(REQUESTS))
        yield
        self.stop()

    def stop(self) -> None:
        """End all streams of events and all threads. A second call does nothing."""
        self._closing.set()
        self.summaries.close()
        self.catalogue.close()
        self.workers.close()


def make_app(folder: Path, token: str, hosts: Iterable[str], port: int) -> tuple[Access, Dashboard]:
    """Return the application over a folder of runs, or over one run, and its state.

    Args:
        folder: a folder of runs, or a run folder.
        token: the secret that every request must have; "" for none.
        hosts: names and addresses under which the server may be asked.
        port: the port of the server, part of the name of its cookie.
    """
    dashboard = Dashboard(folder)
    inner = Starlette(
        routes=dashboard.routes(),
        middleware=[Middleware(GZipMiddleware, minimum_size=2048, compresslevel=3)],
        lifespan=dashboard.lifespan,
    )
    return Access(inner, token, hosts, port), dashboard


def _unless_changed(run: RecordedRun, stamp: Stamp, sent: bytes) -> bytes | None:
    """Return nothing to send, or None if the documents of a run have changed: it was restarted."""
    return sent if stamp_of(run) == stamp else None


def _event(body: bytes) -> bytes:
    return b"data: " + body + b"\n\n"


def _json_response(body: bytes) -> Response:
    headers = {"cache-control": "no-store"}
    if isinstance(body, OldAnswer):
        headers["retry-after"] = str(math.ceil(body.due_s))
    return Response(body, media_type=JSON, headers=headers)


def _problem(status: int, message: object) -> Response:
    return Response(
        encode({"error": str(message)[:1000]}),
        status,
        media_type=JSON,
        headers={"cache-control": "no-store"},
    )
