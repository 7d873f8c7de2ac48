"""KLLM's accelerator: cycles of its commands, and when they run."""
