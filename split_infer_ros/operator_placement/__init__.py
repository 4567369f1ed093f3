"""Decides which operator of a model runs on which processor, and what is copied between them (§3.1.2).

The command ``place`` prints a plan, and runs it with --run. A pipeline on a GPU runs its backbone as placed where
``tune`` found that to be the fastest execution form. Without a GPU, no frame passes through this package.
"""
