# A vLLM server for engine=vllm engine.url=… or fleet.urls=[…]; the model is mounted at /model.
#
#     docker build --file launch/docker/vllm.Dockerfile --tag agentrl/vllm .
#     docker run --gpus all --shm-size 8g --volume "$MODEL:/model:ro" --network inside agentrl/vllm
#
# Whoever reaches its port controls it: publish it nowhere.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS user
RUN echo agentrl:x:10001:10001::/home/agentrl:/bin/sh >>/etc/passwd && echo agentrl:x:10001: >>/etc/group && \
    mkdir -p /home/agentrl && chown agentrl:agentrl /home/agentrl

FROM user AS engine
RUN apt-get update && apt-get install --yes --no-install-recommends gcc g++ libnuma1 && rm -rf /var/lib/apt/lists/*
RUN pip install --no-cache-dir vllm==0.32.0
USER agentrl
ENV VLLM_SERVER_DEV_MODE=1
EXPOSE 8001
HEALTHCHECK --interval=10s --timeout=10s --start-period=15m --retries=6 \
    CMD ["python3", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:8001/health', timeout=5)"]
CMD ["vllm", "serve", "/model", "--host", "0.0.0.0", "--port", "8001", "--enable-scale-out", \
    "--logprobs-mode", "processed_logprobs", "--max-logprobs", "512", "--enable-prompt-tokens-details"]
