"""The specification: number formats, quantizers and bit-true models. Knows no hardware."""

__distribution__ = "senbazuru"
