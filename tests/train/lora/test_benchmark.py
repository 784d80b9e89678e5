"""The benchmark of adapters, in its small form: it compares what it says, and what it compares is equal."""

from __future__ import annotations

import re

import pytest

from benchmarks import lora


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
