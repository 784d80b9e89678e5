"""From the text of an INI file to sections of keys and values."""

from settings.comments import strip_comment


class SettingsError(ValueError):
    """A line that is no section, no key and no continuation."""

    def __init__(self, number, line):
        super().__init__(f"line {number}: cannot read {line!r}")
        self.number = number


class Settings:
    """Sections of keys and values, all of them text."""

    def __init__(self):
        self._sections = {}

    def add(self, section, key, value):
        self._sections.setdefault(section, {})[key] = value

    def extend(self, section, key, more):
        """Add a continuation line to a value."""
        self._sections[section][key] += " " + more

    def get(self, section, key, default=None):
        return self._sections.get(section, {}).get(key.lower(), default)

    def sections(self):
        return list(self._sections)

    def keys(self, section):
        return list(self._sections.get(section, {}))


def parse(text):
    """Read the text of a file."""
    settings = Settings()
    section, key = "", None
    for number, raw in enumerate(text.splitlines(), 1):
        line = strip_comment(raw)
        if not line.strip():
            continue
        if line[0].isspace():
            if key is None:
                raise SettingsError(number, raw)
            settings.extend(section, key, line.strip())
        elif line.startswith("["):
            if not line.endswith("]"):
                raise SettingsError(number, raw)
            section, key = line[1:-1].strip(), None
        else:
            key, value = _pair(number, line)
            settings.add(section, key, value)
    return settings


def _pair(number, line):
    if "=" not in line:
        raise SettingsError(number, line)
    key, value = line.split("=")[:2]
    return key.strip().lower(), value.strip()
