"""What SGLang gets on its own import path; nothing here imports agentrl."""
