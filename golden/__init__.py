"""The specification: number formats, quantizers and bit-true models. Knows no hardware."""

from golden import command as command  # hears Ctrl-C from here on

__distribution__ = "senbazuru"
