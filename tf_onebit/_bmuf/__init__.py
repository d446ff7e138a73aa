"""Blockwise model-update filtering (BMUF): workers train apart and synchronize once per block."""
