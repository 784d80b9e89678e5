"""The wire's addresses whose requests are JSON: what each reads, does and replies."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from agentrl import __version__
from agentrl.common.scratch import remove
from agentrl.errors import InvalidInput
from agentrl.sessions.gateway.http.api_error import ApiError
from agentrl.sessions.gateway.http.requests import validate_body
from agentrl.train.server import bodies
from agentrl.train.server.checkpoints import KINDS, list_checkpoints, set_expiry, stamp
from agentrl.train.server.learner import seed_of
from agentrl.train.server.sampling import SampleBody
from agentrl.train.server.served_run import RunInfo, ServedRun, Work
from agentrl.train.server.service import TrainingService
from agentrl.train.server.tenants import Tenant

NO_UNEMBEDDING = (
    "agentrl: adapters are on attention and MLP layers; none is on the unembedding, whatever train_unembed says"
)


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of a tenant's: its body, and the parts of its address."""

    service: TrainingService
    tenant: Tenant
    body: Any
    path: Mapping[str, str]
    query: Mapping[str, str]

    def run(self) -> ServedRun:
        """Return the run that the address names."""
        return self.tenant.run(self.path["run"])

    def submit(self, run: ServedRun, number: int, kind: str, body: Any) -> dict[str, str]:
        """Keep a request for the run."""
        return self.service.submit(self.tenant, run, number, Work(kind, json.dumps(body).encode()))


def _client_config(asked: Asked) -> Any:
    return {"pjwt_auth_enabled": False, "proto_compress_fwdbwd": False, "custom_loss_server_side": False}


def _dynamic_config(asked: Asked) -> Any:
    return {"sample_cancel_enabled": True}


def _healthy(asked: Asked) -> Any:
    return {"status": "ok"}


def _telemetry(asked: Asked) -> Any:
    return {"status": "accepted"}  # and kept nowhere


def _capabilities(asked: Asked) -> Any:
    context = asked.service.engine.capabilities.max_context
    return {
        "supported_models": [
            {"model_name": name, "max_context_length": context, "trainable": True, "sampleable": True}
            for name in asked.service.names
        ]
    }


# ------------------------------------------------------------------------------------------ sessions


def _create_session(asked: Asked) -> Any:
    given = validate_body(bodies.SessionBody, asked.body)
    session_id = asked.tenant.open_session(given.model_dump())
    return {"session_id": session_id, "info_message": f"agentrl {__version__}: {NO_UNEMBEDDING}"}


def _heartbeat(asked: Asked) -> Any:
    asked.tenant.session(validate_body(bodies.OfSession, asked.body).session_id)
    return {"type": "session_heartbeat"}


def _finish_session(asked: Asked) -> Any:
    asked.tenant.finish(asked.path["session"])
    return {}


def _get_session(asked: Asked) -> Any:
    session_id = asked.path["session"]
    if session_id not in asked.tenant.sessions:
        raise ApiError(404, f"session {session_id!r} is not known here", "not_found")
    about = asked.tenant.sessions[session_id]
    return {
        "training_run_ids": [run.info.model_id for run in asked.tenant.runs_of(session_id)],
        "sampler_ids": [name for name in list(asked.tenant.samplers) if name.startswith(f"{session_id}:")],
        "user_metadata": about["user_metadata"],
        "display_name": about["display_name"],
    }


# ------------------------------------------------------------------------------------------ training


def _new_run(asked: Asked, session_id: str, number: int, **about: Any) -> ServedRun:
    asked.tenant.session(session_id)
    model_id = f"{session_id}:train:{number}"
    config = asked.service.config
    most = config.max_runs
    asked.tenant.leave_silent(config.session_seconds)
    if model_id not in asked.tenant.runs and asked.tenant.open_runs >= most:
        raise ApiError(403, f"{most} training runs of this tenant are open (max_runs)", "too_many_runs")
    return asked.tenant.create_run(RunInfo(model_id, session_id, **about))


def _create_model(asked: Asked) -> Any:
    given = validate_body(bodies.CreateModel, asked.body)
    asked.service.require_base(given.base_model)
    bodies.require_adam(given.optimizer_config.type)
    adapter = given.lora_config
    if adapter is None:
        raise InvalidInput("lora_config is missing: this server trains adapters, no whole models")
    if adapter.rank > asked.service.config.max_rank:
        raise InvalidInput(f"lora_config.rank={adapter.rank}: at most {asked.service.config.max_rank}")
    if not (adapter.train_attn or adapter.train_mlp):
        raise InvalidInput("lora_config: train_attn and train_mlp are both false, and no other layer has an adapter")
    name = f"{given.session_id}:train:{given.model_seq_id}"
    about = {
        "base_model": given.base_model,
        "rank": adapter.rank,
        "attention": adapter.train_attn,
        "mlp": adapter.train_mlp,
        "seed": seed_of(name) if adapter.seed is None else adapter.seed,
        "metadata": given.user_metadata,
    }
    run = _new_run(asked, given.session_id, given.model_seq_id, **about)
    return asked.submit(run, 0, "create_model", {})


