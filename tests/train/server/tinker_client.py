"""What a user's program does with the public SDK: `tinker_client.py TORCH MODEL`, the addresses and keys on its input.

Prints JSON lines. After `{"kill": true}` the server may be killed and started again; one line of input says that the
order was read.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

sys.path.append(sys.argv[1])  # torch, which the SDK has no need of but for losses of one's own
import tinker  # type: ignore[import-not-found]
from tinker import types

MODEL = sys.argv[2]
DATA = ([5, 6, 7, 8, 9, 10], [5, 6, 7, 11, 12], [5, 6])
PROMPT = types.ModelInput.from_ints([5, 6, 7])
ADAM = types.AdamParams(learning_rate=1e-2, grad_clip_norm=1.0)


def say(**found: Any) -> None:
    print(json.dumps(found), flush=True)


def datum(ids: list[int], **inputs: list[float]) -> Any:
    return types.Datum(types.ModelInput.from_ints(ids[:-1]), {"target_tokens": ids[1:], **inputs})


def supervised() -> list[Any]:
    return [datum(ids, weights=[1.0] * (len(ids) - 1)) for ids in DATA]


def reinforced(logprobs: list[list[float]]) -> list[Any]:
    pairs = zip(DATA, logprobs, strict=True)
    return [datum(ids, logprobs=old, advantages=[1.0 - n] * len(old)) for n, (ids, old) in enumerate(pairs)]


def step(run: Any, data: list[Any], loss: str = "cross_entropy", **settings: Any) -> tuple[Any, Any]:
    return run.forward_backward(data, loss, **settings), run.optim_step(ADAM)


def losses(futures: list[tuple[Any, Any]]) -> list[float]:
    return [number for f, o in futures for number in (f.result().metrics["loss:sum"], o.result().metrics["grad_norm"])]


def error_of(call: Any) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


def every_loss(run: Any) -> None:
    """The losses that there are, at the policy that drew the tokens; and one of one's own."""
    before = run.forward(supervised(), "cross_entropy").result()
    old = [list(out["logprobs"].data) for out in before.loss_fn_outputs]
    found = {}
    for loss in ("importance_sampling", "ppo", "cispo", "dro"):
        futures = [step(run, reinforced(old), loss)]
        found[loss] = losses(futures)[0]
        old = [list(o["logprobs"].data) for o in run.forward(supervised(), "cross_entropy").result().loss_fn_outputs]

    def own(data: list[Any], logprobs: list[Any]) -> tuple[Any, dict[str, float]]:
        return -sum(each.sum() for each in logprobs), {"mine:sum": 1.0}

    theirs = run.forward(supervised(), "cross_entropy").result().metrics["loss:sum"]
    custom = run.forward_backward_custom(supervised(), own)
    norm = run.optim_step(ADAM).result().metrics["grad_norm"]
    say(losses=found, custom=custom.result().metrics, norm=norm, theirs=theirs)


def saved(service: Any, run: Any) -> None:
    """A second run that begins with the first one's state goes the same way."""
    path = run.save_state("one").result().path
    twice = error_of(lambda: run.save_state("one").result())
    other = service.create_training_client_from_state_with_optimizer(path).result()
    ways = [losses([step(each, supervised()) for _ in range(2)]) for each in (run, other)]
    again = service.create_training_client_from_state(path).result()
    fresh = again.forward(supervised(), "cross_entropy").result().metrics["loss:sum"]
    say(path=path, twice=twice, ways=ways, fresh=fresh, rank=other.get_info().lora_rank)


def drawn(run: Any) -> Any:
    """Samples have the log-probabilities that the trainer gives them; returns the sampler."""
    sampler = run.save_weights_and_get_sampling_client().result()
    params = types.SamplingParams(max_tokens=4, seed=3)
    found = [sampler.sample(PROMPT, 2, params, include_prompt_logprobs=True).result() for _ in range(2)]
    ids = [5, 6, 7, *found[0].sequences[0].tokens]
    scored = sampler.compute_logprobs(types.ModelInput.from_ints(ids)).result()
    trained = run.forward([datum(ids, weights=[1.0] * (len(ids) - 1))], "cross_entropy").result()
    say(
        samples=[[[list(s.tokens), list(s.logprobs)] for s in one.sequences] for one in found],
        prompt=found[0].prompt_logprobs,
        scored=scored,
        trained=list(trained.loss_fn_outputs[0]["logprobs"].data),
        base=len(sampler.sample(PROMPT, 1, types.SamplingParams(max_tokens=1)).result().sequences),
    )
    return sampler


def refused(about: dict[str, Any], service: Any, run: Any, path: str) -> None:
    """What is not there is said so, and nobody reaches another tenant's."""
    address, keys = about["address"], about["keys"]
    rest = tinker.RestClient(base_url=address, api_key=keys["a"])
    say(
        loss=error_of(lambda: run.forward_backward(supervised(), "gspo").result()),
        inputs=error_of(lambda: run.forward_backward([datum([1, 2])], "ppo").result()),
        base=error_of(lambda: service.create_lora_training_client("other/model", rank=1).result()),
        rank=error_of(lambda: service.create_lora_training_client(MODEL, rank=1000).result()),
        key=error_of(
            lambda: tinker.RestClient(base_url=address, api_key="tml-" + "x" * 32).list_training_runs().result()
        ),
        stranger=error_of(
            lambda: (
                tinker.ServiceClient(base_url=address, api_key=keys["b"])
                .create_training_client_from_state(path)
                .result()
            )
        ),
        public=error_of(lambda: rest.publish_checkpoint_from_tinker_path(path).result()),
        saved=[one.checkpoint_id for one in rest.list_checkpoints(path[9:].split("/")[0]).result().checkpoints],
        deleted=error_of(lambda: rest.delete_checkpoint_from_tinker_path(path).result()),
        gone=error_of(lambda: service.create_training_client_from_state(path).result()),
        after=run.forward(supervised(), "cross_entropy").result().metrics["loss:sum"],
    )


def killed(service: Any, other: Any, sampler: Any) -> None:
    """A run whose server is killed in the middle goes the way of one that nothing has disturbed."""
    undisturbed, run = (s.create_lora_training_client(MODEL, rank=2, seed=4).result() for s in (other, service))
    want = losses([step(undisturbed, supervised()) for _ in range(6)])
    params = types.SamplingParams(max_tokens=4, seed=3)
    before = sampler.sample(PROMPT, 2, params).result().sequences
    futures = [step(run, supervised()) for _ in range(3)]
    futures[1][1].result()
    futures.append((run.forward_backward(supervised(), "cross_entropy"), None))
    say(kill=True)
    sys.stdin.readline()
    futures[3] = (futures[3][0], run.optim_step(ADAM))
    futures += [step(run, supervised()) for _ in range(2)]
    got = losses(futures)
    after = sampler.sample(PROMPT, 2, params).result().sequences
    say(want=want, got=got, before=[list(s.tokens) for s in before], after=[list(s.tokens) for s in after])


def main() -> None:
    about = json.loads(sys.stdin.readline())
    service, other = (tinker.ServiceClient(base_url=about["address"], api_key=about["keys"][name]) for name in "ab")
    run = service.create_lora_training_client(MODEL, rank=2, seed=4).result()
    began = time.monotonic()
    say(first=losses([step(run, supervised()) for _ in range(4)]), model_id=run.model_id)
    every_loss(run)
    saved(service, run)
    sampler = drawn(run)
    refused(about, service, run, f"tinker://{run.model_id}/weights/one")
    killed(service, other, sampler)
    service.close("success").result()
    say(seconds=time.monotonic() - began)


main()
