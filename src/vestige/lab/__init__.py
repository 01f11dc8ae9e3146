"""The embedded default: an invented corpus, tiny models trained on it, and the demo.

- corpus: make_corpus: rows about invented people and lands, from world.json and a seed
- models: build_lab: five tiny causal models; the tokenizer; how a lab is built and when a model is done
- diffusion: build_diffusion_lab: the same with masked diffusion models, one of them in LLaDA's layout
- demo: `vestige demo`
- background_worker: the demo's second core
"""
