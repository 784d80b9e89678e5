"""The extension of agentrl's vLLM servers in their workers: `agentrl_vllm`, found by this folder's path alone."""
