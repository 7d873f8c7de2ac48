"""KLLM's accelerator: lanes, quantizer, functional unit, memories and control."""
