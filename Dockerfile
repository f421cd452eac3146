# amgc serve: one process that teaches and answers, or replicas that answer (--workers). Build: docker build -t amgc .
FROM python:3.11-slim AS build
WORKDIR /source
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src src
# The default build of torch brings several GB of CUDA packages. For a server without GPU, give the address of PyTorch's index of
# CPU builds: docker build --build-arg PIP_EXTRA_INDEX_URL=... -t amgc .
ARG PIP_EXTRA_INDEX_URL
RUN python -m venv /venv && /venv/bin/pip install --no-cache-dir -c constraints.txt '.[serve,photos,heic]'

FROM python:3.11-slim
RUN useradd --create-home --uid 10001 amgc && mkdir /model && chown amgc /model
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH PYTHONDONTWRITEBYTECODE=1 MPLCONFIGDIR=/tmp/matplotlib XDG_CACHE_HOME=/tmp/cache
USER amgc
VOLUME /model
EXPOSE 8000
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s \
    CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/readyz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["amgc", "serve", "/model", "--host", "0.0.0.0", "--port", "8000", "--log"]