def _load_weights(asked: Asked) -> Any:
    given = validate_body(bodies.LoadWeights, asked.body)
    if given.weights_access_token is not None:
        raise InvalidInput("weights_access_token: tenants don't share weights here")
    _, saved = asked.tenant.checkpoint(given.path)
    work = {"path": given.path, "optimizer": given.optimizer}
    if given.model_id is not None:
        return asked.submit(asked.tenant.run(given.model_id), given.seq_id or 1, "load_weights", work)
    if given.session_id is None or given.model_seq_id is None:
        raise InvalidInput("load_weights needs model_id and seq_id, or session_id and model_seq_id")
    if given.optimizer_config is not None:
        bodies.require_adam(given.optimizer_config.type)
    base = given.base_model or saved.base_model
    asked.service.require_base(base)
    about = {"rank": saved.rank, "attention": saved.attention, "mlp": saved.mlp, "metadata": given.user_metadata}
    run = _new_run(asked, given.session_id, given.model_seq_id, base_model=base, **about)
    return asked.submit(run, 0, "load_weights", work)


def _optim_step(asked: Asked) -> Any:
    given = validate_body(bodies.OptimStep, asked.body)
    if given.adam_params is None:
        bodies.require_adam(str((given.optimizer_params or {}).get("type")))
        raise InvalidInput("optim_step needs adam_params")
    run = asked.tenant.run(given.model_id)
    return asked.submit(run, given.seq_id, "optim_step", asdict(given.adam_params))


def _save_weights(asked: Asked) -> Any:
    given = validate_body(bodies.SaveWeights, asked.body)
    return asked.submit(asked.tenant.run(given.model_id), given.seq_id, "save_weights", given.model_dump())


def _save_for_sampler(asked: Asked) -> Any:
    given = validate_body(bodies.SaveWeights, asked.body)
    if given.kind != "snapshot":
        raise InvalidInput(f"kind={given.kind!r}: samplers here keep the weights that they begin with (snapshot)")
    if (given.path is None) == (given.sampling_session_seq_id is None):
        raise InvalidInput("save_weights_for_sampler needs path or sampling_session_seq_id, and not both")
    run = asked.tenant.run(given.model_id)
    return asked.submit(run, given.seq_id, "save_weights_for_sampler", given.model_dump())


def _get_info(asked: Asked) -> Any:
    info = asked.tenant.run(validate_body(bodies.OfModel, asked.body).model_id).info
    return {
        "type": "get_info",
        "model_data": {"arch": "causal_lm", "model_name": info.base_model},
        "model_id": info.model_id,
        "is_lora": True,
        "lora_rank": info.rank,
        "model_name": info.base_model,
    }


# ------------------------------------------------------------------------------------------ sampling


def _open_sampler(asked: Asked) -> Any:
    given = validate_body(bodies.SamplerBody, asked.body)
    asked.tenant.session(given.session_id)
    sampler_id = f"{given.session_id}:sample:{given.sampling_session_seq_id}"
    if sampler_id not in asked.tenant.samplers:
        path, base = given.model_path, given.base_model
        asked.tenant.keep_sampler(asked.service.resolve_sampler(asked.tenant, sampler_id, base, path))
    return {"type": "create_sampling_session", "sampling_session_id": sampler_id}


def _sample(asked: Asked) -> Any:
    given = asked.body
    if isinstance(given, dict) and given.get("sampling_session_id") is None:
        raise InvalidInput("a sample needs sampling_session_id (create_sampling_session)")
    return asked.service.submit_sample(asked.tenant, validate_body(SampleBody, given))


def _cancel(asked: Asked) -> Any:
    asked.service.cancel_sample(asked.tenant, validate_body(bodies.RetrieveFuture, asked.body).request_id)
    return {}


def _get_sampler(asked: Asked) -> Any:
    sampler = asked.tenant.sampler(asked.path["sampler"])
    return {"sampler_id": sampler.sampler_id, "base_model": sampler.base_model, "model_path": sampler.model_path}


