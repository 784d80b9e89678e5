"""The extension of agentrl's vLLM servers: `agentrl_vllm`, found by this folder's path alone."""
