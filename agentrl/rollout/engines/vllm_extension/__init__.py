"""What agentrl's vLLM servers load into their workers: `agentrl_vllm`, found by this folder's path alone."""
