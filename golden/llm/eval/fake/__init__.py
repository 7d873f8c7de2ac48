"""Methods as fake quantization: values in, the values that they become out, fast."""
