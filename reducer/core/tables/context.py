"""The objects that all parts of a lane's tables share."""

from __future__ import annotations

from reducer.core.limits.budget import Budget
from reducer.core.surface.settings import LaneSettings
from reducer.core.tables.links import Links
from reducer.core.tables.works import Works


class Context:
    def __init__(self, settings: LaneSettings, budget: Budget) -> None:
        self.settings = settings
        self.crc = settings.crc32c
        self.budget = budget
        self.works = Works()
        self.links = Links()
