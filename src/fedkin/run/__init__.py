"""Runs: the loop, what it keeps on disk, and the ways to start and resume one."""

from fedkin.run.callbacks import Callback
from fedkin.run.loop import Run
from fedkin.run.options import Options, make_options
from fedkin.run.start import begin, make_run, resume, train, with_learning

__all__ = ["Callback", "Options", "Run", "begin", "make_options", "make_run", "resume", "train", "with_learning"]
