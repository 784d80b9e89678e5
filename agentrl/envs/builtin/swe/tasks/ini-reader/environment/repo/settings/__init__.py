"""A small reader of INI files."""

from settings.reader import Settings, SettingsError, parse

__all__ = ["Settings", "SettingsError", "parse"]
