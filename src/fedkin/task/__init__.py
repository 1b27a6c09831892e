"""What is learned: the kind of target, what is minimised, and how predictions are judged."""

from fedkin.task.task import KINDS, Forecast, Kind, Scale, Task, check_kind

__all__ = ["KINDS", "Forecast", "Kind", "Scale", "Task", "check_kind"]
