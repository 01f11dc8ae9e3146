"""Models: found, checked, loaded and named, and how a diffusion model is sampled.

load        load_model(ModelArgs) -> LoadedModel; wrap_model for one in memory; PEFT adapters
args        ModelArgs, and what `auto` means on this machine
locate      locate(args) -> Place: where the files are, fetched from the hub where needed
checks      what can be known to be wrong before (files) and after (report, causality) a model is loaded
families    FAMILIES, register_family: published diffusion families read into transformers' own classes
diffusion   MaskPredictor: same-position logits of any diffusion model; CanvasPredictor for DiffusionGemma
samplers    sample, infill: denoising paths (MDLM, BD3LM, DiffusionGemma)
tokenizer   load_tokenizer, and names for what a tokenizer does
fingerprint fingerprint, fingerprint_module: names for weights; the table of what evidence depends on
quantised   4-bit layers, GGUF files, and CPUs that crash in low precision
attention   logits_at, send, masks, attention without copied keys
kv_cache    caches that decoding and patching need
layers      find_blocks, find_sites: a transformer's blocks and the parts of a block
batch_budget  how many texts are decoded together
foreign     transformers and code of checkpoints: quiet, in memory of our own, errors as one sentence
"""
