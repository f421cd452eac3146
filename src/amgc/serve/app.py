"""The application: what is asked of a model over HTTP, and the files of the page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import resources
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response

import amgc
from amgc.data.decode import available_cores
from amgc.model import Model, PictureError
from amgc.model.pictures import Picture
from amgc.serve import schemas
from amgc.serve.guard import Guard
from amgc.serve.problems import Problem, told
from amgc.serve.schemas import errors, form
from amgc.serve.settings import Settings
from amgc.serve.teacher import Teacher
from amgc.serve.uploads import check_pixels, received

ABOUT = """Teach a classifier new classes of pictures, ask it, and make it forget. No picture is kept: it is decoded in memory,
and what is written is statistics of its class. Predictions go on while a lesson is learned; the new model takes the old one's
place in one step."""
PAGE = {
    "": "text/html",
    "app.js": "text/javascript",
    "parts.js": "text/javascript",
    "style.css": "text/css",
    "icon.svg": "image/svg+xml",
}
ALWAYS = (403, 429)  # statuses that the guard gives any request to the API


def create_app(model: Model, settings: Settings | None = None) -> FastAPI:
    """The application around a model."""
    settings = settings or Settings()
    limits = settings.limits
    teacher = Teacher(model, limits.waiting)
    predicting = ThreadPoolExecutor(available_cores(), thread_name_prefix="amgc-predict")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        teacher.start()
        yield
        await asyncio.to_thread(teacher.close)
        predicting.shutdown(cancel_futures=True)

    app = FastAPI(title="amgc", version=amgc.__version__, description=ABOUT, lifespan=lifespan, docs_url=None, redoc_url=None)
    app.state.teacher = teacher
    app.add_middleware(Guard, settings=settings)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(Exception, _failed)
    guarded = (*ALWAYS, 401) if settings.token is not None else ALWAYS
    security: dict[str, Any] = {"security": [{"token": []}]} if settings.token is not None else {}

    @app.get("/api/health", responses=errors(403), operation_id="health")
    async def health() -> schemas.Health:
        """Whether the server is there. Needs no token."""
        return schemas.Health(status="stale" if teacher.problem else "ok", amgc=amgc.__version__)

    @app.get("/api/classes", responses=errors(*guarded), operation_id="classes", openapi_extra=security)
    async def classes() -> schemas.Classes:
        """The classes, how many pictures each was learned from, and what is being learned now."""
        return _classes(teacher, settings)

    @app.post(
        "/api/predict",
        responses=errors(*guarded, 400, 408, 409, 413, 415, 422, 500, 503),
        operation_id="predict",
        openapi_extra=form(limits, label=False) | security,
    )
    async def predict(
        request: Request,
        how: Annotated[schemas.How, Query()],
    ) -> schemas.Answers:
        """The likeliest classes of pictures, and how well each picture fits; all by one state of the model."""
        pictures, _ = await received(request, limits)

        def answer() -> schemas.Answers:
            for picture in pictures:
                try:
                    check_pixels(picture, limits)
                except PictureError as error:
                    raise Problem(413, str(error)) from error
            found = model.predict(pictures, how.top, how.reject)
            return schemas.Answers(answers=[schemas.Answer.model_validate(one.to_json()) for one in found])

        try:
            return await asyncio.get_running_loop().run_in_executor(predicting, answer)
        except Exception as error:
            raise told(error) from error

    @app.post(
        "/api/learn",
        responses=errors(*guarded, 400, 408, 409, 413, 415, 422, 500, 503, 507),
        operation_id="learn",
        openapi_extra=form(limits, label=True) | security,
    )
    async def learn(request: Request) -> schemas.Lesson:
        """Learn a class from pictures, or more about one that is known; answers when that is done. Pictures that cannot be used
        are left out and named, unless none can be.
        """
        pictures, texts = await received(request, limits, ("label",))
        usable, skipped = await asyncio.get_running_loop().run_in_executor(predicting, _usable, pictures, settings)
        learned = await _changed(teacher.learn(usable, texts["label"]))
        skipped += [schemas.Skipped(source=source, reason=reason) for source, reason in learned.skipped]
        (label,) = learned.added
        return schemas.Lesson(
            label=label,
            pictures=learned.images,
            known_before=bool(learned.again),
            skipped=skipped,
            seconds=learned.seconds,
        )

    @app.post(
        "/api/forget",
        responses=errors(*guarded, 400, 404, 408, 409, 413, 422, 500, 503, 507),
        operation_id="forget",
        openapi_extra=security,
    )
    async def forget(wanted: schemas.Label) -> schemas.Forgotten:
        """Forget a class."""
        await _changed(teacher.forget(wanted.label))
        return schemas.Forgotten(label=wanted.label, classes=len(teacher.about.classes))

    _add_page(app)
    _describe_token(app, settings)
    return app


def _classes(teacher: Teacher, settings: Settings) -> schemas.Classes:
    about, now, limits = teacher.about, teacher.progress, settings.limits
    return schemas.Classes(
        classes=[schemas.Known(label=label, pictures=count or None) for label, count in about.classes.items()],
        kept=list(about.kept),
        not_kept=list(about.not_kept),
        bytes=sum(about.bytes.values()),
        changeable=about.changeable,
        learning=schemas.Learning(label=now.label, done=now.done, total=now.total) if now else None,
        waiting=teacher.waiting,
        problem=teacher.problem,
        limits=schemas.Bounds(upload_mb=limits.upload_mb, megapixels=limits.megapixels, images=limits.images),
    )


def _usable(pictures: list[Picture], settings: Settings) -> tuple[list[Picture], list[schemas.Skipped]]:
    """Those that are not too large, and the others."""
    usable, skipped = [], []
    for picture in pictures:
        try:
            check_pixels(picture, settings.limits)
            usable.append(picture)
        except PictureError as error:
            skipped.append(schemas.Skipped(source=error.path, reason=error.reason))
    if not usable:
        raise Problem(413, f"None of the pictures can be used; the first: {skipped[0].source}: {skipped[0].reason}.")
    return usable, skipped


async def _changed(change: Any) -> Any:
    """What a change of the model gives, when it is done."""
    try:
        return await asyncio.wrap_future(change)
    except Exception as error:
        raise told(error) from error


def _invalid(_: Request, error: Exception) -> Response:
    """A sentence instead of a list, which says nothing of the values: they may be anything."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    place = " ".join(str(part) for part in first["loc"] if isinstance(part, str))
    return JSONResponse({"detail": f"The request is not valid ({place}: {first['msg']})."}, 422)


def _failed(_: Request, error: Exception) -> Response:
    return JSONResponse({"detail": told(error).detail}, 500)


def _add_page(app: FastAPI) -> None:
    folder = resources.files("amgc.serve") / "page"
    for name, kind in PAGE.items():
        content = (folder / (name or "index.html")).read_bytes()

        def file(content: bytes = content, kind: str = kind) -> Response:
            return Response(content, media_type=kind)

        app.add_api_route(f"/{name}", file, include_in_schema=False, response_class=Response)


def _describe_token(app: FastAPI, settings: Settings) -> None:
    """Say in the OpenAPI description how the token is sent, if one is demanded."""
    if settings.token is None:
        return
    described = app.openapi()
    described.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    app.openapi_schema = described
