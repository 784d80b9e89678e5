"""Records back to text."""


def write(rows, comma=","):
    """The text of records; a field is quoted where it has to be."""
    return "".join(comma.join(_field(value, comma) for value in row) + "\n" for row in rows)


def _field(value, comma):
    text = str(value)
    if any(char in text for char in (comma, '"', "\n", "\r")):
        return '"' + text.replace('"', '""') + '"'
    return text
