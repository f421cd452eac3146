"""The web application: the HTTP API of a model, and the files of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.requests import ClientDisconnect

import amgc
from amgc.core.expected import ENOUGH
from amgc.data.image_files import available_cores
from amgc.model import Info, Model
from amgc.model.manifest import normal
from amgc.serve import schemas
from amgc.serve.batching import VECTORS, WAITING, Batcher
from amgc.serve.downloads import EXAMPLE, VECTOR_EXAMPLE, check_replacement, onnx_file, opened
from amgc.serve.errors import ApiError, api_error
from amgc.serve.guard import Guard, Settings
from amgc.serve.metrics import Metrics, ReadOnly, RequestMetrics, resident_bytes
from amgc.serve.reference import reference
from amgc.serve.schemas import binary, error_responses, form, zip_body
from amgc.serve.update_queue import UpdateQueue
from amgc.serve.uploads import Upload, read_form, split_by_size
from amgc.serve.vectors import json_body, parse, read_body
from amgc.serve.work import Work, Workers

DESCRIPTION = """Teach a classifier new classes of images, let it predict, and make it forget classes. Images are decoded in
memory and never stored; only statistics of each class are. Predictions continue while the model learns; the new model replaces
the old one in one step."""
GUARD_ERRORS = (403, 429)  # errors that the guard may return for any API request


def create_app(
    model: Model,
    settings: Settings | None = None,
    metrics: Metrics | None = None,
    read_only: bool = False,
    log: bool = False,
) -> FastAPI:
    """Create the application for a model. `metrics` are shared by processes that serve the same model."""
    settings = settings or Settings()
    limits, noun = settings.limits, model.state.manifest.noun
    updates = UpdateQueue(model, limits.waiting, settings.hold)
    workers, metrics = Workers(available_cores()), metrics or Metrics()
    batcher = Batcher(model, workers, metrics, WAITING if noun == "image" else VECTORS)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        updates.start()
        yield
        batcher.close()
        await asyncio.to_thread(updates.close)

    def gauges() -> dict[str, float]:
        memory = {"resident_memory_bytes": resident_bytes()}
        return {"classes": len(updates.info.classes), "model_generation": updates.info.generation} | memory

    def ready() -> bool:
        return not updates.closing.is_set() and updates.problem is None

    app = FastAPI(
        title="amgc", version=amgc.__version__, description=DESCRIPTION, lifespan=lifespan, docs_url=None, redoc_url=None
    )
    app.state.updates, app.state.batcher = updates, batcher
    app.add_middleware(Guard, settings=settings)
    if read_only:
        app.add_middleware(ReadOnly)
    app.add_middleware(RequestMetrics, metrics=metrics, ready=ready, log=log)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    guarded = (*GUARD_ERRORS, 401) if settings.token is not None else GUARD_ERRORS
    security: dict[str, Any] = {"security": [{"token": []}]} if settings.token is not None else {}

    def body(label: bool) -> dict[str, Any]:
        return json_body(label) if noun == "vector" else form(limits, label)

    async def samples(request: Request, work: Work, *fields: str) -> tuple[list[Upload], dict[str, str]]:
        """Return the images or vectors of a request, and its texts."""
        if noun == "image":
            return await read_form(request, limits, work.check, fields)
        content = await read_body(request)
        return await asyncio.wrap_future(workers.submit(parse, content, bool(fields)))

    @app.get("/api/health", responses=error_responses(403), operation_id="health")
    async def health() -> schemas.Health:
        """Check that the server is running. Needs no token."""
        return schemas.Health(status="stale" if updates.problem else "ok", amgc=amgc.__version__)

    @app.get("/api/classes", responses=error_responses(*guarded), operation_id="classes", openapi_extra=security)
    async def classes() -> schemas.Classes:
        """List the classes, the number of images of each, and the progress of learning."""
        return _classes(updates, settings)

    @app.post(
        "/api/predict",
        responses=error_responses(*guarded, 400, 408, 409, 413, 415, 422, 500, 503),
        operation_id="predict",
        openapi_extra=body(label=False) | security,
    )
    async def predict(request: Request, options: Annotated[schemas.PredictOptions, Query()]) -> schemas.Predictions:
        """Predict the most likely classes of images, and how well each image fits; all with the same state of the model."""
        work = Work(updates.closing)
        pictures, _ = await samples(request, work)

        try:
            if noun == "vector":
                ask = batcher.run(len(pictures), model.predict, pictures, options.top, options.reject)
                found = await work.result(request, ask)
            else:
                _, refused = await asyncio.wrap_future(workers.submit(split_by_size, pictures, limits))
                if refused:
                    raise ApiError(413, str(refused[0]))
                batcher.start()
                found = await work.result(request, batcher.submit(pictures, options.top, options.reject))
        except Exception as error:
            raise api_error(error) from error
        return schemas.Predictions(answers=[schemas.Prediction.model_validate(one.to_json()) for one in found])

    @app.post(
        "/api/learn",
        responses=error_responses(*guarded, 400, 408, 409, 413, 415, 422, 500, 503, 507),
        operation_id="learn",
        openapi_extra=body(label=True) | security,
    )
    async def learn(request: Request, options: Annotated[schemas.LearnOptions, Query()]) -> schemas.LearnResult:
        """Learn a class from images, or add images to a known class. Responds when that is done. Unreadable images are skipped
        and listed; it is an error if no image is readable.
        """
        work = Work(updates.closing)
        pictures, texts = await samples(request, work, "label")
        usable, skipped = pictures, list[schemas.Skipped]()
        if noun == "image":
            usable, skipped = await asyncio.wrap_future(workers.submit(_usable, pictures, settings))
        try:
            learned = await work.result(request, updates.learn(usable, texts["label"], options.lesson))
        except Exception as error:
            raise api_error(error) from error
        skipped += [schemas.Skipped(source=source, reason=reason) for source, reason in learned.skipped]
        (label,) = learned.added
        return schemas.LearnResult(
            label=label,
            pictures=learned.images,
            known_before=bool(learned.again),
            in_memory=learned.held.get(label, 0),
            skipped=skipped,
            repeated=list(learned.repeated),
            learned_before=list(learned.learned_before),
            seconds=learned.seconds,
        )

    @app.post(
        "/api/forget",
        responses=error_responses(*guarded, 400, 404, 408, 409, 413, 422, 500, 503, 507),
        operation_id="forget",
        openapi_extra=security,
    )
    async def forget(wanted: schemas.Label) -> schemas.ForgetResult:
        """Forget a class."""
        await _finished(updates.forget(wanted.label))
        return schemas.ForgetResult(label=wanted.label, classes=len(updates.info.classes))

    @app.post(
        "/api/rename",
        responses=error_responses(*guarded, 400, 404, 408, 409, 413, 422, 500, 503, 507),
        operation_id="rename",
        openapi_extra=security,
    )
    async def rename(wanted: schemas.Rename) -> schemas.Label:
        """Rename a class, or join it with another one."""
        await _finished(updates.rename(wanted.label, wanted.to, wanted.join))
        return schemas.Label(label=normal(wanted.to))

    @app.post(
        "/api/undo",
        responses=error_responses(*guarded, 400, 408, 409, 413, 500, 503, 507),
        operation_id="undo",
        openapi_extra=security,
    )
    async def undo() -> schemas.UndoResult:
        """Undo the last change: learning, renaming or opening a model. Forgetting cannot be undone."""
        undone = await _finished(updates.undo())
        return schemas.UndoResult(undone=undone, classes=len(updates.info.classes))

    async def file(make: Callable[[Model], bytes], name: str, kind: str) -> Response:
        try:
            content = await asyncio.wrap_future(workers.submit(make, model))
        except Exception as error:
            raise api_error(error) from error
        return Response(content, media_type=kind, headers={"Content-Disposition": f'attachment; filename="{name}"'})

    @app.get(
        "/api/model.zip",
        responses=error_responses(*guarded, 500) | binary("application/zip"),
        response_class=Response,
        operation_id="download",
        openapi_extra=security,
    )
    async def download() -> Response:
        """Download the model's folder as a zip file."""
        return await file(Model.packed, "model.zip", "application/zip")

    @app.get(
        "/api/model.onnx",
        responses=error_responses(*guarded, 409, 500) | binary("application/octet-stream"),
        response_class=Response,
        operation_id="onnx",
        openapi_extra=security,
    )
    async def onnx() -> Response:
        """Download the model as one ONNX file, verified with onnxruntime."""
        return await file(onnx_file, "model.onnx", "application/octet-stream")

    @app.post(
        "/api/open",
        responses=error_responses(*guarded, 400, 408, 409, 413, 415, 422, 500, 503, 507),
        operation_id="open",
        openapi_extra=zip_body() | security,
    )
    async def open_model(request: Request) -> schemas.OpenResult:
        """Replace the model by the one in a zip file of `/api/model.zip`. This can be undone."""
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/zip":
            raise ApiError(415, "Send the zip file as the body of the request, with the type application/zip.")
        try:
            content = await request.body()
        except ClientDisconnect as error:
            raise ApiError(400, "The request is incomplete.") from error
        state = await asyncio.wrap_future(workers.submit(opened, content, limits.upload_bytes))
        check_replacement(model.state, state)
        await _finished(updates.replace(state))
        return schemas.OpenResult(classes=len(updates.info.classes))

    @app.get("/metrics", include_in_schema=False)
    async def numbers() -> Response:
        return Response(metrics.text(gauges()), media_type="text/plain; version=0.0.4")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(reference(app.openapi()))

    @app.get("/classify.py", include_in_schema=False)
    async def example() -> Response:
        return Response(VECTOR_EXAMPLE if noun == "vector" else EXAMPLE, media_type="text/x-python; charset=utf-8")

    app.mount("/", StaticFiles(directory=Path(__file__).parent / "page", html=True))
    _describe_token(app, settings)
    return app


