"""The benchmarks of adapters, in their small forms: they compare what they say, and what is to be equal is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import lora, lora_samples


@pytest.mark.slow
def test_the_small_benchmark_compares_ranks_and_two_tenants_passes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lora, "SMALL", lora.SMALL | {"vocab_size": 1024, "intermediate_size": 288})
    lora.main(["--small", "--rounds", "1"])
    printed = capsys.readouterr().out
    ranks = re.findall(r"^rank (\d+): \S+ of the seconds, (\S+) of the bytes held, (\S+) times fewer", printed, re.M)
    assert [rank for rank, _, _ in ranks] == ["1", "16"]
    assert all(0.25 < float(held) < 0.4 for _, held, _ in ranks)
    assert float(ranks[0][2]) > 10 * float(ranks[1][2]) > 10
    tenants = re.findall(
        r"^two tenants, (\d+) requests of (\d+) x 64 .* (\S+) nats apart, gradients (\S+)$", printed, re.M
    )
    assert [(requests, data) for requests, data, *_ in tenants] == [("16", "1"), ("1", "16")]
    for _, _, logprob, gradient in tenants:
        assert float(logprob) < 1e-5
        assert float(gradient) < 1e-5
    served = re.findall(r"^two tenants of a server hold (\S+) of one's bytes", printed, re.M)
    assert [1 < float(held) < 1.25 for held in served] == [True]  # with moments of both it is above that
    policies = re.findall(r"^two policies of a run hold (\S+) of one's bytes", printed, re.M)
    assert [1 < float(held) < 1.3 for held in policies] == [True]  # with a base each it is above 1.7


def test_samples_are_counted_up_to_the_step_whose_reward_is_high_enough_in_the_mean_of_five() -> None:
    assert lora_samples.reached([0.1, 0.9, 0.9, 0.9, 0.9, 0.9, 1.0]) == 6
    assert lora_samples.reached([1.0] * 4) == float("inf")


@pytest.mark.slow
def test_an_adapters_run_begins_with_the_policy_of_the_whole_models_and_a_finished_one_is_read_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--small", "--seeds", "0", "--ranks", "4", "--folder", str(tmp_path)]
    assert lora_samples.main(words) == lora_samples.main(words) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("seed 0")]
    assert re.fullmatch(r"seed 0, whole: not reached in 2 steps; reward by step: \S+ \S+", lines[0])
    assert lines[1].startswith("seed 0, rank 4: not reached in 2 steps")
    assert lines[2:] == lines[:2]
    begun = tmp_path / "rank-0-seed-0" / "checkpoints" / "step-000000" / "model.safetensors"
    assert begun.read_bytes() == (tmp_path / "rank-4-seed-0" / "model" / "model.safetensors").read_bytes()
