"""Clients of model servers: vLLM, SGLang, llama.cpp and whatever speaks OpenAI's completions."""
