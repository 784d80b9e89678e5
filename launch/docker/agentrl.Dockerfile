# The trainer, the gateway and the viewer: one image, three commands (compose.yaml has the other two).
#
#     docker build --file launch/docker/agentrl.Dockerfile --tag agentrl/trainer .
#     docker run --gpus all --shm-size 8g --volume "$PWD/runs:/runs" --publish 127.0.0.1:9464:9464 agentrl/trainer
#
# The folder at /runs belongs to the number 10001, and has run.yaml, the settings of the run.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS user
RUN echo agentrl:x:10001:10001::/home/agentrl:/bin/sh >>/etc/passwd && echo agentrl:x:10001: >>/etc/group && \
    mkdir -p /home/agentrl /runs && chown agentrl:agentrl /home/agentrl /runs
ENV XDG_CACHE_HOME=/runs/.cache
WORKDIR /src
COPY . .

FROM user AS trainer
ARG EXTRAS=train,parquet,grammars,gateway,docker,ray,megatron,tracing
# The local engine's kernel and the sandboxes' runner are compiled where they run.
RUN apt-get update && apt-get install --yes --no-install-recommends gcc libc6-dev && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]" && rm -rf /src/*
USER agentrl
WORKDIR /runs
VOLUME /runs
EXPOSE 9464
HEALTHCHECK --interval=60s --timeout=10s --start-period=30m --retries=3 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:9464/metrics', timeout=5)"]
CMD ["agentrl", "train", "-c", "run.yaml", "metrics=[tensorboard,prometheus]", "metrics_address=0.0.0.0:9464"]
