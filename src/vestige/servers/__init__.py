"""Clients of model servers: vLLM and whatever speaks OpenAI's completions."""
