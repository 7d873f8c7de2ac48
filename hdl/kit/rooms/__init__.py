"""Kits, room by room: episodes of the words that ``golden.<room>.vectors`` makes.

Each module defines ``KITS``: block's name -> ``hdl.kit.words.Kit``. ``hdl.kit.kits`` imports a
module by the name of its room, and only when somebody wants a testbench. So nothing else of hdl
meets torch.
"""
