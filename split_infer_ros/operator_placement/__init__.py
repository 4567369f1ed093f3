"""Decides which operator of a model runs on which processor, and what is copied between them (paper 004, §3.1.2).

The command ``place`` prints a plan, and with --run also runs it. A pipeline on a GPU runs its backbone with placed
operators if ``tune`` found that to be the fastest execution config. Without a GPU, no frame uses this package.
"""
