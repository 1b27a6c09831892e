"""What is learned: the kind of target, and how predictions are judged."""

from fedkin.task.task import Forecast, Kind, Task

__all__ = ["Forecast", "Kind", "Task"]
