#!/bin/bash
# A run on the nodes of a Slurm job: Ray's head on the first, a raylet on each other, then agentrl on the first.
#
#     sbatch --nodes=4 --gpus-per-node=8 launch/slurm.sh env=calculator model=/models/qwen3-8b
#
# Everything behind the script's name is given to `agentrl train`. Environment variables:
#   RAY_PORT       the head's port (6379)
#   NODE_RESOURCES Ray's custom resources of every node, as JSON: '{"sandbox": 8}'
#   RAY_AUTH_MODE  token: Ray's nodes require the token in ~/.ray/auth_token, which must be the same on all (disabled)
#   START_SECONDS  how long the nodes may take to join (300)
#SBATCH --job-name=agentrl
#SBATCH --ntasks-per-node=1
#SBATCH --signal=B:TERM@120
set -euo pipefail

port=${RAY_PORT:-6379}
resources=${NODE_RESOURCES:-"{}"}
nodes=$(scontrol show hostnames "${SLURM_JOB_NODELIST:?this script runs under Slurm: sbatch launch/slurm.sh env=NAME}")
first=$(head -n 1 <<<"$nodes")
others=$(tail -n +2 <<<"$nodes" | paste -s -d, -)
count=$(wc -l <<<"$nodes")
export RAY_USAGE_STATS_ENABLED=0
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-disabled}  # else a token that an earlier run left decides, on each node by itself

# NUMBER of nodes, their names, and the command; only in subshells, which become srun, so that signals reach it
on() { exec srun --overlap --nodes="$1" --ntasks="$1" --nodelist="$2" "${@:3}"; }

steps=()
end() {
    trap - EXIT
    for step in "${steps[@]}"; do kill -TERM "$step" 2>/dev/null || true; done
    wait
}
trap end EXIT

# shellcheck disable=SC2016  # the node itself expands it
address=$(on 1 "$first" bash -c 'hostname -I | cut -d" " -f1')
end_of_wait=$((SECONDS + ${START_SECONDS:-300}))

# NUMBER of nodes that are to have joined
await_nodes() {
    local joined=""
    until joined=$(on 1 "$first" python -c "
import ray
ray.init('$address:$port', logging_level='ERROR')
print(sum(node['Alive'] for node in ray.nodes()))" 2>/dev/null) && ((joined >= $1)); do
        if ((SECONDS > end_of_wait)); then
            echo "only ${joined:-0} of $count nodes joined Ray at $address:$port within ${START_SECONDS:-300} s" >&2
            exit 1
        fi
        sleep 2
    done
}

on 1 "$first" ray start --head --block --disable-usage-stats --include-dashboard=false \
    --node-ip-address="$address" --port="$port" --resources="$resources" &
steps+=($!)
await_nodes 1  # a node that comes while the head starts is refused, and gives up
if [[ -n "$others" ]]; then
    on $((count - 1)) "$others" ray start --block --disable-usage-stats \
        --address="$address:$port" --resources="$resources" &
    steps+=($!)
    await_nodes "$count"
fi

# SIGTERM (before the time limit) goes to agentrl, which saves a checkpoint and ends
on 1 "$first" agentrl train "$@" cluster=ray cluster.address="$address:$port" &
run=$!
trap 'kill -TERM "$run"; wait "$run"' TERM
wait "$run"
