"""Sandboxes for model-written commands: `Sandbox` is the protocol, `SandboxSpec` what one is made of."""
