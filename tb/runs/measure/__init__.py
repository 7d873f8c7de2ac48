"""What the commands of ``tb.runs`` do, where it needs torch.

``tb/runs/NAME.py`` has the options of a command, and imports ``tb/runs/measure/NAME.py`` after it
has read them. So ``--help`` and bad input are answered at once.
"""
