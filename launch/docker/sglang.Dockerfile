# An SGLang server for engine=sglang engine.url=… or fleet.urls=[…]; the model is mounted at /model.
#
#     docker build --file launch/docker/sglang.Dockerfile --tag agentrl/sglang .
#     docker run --gpus all --shm-size 8g --volume "$MODEL:/model:ro" --network inside agentrl/sglang
#
# Whoever reaches its port controls it: publish it nowhere.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS user
RUN echo agentrl:x:10001:10001::/home/agentrl:/bin/sh >>/etc/passwd && echo agentrl:x:10001: >>/etc/group && \
    mkdir -p /home/agentrl && chown agentrl:agentrl /home/agentrl

FROM user AS engine
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libnuma1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir sglang==0.5.23
USER agentrl
EXPOSE 30000
HEALTHCHECK --interval=10s --timeout=10s --start-period=15m --retries=6 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:30000/health', timeout=5)"]
CMD ["python3", "-m", "sglang.launch_server", "--model-path", "/model", "--host", "0.0.0.0", "--port", "30000", \
    "--incremental-streaming-output"]