# --------------------------------------------------------------------------- runs and saved weights


def _describe(run: ServedRun) -> dict[str, Any]:
    saved = list_checkpoints(run)
    last = {kind: [one for one in saved if one["checkpoint_type"] == kind][-1:] for kind in KINDS.values()}
    return {
        "training_run_id": run.info.model_id,
        "base_model": run.info.base_model,
        "model_owner": "",
        "is_lora": True,
        "corrupted": run.broken is not None,
        "lora_rank": run.info.rank,
        "last_request_time": stamp(run.last_request),
        "last_checkpoint": next(iter(last["training"]), None),
        "last_sampler_checkpoint": next(iter(last["sampler"]), None),
        "user_metadata": run.info.metadata,
    }


def _page(asked: Asked, found: list[Any]) -> tuple[list[Any], dict[str, int]]:
    try:
        limit, offset = int(asked.query.get("limit", 20)), int(asked.query.get("offset", 0))
    except ValueError:
        raise InvalidInput("limit and offset are numbers") from None
    return found[offset : offset + limit], {"offset": offset, "limit": limit, "total_count": len(found)}


def _list_runs(asked: Asked) -> Any:
    newest = sorted(asked.tenant.runs.values(), key=lambda run: -run.info.created)
    runs, cursor = _page(asked, newest)
    return {"training_runs": [_describe(run) for run in runs], "cursor": cursor}


def _get_run(asked: Asked) -> Any:
    return _describe(asked.run())


def _list_saved(asked: Asked) -> Any:
    return {"checkpoints": list_checkpoints(asked.run())}


def _list_all_saved(asked: Asked) -> Any:
    every = [one for run in asked.tenant.runs.values() for one in list_checkpoints(run)]
    saved, cursor = _page(asked, sorted(every, key=lambda one: str(one["time"]), reverse=True))
    return {"checkpoints": saved, "cursor": cursor}


def _saved_path(asked: Asked) -> str:
    return f"tinker://{asked.path['run']}/{asked.path['kind']}/{asked.path['name']}"


def _delete_saved(asked: Asked) -> Any:
    folder, _ = asked.tenant.checkpoint(_saved_path(asked))
    remove(folder)
    return {}


def _set_expiry(asked: Asked) -> Any:
    folder, about = asked.tenant.checkpoint(_saved_path(asked))
    seconds = validate_body(bodies.Expiry, asked.body).ttl_seconds
    set_expiry(folder, about, None if seconds is None else time.time() + seconds)
    return {}


def _weights_info(asked: Asked) -> Any:
    _, about = asked.tenant.checkpoint(validate_body(bodies.OfPath, asked.body).tinker_path)
    return {
        "base_model": about.base_model,
        "is_lora": True,
        "lora_rank": about.rank,
        "train_unembed": False,
        "train_mlp": about.mlp,
        "train_attn": about.attention,
    }


_SAVED = "training_runs/{run}/checkpoints/{kind}/{name}"
ROUTES: Mapping[tuple[str, str], Callable[[Asked], Any]] = {
    ("POST", "client/config"): _client_config,
    ("POST", "client/dynamic_config"): _dynamic_config,
    ("GET", "healthz"): _healthy,
    ("GET", "get_server_capabilities"): _capabilities,
    ("POST", "telemetry"): _telemetry,
    ("POST", "create_session"): _create_session,
    ("POST", "session_heartbeat"): _heartbeat,
    ("GET", "sessions/{session}"): _get_session,
    ("POST", "sessions/{session}/finish"): _finish_session,
    ("POST", "create_model"): _create_model,
    ("POST", "load_weights"): _load_weights,
    ("POST", "optim_step"): _optim_step,
    ("POST", "save_weights"): _save_weights,
    ("POST", "save_weights_for_sampler"): _save_for_sampler,
    ("POST", "get_info"): _get_info,
    ("POST", "create_sampling_session"): _open_sampler,
    ("POST", "asample"): _sample,
    ("POST", "cancel_future"): _cancel,
    ("GET", "samplers/{sampler}"): _get_sampler,
    ("GET", "training_runs"): _list_runs,
    ("GET", "training_runs/{run}"): _get_run,
    ("GET", "training_runs/{run}/checkpoints"): _list_saved,
    ("GET", "checkpoints"): _list_all_saved,
    ("DELETE", _SAVED): _delete_saved,
    ("PUT", f"{_SAVED}/ttl"): _set_expiry,
    ("POST", "weights_info"): _weights_info,
}
