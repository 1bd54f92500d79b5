# The image of generators and embedded engine: the wheel, its dependencies and the ShareGPT corpus,
# nothing fetched at start. Build: docker build -t tokenswarm:0.1.0 .
# To pin what the tag means today, build with --build-arg PYTHON=python@sha256:...
ARG PYTHON=python:3.12-slim-bookworm

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
COPY . .
RUN python -m venv /opt/tokenswarm \
    && /opt/tokenswarm/bin/pip install ".[sharegpt]" \
    && /opt/tokenswarm/bin/python -m compileall -q /opt/tokenswarm/lib

FROM ${PYTHON}
# The number is what Kubernetes checks (runAsNonRoot knows no names) and what the manifests say.
RUN useradd --uid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin tokenswarm \
    && install -d -o 10001 -g 10001 /results
COPY --from=build /opt/tokenswarm /opt/tokenswarm
# Never a hub at run time unless a manifest allows it; never a .pyc on a read-only root.
ENV PATH=/opt/tokenswarm/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1
USER 10001:10001
WORKDIR /results
# Exec form: SIGTERM reaches Python, which ends a run in order. Manifests start `locust` instead.
ENTRYPOINT ["tokenswarm"]
CMD ["--help"]
