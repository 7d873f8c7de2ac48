"""What the commands of ``senbazuru.runs`` do, where it needs torch.

``senbazuru/runs/NAME.py`` has the options of a command, and imports
``senbazuru/runs/measure/NAME.py`` after it has read them. So ``--help`` and bad input are answered
at once.
"""