def _classes(updates: UpdateQueue, settings: Settings) -> schemas.Classes:
    info, now, limits = updates.info, updates.progress, settings.limits
    return schemas.Classes(
        input=schemas.Input(kind=info.noun, numbers=info.features["dim"] if info.noun == "vector" else None),
        classes=[
            schemas.ClassCount(label=label, pictures=count or None, in_memory=info.held.get(label, 0))
            for label, count in info.classes.items()
        ],
        hold=settings.hold,
        kept=list(info.kept),
        not_kept=list(info.not_kept),
        reveals=list(info.reveals),
        bytes=sum(info.bytes.values()),
        changeable=info.changeable,
        learning=schemas.Learning(label=now.label, done=now.done, total=now.total) if now else None,
        undo=updates.undo_words,
        quality=schemas.Quality(**updates.expected._asdict()) if updates.expected else None,
        enough=ENOUGH,
        forgotten=_remains(info),
        waiting=updates.waiting,
        problem=updates.problem,
        limits=schemas.RequestLimits(upload_mb=limits.upload_mb, megapixels=limits.megapixels, images=limits.images),
    )


def _remains(info: Info) -> list[str]:
    """Describe what remains of a class that is forgotten."""
    remains = []
    if info.covariance == "shared":
        remains.append("its share in the covariance of the features that all classes have in common")
    if info.features["name"] in ("patches", "layers"):
        remains.append("an extractor that was fitted on the first pictures, if it was among these")
    return remains


def _usable(pictures: list[Upload], settings: Settings) -> tuple[list[Upload], list[schemas.Skipped]]:
    """Split images into those that are not too large, and the others."""
    usable, refused = split_by_size(pictures, settings.limits)
    skipped = [schemas.Skipped(source=error.path, reason=error.reason) for error in refused]
    if not usable:
        raise ApiError(413, f"None of the pictures can be used; the first: {skipped[0].source}: {skipped[0].reason}.")
    return usable, skipped


async def _finished(change: Any) -> Any:
    """Wait for an update and return its result."""
    try:
        return await asyncio.wrap_future(change)
    except Exception as error:
        raise api_error(error) from error


def _invalid(_: Request, error: Exception) -> Response:
    """Respond with one sentence. It does not repeat values of the request, which may contain anything."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(str(part) for part in first["loc"] if isinstance(part, str))
    return JSONResponse({"detail": f"The request is not valid ({place}: {first['msg']})."}, 422)


def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": api_error(error).detail}, 500)


def _describe_token(app: FastAPI, settings: Settings) -> None:
    """Describe in OpenAPI how to send the token, if one is required."""
    if settings.token is None:
        return
    schema = app.openapi()
    schema.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    app.openapi_schema = schema
