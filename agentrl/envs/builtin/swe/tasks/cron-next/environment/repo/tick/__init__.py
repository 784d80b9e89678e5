"""Schedules as cron has them."""

from tick.schedule import Schedule

__all__ = ["Schedule"]
