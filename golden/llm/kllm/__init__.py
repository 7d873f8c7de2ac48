"""KLLM on a model: what the accelerator can run of it, its reference, its packs."""
