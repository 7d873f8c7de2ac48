"""The host of a KLLM accelerator: many requests share its steps (docs/host-library.md)."""
